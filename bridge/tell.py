"""Tells the log what one scope sees of single objects: that they are there, that they are gone, or what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from bridge.cluster import Unreachable, path_of
from bridge.observe import Message, Meta, NotAnObject, meta_of
from bridge.recent import Whole
from bridge.watch_parts import Parts
from bus.log import LogUnavailable, MessageTooLarge
from bus.scopes import SANDBOXES, Scope

logger = structlog.get_logger(__name__)

CONFIRMATIONS: Final = 16
"""Live reads at once, of objects that seem to be deleted."""
CONFIRM_TRIES: Final = 5


class Teller:
    """`on_doubt` is called when only a list can tell."""

    def __init__(self, scope: Scope, parts: Parts, on_doubt: Callable[[str], None]) -> None:
        self.scope = scope
        self._parts = parts
        self._on_doubt = on_doubt
        self._recent = parts.recent if scope is SANDBOXES else None
        self._log = logger.bind(cluster=parts.cluster, scope=scope.word)
        self._confirming: set[asyncio.Task[None]] = set()

    @property
    def confirming(self) -> bool:
        """Whether something is on its way to the log that the position of the watch has passed."""
        return bool(self._confirming)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self._parts.metrics.count(name, amount, cluster=self._parts.cluster, scope=self.scope.word, **labels)

    def remember(self, raw: msgspec.Raw, meta: Meta) -> None:
        """Keep a BatchSandbox whole for the executor in this process."""
        if self._recent is not None:
            whole = Whole(meta.uid, meta.version, meta.generation, bytes(raw))
            self._recent.put(meta.namespace, meta.name, whole)

    async def seen(self, epoch: int, raw: msgspec.Raw, meta: Meta, *, listed: bool = False) -> None:
        """Raises LogUnavailable; so do the others."""
        await self._append(lambda: self._parts.observer.seen(self.scope, epoch, raw, meta, listed=listed))

    async def gone(self, epoch: int, meta: Meta) -> None:
        await self._append(lambda: self._parts.observer.gone(self.scope, epoch, meta))

    async def deleted(self, epoch: int, meta: Meta) -> None:
        """A DELETED event: with a label selector it may only have left the selector, so a live read tells.

        The reads overtake each other and the watch; the fold goes by (epoch, resourceVersion), so their order does not matter.
        """
        if self._recent is not None:
            self._recent.drop(meta.namespace, meta.name)
        if not self.scope.selector or meta.deletion_timestamp:
            # What was being deleted is gone now, or goes before anybody could miss it. What only left a selector was not.
            await self.gone(epoch, meta)
            return
        while len(self._confirming) >= CONFIRMATIONS:
            await asyncio.wait(self._confirming, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._confirm(epoch, meta))
        self._confirming.add(task)
        task.add_done_callback(self._confirmed)

    def unreadable(self, error: Exception) -> None:
        """One malformed or huge object harms only itself (DESIGN §8.7)."""
        self._log.error("an object cannot be told to the log; it is skipped", error=str(error)[:300])
        self.count("watch_unreadable")

    def forget(self) -> None:
        """What is being confirmed counts no more: a list follows."""
        for task in self._confirming:
            task.cancel()

    async def close(self) -> None:
        self.forget()
        await asyncio.gather(*self._confirming, return_exceptions=True)

    async def _confirm(self, epoch: int, meta: Meta) -> None:
        backoff = self._parts.backoff()
        path = path_of(self.scope.kind, meta.namespace, meta.name)
        for _ in range(CONFIRM_TRIES):
            try:
                response = await self._parts.client.request("GET", path)
            except Unreachable:
                await asyncio.sleep(backoff.pause())
                continue
            if response.status == 404:
                await self.gone(epoch, meta)
                return
            if response.status == 200:
                await self._found(epoch, meta, msgspec.Raw(response.body))
                return
            await asyncio.sleep(backoff.pause())
        self._on_doubt("a deletion could not be confirmed")

    async def _found(self, epoch: int, meta: Meta, raw: msgspec.Raw) -> None:
        live = meta_of(raw)
        if live.uid == meta.uid:
            await self.seen(epoch, raw, live)
        else:
            await self.gone(epoch, meta)

    def _confirmed(self, task: asyncio.Task[None]) -> None:
        self._confirming.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if not isinstance(error, LogUnavailable):  # that restarts the scope by itself
            self._log.error("a deletion could not be confirmed", error=repr(error)[:300])
            self.count("watch_errors", what="confirm", status="0")
        self._on_doubt("a deletion could not be confirmed")

    async def _append(self, make: Callable[[], Message]) -> None:
        parts = self._parts
        parts.observer.partitions = parts.outlet.partitions
        try:
            message = make()
            await parts.outlet.add(message.subject, message.data)
        except (NotAnObject, MessageTooLarge) as error:
            self.unreadable(error)
            return
        if message.reduced:
            self.count("watch_reduced")
