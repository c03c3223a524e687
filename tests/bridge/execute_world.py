"""An executor's surroundings in one thread under virtual time: a memory log, a simulated API server without sockets, faults on demand."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from support.virtual_time import run_virtually, until

from bridge.cluster import Response, Unreachable
from bridge.execute import ExecuteSettings, Executor
from bridge.recent import Recent, Whole
from bus.clock import LogClock
from bus.hashing import template_digest
from bus.log import Record
from bus.log_memory import EPOCH, SECOND, MemoryLog, MemoryStream
from bus.messages import Command, Outcome, Result, decode, encode, headers
from bus.ops import CreatePods, Op, Target
from bus.subjects import Aggregate, of_aggregate, partition_of
from bus.version import CODE_VERSION
from simcluster.direct import DirectClient
from simcluster.store import Store

__all__ = ["Client", "Fault", "Figures", "World", "run_virtually", "status", "until"]

CLUSTER = "c1"
NAMESPACE = "default"
SANDBOXES = "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/batchsandboxes"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "busybox:1"}]}}


class Figures:
    """Metrics that tests look at."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.names: set[str] = set()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.counts[(name, *labels.values())] += int(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.names.add(name)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.counts[(name, *labels.values())] += 1


class Fault(msgspec.Struct):
    """What happens instead of a call, once. `lost`: no answer; `applied`: the call takes effect first."""

    method: str
    path: str
    response: Response | None = None
    lost: bool = False
    applied: bool = False
    before: Callable[[], None] | None = None


class Client:
    """`bridge.cluster.ClusterClient` over the store. `calls` are (method, path), in order; a call takes `latency` seconds."""

    def __init__(self, store: Store) -> None:
        self.direct = DirectClient(store, agent="executor")
        self.calls: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        self.latency = 0.0
        self.running = 0
        self.most = 0
        self.hold: Callable[[str, str], Awaitable[None]] | None = None

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
        self.calls.append((method, path))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.latency:
                await asyncio.sleep(self.latency)
            if self.hold is not None:
                await self.hold(method, path)
            fault = self._fault(method, path)
            if fault is not None and fault.before is not None:
                fault.before()
            if fault is not None and not fault.applied and (fault.lost or fault.response is not None):
                return self._instead(fault)
            status, given, answer = self.direct.request(method, path, body, content_type, dict(query or {}))
            if fault is not None and fault.applied:
                return self._instead(fault)
            return Response(status, {key.lower(): value for key, value in given.items()}, answer)
        finally:
            self.running -= 1

    def watch(self, path: str, *, query: Mapping[str, str], idle_timeout: float) -> AsyncIterator[list[bytes]]:
        raise NotImplementedError

    def _fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.method == method and path.endswith(fault.path):
                self.faults.remove(fault)
                return fault
        return None

    def _instead(self, fault: Fault) -> Response:
        if fault.lost:
            raise Unreachable("no answer")
        assert fault.response is not None
        return fault.response


def status(code: int, reason: str, message: str = "", given: Mapping[str, str] | None = None, **more: Any) -> Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code, **more}
    return Response(code, given or {}, msgspec.json.encode(body))


