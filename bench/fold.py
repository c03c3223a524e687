"""What the fold costs: time for each record, and memory for each view held. `python -m bench.fold [--profile]`."""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import resource
import sys
import time
from typing import Any

import msgspec

from bus import messages, names, scopes, subjects
from bus.log import Record
from bus.ops import CreatePods, PatchMetadata, PatchSandboxStatus, Target
from bus.resources import SandboxStatus
from bus.times import SECOND
from bus.views import PartitionState
from projector.fold import Partition

CLUSTER, NAMESPACE = "bench", "default"
START = 1_750_000_000 * SECOND
HEADERS = messages.headers("bench")
TARGET_MICROSECONDS = 25.0


def _metadata(name: str, uid: str, version: int, **more: Any) -> dict[str, Any]:
    managed = [{"manager": "sandlog", "operation": "Update", "time": "2026-01-01T00:00:00Z"}]
    created = "2026-01-01T00:00:00Z"
    base = {"name": name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": str(version)}
    return {**base, "creationTimestamp": created, "managedFields": managed, **more}


_ENV = [{"name": f"VARIABLE_{n}", "value": "sha256:0123456789abcdef"} for n in range(8)]
_CONTAINER = {
    "name": "sandbox",
    "image": "registry.example/sandbox/python:3.11",
    "command": ["/bin/sh", "-c", "exec /opt/opensandbox/bin/execd"],
    "env": _ENV,
    "resources": {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}},
    "volumeMounts": [{"name": "bin", "mountPath": "/opt/opensandbox/bin"}],
}


