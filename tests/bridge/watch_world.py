"""A cluster without sockets, a log in memory and a watcher between them, under virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from support.virtual_time import until, virtual

from bridge.cluster import Response, Unreachable, WatchRefused
from bridge.recent import Recent
from bridge.watch import Watcher, WatchSettings
from bus import messages, subjects
from bus.clock import LogClock
from bus.log import Record
from bus.log_memory import MemoryLog, MemoryStream
from bus.messages import Ask, Epoch, Gone, Listed, Seen
from bus.names import API_VERSION, SANDBOX_NAME
from simcluster.direct import DirectClient
from simcluster.store import Store

__all__ = ["CountedMetrics", "FakeCluster", "World", "eventually", "virtual"]

CLUSTER = "c1"
KEY = b"a key of the tests"
SANDBOXES = f"/apis/{API_VERSION}/namespaces/default/batchsandboxes"
BOOKMARKS = 60.0
PODS = "/api/v1/namespaces/default/pods"


async def eventually(condition: Callable[[], object], seconds: float = 600.0) -> None:
    """Wait (in virtual time) until it holds."""
    await until(condition, seconds)


class FakeCluster:
    """`ClusterClient` on a simulated store, with knobs."""

    def __init__(self, seed: int = 1) -> None:
        self.store = Store(self._now, random.Random(seed))
        self.direct = DirectClient(self.store)
        self.calls: list[tuple[str, str, dict[str, str]]] = []
        self.watches: list[tuple[str, dict[str, str]]] = []
        self.refused: dict[str, int] = {}
        """Texts in paths → the status that they are refused with."""
        self.down = False
        self.silent = False
        self.injected: dict[str, list[bytes]] = {}
        """Texts in paths → lines that the next watch of them tells before anything else."""
        self.before_list: Callable[[str], None] = lambda path: None
        self._drops = 0
        self._bell = asyncio.Event()
        self.store.observers.append(lambda _: self.ring())

    def _now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=asyncio.get_running_loop().time())

    def ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()

    def restore(self, seed: int = 1) -> None:
        """An older state of etcd: all is gone, and resourceVersions start low again."""
        self.store = Store(self._now, random.Random(seed))
        self.store.observers.append(lambda _: self.ring())
        self.direct = DirectClient(self.store)

    def drop(self) -> None:
        self._drops += 1
        self.ring()

    def _status(self, path: str) -> int:
        return next((status for text, status in self.refused.items() if text in path), 0)

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
        self.calls.append((method, path, dict(query or {})))
        await asyncio.sleep(0)
        if self.down:
            raise Unreachable("down")
        if status := self._status(path):
            return Response(status, {}, b'{"message":"refused by the test"}')
        self.before_list(path)
        status, headers, answer = self.direct.request(method, path, body, content_type, dict(query or {}))
        return Response(status, {name.lower(): value for name, value in headers.items()}, answer)

    async def watch(self, path: str, *, query: Mapping[str, str], idle_timeout: float) -> AsyncIterator[list[bytes]]:
        self.watches.append((path, dict(query)))
        drops = self._drops
        if self.down:
            raise Unreachable("down")
        if status := self._status(path):
            raise WatchRefused(Response(status, {}, b"{}"))
        watch = self.direct.watch(path, dict(query))
        if isinstance(watch, tuple):
            raise WatchRefused(Response(watch[0], {}, watch[2]))
        for text in [text for text in self.injected if text in path]:
            yield self.injected.pop(text)
        while True:
            bell = self._bell
            lines = [] if self.silent else watch.poll()
            if lines:
                yield [line.rstrip(b"\n") for line in lines]
                continue
            if watch.ended:
                return
            try:
                async with asyncio.timeout(idle_timeout if self.silent else BOOKMARKS):
                    await bell.wait()
            except TimeoutError:
                if self.silent:
                    raise Unreachable(f"silent for {idle_timeout} s") from None
                yield [watch.bookmark().rstrip(b"\n")]
            if self._drops != drops:
                raise Unreachable("dropped")

    # What users and controllers do

    def create(self, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        status, _, body = self.direct.request("POST", path, obj)
        assert status == 201, body
        return msgspec.json.decode(body, type=dict)

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, _, answer = self.direct.request("PATCH", path, body, "application/merge-patch+json")
        assert status == 200, answer
        return msgspec.json.decode(answer, type=dict)

    def delete(self, path: str) -> None:
        status, _, answer = self.direct.request("DELETE", path, {"gracePeriodSeconds": 0})
        assert status == 200, answer

    def sandbox(self, name: str, **spec: Any) -> dict[str, Any]:
        template = {"spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "hidden"}]}]}}
        body = {
            "apiVersion": API_VERSION,
            "kind": "BatchSandbox",
            "metadata": {"name": name},
            "spec": {"replicas": 1, "template": template, **spec},
        }
        return self.create(SANDBOXES, body)

    def pod(self, name: str, sandbox: str = "s", **container: Any) -> dict[str, Any]:
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {SANDBOX_NAME: sandbox}},
            "spec": {"containers": [{"name": "c", "image": "i", **container}]},
        }
        return self.create(PODS, body)


class CountedMetrics:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.counts[name] += int(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass


class World:
    """`async with World(...) as world`: a watcher runs until the block ends."""

    def __init__(
        self,
        cluster: FakeCluster | None = None,
        stream: MemoryStream | None = None,
        on_step: Any = None,
        presence: Any = None,
        **settings: Any,
    ) -> None:
        self.cluster = cluster or FakeCluster()
        self.stream = stream or MemoryStream()
        self.log = MemoryLog(self.stream, on_step=on_step)
        self.metrics = CountedMetrics()
        self.recent = Recent()
        self.watcher = Watcher(
            CLUSTER,
            self.cluster,
            self.log,
            LogClock(),
            random.Random(7),
            self.metrics,
            WatchSettings(digest_key=KEY, **settings),
            self.recent,
            presence,
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> World:
        self._task = asyncio.create_task(self.watcher.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def ready(self) -> None:
        await self.watcher.ready.wait()

    def records(self, after: int = 0) -> list[Record]:
        return self.stream.after(after)

    def bodies(self, name: str = "", after: int = 0) -> list[Any]:
        """What the log was told, of the objects of this name if one is given."""
        wanted = [r for r in self.records(after) if not name or subjects.parse(r.subject).name == name]
        return [messages.decode(record.data, record.headers, Seen | Gone | Listed | Epoch | Ask) for record in wanted]

    def seen(self, name: str, after: int = 0) -> list[Seen]:
        return [body for body in self.bodies(name, after) if isinstance(body, Seen)]

    def gone(self, name: str, after: int = 0) -> list[Gone]:
        return [body for body in self.bodies(name, after) if isinstance(body, Gone)]

    def lists(self, scope: str, after: int = 0) -> list[Listed]:
        return [body for body in self.bodies(after=after) if isinstance(body, Listed) and body.scope == scope]

    def epochs(self) -> list[Epoch]:
        return [body for body in self.bodies() if isinstance(body, Epoch)]

    def state(self, scope: str) -> str:
        return next(status.state for status in self.watcher.status() if status.scope == scope)

    async def ask(self, scope: str) -> None:
        body = Ask("a test", "to see")
        await self.log.append(subjects.ask_for(CLUSTER, scope), messages.encode(body), messages.headers("test"))
