"""What a snapshot is taken of, as its partition knows it (controller-behaviour.md §7.4, B40, B52, B57). Pure functions over views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from bus.views import NO_SOURCE, Pod, SandboxView, Snapshot, SnapshotView, Source

ENDED: Final = frozenset({"Succeed", "Failed"})
"""Phases of a snapshot that it never leaves."""
COMMITTING: Final = "Committing"


def is_open(view: SnapshotView) -> bool:
    """Whether a source still matters to this snapshot."""
    return view.object is not None and view.object.status.phase not in ENDED


def works(view: SnapshotView) -> bool:
    """Whether something of this snapshot may still hold its source pod: a Job of it, or the will to make one."""
    if is_open(view) and view.object is not None and not view.object.deleting:
        return True
    if any(not pod.gone and not pod.ended for pod in view.pods.values()):
        return True
    ended = {pod.owner for pod in view.pods.values()}
    return any(not (job.gone or job.succeeded or job.failure or job.uid in ended) for job in view.jobs.values())


def allocated(view: SandboxView) -> tuple[str, ...]:
    """The pods that a pooled sandbox names. One that was detached names none, whatever its annotations still say (B40)."""
    object = view.object
    return object.allocated if object is not None and object.pooled else ()


def source_of(snapshot: Snapshot, sandbox: SandboxView | None) -> Source:
    """The source, `busy` apart. A running pod only; the uid that the snapshot names wins, and no other then counts."""
    if sandbox is None or sandbox.object is None:
        return NO_SOURCE
    object = sandbox.object
    source = Source(uid=object.uid, generation=object.generation, leaving=bool(object.deleting))
    for name, pod in _candidates(sandbox):
        runs = pod.phase == "Running" and not (pod.gone or pod.deleting)
        if runs and snapshot.pod_uid in ("", pod.uid):
            return replace(source, pod=name, pod_uid=pod.uid, node=pod.node, containers=pod.containers)
    return source


def _candidates(sandbox: SandboxView) -> Iterable[tuple[str, Pod]]:
    assert sandbox.object is not None
    if sandbox.object.pooled:
        return [(name, sandbox.pods[name]) for name in allocated(sandbox) if name in sandbox.pods]
    uid = sandbox.object.uid
    ours = [(name, pod) for name, pod in sandbox.pods.items() if pod.owner in ("", uid)]
    # Its own before those that only carry its label, the lowest index first.
    return sorted(ours, key=lambda item: (item[1].owner != uid, item[1].index is None, item[1].index or 0, item[0]))


def sources(sandbox: SandboxView | None, snapshots: Mapping[str, SnapshotView]) -> dict[str, Source]:
    """The source of each open one of a sandbox's snapshots, by name; `snapshots` are all of them that work."""
    found = {
        name: source_of(view.object, sandbox)
        for name, view in snapshots.items()
        if view.object is not None and is_open(view)
    }
    rivals = [view for view in snapshots.values() if works(view)]
    busy = {name: _busy(snapshots[name], source, rivals, found) for name, source in found.items()}
    return {name: replace(source, busy=busy[name]) if busy[name] else source for name, source in found.items()}


def _busy(view: SnapshotView, source: Source, rivals: list[SnapshotView], found: Mapping[str, Source]) -> str:
    """The rival for this pod that goes first: who commits already, else the older. One order for all, so nobody waits in a circle."""
    if not source.pod_uid:
        return ""
    ahead = [
        rival
        for rival in rivals
        if rival.name != view.name and _turn(rival) < _turn(view) and _is_of(rival, source, found)
    ]
    return min(ahead, key=_turn).name if ahead else ""


def _turn(view: SnapshotView) -> tuple[bool, int, str]:
    object = view.object
    waits = object is not None and is_open(view) and object.status.phase != COMMITTING
    return (waits, object.created if object is not None else 0, view.name)


def _is_of(rival: SnapshotView, source: Source, found: Mapping[str, Source]) -> bool:
    theirs = found.get(rival.name)
    if theirs is not None and theirs.pod_uid == source.pod_uid:
        return True
    object = rival.object
    if object is None:
        return False
    return object.pod_uid == source.pod_uid if object.pod_uid else object.status.source_pod_name == source.pod