class Messages:
    """Writes the records of a stream."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.version = 1000

    def add(self, subject: str, body: messages.Body) -> int:
        sequence = len(self.records) + 1
        self.records.append(Record(subject, sequence, START + sequence * 1_000_000, HEADERS, messages.encode(body)))
        return sequence

    def seen(self, kind: str, scope: str, body: dict[str, Any]) -> int:
        meta = body["metadata"]
        raw = msgspec.Raw(msgspec.json.encode(body))
        facts = (
            {"templateDigest": "0123456789abcdef", "specDigest": "fedcba9876543210"} if kind == "batchsandbox" else {}
        )
        message = messages.Seen(1, self.version, meta["uid"], scope, raw, facts)
        return self.add(subjects.observation(0, CLUSTER, NAMESPACE, kind, meta["name"]), message)

    def sandbox(self, name: str, generation: int = 1, **more: Any) -> int:
        self.version += 1
        meta = _metadata(name, f"uid-{name}", self.version, generation=generation, **more)
        spec = {"replicas": 1, "expireTime": "2027-01-01T00:00:00Z", "template": {"spec": {"containers": [_CONTAINER]}}}
        status = {"replicas": 1, "ready": 1, "phase": "Succeed"} if "annotations" in more else {}
        return self.seen("batchsandbox", scopes.SANDBOXES.word, {"metadata": meta, "spec": spec, "status": status})

    def pod(self, sandbox: str, index: int, step: int) -> int:
        """`step`: 0 made, 1 scheduled, 2 running, 3 ready, 4 leaving."""
        self.version += 1
        owner = {"kind": "BatchSandbox", "name": sandbox, "uid": f"uid-{sandbox}", "controller": True}
        meta = _metadata(
            f"{sandbox}-{index}",
            f"uid-{sandbox}-{index}",
            self.version,
            labels={names.SANDBOX_NAME: sandbox, names.POD_INDEX: str(index)},
            annotations={names.TEMPLATE_DIGEST: "0123456789abcdef"},
            ownerReferences=[owner],
        )
        if step == 4:
            meta["deletionTimestamp"] = "2026-01-01T00:10:00Z"
        conditions = [
            {"type": t, "status": "True" if step >= 3 else "False"} for t in ("Initialized", "Ready", "PodScheduled")
        ]
        status: dict[str, Any] = {"phase": "Running" if step >= 2 else "Pending", "conditions": conditions}
        if step >= 2:
            status |= {
                "podIP": "10.1.2.3",
                "containerStatuses": [{"name": "sandbox", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
            }
        spec = {"nodeName": "node-1" if step else "", "containers": [_CONTAINER]}
        return self.seen("pod", scopes.SANDBOX_PODS.word, {"metadata": meta, "spec": spec, "status": status})

    def gone(self, kind: str, scope: str, name: str) -> None:
        self.version += 1
        message = messages.Gone(1, self.version, f"uid-{name}", scope)
        self.add(subjects.observation(0, CLUSTER, NAMESPACE, kind, name), message)

    def command(self, name: str, view: int, *ops: Any) -> None:
        place = subjects.Aggregate(CLUSTER, NAMESPACE, subjects.SANDBOX, name)
        expires = START + (len(self.records) + 60_000) * 1_000_000
        at = self.add(subjects.of_aggregate(subjects.COMMAND, 0, place), messages.Command(view, expires, "bench", ops))
        results = tuple(messages.Result(op.id, messages.DONE, f"uid-{name}", self.version + 1) for op in ops)
        self.add(subjects.of_aggregate(subjects.OUTCOME, 0, place), messages.Outcome(at, results, "bench"))


def life(stream: Messages, name: str, *, leaves: bool = True) -> None:
    """One sandbox from creation to ready, and to its end: 14 messages."""
    target = Target("batchsandbox", name, f"uid-{name}")
    at = stream.sandbox(name)
    stream.command(name, at, CreatePods(f"c-{name}", target, 1, "0123456789abcdef", {f"{name}-0": 0}))
    for step in range(4):
        at = stream.pod(name, 0, step)
    annotate = PatchMetadata(f"a-{name}", target, stream.version, {names.ENDPOINTS: '["10.1.2.3"]'})
    status = PatchSandboxStatus(
        f"s-{name}", target, stream.version, SandboxStatus(replicas=1, ready=1, phase="Succeed")
    )
    stream.command(name, at, annotate, status)
    stream.sandbox(name, annotations={names.ENDPOINTS: '["10.1.2.3"]'})
    if leaves:
        stream.sandbox(name, annotations={names.ENDPOINTS: ""}, deletionTimestamp="2026-01-01T00:10:00Z")
        stream.pod(name, 0, 4)
        stream.gone("pod", scopes.SANDBOX_PODS.word, f"{name}-0")
        stream.gone("batchsandbox", scopes.SANDBOXES.word, name)


def whole_lists(stream: Messages) -> None:
    for scope in scopes.SCOPES:
        body = messages.Listed(f"{scope.word}-{stream.version}", 1, scope.word, stream.version, {})
        stream.add(subjects.list_of(CLUSTER, scope.word), body)


def fold(records: list[Record]) -> tuple[Partition, float]:
    partition = Partition(0, 1, PartitionState(log="bench"))
    gc.collect()
    started = time.perf_counter()
    for record in records:
        folded = partition.fold(record)
        assert folded.error is None, folded.error
    return partition, time.perf_counter() - started


def best(records: list[Record], times: int = 3) -> float:
    return min(fold(records)[1] for _ in range(times))


def resident() -> int:
    """Bytes, at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=2000)
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    options = parser.parse_args(arguments)

    lives = Messages()
    whole_lists(lives)
    for n in range(options.sandboxes):
        life(lives, f"sandbox-{n:06d}")
    whole_lists(lives)
    wide = Messages()
    wide.sandbox("wide")
    for step in range(4):
        for index in range(1000):
            wide.pod("wide", index, step)

    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(fold, lives.records)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)

    rows = [("lives of sandboxes", lives.records), ("one view of 1000 pods", wide.records)]
    print(f"{'stream':<24}{'records':>10}{'bytes each':>12}{'µs each':>10}{'records/s':>12}")
    slow = False
    for title, records in rows:
        taken = best(records)
        size = sum(len(record.data) for record in records) / len(records)
        each = taken / len(records) * 1e6
        slow = slow or (records is lives.records and each > TARGET_MICROSECONDS)
        print(f"{title:<24}{len(records):>10}{size:>12.0f}{each:>10.1f}{len(records) / taken:>12,.0f}")

    standing = Messages()
    for n in range(10_000):
        life(standing, f"sandbox-{n:06d}", leaves=False)
    before = resident()
    partition, _ = fold(standing.records)
    print(f"memory of {len(partition.views):,} sandboxes: {(resident() - before) / 2**20:.0f} MiB")
    print(f"target for a typical record: {TARGET_MICROSECONDS:.0f} µs: {'missed' if slow else 'met'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
