"""How a reconciler's orders become messages of the log."""

from __future__ import annotations

import structlog

from bus import messages, subjects
from bus.clock import Clock
from bus.log import Log, MessageTooLarge, WrongLastSequence
from bus.messages import Command, Dead, Tick
from bus.metrics import Metrics
from bus.version import CODE_VERSION
from reconciler.settings import Settings
from reconciler.shares import GROUP
from reconciler.worklist import CommandOrder, DeadOrder, Order, TickOrder

logger = structlog.get_logger(__name__)


class Appends:
    def __init__(self, log: Log, clock: Clock, metrics: Metrics, settings: Settings) -> None:
        self._log = log
        self._clock = clock
        self._metrics = metrics
        self._settings = settings

    async def perform(self, order: Order) -> int | None:
        """Append what an order says. Raises LogUnavailable.

        Returns, for a command, the sequence of the aggregate's last one: this one, or that of whoever came first. Else None.
        """
        match order:
            case CommandOrder():
                return await self._command(order)
            case TickOrder():
                await self._tick(order)
            case DeadOrder():
                await self._dead(order)
        return None

    async def _command(self, order: CommandOrder) -> int | None:
        """Append a decision if no other was made since its view: the log arbitrates (DESIGN §6)."""
        view, decision = order.view, order.decision
        uid = view.object.uid if view.object is not None else ""
        expires = self._clock.now() + self._settings.command_ttl
        command = Command(view.sequence, expires, decision.reason, decision.ops, uid)
        subject = subjects.of_aggregate(subjects.COMMAND, order.partition, order.aggregate)
        data = messages.encode(command)
        headers = messages.headers(CODE_VERSION, cause=view.sequence)
        expected = view.last_command
        while True:
            try:
                sequence = await self._log.append(subject, data, headers, expected_last_subject_sequence=expected)
            except WrongLastSequence as error:
                last = await self._real_last(subject) if error.last is None else error.last
                if expected != view.last_command or last == expected or last > view.sequence:
                    self._metrics.count("reconciler_refused_commands")
                    return last
                # The log was trimmed, or the name was used before: nothing newer than this view was ordered.
                expected = last
            except MessageTooLarge as error:
                self._metrics.count("reconciler_oversized_commands")
                logger.error("command is too large", subject=subject, size=error.size, limit=error.limit)
                return None
            else:
                self._metrics.count("reconciler_commands", kind=order.aggregate.kind)
                return sequence

    async def _real_last(self, subject: str) -> int:
        record = await self._log.last(subject)
        return 0 if record is None else record.sequence

    async def _tick(self, order: TickOrder) -> None:
        """Its message id makes it land once, whoever appends it."""
        await self._log.append(
            subjects.of_aggregate(subjects.TICK, order.partition, order.aggregate),
            messages.encode(Tick(order.due, order.view)),
            messages.headers(CODE_VERSION, cause=order.view),
            message_id=f"tick/{order.aggregate}/{order.view}/{order.due}",
        )
        self._metrics.count("reconciler_ticks")

    async def _dead(self, order: DeadOrder) -> None:
        await self._log.append(
            subjects.of_aggregate(subjects.DEAD, order.partition, order.aggregate),
            messages.encode(Dead(order.subject, order.sequence, GROUP, order.error)),
            messages.headers(CODE_VERSION),
            message_id=f"dead/{GROUP}/{order.subject}/{order.sequence}",
        )
