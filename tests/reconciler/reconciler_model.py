"""Views to decide on, and a tiny model of what becomes of a decision: the API server and the fold in thirty lines."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bus import names
from bus.hashing import json_digest
from bus.ops import (
    CreateJob,
    CreatePods,
    CreateSnapshot,
    DeleteExpired,
    DeleteObject,
    DeletePod,
    DetachFromPool,
    Op,
    PatchMetadata,
    PatchSandboxStatus,
    PatchSnapshotStatus,
    RecordEvent,
    RewriteTemplate,
    Target,
)
from bus.resources import Condition, SandboxStatus, SnapshotContainer, SnapshotStatus
from bus.times import parse_time
from bus.views import Decision, Pod, SandboxObject, SandboxView, Snapshot
from reconciler.decide import decide
from reconciler.settings import DEFAULT

NOW = parse_time("2026-01-01T00:00:00Z") or 0
UID = "uid-a"
READY = Condition("Ready", "True", "PodsReady", "Sandbox is running", "2025-12-31T23:55:00Z")
CREATING = Condition("Progressing", "True", "Creating", "Sandbox is being created", "2025-12-31T23:59:59Z")


def pod(index: int | None = 0, version: int = 50, **fields: Any) -> Pod:
    made: dict[str, Any] = {"uid": f"uid-{index}-{version}", "owner": UID, "phase": "Pending", "index": index}
    return Pod((1, version), **(made | fields))


def ready_pod(at: int = 0, /, **fields: Any) -> Pod:
    made = {"phase": "Running", "ready": True, "ip": f"10.0.0.{at + 1}", "node": "node-1"}
    return replace(pod(at), **(made | fields))


def waiting_pod(index: int, reason: str, since: int = 0, **fields: Any) -> Pod:
    """Pending for a reason that stands since the beginning of time, or `since`."""
    return pod(index, reason=reason, since=since, node="node-1", **fields)


def pods(*each: Pod) -> dict[str, Pod]:
    return {f"a-{pod.index}": pod for pod in each}


def sandbox(**fields: Any) -> SandboxObject:
    made: dict[str, Any] = {"uid": UID, "generation": 1, "created": NOW, "has_template": True, "template": "t1"}
    return SandboxObject((1, 100), **(made | fields))


def view(object: SandboxObject | None, holds: dict[str, Pod] | None = None, **fields: Any) -> SandboxView:
    made: dict[str, Any] = {"sequence": 7, "now": NOW, "settled": True, "last_command": 3, "pause_generation": 0}
    return SandboxView("c1", "default", "a", object=object, pods=holds or {}, **(made | fields))


def running(replicas: int = 1, **fields: Any) -> SandboxView:
    """A sandbox whose pods are ready and whose status says so."""
    made = pods(*(ready_pod(index) for index in range(replicas)))
    return World(view(sandbox(replicas=replicas, **fields), made, unshown_since=NOW)).settle().view


def status(phase: str = "Succeed", counts: tuple[int, int, int] = (1, 1, 1), **fields: Any) -> SandboxStatus:
    replicas, allocated, ready = counts
    made: dict[str, Any] = {"observed_generation": 1, "pause_observed_generation": 1}
    return SandboxStatus(phase=phase, replicas=replicas, allocated=allocated, ready=ready, **(made | fields))


IMAGES = (SnapshotContainer("main", "registry/a-main:snap-gen2"),)
ME = Target("batchsandbox", "a", UID)


def snapshot(phase: str = "Succeed", **fields: Any) -> Snapshot:
    """The pause snapshot of the sandbox, made for the intent of generation 2 and of pod `uid-0-50`."""
    failed = Condition("Failed", "True", "CommitJobFailed", "Job has reached the specified backoff limit", "")
    conditions = (failed,) if phase == "Failed" else ()
    made: dict[str, Any] = {
        "name": "a-pause",
        "uid": "uid-snapshot",
        "created": NOW,
        "generation": 1,
        "sandbox": "a",
        "owner": UID,
        "finalizers": (names.SNAPSHOT_CLEANUP,),
        "intent": "2",
        "pod_name": "a-0",
        "pod_uid": "uid-0-50",
        "status": SnapshotStatus(phase, IMAGES if phase not in ("", "Pending") else None, conditions),
    }
    made |= fields
    return Snapshot(made.pop("version", (1, 80)), **made)


def kinds(decision: Decision) -> list[str]:
    """The ops of a decision in order, Events aside."""
    return [type(op).__name__ for op in decision.ops if not isinstance(op, RecordEvent)]


def of_kind(decision: Decision, kind: type[Any]) -> list[Any]:
    return [op for op in decision.ops if isinstance(op, kind)]


def written(decision: Decision) -> SandboxStatus:
    """The status that a decision writes, once."""
    (op,) = of_kind(decision, PatchSandboxStatus)
    made: SandboxStatus = op.status
    return made


def condition(status: SandboxStatus, type: str) -> tuple[str, str] | None:
    found = status.condition(type)
    return None if found is None else (found.reason, found.message)


class World:
    """A view, and what decisions make of it when all goes well."""

    def __init__(self, view: SandboxView) -> None:
        self.view = view
        self.done: list[Op] = []
        self._version = 1000

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(op.reason, op.message) for op in self.done if isinstance(op, RecordEvent)]

    @property
    def writes(self) -> list[str]:
        """What the API server was asked, Events aside; each pod is one."""
        words = []
        for op in self.done:
            if isinstance(op, CreatePods):
                words += [f"create {name}" for name in op.names]
            elif not isinstance(op, RecordEvent):
                words.append(type(op).__name__)
        return words

    def step(self, **changes: Any) -> Decision:
        """Change the view, decide, and let the decision take effect."""
        self._seen(**changes)
        decision = decide(self.view)
        for op in decision.ops:
            self.done.append(op)
            self._apply(op)
        return decision

    def settle(self, limit: int = 20) -> World:
        """Decide and wake until there is nothing to do and nothing that is due within the time for which in-between states wait."""
        for _ in range(limit):
            decision = self.step()
            if decision.wake_at is not None and decision.wake_at <= self.view.now + DEFAULT.in_between_delay:
                self._seen(now=decision.wake_at)
            elif not decision.ops:
                return self
        raise AssertionError(f"still busy: {decide(self.view)}")

    def pod(self, number: int, /, **changes: Any) -> None:
        name = f"a-{number}"
        before = self.view.pods.get(name) or pod(number)
        self._pods({name: replace(before, version=self._next(), **changes)})

    def start(self, *indices: int) -> None:
        for index in indices:
            self.pod(index, phase="Running", ready=True, ip=f"10.0.0.{index + 1}", node="node-1")

    def lose(self, name: str) -> None:
        self._pods({name: Pod(self._next(), gone=True)})

    def _pods(self, changed: dict[str, Pod]) -> None:
        since = self.view.unshown_since or self.view.now
        self._seen(pods={**self.view.pods, **changed}, unshown_since=since)

    def edit(self, **changes: Any) -> None:
        assert self.view.object is not None
        object = replace(self.view.object, version=self._next(), generation=self.view.object.generation + 1, **changes)
        self._seen(object=object, unshown_since=self.view.unshown_since or self.view.now)

    def want(self, pause: bool | None) -> None:
        """spec.pause changes, and its generation is remembered as the fold does."""
        self.edit(pause=pause)
        assert self.view.object is not None
        self._seen(pause_generation=self.view.object.generation)

    def commit(self, phase: str = "Succeed") -> None:
        """The snapshot controller brings the snapshot to this phase."""
        before = self.view.snapshot
        assert before is not None
        assert not before.gone
        self._seen(snapshot=replace(before, version=self._next(), status=snapshot(phase).status))

    @property
    def status(self) -> SandboxStatus:
        assert self.view.object is not None
        return self.view.object.status

    def _next(self) -> tuple[int, int]:
        self._version += 1
        return (1, self._version)

    def _seen(self, **changes: Any) -> None:
        self.view = replace(self.view, sequence=self.view.sequence + 1, **changes)

    def _apply(self, op: Op) -> None:
        object = self.view.object
        assert object is not None
        match op:
            case CreatePods():
                for name, index in op.names.items():
                    assert name not in self.view.live_pods(), f"{name} exists"
                    version = self._next()
                    made_of = {"containers": tuple(object.images), "images": tuple(object.images.values())}
                    self._pods({name: pod(index, version[1], template=op.template, **made_of)})
            case DeletePod():
                self.lose(op.target.name)
            case PatchMetadata():
                kept = {k: v for k, v in object.annotations.items() if k not in op.annotations}
                set_ = {k: v for k, v in op.annotations.items() if v is not None}
                finalizers = object.finalizers if op.finalizers is None else op.finalizers
                made = replace(object, annotations=kept | set_, finalizers=finalizers, version=self._next())
                self._seen(object=made)
            case PatchSandboxStatus():
                self._seen(object=replace(object, status=op.status, version=self._next()), unshown_since=0)
            case DeleteExpired():
                self._seen(object=replace(object, deleting=self.view.now, version=self._next()))
            case CreateSnapshot():
                assert self.view.snapshot is None or self.view.snapshot.gone, "a snapshot exists"
                made_of = {
                    "intent": op.intent,
                    "pod_name": op.pod.name,
                    "pod_uid": op.pod.uid,
                    "created": self.view.now,
                }
                self._seen(snapshot=snapshot("", uid=f"uid-{op.id}", version=self._next(), **made_of))
            case DeleteObject():
                self._seen(snapshot=Snapshot(self._next(), op.target.name, gone=True))
            case RewriteTemplate():
                assert op.images
                put_in = {name: names.short_image(op.images.get(name, was)) for name, was in object.images.items()}
                template = json_digest([op.images, op.pull_secret])
                pool_ref = "" if op.detach else object.pool_ref
                self._rewritten(object, template=template, images=put_in, pool_ref=pool_ref)
            case DetachFromPool():
                emptied = object.annotations | {names.ENDPOINTS: "[]"}
                self._rewritten(object, template="pooled", has_template=True, pool_ref="", annotations=emptied)
            case RecordEvent() | CreateJob() | PatchSnapshotStatus():
                pass

    def _rewritten(self, object: SandboxObject, **changes: Any) -> None:
        made = replace(object, **changes)
        if made != object:
            made = replace(made, generation=object.generation + 1, spec=f"spec-{object.generation + 1}")
            self._seen(object=replace(made, version=self._next()))


def endpoints(view: SandboxView) -> str | None:
    return None if view.object is None else view.object.annotations.get(names.ENDPOINTS)
