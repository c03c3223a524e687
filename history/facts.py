"""What people want to know of an object, as named short texts, so that two observations of it can be told apart in a line.

Pure. Only what is named here is ever shown: no template, no env value, no body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from bus import names, resources

Facts = dict[str, str]
T = TypeVar("T")
_Table = Mapping[str, Callable[[T], object]]


def _conditions(conditions: tuple[resources.Condition, ...] | None) -> str:
    true = (c for c in conditions or () if c.status == "True")
    return ", ".join(f"{c.type}({c.reason})" if c.reason else c.type for c in true)


def _ready(pod: resources.Pod) -> str:
    return next((c.status for c in pod.status.conditions or () if c.type == "Ready"), "")


def _trouble(pod: resources.Pod) -> str:
    """Why a pod is not well: its own reason, else the first waiting or ended container's."""
    if pod.status.reason:
        return pod.status.reason
    for container in pod.status.container_statuses or ():
        state = container.state
        if state is not None and state.waiting is not None and state.waiting.reason not in ("", "ContainerCreating"):
            return f"{state.waiting.reason} ({container.name})"
        if state is not None and state.terminated is not None:
            return f"{state.terminated.reason or 'ended'} {state.terminated.exit_code} ({container.name})"
    return ""


_SANDBOX: Final[_Table[resources.BatchSandbox]] = {
    "generation": lambda o: o.metadata.generation,
    "replicas": lambda o: o.spec.replicas,
    "pause": lambda o: {None: "", True: "true", False: "false"}[o.spec.pause],
    "pool": lambda o: o.spec.pool_ref,
    "expireTime": lambda o: o.spec.expire_time,
    "phase": lambda o: o.status.phase,
    "observedGeneration": lambda o: o.status.observed_generation,
    "pauseObservedGeneration": lambda o: o.status.pause_observed_generation,
    "pods": lambda o: o.status.replicas,
    "ready": lambda o: o.status.ready,
    "conditions": lambda o: _conditions(o.status.conditions),
    "endpoints": lambda o: (o.metadata.annotations or {}).get(names.ENDPOINTS),
    "finalizers": lambda o: ", ".join(o.metadata.finalizers or ()),
    "deleting since": lambda o: o.metadata.deletion_timestamp,
}
_POD: Final[_Table[resources.Pod]] = {
    "node": lambda o: o.spec.node_name,
    "phase": lambda o: o.status.phase,
    "ip": lambda o: o.status.pod_ip,
    "ready": _ready,
    "trouble": _trouble,
    "restarts": lambda o: sum(c.restart_count for c in o.status.container_statuses or ()) or "",
    "deleting since": lambda o: o.metadata.deletion_timestamp,
}
_SNAPSHOT: Final[_Table[resources.SandboxSnapshot]] = {
    "of": lambda o: o.spec.sandbox_name,
    "phase": lambda o: o.status.phase,
    "pod": lambda o: o.status.source_pod_name,
    "conditions": lambda o: _conditions(o.status.conditions),
    "deleting since": lambda o: o.metadata.deletion_timestamp,
}
_POOL: Final[_Table[resources.Pool]] = {
    "generation": lambda o: o.metadata.generation,
    "total": lambda o: o.status.total,
    "allocated": lambda o: o.status.allocated,
    "available": lambda o: o.status.available,
    "revision": lambda o: o.status.revision,
    "deleting since": lambda o: o.metadata.deletion_timestamp,
}
_JOB: Final[_Table[resources.Job]] = {
    "active": lambda o: o.status.active or "",
    "succeeded": lambda o: o.status.succeeded or "",
    "failed": lambda o: o.status.failed or "",
    "deleting since": lambda o: o.metadata.deletion_timestamp,
}
_KINDS: Final[Mapping[str, tuple[type[Any], _Table[Any]]]] = {
    resources.BATCH_SANDBOX.word: (resources.BatchSandbox, _SANDBOX),
    resources.POD.word: (resources.Pod, _POD),
    resources.SANDBOX_SNAPSHOT.word: (resources.SandboxSnapshot, _SNAPSHOT),
    resources.POOL.word: (resources.Pool, _POOL),
    resources.JOB.word: (resources.Job, _JOB),
}
_decoders = {word: msgspec.json.Decoder(kind) for word, (kind, _) in _KINDS.items()}


def facts_of(kind: str, data: bytes | msgspec.Raw) -> Facts:
    """The facts of an object of this kind (a word of `bus.resources.KINDS`), those that are empty left out. Raises msgspec.DecodeError."""
    if kind not in _KINDS:
        return {}
    table = _KINDS[kind][1]
    decoded = _decoders[kind].decode(data)
    texts = {name: read(decoded) for name, read in table.items()}
    return {name: str(value) for name, value in texts.items() if value not in (None, "")}


def difference(before: Facts, after: Facts) -> str:
    """What changed, as `phase Pending → Succeed, ready 0 → 1`; '' if nothing did."""
    names_of_both = [*after, *(name for name in before if name not in after)]
    return ", ".join(
        _change(name, before.get(name, ""), after.get(name, ""))
        for name in names_of_both
        if before.get(name) != after.get(name)
    )


def _change(name: str, before: str, after: str) -> str:
    if not before:
        return f"{name} {after}"
    return f"{name} {before} → {after}" if after else f"{name} {before} gone"


def summary(facts: Facts) -> str:
    """What there is to it in one line, as of an object seen first; counts of nothing left out."""
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value != "0")
