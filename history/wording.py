"""Ops and their results in words. Pure."""

from __future__ import annotations

from bus import messages, ops
from bus.times import format_time


def _short(uid: str) -> str:
    return uid[:8]


def _several(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def op_text(op: ops.Op) -> str:
    """What an op asks for, in a few words."""
    match op:
        case ops.CreatePods():
            return f"create {'pod' if len(op.names) == 1 else 'pods'} {_several(sorted(op.names, key=op.names.__getitem__))}"
        case ops.DeletePod():
            return f"delete {op.target} (uid {_short(op.target.uid)})"
        case ops.PatchMetadata():
            changed = [name.rpartition("/")[2] for name in op.annotations]
            what = [f"annotations {', '.join(changed)}"] if changed else []
            if op.finalizers is not None:
                what.append(f"finalizers [{', '.join(op.finalizers)}]")
            return f"write {' and '.join(what) or 'metadata'}"
        case ops.PatchSandboxStatus():
            status = op.status
            return f"write status: phase {status.phase or '-'}, ready {status.ready}/{status.replicas}"
        case ops.DeleteExpired():
            return f"delete {op.target}, expired at {format_time(op.expire_time)}"
        case ops.CreateSnapshot():
            return f"create sandboxsnapshot {op.name} of {op.pod} (uid {_short(op.pod.uid)}) for generation {op.intent}"
        case ops.CreateJob():
            containers = ", ".join(op.images)
            return f"create job {op.name} to {op.action} {containers} of {op.pod} on node {op.node or '-'}"
        case ops.PatchSnapshotStatus():
            return f"write status of {op.target}: phase {op.status.phase or '-'}"
        case ops.DeleteObject():
            return f"delete {op.target} (uid {_short(op.target.uid)})"
        case ops.RewriteTemplate():
            images = ", ".join(f"{name}={image}" for name, image in op.images.items())
            return f"write template: {images or 'no images'}" + (", and detach from the pool" if op.detach else "")
        case ops.DetachFromPool():
            return f"detach {op.target} from its pool, with the template of {op.pod}"
        case ops.RecordEvent():
            return f"record event {op.type}/{op.reason}: {op.message}"


def result_text(result: messages.Result) -> str:
    """What became of an op: `done`, or why not, with what a CreatePods says of single pods."""
    parts = [_word(result.result, result.code, result.reason, result.message)]
    bad = {name: made for name, made in result.names.items() if made.result != messages.DONE}
    parts += [
        f"{name}: {_word(made.result, made.code, made.reason, made.message)}" for name, made in sorted(bad.items())
    ]
    return "; ".join(parts)


def _word(result: str, code: int, reason: str, message: str) -> str:
    detail = " ".join(part for part in (str(code) if code else "", reason) if part)
    text = f"{result} ({detail})" if detail else result
    return f"{text}: {message}" if message else text
