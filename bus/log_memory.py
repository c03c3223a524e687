"""The log in memory, under the contract of `bus.log`: deterministic, one thread, no sockets, no sleeps.

The crash explorer runs on it. Several `MemoryLog`s (one for each process that is simulated) share one `MemoryStream`. Time is the
stream's `time` seam, by default the running loop's clock, so a virtual-time loop drives it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import structlog

from bus.log import (
    MAX_MESSAGE_BYTES,
    Bounds,
    LogReset,
    LogUnavailable,
    MessageTooLarge,
    Reader,
    Record,
    WorkQueue,
    WrongLastSequence,
)
from bus.memory import Bell, Hook, deadline_of, never, step
from bus.patterns import covers, without_covered
from bus.work_memory import MemoryDurable, MemoryWorkQueue

logger = structlog.get_logger(__name__)

SECOND = 1_000_000_000
EPOCH = 1_750_000_000 * SECOND
"""Log time at loop time 0."""
MESSAGE_ID = "Nats-Msg-Id"
BUFFER_MESSAGES = 4096


def loop_time() -> int:
    return EPOCH + int(asyncio.get_running_loop().time() * SECOND)


class MemoryStream:
    """The stored messages. `available` False: everything raises LogUnavailable and readers hear nothing."""

    def __init__(
        self, *, partitions: int = 64, duplicate_window: float = 120.0, time: Callable[[], int] = loop_time
    ) -> None:
        self.partitions = partitions
        self.bell = Bell()
        self.durables: dict[str, MemoryDurable] = {}
        self.generation = 1
        self.missing = False
        self._available = True
        self._window = int(duplicate_window * SECOND)
        self._time = time
        self._records: list[Record] = []
        self._last = 0
        self._last_of: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._id_ages: deque[tuple[int, str]] = deque()

    @property
    def available(self) -> bool:
        return self._available and not self.missing

    @available.setter
    def available(self, value: bool) -> None:
        self._available = value
        self.bell.ring()

    @property
    def identity(self) -> str:
        return f"memory-{self.generation}"

    @property
    def first(self) -> int:
        return self._last - len(self._records) + 1

    @property
    def last(self) -> int:
        return self._last

    def now(self) -> int:
        """Never before the last record's time."""
        return max(self._time(), self._records[-1].time if self._records else 0)

    def store(
        self, subject: str, data: bytes, headers: Mapping[str, str], *, expected: int | None, message_id: str | None
    ) -> int:
        """As JetStream does: the expected sequence is checked before the message id (nats.md §4)."""
        if not covers("log.>", subject) or "*" in subject or ">" in subject:
            raise LogUnavailable(f"{subject}: no stream takes it")
        if len(data) > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(subject, len(data), MAX_MESSAGE_BYTES)
        found = self.last_sequence_of(subject)
        if expected is not None and found != expected:
            raise WrongLastSequence(subject, expected, found)
        now = self.now()
        if message_id is not None:
            self._forget_ids(now)
            if message_id in self._ids:
                return self._ids[message_id]
            headers = {**headers, MESSAGE_ID: message_id}
        self._last += 1
        if message_id is not None:
            self._ids[message_id] = self._last
            self._id_ages.append((now, message_id))
        self._records.append(Record(subject, self._last, now, dict(headers), data))
        self._last_of[subject] = self._last
        self.bell.ring()
        return self._last

    def _forget_ids(self, now: int) -> None:
        while self._id_ages and self._id_ages[0][0] + self._window < now:
            self._ids.pop(self._id_ages.popleft()[1], None)

    def last_sequence_of(self, subject: str) -> int:
        found = self._last_of.get(subject, 0)
        return found if found >= self.first else 0

    def get(self, sequence: int) -> Record | None:
        return self._records[sequence - self.first] if self.first <= sequence <= self._last else None

    def after(self, sequence: int) -> list[Record]:
        """Records with a higher sequence, oldest first."""
        return self._records[max(0, sequence + 1 - self.first) :]

    def last_matching(self, pattern: str) -> Record | None:
        return next((record for record in reversed(self._records) if covers(pattern, record.subject)), None)

    def trim(self, to_sequence: int) -> None:
        """Drop what has this sequence or a lower one, as age and size limits do."""
        del self._records[: max(0, min(to_sequence, self._last) + 1 - self.first)]
        self.bell.ring()

    def lose_tail(self, to_sequence: int) -> None:
        """Drop what has a higher sequence, as a server does that lost what it had not synced."""
        while self._records and self._records[-1].sequence > to_sequence:
            record = self._records.pop()
            self._ids.pop(record.headers.get(MESSAGE_ID, ""), None)
        self._last = min(self._last, to_sequence)
        self._last_of = {record.subject: record.sequence for record in self._records}
        for durable in self.durables.values():
            durable.lose_tail(to_sequence)
        self.bell.ring()

    def wipe(self, *, recreate: bool = True) -> None:
        """Lose everything. Without `recreate` there is no stream until somebody calls `ensure`."""
        self.generation += 1
        self._records.clear()
        self._last = 0
        self._last_of.clear()
        self._ids.clear()
        self._id_ages.clear()
        for durable in self.durables.values():
            durable.stop()
        self.durables.clear()
        self.missing = not recreate
        self.bell.ring()

    def ensure(self) -> None:
        self.missing = False
        self.bell.ring()


