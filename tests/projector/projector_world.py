"""A log for tests of the fold: messages as the other parts append them, with positions and times, folded as they are said."""

from __future__ import annotations

from typing import Any

import msgspec

from bus import messages, names, ops, scopes, subjects, viewcodec
from bus.log import Record
from bus.messages import Command, Epoch, Gone, Listed, Outcome, Result, Seen, Tick
from bus.subjects import Aggregate
from bus.times import SECOND, format_time
from bus.views import PartitionState, SandboxView, View
from projector.fold import Folded, Partition

CLUSTER, NAMESPACE, PARTITIONS = "c1", "default", 1
START = 1_750_000_000 * SECOND
HEADERS = messages.headers("test")
encode = msgspec.json.encode


def metadata(name: str, uid: str, rv: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": str(rv), **more}


def owner(kind: str, name: str, uid: str = "u-owner") -> list[dict[str, Any]]:
    return [{"kind": kind, "name": name, "uid": uid, "controller": True}]


def sandbox(
    rv: int,
    name: str = "s",
    uid: str = "u1",
    generation: int = 1,
    *,
    deleting: bool = False,
    pause: bool | None = None,
    **status: Any,
) -> dict[str, Any]:
    meta = metadata(name, uid, rv, generation=generation)
    if deleting:
        meta["deletionTimestamp"] = format_time(START)
    spec: dict[str, Any] = {"replicas": 1, "template": {}}
    if pause is not None:
        spec["pause"] = pause
    return {"metadata": meta, "spec": spec, "status": status}


def pod(
    rv: int,
    name: str = "s-0",
    uid: str = "p1",
    of: str = "s",
    *,
    deleting: bool = False,
    ready: bool = False,
    waiting: str = "",
    labels: dict[str, str] | None = None,
    owners: list[dict[str, Any]] | None = None,
    status: dict[str, Any] | None = None,
) -> dict[str, Any]:
    meta = metadata(name, uid, rv)
    meta["labels"] = {names.SANDBOX_NAME: of} if labels is None else labels
    meta["ownerReferences"] = owner("BatchSandbox", of, "u1") if owners is None else owners
    if deleting:
        meta["deletionTimestamp"] = format_time(START)
    made: dict[str, Any] = {"phase": "Running" if ready else "Pending"}
    if ready:
        made |= {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    if waiting:
        made["containerStatuses"] = [{"name": "main", "state": {"waiting": {"reason": waiting}}}]
    return {"metadata": meta, "spec": {"nodeName": "n1" if ready else ""}, "status": status or made}


SCOPE_OF = {
    "batchsandbox": scopes.SANDBOXES.word,
    "pool": scopes.POOLS.word,
    "sandboxsnapshot": scopes.SNAPSHOTS.word,
    "pod": scopes.SANDBOX_PODS.word,
    "job": scopes.COMMIT_JOBS.word,
}


class Story:
    """Says messages one after the other to a partition; each a second after the last, unless told otherwise."""

    def __init__(self, number: int = 0, partitions: int = PARTITIONS, cluster: str = CLUSTER) -> None:
        self.partition = Partition(number, partitions, PartitionState(log="log-1"))
        self.cluster = cluster
        self.records: list[Record] = []
        self.sequence = 0
        self.time = START
        self.epoch = 1

    # -- saying

    def say(self, subject: str, data: bytes, *, after: float = 1.0, headers: dict[str, str] | None = None) -> Folded:
        self.sequence += 1
        self.time += int(after * SECOND)
        record = Record(subject, self.sequence, self.time, HEADERS if headers is None else headers, data)
        self.records.append(record)
        return self.partition.fold(record)

    def part(self, namespace: str) -> int:
        return subjects.partition_of(self.cluster, namespace, self.partition.partitions)

    def seen(
        self,
        kind: str,
        obj: dict[str, Any],
        *,
        scope: str | None = None,
        epoch: int | None = None,
        after: float = 1.0,
        **more: Any,
    ) -> Folded:
        meta = obj["metadata"]
        body = Seen(
            self.epoch if epoch is None else epoch,
            int(meta["resourceVersion"]),
            meta["uid"],
            scope or SCOPE_OF[kind],
            msgspec.Raw(encode(obj)),
            **more,
        )
        namespace = meta.get("namespace", NAMESPACE)
        return self.say(
            subjects.observation(self.part(namespace), self.cluster, namespace, kind, meta["name"]),
            messages.encode(body),
            after=after,
        )

    def gone(
        self, kind: str, name: str, rv: int, uid: str = "p1", *, scope: str | None = None, namespace: str = NAMESPACE
    ) -> Folded:
        body = Gone(self.epoch, rv, uid, scope or SCOPE_OF[kind])
        return self.say(
            subjects.observation(self.part(namespace), self.cluster, namespace, kind, name), messages.encode(body)
        )

    def listed(
        self,
        scope: str,
        rv: int,
        objects: dict[str, list[tuple[str, str, int]]] | None = None,
        *,
        id: str | None = None,
        namespace: str = "",
        chunk: int = 1,
        chunks: int = 1,
        epoch: int | None = None,
    ) -> Folded:
        body = Listed(
            id or f"{scope}@{rv}",
            self.epoch if epoch is None else epoch,
            scope,
            rv,
            objects or {},
            namespace,
            chunk,
            chunks,
        )
        return self.say(subjects.list_of(self.cluster, scope), messages.encode(body))

    def list_all(self, rv: int, **objects: list[tuple[str, str, int]]) -> None:
        """Whole lists of every scope at `rv`; by kind what is there in NAMESPACE (pods: those of sandboxes)."""
        for scope in scopes.SCOPES:
            own = SCOPE_OF[scope.kind.word] == scope.word
            there = objects.get(scope.kind.word, []) if own else []
            self.listed(scope.word, rv, {NAMESPACE: there} if there else {})

    def raised(self, epoch: int, uid: str = "ks") -> Folded:
        self.epoch = epoch
        return self.say(subjects.epoch_of(self.cluster), messages.encode(Epoch(epoch, uid, "restored")))

    def command(
        self, *wanted: ops.Op, view: int | None = None, lasts: float = 30.0, name: str = "s", after: float = 1.0
    ) -> int:
        at = self.sandbox(name).sequence if view is None else view
        body = Command(at, self.time + int((after + lasts) * SECOND), "test", wanted)
        self.say(self._of(subjects.COMMAND, name), messages.encode(body), after=after)
        return self.sequence

    def outcome(self, command: int, *results: Result, name: str = "s", after: float = 1.0) -> Folded:
        return self.say(self._of(subjects.OUTCOME, name), messages.encode(Outcome(command, results)), after=after)

    def tick(self, due: int, name: str = "s", after: float = 1.0) -> Folded:
        return self.say(self._of(subjects.TICK, name), messages.encode(Tick(due, 0)), after=after)

    def _of(self, message: str, name: str, kind: str = subjects.SANDBOX) -> str:
        aggregate = Aggregate(self.cluster, NAMESPACE, kind, name)
        return subjects.of_aggregate(message, self.part(NAMESPACE), aggregate)

    # -- looking

    def view(self, kind: str, name: str) -> View | None:
        return self.partition.views.get(Aggregate(self.cluster, NAMESPACE, kind, name))

    def sandbox(self, name: str = "s") -> SandboxView:
        found = self.view(subjects.SANDBOX, name)
        assert isinstance(found, SandboxView)
        return found

    def scope(self, word: str, namespace: str = "") -> Any:
        return self.partition.state.clusters[self.cluster].scopes[f"{word}/{namespace}"]


def stored(partition: Partition) -> dict[str, bytes]:
    """All that a partition is, as bytes under keys."""
    keys: dict[str, bytes] = {subjects.fence_key(partition.number): viewcodec.encode_fence(partition.state)}
    for view in partition.views.values():
        for key, data in viewcodec.encode(partition.number, view, None).items():
            assert data is not None
            keys[key] = data
    return keys


def reloaded(partition: Partition) -> Partition:
    """As a projector finds it after a restart."""
    keys = stored(partition)
    state = viewcodec.decode_fence(keys[subjects.fence_key(partition.number)])
    return Partition(partition.number, partition.partitions, state, dict(viewcodec.assemble(keys)))


def create(*indices: int, id: str = "op1", sandbox: str = "s", uid: str = "u1", generation: int = 1) -> ops.CreatePods:
    target = ops.Target("batchsandbox", sandbox, uid)
    return ops.CreatePods(id, target, generation, "digest", {f"{sandbox}-{i}": i for i in indices})


def delete(name: str = "s-0", uid: str = "p1", id: str = "del1") -> ops.DeletePod:
    return ops.DeletePod(id, ops.Target("pod", name, uid))


def annotate(rv: int, id: str = "ann1", uid: str = "u1", name: str = "s") -> ops.PatchMetadata:
    return ops.PatchMetadata(id, ops.Target("batchsandbox", name, uid), rv, {names.ENDPOINTS: "[]"})


def patch_status(rv: int, id: str = "st1", uid: str = "u1", name: str = "s") -> ops.PatchSandboxStatus:
    from bus.resources import SandboxStatus

    return ops.PatchSandboxStatus(id, ops.Target("batchsandbox", name, uid), rv, SandboxStatus(phase="Succeed"))


def open_ids(view: View) -> set[str]:
    return {item.op.id for item in view.open}
