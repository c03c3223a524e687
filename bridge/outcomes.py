"""What an executor writes to the log: outcomes and dead letters; and what it can tell of a command that it cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import structlog

from bus.clock import Randomness
from bus.log import Log, LogUnavailable, MessageTooLarge, Record
from bus.messages import (
    SCHEMA,
    SCHEMA_HEADER,
    UNKNOWN,
    Body,
    Dead,
    NotUnderstood,
    Outcome,
    Result,
    decode,
    encode,
    headers,
)
from bus.subjects import DEAD, OUTCOME, Subject, of_aggregate, parse
from bus.version import CODE_VERSION

log = structlog.get_logger(__name__)


class _AnyOp(msgspec.Struct, frozen=True):
    id: str


class _AnyCommand(msgspec.Struct, frozen=True, tag="command"):
    ops: tuple[_AnyOp, ...]


_any_command = msgspec.json.Decoder(_AnyCommand)


class Unreadable(msgspec.Struct, frozen=True):
    """A command that was not understood: the ids of its ops as far as they can be seen, and whether newer code may know it."""

    ids: tuple[str, ...]
    newer: bool


def unreadable(data: bytes, record_headers: Mapping[str, str]) -> Unreadable:
    """A newer schema, or a body that is a command but for some of its ops, may be known to a newer executor; anything else is garbage."""
    try:
        ids: tuple[str, ...] | None = tuple(op.id for op in _any_command.decode(data).ops)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        ids = None
    schema = record_headers.get(SCHEMA_HEADER, "")
    numbered = schema.isascii() and schema.isdigit()
    newer = numbered and (int(schema) > SCHEMA or ids is not None)
    return Unreadable(ids or (), newer)


def _tells_of(record: Record) -> int:
    """The command's sequence; 0 if it cannot be read."""
    try:
        told: Outcome = decode(record.data, record.headers, Outcome)
    except NotUnderstood:
        return 0
    return told.command


class Outcomes:
    """Appends outcomes and dead letters for the commands of one cluster.

    Each append is awaited by its own command alone, so that commands which finish together share the way to the log; `patience` in
    seconds is how long an append is tried while the log cannot be reached.
    """

    def __init__(self, store: Log, randomness: Randomness, by: str, patience: float) -> None:
        self._log = store
        self._randomness = randomness
        self._by = by
        self._patience = patience

    async def is_told(self, record: Record) -> bool:
        """Whether the log holds an outcome of this command. Raises LogUnavailable, ValueError."""
        subject = parse(record.subject)
        assert subject.partition is not None
        place = of_aggregate(OUTCOME, subject.partition, subject.aggregate)
        last = await self._log.last(place)
        if last is None or last.sequence < record.sequence:
            return False
        later = await self._log.read([place], after=record.sequence)
        return any(_tells_of(each) == record.sequence for each in later)

    async def outcome(self, record: Record, delivered: int, results: tuple[Result, ...]) -> None:
        """Exactly one outcome of one delivery: a retried append lands once, a repeated delivery's outcome lands again.

        Raises LogUnavailable, ValueError for a subject that is none.
        """
        subject = parse(record.subject)
        # With the command's time: a log that was lost counts from 1 again, and remembers the late outcomes of the one before.
        message_id = f"out-{record.sequence}-{record.time}-{delivered}"
        try:
            await self._append(subject, OUTCOME, record, Outcome(record.sequence, results, self._by), message_id)
        except MessageTooLarge:
            bare = tuple(msgspec.structs.replace(result, message="", names={}) for result in results)
            await self._append(subject, OUTCOME, record, Outcome(record.sequence, bare, self._by), message_id)

    async def dead(self, record: Record, delivered: int, ids: tuple[str, ...], error: str) -> None:
        """A dead letter, and an outcome that says unknown for all ops, so that the aggregate goes on. Raises as `outcome`."""
        letter = Dead(record.subject, record.sequence, self._by, error[:200])
        await self._append(parse(record.subject), DEAD, record, letter, f"dead-{record.sequence}-{self._by}")
        await self.outcome(record, delivered, tuple(Result(id, UNKNOWN) for id in ids))

    async def _append(self, subject: Subject, message: str, record: Record, body: Body, message_id: str) -> None:
        assert subject.partition is not None
        to = of_aggregate(message, subject.partition, subject.aggregate)
        data, head = encode(body), headers(CODE_VERSION, cause=record.sequence)
        loop = asyncio.get_running_loop()
        until, delay = loop.time() + self._patience, 0.05
        while True:
            try:
                await self._log.append(to, data, head, message_id=message_id)
            except LogUnavailable:
                if loop.time() + delay >= until:
                    raise
                log.warning("log unavailable", subject=to, retry_in=delay)
                await asyncio.sleep(delay * self._randomness.uniform(0.5, 1.0))
                delay = min(2.0, delay * 2)
            else:
                return
