"""An ordered stream of appends as fast-ingest batches (server 2.14 and later; nats.md §1.4), without awaiting each.

A batch opens with the first message, so that it is stored and read at once, and is ended after a quiet moment or by `flush`: only the
end of a batch confirms its last messages (a ping repeats the last regular ack). Within a batch the server acks every `FLOW` messages.
With gap=fail a batch takes a message only if it took the one before, so what is stored is always a prefix of what was sent. After any failure
all that is not acked is sent again, in order, in a new batch; the message ids make the server drop what it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.connection import Connection
from bus.log import LogUnavailable, MessageTooLarge

logger = structlog.get_logger(__name__)

FLOW = 256
"""Messages between two acks; two acks may be outstanding."""
LINGER = 0.03
"""Seconds of silence after which a batch is ended. A batch of which the server hears nothing for 10 s dies."""
ACK_TIMEOUT = 3.0
GIVE_UP = 30.0
"""Seconds without progress after which the appender fails; less than the duplicate window of the stream."""
BUFFER_MESSAGES = 4096
BUFFER_BYTES = 32 * 1024 * 1024
BACK_OFF_FIRST = 0.05
BACK_OFF_LONGEST = 1.0
MESSAGE_ID = "Nats-Msg-Id"
START, APPEND, END = 0, 1, 3


class State(Enum):
    IDLE = "idle"
    OPEN = "open"
    ENDING = "ending"
    RECOVERING = "recovering"
    FAILED = "failed"
    CLOSED = "closed"


Queued = tuple[str, bytes, dict[str, str]]


class FastIngestAppender:
    """`bus.log.Appender` over NATS. Several tasks may add; the order is that of the calls."""

    def __init__(self, connection: Connection, name: str, *, give_up: float = GIVE_UP) -> None:
        self.name = name
        self.recoveries = 0
        self._connection = connection
        self._nc = connection.nc
        self._give_up = give_up
        self._state = State.IDLE
        self._failure = ""
        self._unsent: deque[Queued] = deque()
        self._sent: deque[Queued] = deque()
        self._bytes = 0
        # Counted over the appender's life, to know what a flush waits for.
        self._added = 0
        self._stored = 0
        # Counted within the batch.
        self._sequence = 0
        self._acked = 0
        self._every = FLOW
        self._message_prefix = uuid.uuid4().hex[:12]
        self._batch = ""
        self._reply = ""
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._last_add = 0.0
        self._linger: asyncio.TimerHandle | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._recovering_since: float | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._space: deque[asyncio.Future[None]] = deque()
        self._forget = connection.on_disconnect(lambda: self._recover("connection lost"))

    @property
    def unstored(self) -> int:
        """Messages added and not confirmed."""
        return self._added - self._stored

    async def add(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        if len(data) > self._nc.max_payload:
            raise MessageTooLarge(subject, len(data), self._nc.max_payload)
        while self._full() and self._state not in (State.FAILED, State.CLOSED):
            await self._wait_space()
        self._check()
        self._added += 1
        queued = dict(headers) if headers else {}
        queued.setdefault(MESSAGE_ID, f"{self._message_prefix}.{self._added}")
        self._bytes += len(data)
        self._unsent.append((subject, data, queued))
        self._last_add = asyncio.get_running_loop().time()
        await self._pump()

    async def flush(self) -> None:
        self._check()
        if self._stored >= self._added:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._added, future))
        await self._pump()
        await future

    async def close(self) -> None:
        if self._state is State.CLOSED:
            return
        try:
            async with asyncio.timeout(self._give_up + ACK_TIMEOUT):
                await self.flush()
        except (LogUnavailable, TimeoutError) as error:
            logger.warning(
                "appender closed with messages not stored", appender=self.name, lost=self.unstored, error=str(error)
            )
        self._fail("closed", State.CLOSED)
        self._forget()
        if self._recovery is not None:
            self._recovery.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._recovery
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()

    def _check(self) -> None:
        if self._state in (State.FAILED, State.CLOSED):
            raise LogUnavailable(f"appender {self.name}: {self._failure}")

    def _full(self) -> bool:
        held = len(self._sent) + len(self._unsent)
        return held >= BUFFER_MESSAGES or (self._bytes >= BUFFER_BYTES and held > 0)

    async def _wait_space(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._space.append(future)
        # A few huge messages fill the buffer before an ack falls due: end the batch to get one.
        await self._pump()
        await future

    def _end_wanted(self) -> bool:
        return bool(self._waiters or self._space)

    async def _pump(self) -> None:
        """Send what may be sent. Popping and handing to nats-py happen in one step, so callers cannot overtake each other."""
        try:
            if self._state is State.IDLE and self._unsent:
                await self._open()
            while self._state is State.OPEN and self._unsent and self._sequence < self._acked + 2 * self._every:
                await self._send()
            if self._state is State.OPEN and not self._unsent and self._sent and self._end_wanted():
                await self._end()
        except (nats.errors.Error, OSError) as error:
            self._recover(repr(error))

    async def _open(self) -> None:
        if not self._connection.connected:
            self._recover("not connected")
            return
        self._state = State.OPEN
        self._sequence = self._acked = 0
        self._every = FLOW
        self._batch = uuid.uuid4().hex[:22]
        if self._subscription is None:
            self._inbox = self._nc.new_inbox()
            self._reply = f"{self._inbox}.{self._batch}.{FLOW}.fail."
            self._subscription = await self._nc.subscribe(
                f"{self._inbox}.>", cb=self._answer, pending_msgs_limit=0, pending_bytes_limit=0
            )
        self._reply = f"{self._inbox}.{self._batch}.{FLOW}.fail."
        self._arm_linger()

    async def _send(self) -> None:
        subject, data, headers = queued = self._unsent.popleft()
        self._sent.append(queued)
        self._sequence += 1
        operation = APPEND if self._sequence > 1 else START
        if self._sequence >= self._acked + 2 * self._every:
            self._arm_watchdog()
        await self._nc.publish(subject, data, f"{self._reply}{self._sequence}.{operation}.$FI", headers)

    async def _end(self) -> None:
        self._state = State.ENDING
        self._arm_watchdog()
        subject = self._sent[-1][0]
        await self._nc.publish(subject, b"", f"{self._reply}{self._sequence + 1}.{END}.$FI")

    def _arm_linger(self) -> None:
        if self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER, self._linger_over)

    def _linger_over(self) -> None:
        self._linger = None
        if self._state is not State.OPEN:
            return
        idle = asyncio.get_running_loop().time() - self._last_add
        if idle < LINGER or self._unsent or not self._sent:
            self._arm_linger()
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._added, future))
        self._spawn_pump()

    def _spawn_pump(self) -> None:
        # At most one is wanted at a time: they are spawned by the linger timer alone, which is armed anew only by a new batch.
        task = asyncio.get_running_loop().create_task(self._pump())
        self._pumping = task

    def _arm_watchdog(self) -> None:
        if self._watchdog is None:
            self._watchdog = asyncio.get_running_loop().call_later(ACK_TIMEOUT, self._watchdog_over)

    def _disarm_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def _watchdog_over(self) -> None:
        self._watchdog = None
        if self._state in (State.OPEN, State.ENDING):
            self._recover(f"no ack within {ACK_TIMEOUT:g} s")

    async def _answer(self, message: Msg) -> None:
        batch = message.subject[len(self._inbox) + 1 :].partition(".")[0]
        if batch != self._batch or self._state not in (State.OPEN, State.ENDING):
            return
        if message.headers and message.headers.get("Status") == "503":
            self._recover("no stream takes the messages")
            return
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        if answer.get("type") == "ack":
            self._every = max(1, int(answer.get("msgs", FLOW)))
            self._confirm(int(answer["seq"]))
        elif "count" in answer and "error" not in answer:
            self._confirm(int(answer["count"]))
            if self._state is State.ENDING and not self._sent:
                self._disarm_watchdog()
                self._state = State.IDLE
            else:
                self._recover("batch ended early")
        else:
            self._recover(str(answer.get("error") or answer))
        await self._pump()

    def _confirm(self, sequence: int) -> None:
        while self._acked < sequence and self._sent:
            self._bytes -= len(self._sent.popleft()[1])
            self._acked += 1
            self._stored += 1
            self._recovering_since = None
        if self._state is State.OPEN and self._sequence < self._acked + 2 * self._every:
            self._disarm_watchdog()
        self._wake()

    def _wake(self) -> None:
        while self._waiters and self._waiters[0][0] <= self._stored:
            _, future = self._waiters.pop(0)
            if not future.done():
                future.set_result(None)
        while self._space and not self._full():
            waiting = self._space.popleft()
            if not waiting.done():
                waiting.set_result(None)
                break

    def _recover(self, why: str) -> None:
        """Take the batch as lost and send from the last acked message on. Safe to call at any time."""
        if self._state in (State.RECOVERING, State.FAILED, State.CLOSED) or not (self._sent or self._unsent):
            return
        loop = asyncio.get_running_loop()
        self._disarm_watchdog()
        self._state = State.RECOVERING
        self._batch = ""
        self.recoveries += 1
        while self._sent:
            self._unsent.appendleft(self._sent.pop())
        if self._recovering_since is None:
            self._recovering_since = loop.time()
            self._back_off = BACK_OFF_FIRST
            logger.warning(
                "appends interrupted, sending again", appender=self.name, messages=len(self._unsent), why=why
            )
        self._failure = why
        self._recovery = loop.create_task(self._resume())

    async def _resume(self) -> None:
        assert self._recovering_since is not None
        loop = asyncio.get_running_loop()
        deadline = self._recovering_since + self._give_up
        back_off, self._back_off = self._back_off, min(self._back_off * 2, BACK_OFF_LONGEST)
        await asyncio.sleep(back_off)
        if loop.time() >= deadline or not await self._connection.wait_connected(deadline - loop.time()):
            logger.error("appends given up", appender=self.name, lost=len(self._unsent), why=self._failure)
            self._fail(self._failure, State.FAILED)
            return
        self._state = State.IDLE
        await self._pump()

    def _fail(self, why: str, state: State) -> None:
        self._state, self._failure = state, why
        for timer in (self._linger, self._watchdog):
            if timer is not None:
                timer.cancel()
        for future in [future for _, future in self._waiters] + list(self._space):
            if not future.done():
                future.set_exception(LogUnavailable(f"appender {self.name}: {why}"))
                future.exception()
        self._waiters.clear()
        self._space.clear()
        self._unsent.clear()
        self._sent.clear()
        self._bytes = 0
