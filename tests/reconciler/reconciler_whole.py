"""Every role for real over the memory log and a simulated cluster, in one thread under virtual time: what a pause and resume come to."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from support.virtual_time import run_virtually, until

from bridge.cluster import Response, WatchRefused
from bridge.execute import ExecuteSettings, Executor
from bridge.watch import Watcher, WatchSettings
from bus.clock import LogClock
from bus.log_memory import EPOCH, SECOND, MemoryLog, MemoryStream
from bus.membership_memory import MemoryGroups, MemoryMemberships
from bus.memory import Bell
from bus.metrics import NoMetrics
from bus.names import ALLOC_STATUS, API_VERSION, ENDPOINTS, POOL_ALLOCATION, POOL_NAME, POOL_REVISION
from bus.times import format_time
from bus.viewstore_memory import MemoryBucket, MemoryViewStore
from projector.service import Projector, ProjectorSettings
from reconciler.service import Reconciler
from reconciler.settings import Settings
from simcluster.controllers import Controllers
from simcluster.direct import DirectClient, DirectKubelet, WriteCounter
from simcluster.node import Behaviour, Node
from simcluster.store import Store

Json = dict[str, Any]
CLUSTER = "c1"
SANDBOXES = "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/batchsandboxes"
SNAPSHOTS = "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/sandboxsnapshots"
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
MERGE = "application/merge-patch+json"
NORMAL = Behaviour(start_delay=0.05, stop_delay=0.02, commit_delay=0.05)
SETTINGS = Settings(snapshot_registry="registry.test/snap", resume_pull_secret="pull")


def now() -> datetime:
    return datetime.fromtimestamp(EPOCH / SECOND + asyncio.get_running_loop().time(), UTC)


class Faults(NoMetrics):
    """Counts what a role counts as a fault of its own."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.counted[name] += int(amount)


class Client:
    """`bridge.cluster.ClusterClient`: each call takes a millisecond of virtual time."""

    def __init__(self, store: Store, bell: Bell, agent: str) -> None:
        self._direct = DirectClient(store, agent=agent)
        self._bell = bell

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Response:
        await asyncio.sleep(0.001)
        status, headers, answer = self._direct.request(method, path, body, content_type, dict(query or {}))
        return Response(status, {key.lower(): value for key, value in headers.items()}, answer)

    async def watch(self, path: str, *, query: Mapping[str, str], idle_timeout: float) -> AsyncIterator[list[bytes]]:
        watch = self._direct.watch(path, dict(query))
        if isinstance(watch, tuple):
            raise WatchRefused(Response(watch[0], {}, watch[2]))
        loop = asyncio.get_running_loop()
        while not watch.ended:
            lines = watch.poll()
            if lines:
                yield [line.rstrip(b"\n") for line in lines]
            elif not await self._bell.wait(loop.time() + 30.0):
                yield [watch.bookmark().rstrip(b"\n")]