class World:
    def __init__(self, settings: ExecuteSettings | None = None, *, seen: bool = False) -> None:
        """`seen`: a watch in the same process has put the sandboxes into `recent`."""
        loop = asyncio.get_running_loop()
        self.stream = MemoryStream(partitions=64)
        self.log = MemoryLog(self.stream)
        self.store = Store(lambda: datetime.fromtimestamp(EPOCH / SECOND + loop.time(), UTC), random.Random(1))
        self.client = Client(self.store)
        self.direct = DirectClient(self.store)
        self.metrics = Figures()
        self.recent = Recent()
        self._seen = seen
        self.settings = settings or ExecuteSettings(by="test")
        self.executor = self.another()
        self._running: asyncio.Task[None] | None = None

    def another(self) -> Executor:
        return Executor(
            CLUSTER, self.client, self.log, LogClock(), random.Random(1), self.metrics, self.settings, self.recent
        )

    async def __aenter__(self) -> World:
        self._running = asyncio.create_task(self.executor.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self.executor.stop()
        await self._running

    # --- the cluster

    def sandbox(self, name: str = "a", **spec: Any) -> dict[str, Any]:
        body = {
            "apiVersion": "sandbox.opensandbox.io/v1alpha1",
            "kind": "BatchSandbox",
            "metadata": {"name": name},
            "spec": {"replicas": 1, "template": TEMPLATE, **spec},
        }
        return self.put(SANDBOXES, body)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        code, _, answer = self.direct.request("POST", path, body)
        assert code == 201, answer
        made: dict[str, Any] = msgspec.json.decode(answer)
        if self._seen and path == SANDBOXES:
            meta = made["metadata"]
            whole = Whole(meta["uid"], int(meta["resourceVersion"]), meta["generation"], answer)
            self.recent.put(NAMESPACE, meta["name"], whole)
        return made

    def get(self, path: str) -> dict[str, Any] | None:
        code, _, answer = self.direct.request("GET", path)
        if code == 404:
            return None
        assert code == 200, answer
        found: dict[str, Any] = msgspec.json.decode(answer)
        return found

    def change(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        code, _, answer = self.direct.request("PATCH", path, patch, "application/merge-patch+json")
        assert code == 200, answer
        changed: dict[str, Any] = msgspec.json.decode(answer)
        return changed

    def items(self, path: str) -> list[dict[str, Any]]:
        found = self.get(path)
        assert found is not None
        items: list[dict[str, Any]] = found["items"]
        return items

    # --- the log

    def now(self) -> int:
        return EPOCH + int(asyncio.get_running_loop().time() * SECOND)

    async def command(self, *ops: Op, name: str = "a", lasts: float = 60.0) -> int:
        body = Command(view=1, expires=self.now() + int(lasts * SECOND), reason="test", ops=ops)
        return await self.raw(encode(body), headers(CODE_VERSION), name)

    async def raw(self, data: bytes, given: Mapping[str, str], name: str = "a") -> int:
        aggregate = Aggregate(CLUSTER, NAMESPACE, "sandbox", name)
        return await self.log.append(of_aggregate("cmd", partition_of(CLUSTER, NAMESPACE, 64), aggregate), data, given)

    async def records(self, message: str, name: str = "*") -> list[Record]:
        return await self.log.read([f"log.*.{CLUSTER}.{NAMESPACE}.{message}.sandbox.{name}"])

    async def outcomes(self, count: int = 1) -> list[Outcome]:
        """The first `count` outcomes, as soon as they are there; then whatever more there is."""
        found: list[Record] = []

        async def enough() -> bool:
            found[:] = await self.records("out")
            return len(found) >= count

        await until(enough)
        return [decode(record.data, record.headers, Outcome) for record in found]

    async def results(self, *ops: Op, **more: Any) -> tuple[Result, ...]:
        """What becomes of one command."""
        before = len(await self.records("out"))
        await self.command(*ops, **more)
        return (await self.outcomes(before + 1))[-1].results

    async def result(self, op: Op, **more: Any) -> Result:
        (result,) = await self.results(op, **more)
        return result


def target(made: dict[str, Any]) -> Target:
    return Target(made["kind"].lower(), made["metadata"]["name"], made["metadata"]["uid"])


def version(made: dict[str, Any]) -> int:
    return int(made["metadata"]["resourceVersion"])


def create_pods(sandbox: dict[str, Any], *indices: int, id: str = "op", **changes: Any) -> CreatePods:
    name = sandbox["metadata"]["name"]
    fields = {
        "generation": sandbox["metadata"]["generation"],
        "template": template_digest(sandbox["spec"]),
        "names": {f"{name}-{index}": index for index in indices},
        **changes,
    }
    return CreatePods(id, target(sandbox), **fields)
