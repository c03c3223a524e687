"""A durable consumer that several processes share, with explicit acks: small pulls on demand, so that nobody hoards work."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.connection import ApiError, Connection, Unreachable
from bus.log import LogUnavailable, Record
from bus.pull import BACK_OFF_FIRST, BACK_OFF_LONGEST, HEARTBEAT, SILENCE
from bus.stored import NO_HEADERS, SECOND, position
from bus.streams import STREAM_NOT_FOUND
from bus.waiter import Waiter

logger = structlog.get_logger(__name__)

PULL = 32
"""Most messages asked for at a time by one process."""
EXPIRES = 30.0
ACK, WORKING, AGAIN = b"+ACK", b"+WPI", b"-NAK"
Send = Callable[[str, bytes], Any]


class NatsDelivery:
    """`bus.log.Delivery`. Acks are not confirmed: one that is lost means a redelivery, which the user must bear anyway."""

    __slots__ = ("_queue", "_reply", "delivered", "record")

    def __init__(self, queue: NatsWorkQueue, reply: str, record: Record, delivered: int) -> None:
        self._queue = queue
        self._reply = reply
        self.record = record
        self.delivered = delivered

    async def ack(self) -> None:
        await self._queue.answer(self._reply, ACK)

    async def working(self) -> None:
        await self._queue.answer(self._reply, WORKING)

    async def again(self, delay: float) -> None:
        await self._queue.answer(self._reply, AGAIN + b' {"delay": %d}' % max(0, int(delay * SECOND)))


class NatsWorkQueue:
    """`bus.log.WorkQueue`. If the stream or the durable is lost it waits until they are there again, and goes on."""

    def __init__(self, connection: Connection, stream: str, config: dict[str, Any]) -> None:
        self._connection = connection
        self._stream = stream
        self._config = config
        self._durable: str = config["durable_name"]
        self._api = f"CONSUMER.CREATE.{stream}.{self._durable}"
        filters = config.get("filter_subject")
        if filters:
            self._api = f"{self._api}.{filters}"
        self._next = f"{connection.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{self._durable}"
        self._buffer: deque[NatsDelivery] = deque()
        self._asked = 0
        self._alive_at = 0.0
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._waiter = Waiter()
        self._repairing: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._closed = False
        self._forget: list[Callable[[], None]] = []

    async def open(self) -> None:
        """Make the durable, or bring it to these settings. Raises ApiError or Unreachable."""
        await self._make()
        self._forget = [self._connection.on_reconnect(lambda: self._repair("reconnected"))]
        await self._subscribe()
        self._watch()

    async def batch(self, limit: int, timeout: float | None = None) -> list[NatsDelivery]:
        if self._closed:
            raise LogUnavailable(f"work queue {self._durable} is closed")
        if not self._buffer:
            await self._ask(min(limit, PULL))
            if not self._buffer:
                await self._waiter.sleep(timeout)
        return [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]

    async def answer(self, reply: str, body: bytes) -> None:
        try:
            await self._connection.nc.publish(reply, body)
        except (nats.errors.Error, OSError) as error:
            logger.debug("ack not sent, it will come again", durable=self._durable, error=repr(error))

    async def close(self) -> None:
        """Hand back what was fetched and not taken."""
        self._closed = True
        for forget in self._forget:
            forget()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._repairing is not None:
            self._repairing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._repairing
        await self._unsubscribe()
        while self._buffer:
            await self._buffer.popleft().again(0)
        self._waiter.wake()

    async def _make(self) -> None:
        await self._connection.api(self._api, {"stream_name": self._stream, "config": self._config})

    async def _subscribe(self) -> None:
        self._inbox = self._connection.nc.new_inbox()
        self._asked = 0
        self._subscription = await self._connection.nc.subscribe(
            self._inbox, cb=self._message, pending_msgs_limit=0, pending_bytes_limit=0
        )

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    async def _ask(self, count: int) -> None:
        if self._asked > 0 or self._repairing is not None or self._subscription is None:
            return
        self._asked = count
        self._alive_at = asyncio.get_running_loop().time()
        body = b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}' % (
            count,
            int(EXPIRES * SECOND),
            int(HEARTBEAT * SECOND),
        )
        try:
            await self._connection.nc.publish(self._next, body, self._inbox)
        except (nats.errors.Error, OSError) as error:
            self._repair(repr(error))

    async def _message(self, message: Msg) -> None:
        self._alive_at = asyncio.get_running_loop().time()
        if message.headers is not None and "Status" in message.headers and message.subject == self._inbox:
            await self._status(message.headers)
            return
        at = position(message.reply)
        self._asked -= 1
        record = Record(message.subject, at.sequence, at.time, message.headers or NO_HEADERS, message.data)
        self._buffer.append(NatsDelivery(self, message.reply, record, at.delivered))
        self._waiter.wake()

    async def _status(self, headers: dict[str, str]) -> None:
        code, description = headers["Status"], headers.get("Description", "")
        if code == "100":
            return
        left = headers.get("Nats-Pending-Messages")
        if left is None or code == "503" or "Deleted" in description or "Leadership" in description:
            self._repair(f"{code} {description}")
            return
        asked, self._asked = self._asked, max(0, self._asked - int(left))
        if self._waiter.asleep and self._asked == 0:
            await self._ask(asked)

    def _watch(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        if self._asked > 0 and self._repairing is None and loop.time() - self._alive_at > SILENCE:
            self._repair(f"silent for {SILENCE:g} s")
        self._watchdog = loop.call_later(HEARTBEAT, self._watch)

    def _repair(self, why: str) -> None:
        if self._closed or self._repairing is not None:
            return
        logger.info("work queue interrupted, taking it up again", durable=self._durable, why=why)
        self._repairing = asyncio.get_running_loop().create_task(self._repaired())

    async def _repaired(self) -> None:
        back_off = BACK_OFF_FIRST
        while True:
            try:
                await self._unsubscribe()
                await self._make()
                await self._subscribe()
                self._repairing = None
                if self._waiter.asleep:
                    await self._ask(PULL)
                return
            except ApiError as error:
                quiet = error.error_code == STREAM_NOT_FOUND
                (logger.debug if quiet else logger.warning)("durable not made", durable=self._durable, error=str(error))
            except (Unreachable, nats.errors.Error, OSError) as error:
                logger.debug("durable not made", durable=self._durable, error=str(error))
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, BACK_OFF_LONGEST)
            await self._connection.wait_connected(BACK_OFF_LONGEST)
