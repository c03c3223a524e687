"""What a reconciler has to do: the latest view of each aggregate, the orders that follow from them, and the wake-ups.

No I/O: the shell (`reconciler.service`) feeds it and performs its orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from bus.subjects import Aggregate
from bus.views import Decision, View
from reconciler.shares import Share
from reconciler.wakeups import Wakeups

PATIENCE: Final = 10.0
"""Seconds for which views that do not know the latest command yet are passed over; then they are decided on afresh."""


class Held(msgspec.Struct, frozen=True):
    partition: int
    view: View


class CommandOrder(msgspec.Struct, frozen=True):
    aggregate: Aggregate
    partition: int
    view: View
    decision: Decision


class TickOrder(msgspec.Struct, frozen=True):
    aggregate: Aggregate
    partition: int
    view: int
    due: int


class DeadOrder(msgspec.Struct, frozen=True):
    """Something of this aggregate could not be understood: what, at which position or revision, and why."""

    aggregate: Aggregate
    partition: int
    subject: str
    sequence: int
    error: str


Order = CommandOrder | TickOrder | DeadOrder


class Worklist:
    """At most one command, one tick and one dead letter per aggregate wait here: the number of aggregates bounds it."""

    def __init__(self, decide: Callable[[View], Decision], share: Share) -> None:
        self._decide = decide
        self._share = share
        self._held: dict[Aggregate, Held] = {}
        self._commands: dict[Aggregate, CommandOrder] = {}
        self._ticks: dict[Aggregate, TickOrder] = {}
        self._dead: dict[Aggregate, DeadOrder] = {}
        self._appending: set[Aggregate] = set()
        self._passed_over: dict[Aggregate, tuple[int, float]] = {}
        self.wakeups = Wakeups()
        self.decisions = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> int:
        return len(self._commands) + len(self._ticks) + len(self._dead)

    def aggregates(self) -> list[Aggregate]:
        return list(self._held)

    def view(self, aggregate: Aggregate) -> View | None:
        held = self._held.get(aggregate)
        return None if held is None else held.view

    def partition(self, aggregate: Aggregate) -> int:
        held = self._held.get(aggregate)
        return 0 if held is None else held.partition

    def owns(self, aggregate: Aggregate) -> bool:
        return self._share.owns(aggregate)

    def see(self, aggregate: Aggregate, partition: int, view: View | None) -> None:
        """Take over a view as the store now holds it; None: it was deleted."""
        if view is None:
            self._held.pop(aggregate, None)
            self._passed_over.pop(aggregate, None)
            self._let_go(aggregate)
        else:
            self._held[aggregate] = Held(partition, view)

    def keep_only(self, aggregates: set[Aggregate]) -> None:
        """After the store was read anew: what it no longer holds is gone."""
        for aggregate in self._held.keys() - aggregates:
            self.see(aggregate, 0, None)

    def consider(self, aggregate: Aggregate, monotonic: float) -> None:
        """Decide on the latest view, unless an append for it runs or the latest known command is not folded into it yet.

        A decision replaces the one that still waits. Whatever `decide` raises passes through.
        """
        held = self._held.get(aggregate)
        if held is None or not self._share.owns(aggregate):
            self._let_go(aggregate)
            return
        if aggregate in self._appending or self._is_passed_over(aggregate, held.view, monotonic):
            return
        self._commands.pop(aggregate, None)
        self._ticks.pop(aggregate, None)
        self.decisions += 1
        decision = self._decide(held.view)
        self.wakeups.set(aggregate, decision.wake_at)
        if decision.ops:
            self._commands[aggregate] = CommandOrder(aggregate, held.partition, held.view, decision)

    def _is_passed_over(self, aggregate: Aggregate, view: View, monotonic: float) -> bool:
        newest = self._passed_over.get(aggregate)
        if newest is None:
            return False
        sequence, until = newest
        if view.last_command < sequence and monotonic < until:
            return True
        del self._passed_over[aggregate]
        return False

    def _let_go(self, aggregate: Aggregate) -> None:
        self._commands.pop(aggregate, None)
        self._ticks.pop(aggregate, None)
        self.wakeups.set(aggregate, None)

    def wake(self, now: int) -> None:
        """Turn the wake-ups that are due (log time) into ticks."""
        for aggregate, due in self.wakeups.take_due(now):
            held = self._held.get(aggregate)
            if held is not None:
                self._ticks[aggregate] = TickOrder(aggregate, held.partition, held.view.sequence, due)

    def orders(self) -> Iterator[Order]:
        """Take orders, oldest first, commands before the rest; each is given once. A command's aggregate is left alone until `rested`."""
        while True:
            if self._commands:
                aggregate = next(iter(self._commands))
                self._appending.add(aggregate)
                yield self._commands.pop(aggregate)
            elif self._ticks:
                yield self._ticks.pop(next(iter(self._ticks)))
            elif self._dead:
                yield self._dead.pop(next(iter(self._dead)))
            else:
                return

    def put_back(self, order: TickOrder | DeadOrder) -> None:
        if isinstance(order, TickOrder):
            self._ticks.setdefault(order.aggregate, order)
        else:
            self._dead.setdefault(order.aggregate, order)

    def rested(self, aggregate: Aggregate, last: int | None, monotonic: float) -> None:
        """The append of this aggregate's command has ended; `last` is its last command in the log, whoever made it.

        Views that do not know that one are passed over for a while: what would be decided from them would be refused.
        """
        self._appending.discard(aggregate)
        if last is not None:
            self._passed_over[aggregate] = (last, monotonic + PATIENCE)
