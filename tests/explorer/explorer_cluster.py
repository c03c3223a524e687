"""The simulated cluster of a world: store, controllers and kubelet stepped by one task of the world's own, and the roles' client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from bridge.cluster import Response, Unreachable, WatchRefused
from bus.log_memory import EPOCH, SECOND
from bus.memory import Bell, deadline_of
from simcluster.controllers import Controllers
from simcluster.direct import DirectClient, DirectKubelet
from simcluster.jobs import JobTiming
from simcluster.node import Behaviour, Node
from simcluster.store import Store

Json = dict[str, Any]
START_DELAY = 0.05
STOP_DELAY = 0.02
SLOWEST_CALL = 0.003
"""Seconds an API call takes at most, each way; how long each takes comes from the seed."""
JOB_BACKOFF = 1.0
"""Seconds before a Job's first retry: ten in a cluster, which would only make every run longer."""
BOOKMARKS = 60.0
Hook = Callable[[str, str], Awaitable[None] | None]


class SimulatedCluster:
    """`run` must run for controllers and kubelet to do anything."""

    def __init__(self, seed: int) -> None:
        self.store = Store(_now, random.Random(seed))
        self.bell = Bell()
        self.controllers = Controllers(self.store, JobTiming(backoff=JOB_BACKOFF))
        self.behaviour = Behaviour(start_delay=START_DELAY, stop_delay=STOP_DELAY)
        """Of every pod, unless a scenario changes that."""
        self.kubelet = DirectKubelet(self.store, Node(self.behaviour))
        self.user = DirectClient(self.store, agent="user")
        self.store.observers.append(lambda _: self.bell.ring())

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.controllers.step()
            self.kubelet.step()
            due = [at for at in (self.controllers.next_event_at(), self.kubelet.next_event_at()) if at is not None]
            wait = max(0.001, (min(due) - _now()).total_seconds()) if due else None
            await self.bell.wait(None if wait is None else loop.time() + wait)

    # What users do

    def objects(self, plural: str) -> list[Json]:
        return [version.obj for version in self.store.select(self._resource(plural))]

    def sandbox(self, name: str) -> Json | None:
        return next((obj for obj in self.objects("batchsandboxes") if obj["metadata"]["name"] == name), None)

    def _resource(self, plural: str) -> Any:
        return next(resource for resource in self.store.resources if resource.plural == plural)

    def ask(self, method: str, path: str, body: Json | None = None) -> Json:
        """One call of the user's; it must succeed."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        status, _, answer = self.user.request(method, path, body, kind)
        assert status < 300, answer
        decoded: Json = msgspec.json.decode(answer)
        return decoded


class RoleClient:
    """`bridge.cluster.ClusterClient` of one process. `hook` is told of each call before it reaches the server and before its answer returns."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        name: str,
        hook: Hook,
        randomness: random.Random,
        witness: Callable[[str, str, str, bytes | None, Response], None],
    ) -> None:
        self.cluster = cluster
        self._direct = DirectClient(cluster.store, agent=name)
        self._name = name
        self._hook = hook
        self._randomness = randomness
        self._witness = witness

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
        await self._step("api.before", f"{method} {path}")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self._delay()
        status, headers, answer = self._direct.request(method, path, body, content_type, dict(query or {}))
        response = Response(status, {key.lower(): value for key, value in headers.items()}, answer)
        self._witness(self._name, method, path, body, response)
        await self._step("api.after", f"{method} {path} {status}")
        await self._delay()
        if loop.time() - begun > timeout:
            raise Unreachable("no answer in time")
        return response

    async def watch(self, path: str, *, query: Mapping[str, str], idle_timeout: float) -> AsyncIterator[list[bytes]]:
        await self._delay()
        watch = self._direct.watch(path, dict(query))
        if isinstance(watch, tuple):
            raise WatchRefused(Response(watch[0], {}, watch[2]))
        deadline = asyncio.get_running_loop().time() + float(query.get("timeoutSeconds", "300"))
        while not watch.ended and asyncio.get_running_loop().time() < deadline:
            if lines := watch.poll():
                await self._delay()
                yield [line.rstrip(b"\n") for line in lines]
            elif not await self.cluster.bell.wait(deadline_of(BOOKMARKS)):
                yield [watch.bookmark().rstrip(b"\n")]

    async def _delay(self) -> None:
        await asyncio.sleep(self._randomness.uniform(0.0, SLOWEST_CALL))

    async def _step(self, kind: str, detail: str) -> None:
        waits = self._hook(kind, detail)
        if waits is not None:
            await waits


def _now() -> datetime:
    return datetime.fromtimestamp(EPOCH / SECOND + asyncio.get_running_loop().time(), UTC)
