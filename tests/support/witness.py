"""Watches the pods of a namespace all the while: what was created how often, and whether two ever stood for one."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import aiohttp

from support.api import AGAIN, Api, Refused

INDEX = "batch-sandbox.sandbox.opensandbox.io/pod-index"


class Witness:
    """`async with Witness(api) as witness`. `born`: name → uids that bore it; `doubled`: what must not be."""

    def __init__(self, api: Api) -> None:
        self._api = Api(api.url, api.token, api.namespace)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.born: dict[str, list[str]] = {}
        self.doubled: list[str] = []

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._api.__aexit__(kind, error, trace)

    async def until_born(self, count: int, limit: float = 30.0) -> None:
        """Return when so many pods were created."""
        async with asyncio.timeout(limit):
            while len(self.born) < count:
                self._changed.clear()
                await self._changed.wait()

    async def _watch(self) -> None:
        seen: dict[str, dict[str, Any]] = {}
        while True:
            try:
                async for event in self._api.changes("Pod", seen):
                    self._look([event["object"]] if event is not None else list(seen.values()), seen)
            except (aiohttp.ClientError, OSError, Refused):
                await asyncio.sleep(AGAIN)

    def _look(self, changed: list[dict[str, Any]], seen: dict[str, dict[str, Any]]) -> None:
        for pod in changed:
            uids = self.born.setdefault(pod["metadata"]["name"], [])
            if pod["metadata"]["uid"] not in uids:
                uids.append(pod["metadata"]["uid"])
                self._look_for_a_double(pod, seen)
        self._changed.set()

    def _look_for_a_double(self, pod: dict[str, Any], seen: dict[str, dict[str, Any]]) -> None:
        place = _place(pod)
        for other in seen.values():
            if place is not None and _place(other) == place and other["metadata"]["uid"] != pod["metadata"]["uid"]:
                self.doubled.append(f"{pod['metadata']['name']} and {other['metadata']['name']} at once")


def _place(pod: dict[str, Any]) -> tuple[str, str] | None:
    """Owner and index that a living pod stands for."""
    metadata = pod["metadata"]
    index = (metadata.get("labels") or {}).get(INDEX)
    if "deletionTimestamp" in metadata or index is None or not metadata.get("ownerReferences"):
        return None
    return metadata["ownerReferences"][0]["uid"], index
