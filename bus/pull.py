"""An ordered reader of a stream: our own pull on a callback subscription, five times as fast as `fetch` (nats.md §2, §7).

The consumer is ephemeral, in memory, and acks nothing; we keep the cursor. Whatever goes wrong with it — a gap in its sequence, silence,
a reconnect, its deletion — it is made anew after the last message given, once the leader has said that the stream is still the same one,
still has its tail, and has trimmed nothing that we lack.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.connection import ApiError, Connection, Unreachable
from bus.stored import SECOND, Position, position, rfc3339
from bus.streams import STREAM_NOT_FOUND, StreamState, stream_state
from bus.waiter import Waiter

logger = structlog.get_logger(__name__)

T = TypeVar("T")

WINDOW = 1024
"""Messages asked for and not yet taken."""
WINDOW_BYTES = 16 * 1024 * 1024
EXPIRES = 30.0
HEARTBEAT = 2.0
SILENCE = 5.0
"""Seconds without message or heartbeat while something is asked for, after which the consumer counts as lost."""
INACTIVE = 60.0
"""Seconds that the server keeps a consumer which nobody pulls."""
MARGIN = 30 * SECOND
BACK_OFF_FIRST = 0.05
BACK_OFF_LONGEST = 2.0
OVERLAP = 10138

LostFactory = Callable[[str], Exception]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is read: of which stream, which subjects, from where.

    `latest`: begin with the last message of each subject instead of after `after`. `trims`: a trimmed position is a loss; not so for a
    key-value bucket, where an older message was replaced by a newer one.
    """

    stream: str
    subjects: tuple[str, ...]
    after: int = 0
    since: int | None = None
    latest: bool = False
    trims: bool = True