class MemoryAppender:
    """`bus.log.Appender`. What is added is stored in a later turn of the loop, unless the process is killed before."""

    def __init__(self, log: MemoryLog, name: str) -> None:
        self._log = log
        self.name = name
        self._queue: deque[tuple[str, bytes, dict[str, str]]] = deque()
        self._landing = False
        self._failure: str | None = None

    async def add(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        await self._log.before("add", subject)
        self._check()
        if len(data) > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(subject, len(data), MAX_MESSAGE_BYTES)
        self._queue.append((subject, data, dict(headers or {})))
        if len(self._queue) >= BUFFER_MESSAGES:
            self._land()
        elif not self._landing:
            self._landing = True
            asyncio.get_running_loop().call_soon(self._land)
        await self._log.after("add", subject)

    async def flush(self) -> None:
        await self._log.before("flush", self.name)
        self._check()
        self._land()
        self._check()
        await asyncio.sleep(0)
        await self._log.after("flush", self.name)

    async def close(self) -> None:
        self._land()
        if self._failure is not None:
            logger.warning("appender closed with messages not stored", appender=self.name, error=self._failure)
        self._failure = "closed"

    def _check(self) -> None:
        if self._failure is not None:
            raise LogUnavailable(f"appender {self.name}: {self._failure}")

    def _land(self) -> None:
        self._landing = False
        if self._log.killed:
            self._queue.clear()
        if not self._queue:
            return
        if not self._log.stream.available:
            # The real one tries for a while; here it fails at once, which is the harder case.
            self._failure = "the log is not available"
            self._queue.clear()
            return
        while self._queue:
            subject, data, headers = self._queue.popleft()
            message_id = headers.pop(MESSAGE_ID, None)
            self._log.stream.store(subject, data, headers, expected=None, message_id=message_id)


class MemoryReader:
    """`bus.log.Reader`."""

    def __init__(self, log: MemoryLog, subjects: tuple[str, ...], after: int) -> None:
        self._log = log
        self._stream = log.stream
        self._subjects = subjects
        self._identity = self._stream.identity
        self._cursor = after
        self._wanted: dict[str, bool] = {}

    async def batch(self, limit: int, timeout: float | None = None) -> list[Record]:
        deadline = deadline_of(timeout)
        while True:
            if self._log.killed:
                await never()
            found = self._take(limit)
            if found:
                return found
            if not await self._stream.bell.wait(deadline):
                return []

    def _take(self, limit: int) -> list[Record]:
        stream = self._stream
        if stream.missing or stream.identity != self._identity:
            raise LogReset(f"the log is another one: {stream.identity}")
        if stream.last < self._cursor:
            raise LogReset(f"the log ends at {stream.last}, we had read {self._cursor}")
        if stream.first > self._cursor + 1:
            raise LogReset(f"the log begins at {stream.first}, we had read {self._cursor}")
        if not stream.available:
            return []
        found: list[Record] = []
        for sequence in range(self._cursor + 1, stream.last + 1):
            record = stream.get(sequence)
            assert record is not None
            self._cursor = sequence
            if self._wants(record.subject):
                found.append(record)
                if len(found) >= limit:
                    break
        return found

    def _wants(self, subject: str) -> bool:
        known = self._wanted.get(subject)
        if known is None:
            known = self._wanted[subject] = any(covers(pattern, subject) for pattern in self._subjects)
        return known

    async def close(self) -> None:
        self._wanted.clear()


class MemoryLog:
    """`bus.log.Log`. `kill` makes it dead: what was added and not stored is lost, and no call returns any more."""

    def __init__(self, stream: MemoryStream | None = None, *, on_step: Hook | None = None) -> None:
        self.stream = stream if stream is not None else MemoryStream()
        self.killed = False
        self.stopped = False
        """Its process does not run for a while (SIGSTOP); the explorer holds its turns of the loop back."""
        self._on_step = on_step

    def kill(self) -> None:
        self.killed = True

    async def before(self, kind: str, detail: str) -> None:
        """The step hook, then a check that we are alive."""
        await step(self._on_step, f"{kind}.before", detail)
        await self._alive()

    async def after(self, kind: str, detail: str) -> None:
        await step(self._on_step, f"{kind}.after", detail)
        await self._alive()

    async def _alive(self) -> None:
        if self.killed:
            await never()

    async def _check(self) -> None:
        await self._alive()
        if not self.stream.available:
            raise LogUnavailable("the log is not available")

    async def ensure(self) -> Bounds:
        await self._alive()
        self.stream.ensure()
        return await self.bounds()

    async def append(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        expected_last_subject_sequence: int | None = None,
        message_id: str | None = None,
    ) -> int:
        await self.before("append", subject)
        await self._check()
        sequence = self.stream.store(
            subject, data, headers or {}, expected=expected_last_subject_sequence, message_id=message_id
        )
        # The acknowledgement takes a turn of the loop, as it would from a server.
        await asyncio.sleep(0)
        await self.after("append", subject)
        return sequence

    def appender(self, name: str) -> MemoryAppender:
        return MemoryAppender(self, name)

    async def bounds(self) -> Bounds:
        await self._check()
        stream = self.stream
        return Bounds(stream.identity, stream.first, stream.last, stream.now(), stream.partitions)

    async def last(self, subject: str) -> Record | None:
        await self._check()
        return self.stream.last_matching(subject)

    async def get(self, sequence: int) -> Record | None:
        await self._check()
        return self.stream.get(sequence)

    async def follow(self, subjects: Sequence[str], *, after: int) -> Reader:
        await self._check()
        if after > self.stream.last:
            raise LogReset(f"the log ends at {self.stream.last}, asked for what comes after {after}")
        if after + 1 < self.stream.first:
            raise LogReset(f"the log begins at {self.stream.first}, asked for what comes after {after}")
        return MemoryReader(self, without_covered(subjects), after)

    async def read(
        self, subjects: Sequence[str], *, after: int = 0, since: int | None = None, limit: int | None = None
    ) -> list[Record]:
        await self._check()
        found = [
            record
            for record in self.stream.after(after)
            if (since is None or record.time >= since) and any(covers(pattern, record.subject) for pattern in subjects)
        ]
        return found if limit is None else found[:limit]

    async def work(self, durable: str, subjects: Sequence[str], *, ack_wait: float, max_in_flight: int) -> WorkQueue:
        await self._check()
        return MemoryWorkQueue(self, durable, without_covered(subjects), ack_wait, max_in_flight)
