"""The log as its users see it: append, read, consume. `log_nats` and `log_memory` implement it under one contract test.

Nothing here knows what a message means; subjects and bodies are `bus.subjects` and `bus.messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Most bytes of one message (DESIGN §4, `max_payload`)."""


class Record(msgspec.Struct, frozen=True):
    """One stored message. `time` is nanoseconds since the epoch: the server's timestamp of the append."""

    subject: str
    sequence: int
    time: int
    headers: Mapping[str, str]
    data: bytes


class Bounds(msgspec.Struct, frozen=True):
    """What the stream's leader says of it: never a consumer's `num_pending` (nats.md §6.1).

    `identity` changes when the stream is another one than before (deleted and made again).
    `first_sequence` is last_sequence + 1 when the stream is empty; `now` is the server's clock in nanoseconds.
    `partitions` is P of DESIGN §4, as the stream's metadata hold it.
    """

    identity: str
    first_sequence: int
    last_sequence: int
    now: int
    partitions: int


class WrongLastSequence(Exception):
    """The subject's last sequence is not the one the append expected. `last` is the real one, 0 for none."""

    def __init__(self, subject: str, expected: int, last: int | None) -> None:
        super().__init__(f"{subject}: expected last sequence {expected}, it is {last}")
        self.subject = subject
        self.expected = expected
        self.last = last


class LogUnavailable(Exception):
    """The log could not be reached, or did not answer in time. Whether the append landed is unknown."""


class MessageTooLarge(ValueError):
    """The message is larger than the server takes (`max_payload`): it can never be stored. Sizes in bytes."""

    def __init__(self, subject: str, size: int, limit: int) -> None:
        super().__init__(f"{subject}: {size} bytes, the server takes {limit}")
        self.subject = subject
        self.size = size
        self.limit = limit


class Appender(Protocol):
    """An ordered stream of appends that are not awaited one by one (DESIGN §4, Appends).

    Messages land in the order they were added, or not at all past the first that was lost: after
    `LogUnavailable` the user must take all that was not flushed as lost (and list again).
    """

    async def add(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Queue one message; waits only while the buffer is full. Raises LogUnavailable once the appender has failed."""
        ...

    async def flush(self) -> None:
        """Return when all that was added before is stored. Raises LogUnavailable if any of it is not."""
        ...

    async def close(self) -> None:
        """Flush within a bound and let go. Never raises for what could not be stored: it says so in the log output."""
        ...


class Reader(Protocol):
    """Follows the log from a position, in order, without gaps (a gap re-creates what is behind it, after the last record given)."""

    async def batch(self, limit: int, timeout: float | None = None) -> list[Record]:
        """Wait for at least one record and return all that have arrived, at most `limit`; [] after `timeout` seconds.

        Raises `LogReset` if the stream was lost, is another one, or no longer holds the position asked for.
        """
        ...

    async def close(self) -> None: ...


class LogReset(Exception):
    """What the reader stood on is gone: the stream is another one, lost its tail, or was trimmed past the position."""


class Delivery(Protocol):
    """One message handed to one of the consumers of a durable; to be acked, or it comes again after ack_wait."""

    @property
    def record(self) -> Record: ...

    @property
    def delivered(self) -> int:
        """How many times it was delivered, this one included."""
        ...

    async def ack(self) -> None: ...

    async def working(self) -> None:
        """Extend ack_wait (JetStream's in-progress ack)."""
        ...

    async def again(self, delay: float) -> None:
        """Hand it back, to come again after `delay` seconds."""
        ...


class WorkQueue(Protocol):
    """A durable consumer that several processes share."""

    async def batch(self, limit: int, timeout: float | None = None) -> Sequence[Delivery]: ...

    async def close(self) -> None: ...


class Log(Protocol):
    async def append(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        expected_last_subject_sequence: int | None = None,
        message_id: str | None = None,
    ) -> int:
        """Store one message and return its sequence (that of the first one, if message_id repeats within the window).

        Raises WrongLastSequence, or LogUnavailable when it is not known whether it landed.
        """
        ...

    def appender(self, name: str) -> Appender: ...

    async def bounds(self) -> Bounds: ...

    async def last(self, subject: str) -> Record | None:
        """The last record of a subject or wildcard, read from the leader."""
        ...

    async def get(self, sequence: int) -> Record | None: ...

    async def follow(self, subjects: Sequence[str], *, after: int) -> Reader:
        """Read records of these subjects (wildcards) with sequence > `after`, and go on as new ones come.

        Raises LogReset if `after` + 1 lies before the first sequence held and something was trimmed.
        """
        ...

    async def read(
        self,
        subjects: Sequence[str],
        *,
        after: int = 0,
        since: int | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """What these subjects hold now (up to the last sequence when called), oldest first; `since` is nanoseconds."""
        ...

    async def work(
        self, durable: str, subjects: Sequence[str], *, ack_wait: float, max_in_flight: int
    ) -> WorkQueue: ...