class OrderedPull(Generic[T]):
    """One reader; one task at a time may wait in `batch`. `convert` makes an item of a message, its sequence and its time."""

    def __init__(
        self, connection: Connection, source: Source, convert: Callable[[Msg, Position], T], lost: LostFactory
    ) -> None:
        self.source = source
        self.rebuilds = 0
        self.given = 0
        """Items handed out so far."""
        self.initial = 0
        """How many items there were when the reader was opened; lowered if fewer turn out to come."""
        self._connection = connection
        self._convert = convert
        self._lost = lost
        self._identity = ""
        self._cursor = source.after
        self._buffer: deque[T] = deque()
        self._received = 0
        self._asked = 0
        self._expected = 1
        self._pending = 0
        self._consumer = ""
        self._next_subject = ""
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._alive_at = 0.0
        self._waiter = Waiter()
        self._failure: Exception | None = None
        self._closed = False
        self._watchdog: asyncio.TimerHandle | None = None
        self._rebuilding: asyncio.Task[None] | None = None
        self._forget: list[Callable[[], None]] = []

    @property
    def cursor(self) -> int:
        """The sequence of the last item received."""
        return self._cursor

    async def open(self, state: StreamState) -> None:
        """Begin; `state` is the stream as the caller checked it. Raises ApiError or Unreachable."""
        self._identity = state.identity
        self._forget = [self._connection.on_reconnect(lambda: self._rebuild("reconnected"))]
        try:
            pending = await self._create()
            self.initial = pending
            await self._begin(pending)
        except BaseException:
            await self.close()
            raise
        self._watch()

    async def batch(self, limit: int, timeout: float | None = None) -> list[T]:
        """At least one item, at most `limit`; [] after `timeout` seconds. Raises what `lost` makes."""
        if not self._buffer and self._failure is None:
            await self._waiter.sleep(timeout)
        if self._failure is not None:
            raise self._failure
        if not self._buffer:
            return []
        if len(self._buffer) <= limit:
            taken = list(self._buffer)
            self._buffer.clear()
        else:
            taken = [self._buffer.popleft() for _ in range(limit)]
        self.given += len(taken)
        await self._ask()
        return taken

    async def close(self) -> None:
        self._closed = True
        for forget in self._forget:
            forget()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._rebuilding is not None:
            self._rebuilding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._rebuilding
        await self._drop()

    async def _drop(self) -> None:
        """Let go of the present consumer. Without interest in its inbox the server forgets it by itself, only later."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
            if self._connection.connected:
                api = f"{self._connection.api_prefix}.CONSUMER.DELETE.{self.source.stream}.{self._consumer}"
                await self._connection.nc.publish(api)

    def _start(self) -> dict[str, object]:
        if self._cursor > self.source.after or not (self.source.latest or self.source.since is not None):
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self._cursor + 1}
        if self.source.latest:
            return {"deliver_policy": "last_per_subject"}
        assert self.source.since is not None
        return {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(self.source.since)}

    async def _create(self) -> int:
        """Make a consumer after the cursor; returns how many messages wait."""
        source, connection = self.source, self._connection
        name = connection.nc.new_inbox().rpartition(".")[2]
        config: dict[str, object] = {
            "name": name,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(INACTIVE * SECOND),
            **self._start(),
        }
        api = f"CONSUMER.CREATE.{source.stream}.{name}"
        if len(source.subjects) == 1:
            # With the filter in the API subject, permissions can tell who may read what (DESIGN §9).
            config["filter_subject"] = source.subjects[0]
            api = f"{api}.{source.subjects[0]}"
        else:
            config["filter_subjects"] = list(source.subjects)
        self._consumer = name
        self._next_subject = f"{connection.api_prefix}.CONSUMER.MSG.NEXT.{source.stream}.{name}"
        try:
            answer = await connection.api(api, {"stream_name": source.stream, "config": config, "action": "create"})
        except ApiError as error:
            if error.error_code == OVERLAP:
                raise ValueError(f"subjects overlap: {', '.join(source.subjects)}") from error
            raise
        return int(answer["num_pending"])

    async def _begin(self, pending: int) -> None:
        nc = self._connection.nc
        self._expected, self._pending, self._asked = 1, pending, 0
        self._inbox = nc.new_inbox()
        self._alive_at = asyncio.get_running_loop().time()
        # No limits here: what is asked for is bounded, and nats-py would drop silently (nats.md §7).
        self._subscription = await nc.subscribe(
            self._inbox, cb=self._message, pending_msgs_limit=0, pending_bytes_limit=0
        )
        await self._ask()

    async def _ask(self) -> None:
        """Keep up to WINDOW messages asked for or buffered."""
        held = self._asked + len(self._buffer)
        if held > WINDOW // 2 or self._subscription is None or self._rebuilding is not None:
            return
        if self._asked == 0:
            # Nothing was asked for since the buffer filled, so silence meant nothing.
            self._alive_at = asyncio.get_running_loop().time()
        count = WINDOW - held
        self._asked += count
        body = b'{"batch":%d,"max_bytes":%d,"expires":%d,"idle_heartbeat":%d}' % (
            count,
            WINDOW_BYTES,
            int(EXPIRES * SECOND),
            int(HEARTBEAT * SECOND),
        )
        try:
            await self._connection.nc.publish(self._next_subject, body, self._inbox)
        except (nats.errors.Error, OSError) as error:
            self._rebuild(repr(error))

    async def _message(self, message: Msg) -> None:
        if self._rebuilding is not None or self._failure is not None:
            return
        self._alive_at = asyncio.get_running_loop().time()
        if message.headers is not None and "Status" in message.headers and message.subject == self._inbox:
            await self._status(message.headers)
            return
        at = position(message.reply)
        if at.consumer != self._consumer:
            return
        if at.consumer_sequence != self._expected:
            self._rebuild(f"gap: message {at.consumer_sequence} of the consumer, expected {self._expected}")
            return
        self._expected += 1
        self._asked -= 1
        self._pending = at.pending
        self._cursor = at.sequence
        self._received += 1
        if at.pending == 0 and self._received < self.initial:
            self.initial = self._received
        self._buffer.append(self._convert(message, at))
        if self._asked + len(self._buffer) <= WINDOW // 2:
            await self._ask()
        self._waiter.wake()

    async def _status(self, headers: dict[str, str]) -> None:
        code = headers["Status"]
        if code == "100":
            if int(headers.get("Nats-Last-Consumer", self._expected - 1)) != self._expected - 1:
                self._rebuild("gap before a heartbeat")
            elif self._received < self.initial:
                self.initial = self._received  # superseded or expired before they came
                self._waiter.wake()
            return
        # A request ended: 408 expired, 409 of several kinds; the server says how much of it was left.
        left = headers.get("Nats-Pending-Messages")
        description = headers.get("Description", "")
        if left is None or code == "503" or "Deleted" in description or "Leadership" in description:
            self._rebuild(f"{code} {description}")
            return
        self._asked = max(0, self._asked - int(left))
        await self._ask()

    def _watch(self) -> None:
        if self._closed or self._failure is not None:
            return
        loop = asyncio.get_running_loop()
        if self._asked and self._rebuilding is None and loop.time() - self._alive_at > SILENCE:
            self._rebuild(f"silent for {SILENCE:g} s")
        self._watchdog = loop.call_later(HEARTBEAT, self._watch)

    def _rebuild(self, why: str) -> None:
        if self._closed or self._failure is not None or self._rebuilding is not None:
            return
        self.rebuilds += 1
        logger.info("consumer lost, making it anew", stream=self.source.stream, after=self._cursor, why=why)
        self._rebuilding = asyncio.get_running_loop().create_task(self._rebuilt())

    async def _rebuilt(self) -> None:
        back_off = BACK_OFF_FIRST
        while True:
            try:
                await self._drop()
                pending = await self._create()
                # After the consumer was made: if the stream was replaced in between, the consumer is lost and we come here again.
                reason = self._gone(await stream_state(self._connection, self.source.stream))
                if reason:
                    self._fail(reason)
                    return
                self._rebuilding = None
                await self._begin(pending)
                return
            except ApiError as error:
                if error.error_code == STREAM_NOT_FOUND:
                    self._fail(f"there is no stream {self.source.stream} any more")
                    return
                logger.warning("consumer not made", stream=self.source.stream, error=str(error))
            except (Unreachable, nats.errors.Error, OSError) as error:
                logger.debug("consumer not made", stream=self.source.stream, error=str(error))
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, BACK_OFF_LONGEST)
            await self._connection.wait_connected(BACK_OFF_LONGEST)

    def _gone(self, state: StreamState) -> str | None:
        """Why what we stand on is lost, if it is."""
        if state.identity != self._identity:
            return f"the stream {self.source.stream} is another one, made {state.identity}"
        if state.last < self._cursor:
            return f"the stream {self.source.stream} ends at {state.last}, we had read {self._cursor}"
        if self.source.trims and state.first > self._cursor + 1 and not self._had_all(state):
            return f"the stream {self.source.stream} begins at {state.first}, we had read {self._cursor}"
        return None

    def _had_all(self, state: StreamState) -> bool:
        """On a quiet subject the log moves past the cursor. Nothing is lost if we had all there was when we last heard from the
        consumer, and all that was trimmed was stored well before that."""
        silent = asyncio.get_running_loop().time() - self._alive_at
        return self._pending == 0 and state.trimmed_time < state.now - int(silent * SECOND) - MARGIN

    def _fail(self, reason: str) -> None:
        logger.warning("reader lost its stream", reason=reason)
        self._failure = self._lost(reason)
        self._buffer.clear()
        self._waiter.wake()
