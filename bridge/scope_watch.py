"""One scope of one cluster: lists it, watches it, and tells the log what it sees.

Two tasks. The lister lists at the start, when asked and every few minutes. The watcher goes on from where it is whatever the lister does, so
that no version of an object is skipped; only a fresh list (at the start, after 410, in a new epoch) gives it another position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
import structlog

from bridge.cluster import Unreachable, WatchRefused, path_of
from bridge.epochs import Held
from bridge.listing import Collected, Page, Refused, pages
from bridge.observe import HEADROOM, Meta, NotAnObject, meta_of
from bridge.tell import Teller
from bridge.watch_events import GONE_STATUS, WatchBroken, event_of
from bridge.watch_parts import ADVICE, Parts, ScopeStatus
from bus import subjects
from bus.log import LogUnavailable
from bus.messages import NotUnderstood, encode
from bus.scopes import Scope

logger = structlog.get_logger(__name__)

LISTS_APART: Final = 1.0
"""Seconds between the beginnings of two lists of a scope, however often it is asked for."""
CATCH_UP: Final = 2.0
"""Seconds that a page of a list waits for the watch to reach its objects, so that no version in between comes after a later one."""
SHORT: Final = 1.0
"""A watch that ended after fewer seconds without an event is a failure: it must not be tried again at once."""
YIELD_EVERY: Final = 100
DOUBTFUL: Final = 3
"""With every so many failures in a row a list is taken beside the watch: it finds a restored etcd, which a watch waits for in silence."""
HOPELESS: Final = 10
"""After so many refusals in a row a fresh list gives the watch another position."""
_PAST_SAVING = frozenset((GONE_STATUS, 413, 504))
"""Statuses that the same position will be answered with again: too old, an event too large, too new."""
_REASONS = frozenset(("start", "interval", "410", "asked", "another epoch"))


class _Stale(Exception):
    """The list was requested in another epoch than it belongs to."""


class ScopeWatch:
    """`namespace` '' is all of them. `lister` and `watcher` must run, and be run again if they raise."""

    def __init__(self, scope: Scope, namespace: str, parts: Parts) -> None:
        self.scope = scope
        self.namespace = namespace
        self.listed = asyncio.Event()
        """Set once a whole list of the scope is stored."""
        self._parts = parts
        self._teller = Teller(scope, parts, self.ask)
        self._path = path_of(scope.kind, namespace)
        self._log = logger.bind(cluster=parts.cluster, scope=scope.word, namespace=namespace)
        self._state = "listing"
        self._error = ""
        self._epoch = 0
        self._position: int | None = None
        """resourceVersion up to which the watch was taken in; None: a fresh list must tell."""
        self._confirmed: int | None = None
        """The same, as far as it is stored."""
        self._turn = 0
        """Rises with each `restart`: what was begun before counts no more."""
        self._reason = "start"
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._known = asyncio.Event()
        self._cut = asyncio.Event()
        self._moved = asyncio.Event()
        self._list_begun = float("-inf")
        self._list_ended: float | None = None
        self._relist_at = float("inf")
        self._heard: float | None = None

    # What others tell it, and ask it

    def ask(self, reason: str) -> None:
        """List soon."""
        self._reason = reason
        self._wanted.set()

    def restart(self, reason: str, *, fresh: bool) -> None:
        """Go back: to a fresh list (another epoch), or to what is stored (the log lost what was not), and list."""
        self._turn += 1
        self._teller.forget()
        if fresh:
            self._confirmed = None
        self._move(self._confirmed)
        self.ask(reason)
        self._cut.set()

    def snapshot(self) -> tuple[int, int | None]:
        """What `stored` takes once all that was appended until now is stored."""
        return self._turn, None if self._teller.confirming else self._position

    def stored(self, snapshot: tuple[int, int | None]) -> None:
        turn, position = snapshot
        if turn == self._turn and position is not None:
            self._confirmed = position

    def status(self) -> ScopeStatus:
        now = asyncio.get_running_loop().time()
        age = None if self._heard is None else now - self._heard
        list_age = None if self._list_ended is None else now - self._list_ended
        return ScopeStatus(
            self.scope.word, self.namespace, self._state, age, list_age, self._position or 0, self._epoch, self._error
        )

    async def close(self) -> None:
        await self._teller.close()

    # Listing

    async def lister(self) -> None:
        self._wanted.set()  # also when it is run again: what it was about to do may be undone
        backoff = self._parts.backoff()
        while True:
            await self._due()
            try:
                await self._list(self._parts.settings.page_size)
                backoff.reset()
            except LogUnavailable:
                self.ask("the log was unavailable")
                await self._parts.outlet.usable()
            except _Stale:
                self.ask("another epoch")
            except Held as held:
                self._state, self._error = "held", str(held)
                self.ask(self._reason)
                await asyncio.sleep(held.wait)
            except (Refused, Unreachable, NotUnderstood) as error:
                self._failed("list", error)
                self.ask(self._reason)
                await asyncio.sleep(backoff.pause())

    async def _due(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._wanted.is_set():
            try:
                async with asyncio.timeout_at(self._relist_at):
                    await self._wanted.wait()
            except TimeoutError:
                self.ask("interval")
        if (wait := self._list_begun + LISTS_APART - loop.time()) > 0:
            await asyncio.sleep(wait)
        self._list_begun = loop.time()

    async def _list(self, page_size: int) -> None:
        parts = self._parts
        await parts.outlet.usable()
        epoch = await parts.epochs.read()
        self._wanted.clear()
        turn, reason = self._turn, self._reason
        collected = Collected()
        try:
            version = await self._read_pages(page_size, epoch, collected)
        except Refused as refused:
            if refused.status != GONE_STATUS or not collected.count or not page_size:
                raise
            # It was too old before its last page was read: all of it at once, as client-go does.
            collected = Collected()
            version = await self._read_pages(0, epoch, collected)
        id = f"{parts.randomness.getrandbits(64):016x}"
        limit = parts.settings.message_limit - HEADROOM
        for told in collected.messages(id, epoch, self.scope, version, self.namespace, limit):
            await parts.outlet.add(subjects.list_of(parts.cluster, self.scope.word), encode(told))
        await parts.outlet.flush()
        self._after_list(turn, epoch, version)
        self._teller.count("watch_lists", reason=reason if reason in _REASONS else "other")
        self._log.info("listed", reason=reason, objects=collected.count, resource_version=version, epoch=epoch)

    async def _read_pages(self, size: int, epoch: int, collected: Collected) -> int:
        """Read and append a list's objects; its resourceVersion. Raises _Stale, Refused, Unreachable and LogUnavailable."""
        parts, kind = self._parts, self.scope.kind.word
        highest = parts.epochs.highest(kind)
        version = 0
        async for page in pages(parts.client, self.scope, self.namespace, size=size):
            self._hear()
            if not version and not await parts.epochs.sound(kind, epoch, highest, page.resource_version):
                raise _Stale
            version = page.resource_version
            await self._take(page, epoch, collected)
        return version

    def _after_list(self, turn: int, epoch: int, version: int) -> None:
        now = asyncio.get_running_loop().time()
        spread = self._parts.randomness.uniform(0.9, 1.1)
        self._list_ended, self._relist_at = now, now + self._parts.settings.relist_interval * spread
        self._error = ""
        self.listed.set()
        if turn != self._turn:
            return  # a restart came in between; the list that it asked for will tell the position
        self._epoch = epoch
        if not self._known.is_set():
            self._confirmed = version
            self._move(version)

    async def _take(self, page: Page, epoch: int, collected: Collected) -> None:
        found: list[tuple[msgspec.Raw, Meta]] = []
        for raw in page.items:
            try:
                meta = meta_of(raw)
                collected.add(meta)
                found.append((raw, meta))
            except NotAnObject as error:
                self._teller.unreadable(error)
        position = self._position
        if position is not None and found:
            await self._reached(max(meta.version for _, meta in found))
        for number, (raw, meta) in enumerate(found, 1):
            if position is None or meta.version > position:
                self._teller.remember(raw, meta)
            await self._teller.seen(epoch, raw, meta, listed=True)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _reached(self, version: int) -> None:
        """Wait a little until the watch has taken in this resourceVersion."""
        try:
            async with asyncio.timeout(CATCH_UP):
                while self._position is not None and self._position < version:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return

    # Watching

    async def watcher(self) -> None:
        backoff, failures = self._parts.backoff(), 0
        loop = asyncio.get_running_loop()
        while True:
            await self._known.wait()
            self._cut.clear()
            self._state = "watching"
            begun, before = loop.time(), self._position
            broken: Unreachable | WatchRefused | WatchBroken | None = None
            try:
                if await self._until_cut(self._stream()):
                    continue
            except LogUnavailable:
                self._state = "waiting for the log"
                await self._parts.outlet.usable()
                continue
            except (Unreachable, WatchRefused, WatchBroken) as error:
                broken = error
            if self._position != before or (broken is None and loop.time() - begun >= SHORT):
                backoff.reset()
                failures = 0
            if broken is not None:
                failures += 1
                self._broken(broken, failures)
            if broken is not None or self._position == before:
                await asyncio.sleep(backoff.pause())

    def _broken(self, error: Unreachable | WatchRefused | WatchBroken, failures: int) -> None:
        status = _status_of(error)
        if status == GONE_STATUS:
            self._log.info("the watch's position is too old; listing", resource_version=self._position)
        else:
            self._failed("watch", error)
        reason = "410" if status == GONE_STATUS else "the watch failed"
        refused = not isinstance(error, Unreachable)
        if isinstance(error, WatchBroken) or status in _PAST_SAVING or (refused and failures >= HOPELESS):
            self._move(None)
            self.ask(reason)
        elif failures % DOUBTFUL == 0:
            self.ask(reason)

    async def _until_cut(self, stream: Coroutine[Any, Any, None]) -> bool:
        """Run it; True if a restart cut it short."""
        reading = asyncio.ensure_future(stream)
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait({reading, cut}, return_when=asyncio.FIRST_COMPLETED)
            if self._cut.is_set():
                return True
            reading.result()
            return False
        finally:
            reading.cancel()
            cut.cancel()
            await asyncio.gather(reading, cut, return_exceptions=True)

    async def _stream(self) -> None:
        settings = self._parts.settings
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._position),
            "timeoutSeconds": str(int(self._parts.randomness.uniform(1, 2) * settings.watch_timeout)),
        }
        if self.scope.selector:
            query["labelSelector"] = self.scope.selector
        turn = self._turn
        stream = self._parts.client.watch(self._path, query=query, idle_timeout=settings.idle_timeout)
        try:
            async for lines in stream:
                self._hear()
                self._state = "watching"
                for line in lines:
                    version = await self._take_event(line)
                    if turn != self._turn:
                        return  # a restart while it was appended: the position is not ours any more
                    self._position = version
                self._moved.set()
                self._parts.epochs.note(self.scope.kind.word, self._epoch, self._position or 0)
                self._teller.count("watch_events", len(lines))
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def _take_event(self, line: bytes) -> int | None:
        """Tell the log of it; the position after it. Raises WatchBroken and LogUnavailable."""
        try:
            event = event_of(line)
        except NotAnObject as error:
            self._teller.unreadable(error)
            return self._position
        if event.version < (self._position or 0):
            text = f"resourceVersion {event.version} after {self._position}: the API server's past was replaced"
            raise WatchBroken(0, text)
        if event.type in ("ADDED", "MODIFIED"):
            self._teller.remember(event.object, event.meta)
            await self._teller.seen(self._epoch, event.object, event.meta)
        elif event.type == "DELETED":
            await self._teller.deleted(self._epoch, event.meta)
        elif event.type != "BOOKMARK":
            self._log.warning("watch event of an unknown type", type=event.type[:20])
        return event.version

    # State

    def _move(self, position: int | None) -> None:
        self._position = position
        if position is None:
            self._state = "listing"
            self._known.clear()
        else:
            self._known.set()
        self._moved.set()

    def _hear(self) -> None:
        self._heard = asyncio.get_running_loop().time()

    def _failed(self, what: str, error: Exception) -> None:
        status = _status_of(error)
        advice = ADVICE.get(status, "").format(plural=self.scope.kind.plural)
        self._error = "; ".join(part for part in (f"{what}: {error}"[:300], advice) if part)
        self._state = "refused" if status else "failing"
        self._teller.count("watch_errors", what=what, status=str(status))
        self._log.warning(f"{what} failed; trying again", status=status, error=str(error)[:300], advice=advice)


def _status_of(error: Exception) -> int:
    """The HTTP status that a failure stands for; 0 for none."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, WatchRefused):
        return error.response.status
    return error.code if isinstance(error, WatchBroken) else 0