class Whole:
    def __init__(self) -> None:
        self.store = Store(now, random.Random(7))
        self.bell = Bell()
        self.store.observers.append(lambda _: self.bell.ring())
        self.writes = WriteCounter(self.store)
        self.node = Node(NORMAL)
        self.controllers = Controllers(self.store)
        self.kubelet = DirectKubelet(self.store, self.node)
        self.user = DirectClient(self.store, agent="user")
        self.metrics = Faults()
        self.phases: list[str] = []
        self.broken: list[str] = []
        self._stream, self._bucket, self._groups = MemoryStream(partitions=2), MemoryBucket(), MemoryGroups(20.0)
        self.store.observers.append(lambda _: self._look())
        self.tasks = [asyncio.create_task(each) for each in (self._cluster(), *self._roles())]

    def _roles(self) -> list[Coroutine[Any, Any, None]]:
        def log() -> MemoryLog:
            return MemoryLog(self._stream)

        def views() -> MemoryViewStore:
            return MemoryViewStore(self._bucket)

        members, clock, chance, metrics = MemoryMemberships(self._groups), LogClock(), random.Random(3), self.metrics
        watching, executing = WatchSettings(digest_key=b"key"), ExecuteSettings(by="e", poll=5.0)
        executor = Executor(CLUSTER, self._client("executor"), log(), clock, chance, metrics, executing, None)
        projector = Projector(log(), views(), members, clock, chance, metrics, ProjectorSettings(), name="p")
        reconciler = Reconciler(log(), views(), members, clock, chance, metrics, SETTINGS, name="r")

        async def watch() -> None:
            await members.join(f"bridge.{CLUSTER}", "b")
            await Watcher(CLUSTER, self._client("bridge"), log(), clock, chance, metrics, watching).run()

        self._watch = watch
        return [watch(), executor.run(), projector.run(), reconciler.run()]

    async def without_bridge(self, act: Callable[[], object]) -> None:
        """What users do while no bridge watches: it finds only what is left of it when it is back."""
        self.tasks[1].cancel()
        await asyncio.wait([self.tasks[1]])
        act()
        self.tasks.append(asyncio.create_task(self._watch()))

    def _client(self, agent: str) -> Client:
        return Client(self.store, self.bell, agent)

    async def _cluster(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.controllers.step()
            self.kubelet.step()
            due = [at for at in (self.controllers.next_event_at(), self.kubelet.next_event_at()) if at is not None]
            wait = max(0.001, (min(due) - now()).total_seconds()) if due else None
            await self.bell.wait(None if wait is None else loop.time() + wait)

    def _look(self) -> None:
        """Judge each write as it lands (DESIGN §8.2, §8.3, §8.4)."""
        made = self.get("a")
        if made is None:
            return
        phase = made.get("status", {}).get("phase", "")
        if phase and (not self.phases or self.phases[-1] != phase):
            self.phases.append(phase)
            served = made["metadata"].get("annotations", {}).get(ENDPOINTS, "[]")
            if phase == "Paused" and served != "[]":
                self.broken.append("Paused with endpoints")
            if phase == "Succeed" and served == "[]":
                self.broken.append("Succeed without endpoints")
        if phase in ("Paused", "Resuming") and made["status"].get("conditions"):
            good = self.snapshot()
            failed = any(each["type"] == "ResumeFailed" for each in made["status"]["conditions"])
            if not failed and (good is None or "deletionTimestamp" in good["metadata"]) and self.guarded:
                self.broken.append(f"no snapshot while {phase}")

    guarded = True
    """whether a missing snapshot of a paused sandbox is a fault: not where the user deleted it"""

    # -- the user

    def create(self, name: str = "a", **spec: Any) -> None:
        template = {"spec": {"containers": [{"name": "main", "image": "busybox:1"}]}}
        body = {
            "apiVersion": API_VERSION,
            "kind": "BatchSandbox",
            "metadata": {"name": name},
            "spec": {"replicas": 1, "template": template, **spec},
        }
        self._ask("POST", SANDBOXES, body)

    def pooled(self) -> None:
        """A pod of a pool, and a sandbox that its allocation annotation gives it to (the pool controller's work, done by hand)."""
        containers = [{"name": "main", "image": "busybox:1"}]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p-1", "labels": {POOL_NAME: "p", POOL_REVISION: "r1", "app": "demo"}},
            "spec": {"containers": containers},
        }
        self._ask("POST", PODS, pod)
        meta = {"name": "a", "annotations": {ALLOC_STATUS: '{"pods":["p-1"]}'}, "finalizers": [POOL_ALLOCATION]}
        body = {
            "apiVersion": API_VERSION,
            "kind": "BatchSandbox",
            "metadata": meta,
            "spec": {"replicas": 1, "poolRef": "p"},
        }
        self._ask("POST", SANDBOXES, body)

    def edit(self, **spec: Any) -> None:
        self._ask("PATCH", f"{SANDBOXES}/a", {"spec": spec})

    def renew(self) -> None:
        seconds = asyncio.get_running_loop().time() + 36_000
        self.edit(expireTime=format_time(EPOCH + int(seconds * SECOND)))

    def delete(self, path: str = f"{SANDBOXES}/a") -> None:
        self._ask("DELETE", path)

    def _ask(self, method: str, path: str, body: Json | None = None) -> None:
        status, _, answer = self.user.request(method, path, body, MERGE if method == "PATCH" else "application/json")
        assert status < 300, answer

    def items(self, path: str) -> list[Json]:
        _, _, answer = self.user.request("GET", path)
        found: list[Json] = msgspec.json.decode(answer)["items"]
        return found

    def get(self, name: str, path: str = SANDBOXES) -> Json | None:
        status, _, answer = self.user.request("GET", f"{path}/{name}")
        found: Json | None = msgspec.json.decode(answer) if status == 200 else None
        return found

    def snapshot(self) -> Json | None:
        return self.get("a-pause", SNAPSHOTS)

    @property
    def status(self) -> Json:
        found = self.get("a")
        made: Json = {} if found is None else found.get("status", {})
        return made

    def condition(self, type: str) -> tuple[str, str] | None:
        for each in self.status.get("conditions") or []:
            if each["type"] == type:
                return each["reason"], each["message"]
        return None

    def image(self) -> str:
        (pod,) = [each for each in self.items(PODS) if each["metadata"]["name"] == "a-0"]
        found: str = pod["spec"]["containers"][0]["image"]
        return found

    async def phase(self, wanted: str, seconds: float = 20.0) -> None:
        await until(lambda: self.status.get("phase") == wanted, seconds)

    async def quiet(self, seconds: float = 5.0) -> None:
        """Nothing is written for so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + 300.0
        while loop.time() < end:
            before = self.store.resource_version
            await asyncio.sleep(seconds)
            if before == self.store.resource_version:
                return
        raise AssertionError("never quiet")

    def fail_commits(self, failing: bool) -> None:
        rule = msgspec.structs.replace(NORMAL, commit_exit_code=1 if failing else 0)
        self.node.set_rule("registry.test/snap/a-main", rule, now())

    def own_writes(self) -> Counter[tuple[str, str]]:
        """(verb, resource) of what the executor wrote, Events aside."""
        found: Counter[tuple[str, str]] = Counter()
        for (agent, verb, resource), count in self.writes.counts.items():
            if agent == "executor" and resource != "events":
                found[verb, resource] += count
        return found


def whole(test: Callable[[Whole], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test of the whole under virtual time; afterwards nothing was done that may not be, and no role failed."""

    def run() -> None:
        async def scenario() -> None:
            made = Whole()
            try:
                await test(made)
                await made.quiet()
            finally:
                for task in made.tasks:
                    task.cancel()
                ended = await asyncio.gather(*made.tasks, return_exceptions=True)
            assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []
            assert made.broken == []
            faults = ("reconciler_failed_decisions", "watch_crashes", "command_faults", "dead_letters")
            assert {name: made.metrics.counted[name] for name in faults} == dict.fromkeys(faults, 0)

        run_virtually(scenario)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run
