"""The log in a JetStream stream (DESIGN §4)."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg

from bus.connection import ApiError, Connection, Unreachable
from bus.fastingest import MESSAGE_ID, FastIngestAppender
from bus.log import MAX_MESSAGE_BYTES, Bounds, LogReset, LogUnavailable, MessageTooLarge, Record, WrongLastSequence
from bus.patterns import without_covered
from bus.pull import OrderedPull, Source
from bus.stored import NO_HEADERS, SECOND, Position, record
from bus.streams import StreamState, ensure_stream, stream_state
from bus.work_nats import NatsWorkQueue

logger = structlog.get_logger(__name__)

STREAM = "LOG"
SUBJECTS = "log.>"
PARTITIONS = "sandlog-partitions"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
WRONG_LAST_SEQUENCE = 10071
WRONG_LAST_CONSTANT = 10164
NO_MESSAGE = 10037
TOO_MANY_REQUESTS = 10167
MESSAGE_EXCEEDS_MAXIMUM = 10054
TRIES = 6
RETRY_FIRST = 0.05
RETRY_LONGEST = 1.0
READ_SILENCE = 2.0
READ = 1024
_LAST = re.compile(r"wrong last sequence: (\d+)")

NatsReader = OrderedPull[Record]


class LogSettings(msgspec.Struct, frozen=True):
    """Limits of the stream. Seconds and bytes; `max_bytes` None is 8 GiB, or what the server has room for if that is less.

    `partitions` counts only when the stream is made: an existing stream's own number holds.
    """

    partitions: int = 64
    max_age: float = 72 * 3600.0
    max_bytes: int | None = None
    duplicate_window: float = 120.0
    replicas: int = 1
    storage: str = "file"


DEFAULT_MAX_BYTES = 8 * 1024**3


def stream_config(settings: LogSettings) -> dict[str, Any]:
    return {
        "name": STREAM,
        "subjects": [SUBJECTS],
        "retention": "limits",
        "discard": "old",
        "storage": settings.storage,
        "compression": "s2" if settings.storage == "file" else "none",
        "num_replicas": settings.replicas,
        "max_age": int(settings.max_age * SECOND),
        "max_bytes": settings.max_bytes or DEFAULT_MAX_BYTES,
        "max_msg_size": MAX_MESSAGE_BYTES,
        "duplicate_window": int(settings.duplicate_window * SECOND),
        "allow_direct": True,
        "allow_batched": True,
        "metadata": {PARTITIONS: str(settings.partitions)},
    }


def _to_record(message: Msg, at: Position) -> Record:
    return Record(message.subject, at.sequence, at.time, message.headers or NO_HEADERS, message.data)


class NatsLog:
    """`bus.log.Log`."""

    def __init__(self, connection: Connection, settings: LogSettings) -> None:
        self._connection = connection
        self._settings = settings

    @classmethod
    async def open(cls, connection: Connection, settings: LogSettings | None = None) -> Self:
        """Create the stream or check it. Raises StreamRefused or LogUnavailable."""
        self = cls(connection, settings or LogSettings())
        await self.ensure()
        return self

    async def ensure(self) -> Bounds:
        """Create the stream if it is not there (any more), bring it to the settings. Raises StreamRefused or LogUnavailable."""
        try:
            shrink = self._settings.max_bytes is None
            return self._bounds(await ensure_stream(self._connection, stream_config(self._settings), may_shrink=shrink))
        except (ApiError, Unreachable) as error:
            raise LogUnavailable(str(error)) from error

    def _bounds(self, state: StreamState) -> Bounds:
        return Bounds(
            identity=state.identity,
            first_sequence=state.first,
            last_sequence=state.last,
            now=state.now,
            partitions=int(state.metadata.get(PARTITIONS, self._settings.partitions)),
        )

    async def _state(self) -> StreamState:
        try:
            return await stream_state(self._connection, STREAM)
        except (ApiError, Unreachable) as error:
            raise LogUnavailable(str(error)) from error

    async def bounds(self) -> Bounds:
        return self._bounds(await self._state())

    async def append(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        expected_last_subject_sequence: int | None = None,
        message_id: str | None = None,
    ) -> int:
        sent = dict(headers) if headers else {}
        safe = message_id is not None or expected_last_subject_sequence is not None
        if expected_last_subject_sequence is not None:
            sent[EXPECTED] = str(expected_last_subject_sequence)
        if safe:
            # With an id of its own, a repeat after a lost ack can be told from somebody else's append.
            sent[MESSAGE_ID] = message_id or uuid.uuid4().hex
        uncertain = False
        pause = RETRY_FIRST
        for attempt in range(1, TRIES + 1):
            try:
                return await self._append_once(subject, data, sent)
            except WrongLastSequence as refused:
                if uncertain and refused.last and await self._was_ours(refused.last, sent[MESSAGE_ID]):
                    return refused.last
                raise
            except Unreachable as error:
                uncertain = uncertain or error.sent
                if attempt == TRIES or (error.sent and not safe):
                    raise LogUnavailable(f"{subject}: {error}") from error
            except ApiError as error:
                if error.error_code == MESSAGE_EXCEEDS_MAXIMUM:
                    raise MessageTooLarge(subject, len(data), MAX_MESSAGE_BYTES) from error
                if attempt == TRIES or not (error.error_code == TOO_MANY_REQUESTS or error.code == 503):
                    raise LogUnavailable(f"{subject}: {error}") from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_LONGEST)
        raise AssertionError("unreachable")

    async def _append_once(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        try:
            message = await self._connection.request(subject, data, headers or None)
        except nats.errors.MaxPayloadError as error:
            raise MessageTooLarge(subject, len(data), self._connection.nc.max_payload) from error
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        refused = answer.get("error")
        if refused is None:
            return int(answer["seq"])
        if refused.get("err_code") in (WRONG_LAST_SEQUENCE, WRONG_LAST_CONSTANT) and EXPECTED in headers:
            found = _LAST.search(refused.get("description", ""))
            raise WrongLastSequence(subject, int(headers[EXPECTED]), int(found[1]) if found else None)
        raise ApiError(subject, refused)

    async def _was_ours(self, sequence: int, message_id: str) -> bool:
        stored = await self.get(sequence)
        return stored is not None and stored.headers.get(MESSAGE_ID) == message_id

    def appender(self, name: str) -> FastIngestAppender:
        return FastIngestAppender(self._connection, name)

    async def last(self, subject: str) -> Record | None:
        return await self._get({"last_by_subj": subject})

    async def get(self, sequence: int) -> Record | None:
        return await self._get({"seq": sequence})

    async def _get(self, which: dict[str, Any]) -> Record | None:
        try:
            return record((await self._connection.api(f"STREAM.MSG.GET.{STREAM}", which))["message"])
        except ApiError as error:
            if error.error_code == NO_MESSAGE:
                return None
            raise LogUnavailable(str(error)) from error
        except Unreachable as error:
            raise LogUnavailable(str(error)) from error

    async def follow(self, subjects: Sequence[str], *, after: int) -> NatsReader:
        state = await self._state()
        if after > state.last:
            raise LogReset(f"the log ends at {state.last}, asked for what comes after {after}")
        if after + 1 < state.first:
            raise LogReset(f"the log begins at {state.first}, asked for what comes after {after}")
        return await self._open(Source(stream=STREAM, subjects=without_covered(subjects), after=after), state)

    async def _open(self, source: Source, state: StreamState) -> NatsReader:
        reader: NatsReader = OrderedPull(self._connection, source, _to_record, LogReset)
        try:
            await reader.open(state)
        except (ApiError, Unreachable, nats.errors.Error) as error:
            raise LogUnavailable(str(error)) from error
        return reader

    async def read(
        self, subjects: Sequence[str], *, after: int = 0, since: int | None = None, limit: int | None = None
    ) -> list[Record]:
        state = await self._state()
        subjects = without_covered(subjects)
        newest = await self._newest(subjects)
        start = max(after, state.first - 1)
        if newest is None or newest.sequence <= start or limit == 0 or (since is not None and newest.time < since):
            return []
        by_time = since if start > after or after == 0 else None
        source = Source(stream=STREAM, subjects=subjects, after=0 if by_time else start, since=by_time)
        reader = await self._open(source, state)
        try:
            found = await self._read_to(reader, min(newest.sequence, state.last), since, limit)
        except LogReset as error:
            raise LogUnavailable(f"the log was lost while it was read: {error}") from error
        finally:
            await reader.close()
        return [record for record in found if record.sequence <= state.last][:limit]

    async def _read_to(self, reader: NatsReader, target: int, since: int | None, limit: int | None) -> list[Record]:
        """Records up to the target at least, or as many as the limit."""
        found: list[Record] = []
        while limit is None or len(found) < limit:
            records = await reader.batch(READ, READ_SILENCE)
            found += records if since is None else [record for record in records if record.time >= since]
            if records and records[-1].sequence >= target:
                break
            if not records:
                # Silence before the target: either it was trimmed meanwhile, or the consumer's server lags.
                newest = await self._newest(reader.source.subjects)
                if newest is None or newest.sequence <= reader.cursor:
                    break
        return found

    async def _newest(self, subjects: Sequence[str]) -> Record | None:
        """The last record of any of these subjects, from the leader."""
        records = await asyncio.gather(*(self.last(subject) for subject in subjects))
        return max((r for r in records if r is not None), key=lambda r: r.sequence, default=None)

    async def work(
        self, durable: str, subjects: Sequence[str], *, ack_wait: float, max_in_flight: int
    ) -> NatsWorkQueue:
        filters = without_covered(subjects)
        config: dict[str, Any] = {
            "name": durable,
            "durable_name": durable,
            "ack_policy": "explicit",
            "ack_wait": int(ack_wait * SECOND),
            "max_ack_pending": max_in_flight,
            "deliver_policy": "all",
            "replay_policy": "instant",
        }
        config |= {"filter_subject": filters[0]} if len(filters) == 1 else {"filter_subjects": list(filters)}
        queue = NatsWorkQueue(self._connection, STREAM, config)
        try:
            await queue.open()
        except (ApiError, Unreachable, nats.errors.Error) as error:
            raise LogUnavailable(str(error)) from error
        return queue
