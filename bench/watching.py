"""What one client sees, and when: the sandboxes and pods of a namespace, from one watch each.

A `Step` asks for something of each sandbox and notes when it was first seen to be so. Times are `time.monotonic()`, taken when the
chunk with the event has arrived.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import msgspec
from kube import Kube

GROUP = "/apis/sandbox.opensandbox.io/v1alpha1"
ENDPOINTS = "sandbox.opensandbox.io/endpoints"
NAME_LABEL = "batch-sandbox.sandbox.opensandbox.io/name"

WATCHES = 20
"""Times that a watch may end."""


class Condition(msgspec.Struct):
    type: str
    status: str = ""


class Status(msgspec.Struct):
    """Of the object, or of the API server in an ERROR event."""

    phase: str = ""
    ready: int = 0
    conditions: list[Condition] | None = None


class Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Object(msgspec.Struct):
    """As much of a sandbox or a pod as is looked at; the rest is not decoded."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    status: Status | str = msgspec.field(default_factory=Status)


class Event(msgspec.Struct):
    type: str
    object: Object


class Listed(msgspec.Struct):
    metadata: Metadata


_event = msgspec.json.Decoder(Event)
_listed = msgspec.json.Decoder(Listed)


class Sandbox(msgspec.Struct):
    """What was last seen of one."""

    phase: str = ""
    ready: int = 0
    endpoints: bool = False
    gone: bool = False


class Step:
    """Something wanted of `names`: `times` has when each was first seen so, `finished` is set when all were."""

    def __init__(self, names: Iterable[str], wanted: Callable[[Sandbox], bool]) -> None:
        self.asked: dict[str, float] = {}
        self.times: dict[str, float] = {}
        self.pods_ready: dict[str, float] = {}
        """When the first pod that was not ready before this step was seen ready."""
        self.commits: dict[str, float] = {}
        """When the pod of a commit Job was first seen to have succeeded."""
        self.finished = asyncio.Event()
        self._names = frozenset(names)
        self._wanted = wanted

    def saw(self, name: str, sandbox: Sandbox, now: float) -> None:
        if name in self._names and name in self.asked and name not in self.times and self._wanted(sandbox):
            self.times[name] = now
            if len(self.times) == len(self._names):
                self.finished.set()


class Watching:
    """Follows a namespace; `step` is what is measured now."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.step = Step((), lambda sandbox: False)
        self.resumed = 0
        """How many watches ended early. Their latencies are a client's, but no good to compare by."""
        self._kube = kube
        self._paths = {
            "sandbox": f"{GROUP}/namespaces/{namespace}/batchsandboxes",
            "pod": f"/api/v1/namespaces/{namespace}/pods",
        }
        self._sandboxes: dict[str, Sandbox] = {}
        self._ready_pods: set[str] = set()
        self._ended_jobs: set[str] = set()

    async def run(self, started: asyncio.Event) -> None:
        """Until cancelled. Raises Refused, or RuntimeError when a watch can no longer be followed."""
        versions = {kind: await self._version(path) for kind, path in self._paths.items()}
        async with asyncio.TaskGroup() as tasks:
            for kind, path in self._paths.items():
                tasks.create_task(self._follow(kind, path, versions[kind]))
            started.set()

    async def _version(self, path: str) -> str:
        return _listed.decode(await self._kube.call("GET", path + "?limit=1")).metadata.resource_version

    async def _follow(self, kind: str, path: str, version: str) -> None:
        """An API server under load cuts off a watch that it cannot write to; what follows is then seen when the next one tells it."""
        take = self._take_sandbox if kind == "sandbox" else self._take_pod
        for _ in range(WATCHES):
            async for line in self._kube.watch(path, version):
                event = _event.decode(line)
                if event.type == "ERROR":
                    raise RuntimeError(f"the watch on {kind} was refused: {line.decode(errors='replace')[:300]}")
                version = event.object.metadata.resource_version
                if event.type != "BOOKMARK":
                    take(event, time.monotonic())
            self.resumed += 1
        raise RuntimeError(f"the watch on {kind} ended {WATCHES} times; measure on a quieter machine")

    def _take_sandbox(self, event: Event, now: float) -> None:
        metadata, status = event.object.metadata, event.object.status
        assert isinstance(status, Status)
        endpoints = (metadata.annotations or {}).get(ENDPOINTS, "[]")
        seen = Sandbox(status.phase, status.ready, endpoints not in ("", "[]"), event.type == "DELETED")
        self._sandboxes[metadata.name] = seen
        self.step.saw(metadata.name, seen, now)

    def _take_pod(self, event: Event, now: float) -> None:
        metadata, status = event.object.metadata, event.object.status
        assert isinstance(status, Status)
        sandbox = (metadata.labels or {}).get(NAME_LABEL)
        if sandbox is not None:
            if metadata.uid not in self._ready_pods and _is_ready(status):
                self._ready_pods.add(metadata.uid)
                self.step.pods_ready.setdefault(sandbox, now)
        elif status.phase == "Succeeded" and metadata.uid not in self._ended_jobs:
            self._ended_jobs.add(metadata.uid)
            job = next((owner.name for owner in metadata.owner_references or () if owner.kind == "Job"), "")
            self.step.commits.setdefault(job.partition("-pause")[0], now)


def _is_ready(status: Status) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in status.conditions or ())
