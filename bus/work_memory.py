"""Durable consumers in memory: acks, redelivery after ack_wait through the loop's timers, sharing."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING

from bus.log import Delivery, LogUnavailable, Record
from bus.memory import deadline_of, never
from bus.patterns import covers

if TYPE_CHECKING:
    from bus.log_memory import MemoryLog, MemoryStream

PULL = 32
_SERVER = contextvars.Context()
"""The server's timers run in none of its clients' contexts: they go off whatever becomes of the client."""


class MemoryDurable:
    """One durable's position, what is in flight and what is to come again."""

    def __init__(self, stream: MemoryStream, subjects: tuple[str, ...], ack_wait: float, max_in_flight: int) -> None:
        self.ack_wait = ack_wait
        self.max_in_flight = max_in_flight
        self._stream = stream
        self._subjects = subjects
        self._cursor = 0
        self._delivered: dict[int, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._again: list[int] = []
        self.turns: dict[MemoryWorkQueue, None] = {}
        """Who waits for work, the longest first: a server too serves pulls in their order."""

    def take(self, limit: int) -> list[tuple[Record, int]]:
        """Redeliveries first, then new ones, as far as `max_in_flight` allows; with how often each was delivered."""
        taken: list[tuple[Record, int]] = []
        while len(taken) < limit:
            record = self._redelivered() or self._next()
            if record is None:
                break
            count = self._delivered[record.sequence] = self._delivered.get(record.sequence, 0) + 1
            self.extend(record.sequence, self.ack_wait)
            taken.append((record, count))
        return taken

    @property
    def pending(self) -> int:
        """Deliveries that were not acked."""
        return len(self._delivered)

    def _redelivered(self) -> Record | None:
        while self._again:
            sequence = self._again.pop(0)
            record = self._stream.get(sequence)
            if record is not None:
                return record
            self._delivered.pop(sequence, None)
        return None

    def _next(self) -> Record | None:
        if len(self._delivered) >= self.max_in_flight:
            return None
        self._cursor = max(self._cursor, self._stream.first - 1)
        while self._cursor < self._stream.last:
            self._cursor += 1
            record = self._stream.get(self._cursor)
            if record is not None and any(covers(pattern, record.subject) for pattern in self._subjects):
                return record
        return None

    def extend(self, sequence: int, seconds: float) -> None:
        """Come again after `seconds` unless acked."""
        if sequence not in self._delivered or sequence in self._again:
            return
        timer = self._timers.pop(sequence, None)
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[sequence] = loop.call_later(seconds, self._due, sequence, context=_SERVER)

    def _due(self, sequence: int) -> None:
        self._timers.pop(sequence, None)
        self._again.append(sequence)
        self._again.sort()
        self._stream.bell.ring()

    def ack(self, sequence: int) -> None:
        self._delivered.pop(sequence, None)
        if sequence in self._again:
            self._again.remove(sequence)
        timer = self._timers.pop(sequence, None)
        if timer is not None:
            timer.cancel()
        self._stream.bell.ring()

    def lose_tail(self, to_sequence: int) -> None:
        self._cursor = min(self._cursor, to_sequence)
        for sequence in [s for s in self._delivered if s > to_sequence]:
            self.ack(sequence)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


class MemoryDelivery:
    """`bus.log.Delivery`."""

    __slots__ = ("_durable", "_log", "delivered", "record")

    def __init__(self, log: MemoryLog, durable: MemoryDurable, record: Record, delivered: int) -> None:
        self._log = log
        self._durable = durable
        self.record = record
        self.delivered = delivered

    async def ack(self) -> None:
        await self._step("ack", lambda: self._durable.ack(self.record.sequence))

    async def working(self) -> None:
        await self._step("working", lambda: self._durable.extend(self.record.sequence, self._durable.ack_wait))

    async def again(self, delay: float) -> None:
        await self._step("again", lambda: self._durable.extend(self.record.sequence, delay))

    async def _step(self, kind: str, act: Callable[[], None]) -> None:
        await self._log.before(kind, self.record.subject)
        if self._log.stream.available:
            act()
        await self._log.after(kind, self.record.subject)


class MemoryWorkQueue:
    """`bus.log.WorkQueue`. The durable is made anew when the stream was."""

    def __init__(
        self, log: MemoryLog, name: str, subjects: tuple[str, ...], ack_wait: float, max_in_flight: int
    ) -> None:
        self._log = log
        self._name = name
        self._settings = (subjects, ack_wait, max_in_flight)
        self._closed = False
        self._durable()

    def _durable(self) -> MemoryDurable:
        durables = self._log.stream.durables
        if self._name not in durables:
            durables[self._name] = MemoryDurable(self._log.stream, *self._settings)
        return durables[self._name]

    @property
    def silent(self) -> bool:
        """Its process is dead or stopped: its pull has come to nothing and keeps nobody from theirs."""
        return self._log.killed or self._log.stopped

    async def batch(self, limit: int, timeout: float | None = None) -> list[Delivery]:
        deadline = deadline_of(timeout)
        try:
            while True:
                if self._log.killed:
                    await never()
                if self._closed:
                    raise LogUnavailable(f"work queue {self._name} is closed")
                taken = self._take(min(limit, PULL))
                if taken or not await self._log.stream.bell.wait(deadline):
                    return taken
        finally:
            self._end_turn()

    def _take(self, limit: int) -> list[Delivery]:
        if not self._log.stream.available:
            return []
        durable = self._durable()
        durable.turns.setdefault(self)
        if next(queue for queue in durable.turns if not queue.silent) is not self:
            return []
        return [MemoryDelivery(self._log, durable, record, count) for record, count in durable.take(limit)]

    def _end_turn(self) -> None:
        for durable in self._log.stream.durables.values():
            if self in durable.turns:
                del durable.turns[self]
                self._log.stream.bell.ring()

    async def close(self) -> None:
        self._closed = True
        self._log.stream.bell.ring()
