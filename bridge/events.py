"""Kubernetes Events: best effort, sent when nothing else waits, each named after its op so that a repeat is the same Event (DESIGN §7)."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from typing import NamedTuple

import msgspec
import structlog

from bridge.calls import Call, Calls, TimeOver
from bridge.lanes import Priority
from bus import names
from bus.clock import Clock
from bus.metrics import Metrics
from bus.ops import RecordEvent
from bus.resources import EVENT, KINDS
from bus.times import SECOND, format_time

log = structlog.get_logger(__name__)

MAX_MESSAGE = 1024
"""What the API server takes."""
_HASH_LENGTH = 16
_encoder = msgspec.json.Encoder()


class EventSettings(msgspec.Struct, frozen=True):
    queued: int = 4096
    at_once: int = 4
    patience: float = 60.0
    """Seconds for which one Event is tried."""


def event_name(op: RecordEvent) -> str:
    """`<object>.<hash of the op's id>`: the same for every repeat of the op, and a legal name."""
    digest = hashlib.sha256(f"{op.target}/{op.target.uid}/{op.id}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"{names.shortened(op.target.name, names.MAX_OBJECT_NAME - _HASH_LENGTH - 1)}.{digest}"


def event_body(op: RecordEvent, namespace: str) -> bytes:
    """The Event as JSON (core/v1). KeyError for a kind of target that nobody knows."""
    kind = KINDS[op.target.kind]
    at = format_time(op.at)
    return _encoder.encode(
        {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"name": event_name(op), "namespace": namespace},
            "involvedObject": {
                "apiVersion": kind.api_version,
                "kind": kind.name,
                "namespace": namespace,
                "name": op.target.name,
                "uid": op.target.uid,
            },
            "type": op.type,
            "reason": op.reason,
            "message": op.message[:MAX_MESSAGE],
            "source": {"component": op.component},
            "reportingComponent": op.component,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
    )


class _Waiting(NamedTuple):
    namespace: str
    op: RecordEvent
    since: float


class EventLane:
    """A bounded queue of Events and the few tasks that send them. What does not fit drives out the oldest."""

    def __init__(self, calls: Calls, clock: Clock, metrics: Metrics, settings: EventSettings | None = None) -> None:
        self._calls = calls
        self._clock = clock
        self._metrics = metrics
        self._settings = settings or EventSettings()
        self._queue: deque[_Waiting] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    def submit(self, namespace: str, op: RecordEvent) -> None:
        """Take over one Event."""
        self._queue.append(_Waiting(namespace, op, asyncio.get_running_loop().time()))
        if len(self._queue) > self._settings.queued:
            self._drop("full")
        if len(self._senders) < self._settings.at_once:
            sender = asyncio.create_task(self._send_all())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        self._metrics.gauge("events_waiting", len(self._queue))

    async def drain(self, patience: float) -> None:
        """Wait until all that was taken over is sent, for so many seconds at the most."""
        if self._senders:
            await asyncio.wait(list(self._senders), timeout=patience)

    async def close(self) -> None:
        """Drop what waits and end the senders."""
        while self._queue:
            self._drop("stopping")
        senders = list(self._senders)
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)

    def _drop(self, cause: str) -> None:
        self._queue.popleft()
        self._metrics.count("events", result="dropped", cause=cause)

    async def _send_all(self) -> None:
        while self._queue:
            waiting = self._queue.popleft()
            try:
                result = await self._send(waiting)
            except Exception as error:  # noqa: BLE001 - an Event is best effort, and the next must go
                log.warning(
                    "event not sent",
                    namespace=waiting.namespace,
                    target=str(waiting.op.target),
                    error=type(error).__name__,
                )
                result = "failed"
            self._metrics.count("events", result=result, cause="")
            self._metrics.gauge("events_waiting", len(self._queue))

    async def _send(self, waiting: _Waiting) -> str:
        namespace, op = waiting.namespace, waiting.op
        call = Call("POST", EVENT, namespace, body=event_body(op, namespace))
        expires = self._clock.now() + int(self._settings.patience * SECOND)
        try:
            answer = await self._calls.make(call, Priority.EVENT, expires, since=waiting.since)
        except TimeOver:
            return "late"
        if answer.status in (200, 201, 202, 409):
            return "sent"
        log.info("event refused", namespace=namespace, target=str(op.target), code=answer.status)
        return "refused"
