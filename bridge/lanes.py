"""Who may call the API server next: few calls at a time, and what makes a sandbox ready before what creates one (DESIGN §7).

This order alone divided the lag of a burst by three, and few creates at a time did better than many: what is created faster than it can be
made ready only waits longer (docs/performance.md). Within a lane, who began first goes first: the second write of a sandbox before the
first of another.
Deterministic: the order of grants follows from the order of requests and the loop's clock.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import Final

import msgspec

from bridge.create_limit import CreateLimit


class Priority(IntEnum):
    READY = 0
    """What a user waits for and what brings nothing more to do: endpoints, status, the objects of a snapshot."""
    DELETE = 1
    CREATE = 2
    EVENT = 3
    """What nobody waits for."""


_CALLS: Final = (Priority.READY, Priority.DELETE, Priority.CREATE)
_AGED_SHARE: Final = 4
"""While someone has waited for longer than `aging`, every fourth grant goes to who has waited longest: nobody starves, and a long
queue of creates does not turn the order into first come, first served."""


class LanesSettings(msgspec.Struct, frozen=True):
    """Calls at a time, and seconds."""

    limit: int = 24
    creates: int = 8
    """of these, creates, as long as they wait for each other in the API server; …"""
    most_creates: int = 12
    """… and where they do not (`bridge.create_limit`)"""
    aging: float = 2.0
    event_delay_limit: float = 5.0
    """An Event that has waited for so long takes its turn with the others (in a third of the places at most)."""
    quiet: int = 3
    """Events go only while fewer calls than this run, nothing else waits, and …"""
    idle: float = 0.25
    """… no other call has ended for so long: in the pauses of a burst they would slow down what comes next."""


class _Waiter:
    __slots__ = ("granted", "number", "since")

    def __init__(self, since: float, number: int) -> None:
        self.since = since
        self.number = number
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __lt__(self, other: _Waiter) -> bool:
        return (self.since, self.number) < (other.since, other.number)


class Lanes:
    """The places of one cluster's API calls. One event loop, one instance."""

    def __init__(self, settings: LanesSettings | None = None) -> None:
        self._settings = settings or LanesSettings()
        self._waiting: dict[Priority, list[_Waiter]] = {priority: [] for priority in Priority}
        """heaps: the first is who began first"""
        self._asked = 0
        self._create_limit = CreateLimit(self._settings.creates, self._settings.most_creates)
        self._running = 0
        self._events_running = 0
        self._creates_running = 0
        self._grants_since_aged = 0
        self._hurried = False
        self._last_call = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return self._running

    def waiting(self, priority: Priority) -> int:
        return len(self._waiting[priority])

    @property
    def creates(self) -> int:
        """How many creates may run at a time just now."""
        return self._create_limit.current

    def created(self, seconds: float) -> None:
        """A create, made in its place, took so long and succeeded."""
        self._create_limit.took(seconds, asyncio.get_running_loop().time())

    def hurry(self) -> None:
        """Events no longer hold back: the process is about to stop."""
        self._hurried = True
        self._grant()

    @asynccontextmanager
    async def place(self, priority: Priority, since: float | None = None) -> AsyncIterator[None]:
        """Wait for a place and hold it. `since`: the loop's time at which what needs it began, now if not given."""
        await self._acquire(priority, since)
        try:
            yield
        finally:
            self._release(priority)

    async def _acquire(self, priority: Priority, since: float | None) -> None:
        self._asked += 1
        waiter = _Waiter(asyncio.get_running_loop().time() if since is None else since, self._asked)
        heapq.heappush(self._waiting[priority], waiter)
        self._grant()
        if waiter.granted.done():
            return
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self._release(priority)
            elif waiter in self._waiting[priority]:
                self._waiting[priority].remove(waiter)
                heapq.heapify(self._waiting[priority])
            raise

    def _release(self, priority: Priority) -> None:
        self._running -= 1
        self._count(priority, -1)
        if priority is not Priority.EVENT:
            self._last_call = asyncio.get_running_loop().time()
        self._grant()

    def _count(self, priority: Priority, change: int) -> None:
        if priority is Priority.EVENT:
            self._events_running += change
        elif priority is Priority.CREATE:
            self._creates_running += change

    def _grant(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._running < self._settings.limit:
            priority = self._next(now)
            if priority is None:
                break
            waiter = heapq.heappop(self._waiting[priority])
            if waiter.granted.done():
                continue  # cancelled, and its task has not had its turn yet
            self._running += 1
            self._count(priority, 1)
            waiter.granted.set_result(None)
        self._watch_events(now)

    def _next(self, now: float) -> Priority | None:
        if self._event_is_overdue(now) and self._events_running < max(1, self._settings.limit // 3):
            return Priority.EVENT
        waiting = [priority for priority in _CALLS if self._waiting[priority] and self._may_go(priority)]
        if not waiting:
            return Priority.EVENT if self._event_may_go(now) else None
        oldest = min(waiting, key=lambda priority: (self._waiting[priority][0].since, -priority))
        aged = now - self._waiting[oldest][0].since >= self._settings.aging
        self._grants_since_aged = self._grants_since_aged + 1 if aged else 0
        if self._grants_since_aged >= _AGED_SHARE:
            self._grants_since_aged = 0
            return oldest
        return waiting[0]

    def _may_go(self, priority: Priority) -> bool:
        return priority is not Priority.CREATE or self._creates_running < self._create_limit.current

    def _event_may_go(self, now: float) -> bool:
        if not self._waiting[Priority.EVENT]:
            return False
        quiet = self._running < self._settings.quiet and now >= self._last_call + self._settings.idle
        return self._hurried or quiet

    def _event_is_overdue(self, now: float) -> bool:
        events = self._waiting[Priority.EVENT]
        return bool(events) and now >= events[0].since + self._settings.event_delay_limit

    def _watch_events(self, now: float) -> None:
        """One timer for the oldest Event: neither slow calls nor none at all must hold it back for ever."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        events = self._waiting[Priority.EVENT]
        if not events or self._running >= self._settings.limit:
            return
        overdue = events[0].since + self._settings.event_delay_limit
        idle = self._last_call + self._settings.idle
        due = min((at for at in (overdue, idle) if at > now), default=None)
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._grant)
