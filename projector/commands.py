"""What is open replaces expectations (DESIGN §5): how commands, outcomes and observations open and close ops of a view. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from msgspec.structs import replace

from bus import messages, ops
from bus.messages import Command, Created, Outcome, Result
from bus.ops import Op
from bus.resources import BATCH_SANDBOX
from bus.times import SECOND
from bus.views import Failure, InFlight, Open, Reported, SandboxView, Version, View, backoff

V = TypeVar("V", bound=View)

LeftOpen = Callable[[str], "Known | None"]


class Known:
    """What is known of one object, as closing needs it."""

    __slots__ = ("deleting", "gone", "uid", "version")

    def __init__(self, version: Version, uid: str, *, gone: bool, deleting: bool) -> None:
        self.version = version
        self.uid = uid
        self.gone = gone
        self.deleting = deleting


def _is_over(
    op: Op, wait: Reported, known: Known | None, epoch: int, *, in_flight: bool = False, fresh: bool = False
) -> bool:
    """Whether an observation shows that the op took effect on this object, or no longer can.

    `fresh`: the observation is newer than the view that the op was decided from.
    """
    if known is None:
        return False
    match op:
        case ops.CreatePods():
            # A conflict is about the sandbox, not about the name: it is closed where the sandbox is observed.
            if wait.result == messages.CONFLICT:
                return False
            return known.version >= wait.version and (fresh or wait.version != (0, 0))
        case ops.DeletePod():
            return known.gone or known.deleting or known.uid != op.target.uid
        case ops.DeleteExpired() | ops.PatchMetadata() | ops.PatchSandboxStatus():
            if known.gone or known.uid != op.target.uid:
                return True
            if wait.result == messages.DONE:
                patched = not isinstance(op, ops.DeleteExpired) and known.version >= wait.version
                return patched or known.deleting
            # While its command is out, a later version may be an earlier op's of the same chain.
            past = known.version > (epoch, op.resource_version) and known.version >= wait.version
            return past and not in_flight
        case ops.RecordEvent():
            return True


def observed(view: V, key: str, known: Known, sequence: int) -> V:
    """Close what this observation of `kind/name` ends. `sequence` is its log position."""
    if not view.open:
        return view
    flying = view.in_flight is not None
    kept: list[Open] = []
    changed = False
    own = key == f"{BATCH_SANDBOX.word}/{view.name}" and isinstance(view, SandboxView)
    for item in view.open:
        waits = item.waits
        fresh = sequence > item.since
        epoch = known.version[0]
        if key in waits and fresh and _is_over(item.op, waits[key], known, epoch, in_flight=flying, fresh=True):
            waits = {k: w for k, w in waits.items() if k != key}
        if own and isinstance(item.op, ops.CreatePods):
            if known.gone or known.deleting or known.uid != item.op.sandbox.uid:
                waits = {}
            else:
                waits = {
                    k: w for k, w in waits.items() if not (w.result == messages.CONFLICT and known.version >= w.version)
                }
        if waits is not item.waits:
            changed = changed or len(waits) != len(item.waits)
            if waits:
                kept.append(replace(item, waits=waits))
        else:
            kept.append(item)
    return replace(view, open=tuple(kept)) if changed or len(kept) != len(view.open) else view


def commanded(view: V, sequence: int, command: Command | None) -> V:
    """Fold a command; None where its body cannot be read: its position counts all the same, and nothing is in flight."""
    if command is None:
        return replace(view, last_command=sequence, in_flight=None)
    open_by_id = {item.op.id: item for item in view.open}
    for op in command.ops:
        if isinstance(op, ops.UNOBSERVED):
            continue
        before = open_by_id.get(op.id)
        if before is None:
            open_by_id[op.id] = Open(op, command.view, {key: Reported() for key in ops.touches(op)})
    return replace(
        view,
        last_command=sequence,
        in_flight=InFlight(sequence, command.expires),
        open=tuple(open_by_id.values()),
    )


_ENDS: Final = frozenset({messages.FAILED, messages.UNKNOWN, messages.EARLY})
_REPEATS: Final = frozenset({messages.EXPIRED, messages.UNFINISHED})
_FINE: Final = frozenset({messages.DONE, messages.ACCEPTED})
EARLY_WAIT: Final = 1 * SECOND


def _answer(op: Op, key: str, result: Result) -> Created | Result:
    if isinstance(op, ops.CreatePods):
        return result.names.get(key.partition("/")[2], result)
    return result


def concluded(view: V, outcome: Outcome, epoch: int, left: LeftOpen) -> V:
    """Fold an outcome. `left(kind/name)` is what is known of an object now.

    An outcome of another command than the one in flight (a redelivery, a straggler) only tells what was done.
    """
    current = view.in_flight is not None and view.in_flight.sequence == outcome.command
    results = {result.id: result for result in outcome.results}
    kept: list[Open] = []
    failure = view.failure
    words: set[str] = set()
    done: set[str] = set()
    for item in view.open:
        result = results.get(item.op.id)
        if result is None:
            kept.append(item)
            continue
        waits: dict[str, Reported] = {}
        for key, wait in item.waits.items():
            answer = _answer(item.op, key, result)
            words.add(answer.result)
            if answer.result == messages.DONE:
                done.add(_tag(item.op))
            after = _answered(item.op, wait, answer, epoch, current=current)
            if after is None:
                if answer.result in (messages.FAILED, messages.UNKNOWN) and current:
                    failure = _failure(view, item.op, key, answer)
                continue
            if not _is_over(item.op, after, left(key), epoch):
                waits[key] = after
        if waits:
            kept.append(replace(item, waits=waits))
    made = replace(view, open=tuple(kept), failure=failure)
    if not current:
        return made
    words.update(result.result for result in outcome.results if not result.names)
    return _tried(replace(made, in_flight=None), words, done)


def _answered(op: Op, wait: Reported, answer: Created | Result, epoch: int, *, current: bool) -> Reported | None:
    """What to wait for after this answer; None: the op is over for this object."""
    word = answer.result
    version = (epoch, answer.resource_version) if answer.resource_version else (0, 0)
    if word == messages.DONE:
        return Reported(word, answer.uid, version)
    if not current:
        return wait
    if word in _ENDS:
        return None
    if word == messages.CONFLICT:
        if isinstance(op, ops.CreatePods) and version == (0, 0):
            return None
        return Reported(word, answer.uid, version)
    if word == messages.SKIPPED:
        return wait if isinstance(op, ops.DeletePod) else None
    if word == messages.MISSING:
        return Reported(word)
    return wait


def _failure(view: View, op: Op, key: str, answer: Created | Result) -> Failure:
    generation = op.generation if isinstance(op, ops.CreatePods) else 0
    return Failure(
        op=_tag(op),
        object=key,
        code=answer.code,
        reason=answer.reason,
        message=answer.message,
        at=view.now,
        generation=generation,
    )


def _tag(op: Op) -> str:
    return str(type(op).__struct_config__.tag)


def _tried(view: V, words: set[str], done: set[str]) -> V:
    """Count the try: an answer that was no success delays the next one.

    A refusal stands until an op of its kind succeeds, so that writing down the failure does not count as mending it.
    """
    if words & (_ENDS | _REPEATS):
        tries = view.tries + 1
        return replace(view, tries=tries, retry_at=view.now + backoff(tries))
    if view.failure is not None and view.failure.op not in done:
        return view
    if words <= _FINE and (view.tries or view.failure):
        return replace(view, tries=0, retry_at=0, failure=None)
    return view


def expired(view: V, epoch: int, left: LeftOpen) -> V:
    """Where the command in flight is past its time by the view's own clock: it is no longer out, and what is known may end its ops."""
    if view.in_flight is None or view.in_flight.expires > view.now:
        return view
    kept: list[Open] = []
    for item in view.open:
        waits = {key: wait for key, wait in item.waits.items() if not _is_over(item.op, wait, left(key), epoch)}
        if waits:
            kept.append(replace(item, waits=waits))
    tries = view.tries + 1
    return replace(view, in_flight=None, open=tuple(kept), tries=tries, retry_at=view.now + backoff(tries))


def absent(view: V, key: str, version: Version) -> V:
    """A whole list at `version` lacks this object: what a create reported at or before it is confirmed gone."""
    kept: list[Open] = []
    for item in view.open:
        wait = item.waits.get(key)
        if wait is not None and wait.result == messages.DONE and wait.version <= version:
            waits = {k: w for k, w in item.waits.items() if k != key}
            if waits:
                kept.append(replace(item, waits=waits))
        else:
            kept.append(item)
    return replace(view, open=tuple(kept)) if len(kept) != len(view.open) or kept != list(view.open) else view


def dropped_creates(view: V) -> V:
    """The aggregate's own object is leaving: open creates are no longer wanted (DESIGN §5)."""
    if not any(isinstance(item.op, ops.CreatePods) for item in view.open):
        return view
    return replace(view, open=tuple(item for item in view.open if not isinstance(item.op, ops.CreatePods)))
