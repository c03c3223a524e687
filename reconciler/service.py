"""The reconciler's shell: watches the views, decides on those it owns, appends commands and ticks (DESIGN §6).

State is in memory only and nothing is done on the way out that matters: it may be killed at any await.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import structlog

from bus.clock import Clock, Randomness
from bus.log import Log, LogUnavailable
from bus.membership import Membership, Memberships
from bus.metrics import Metrics
from bus.subjects import VIEW_KEYS, Aggregate
from bus.times import SECOND
from bus.views import Decision, View
from bus.viewstore import ViewStore, ViewStoreUnavailable, ViewWatch
from reconciler.appends import Appends
from reconciler.decide import decide
from reconciler.reading import Reading, Unread
from reconciler.settings import DEFAULT, Settings
from reconciler.shares import GROUP, Share
from reconciler.worklist import CommandOrder, DeadOrder, Order, Worklist

logger = structlog.get_logger(__name__)

CONCURRENCY: Final = 64
"""Appends at a time, over all aggregates."""
BATCH: Final = 512
"""View changes taken in one turn."""
SWEEP: Final = 60.0
"""Seconds after which all owned views are decided on afresh, whatever changed."""
RETRY_FIRST: Final = 0.2
RETRY_LIMIT: Final = 10.0
STOP_BOUND: Final = 5.0
"""Seconds given to appends under way when it stops."""
REMEMBERED: Final = 1024
"""What was given up lately, so that it is told once."""


class Reconciler:
    def __init__(
        self,
        log: Log,
        views: ViewStore,
        memberships: Memberships,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        settings: Settings = DEFAULT,
        *,
        name: str,
    ) -> None:
        self._log = log
        self._views = views
        self._memberships = memberships
        self._clock = clock
        self._appends = Appends(log, clock, metrics, settings)
        self._randomness = randomness
        self._metrics = metrics
        self._settings = settings
        self._name = name
        self._share = Share(name)
        self._work = Worklist(self._decide, self._share)
        self._membership: Membership | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._asleep_until = 0
        self._stopping = asyncio.Event()
        self._given_up: dict[str, int] = {}
        self._failures = 0
        self._backing_off_until = 0.0
        self._lag = 0.0
        self._ready = False

    async def run(self) -> None:
        """Work until `stop`. What ends it otherwise is a fault of ours."""
        self._membership = await self._start()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            loops = [tasks.create_task(each) for each in (self._watch(), self._tick(), self._share_out())]
            await self._stopping.wait()
            self._tasks = None
            for each in loops:
                each.cancel()

    async def stop(self) -> None:
        """Begin nothing more, wait for the appends that are under way, say that we leave."""
        self._stopping.set()
        if self._running:
            await asyncio.wait(self._running, timeout=STOP_BOUND)
        if self._membership is not None:
            await self._membership.leave()

    def status(self) -> dict[str, Any]:
        """For /readyz and `sandlog status`: ready once the present views were read. `lag_seconds`: from a view's latest news to its decision."""
        return {
            "ready": self._ready,
            "why": "" if self._ready else "the views are being read",
            "name": self._name,
            "members": len(self._membership.members()) if self._membership else 0,
            "slots": len(self._share),
            "views": len(self._work),
            "waiting": self._work.waiting,
            "appending": len(self._running),
            "wakeups": len(self._work.wakeups),
            "decisions": self._work.decisions,
            "lag_seconds": round(self._lag, 3),
        }

    async def _start(self) -> Membership:
        while True:
            try:
                self._clock.observe((await self._log.bounds()).now)
                membership = await self._memberships.join(GROUP, self._name)
            except LogUnavailable as error:
                await self._back_off("start", error)
            else:
                self._share.update(member.name for member in membership.members())
                return membership

    # Views

    async def _watch(self) -> None:
        while True:
            watch: ViewWatch | None = None
            try:
                watch = await self._views.watch(VIEW_KEYS)
                self._failures = 0
                await self._follow(watch)
            except ViewStoreUnavailable as error:
                if watch is not None:
                    await watch.close()
                await self._back_off("watch", error)

    async def _follow(self, watch: ViewWatch) -> None:
        """Take changes as they come. What the store held at the beginning is all there is: the rest is forgotten."""
        reading = Reading()
        left: int | None = watch.initial
        present: set[Aggregate] = set()
        while True:
            if left is not None and left <= 0:
                self._work.keep_only(present)
                left = None
                self._ready = True
            entries = await watch.batch(BATCH)
            changed: set[Aggregate] = set()
            for read in reading.take(entries):
                if isinstance(read, Unread):
                    self._give_up_key(read)
                else:
                    self._work.see(*read)
                    changed.add(read[0])
            if left is not None:
                present |= changed
                left -= len(entries)
            self._consider(changed)

    def _consider(self, aggregates: set[Aggregate]) -> None:
        monotonic = asyncio.get_running_loop().time()
        before, latest = self._work.decisions, 0
        for aggregate in sorted(aggregates):
            self._decide_on(aggregate, monotonic)
            view = self._work.view(aggregate)
            if view is not None and view.now > latest:
                latest = view.now
        if self._work.decisions != before:
            self._metrics.count("reconciler_decisions", self._work.decisions - before)
        if latest:
            self._lag = max(0.0, (self._clock.now() - latest) / SECOND)
            self._metrics.gauge("reconciler_lag_seconds", self._lag)
        self._dispatch()

    def _decide_on(self, aggregate: Aggregate, monotonic: float) -> None:
        try:
            self._work.consider(aggregate, monotonic)
        except Exception as error:
            view = self._work.view(aggregate)
            self._metrics.count("reconciler_failed_decisions")
            logger.exception(
                "decision failed", cluster=aggregate.cluster, namespace=aggregate.namespace, name=aggregate.name
            )
            if view is not None:
                self._give_up(aggregate, view.sequence, f"{type(error).__name__} in decide")

    def _decide(self, view: View) -> Decision:
        return decide(view, self._settings)

    # Orders

    def _dispatch(self) -> None:
        """Start appends for waiting orders, as many as may run; each one that ends comes back here."""
        first = self._work.wakeups.first()
        if first is not None and first < self._asleep_until:
            self._wake.set()
        tasks = self._tasks
        if tasks is None or len(self._running) >= CONCURRENCY:
            return
        for order in self._work.orders():
            task = tasks.create_task(self._perform(order))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            if len(self._running) >= CONCURRENCY:
                return

    async def _perform(self, order: Order) -> None:
        last: int | None = None
        lost = False
        try:
            last = await self._appends.perform(order)
            self._failures = 0
        except LogUnavailable as error:
            lost = True
            await self._back_off("append", error)
        if isinstance(order, CommandOrder):
            monotonic = asyncio.get_running_loop().time()
            self._work.rested(order.aggregate, last, monotonic)
            # From the same view the same command would follow, and be refused again: wait for the next one.
            if lost or self._work.view(order.aggregate) is not order.view:
                self._decide_on(order.aggregate, monotonic)
        elif lost:
            self._work.put_back(order)
        current = asyncio.current_task()
        if current is not None:
            self._running.discard(current)
        self._dispatch()

    # What cannot be understood

    def _give_up(self, aggregate: Aggregate, position: int, error: str) -> None:
        partition = self._work.partition(aggregate)
        self._give_up_on(DeadOrder(aggregate, partition, str(aggregate), position, error))

    def _give_up_key(self, read: Unread) -> None:
        self._metrics.count("reconciler_unreadable_views")
        logger.error("view cannot be read", key=read.key, revision=read.revision, error=read.error)
        if read.aggregate is not None:
            self._give_up_on(DeadOrder(read.aggregate, read.partition, read.key, read.revision, read.error))

    def _give_up_on(self, order: DeadOrder) -> None:
        """A dead letter, once per version of what was given up; of strange keys nobody has a subject, they are only counted."""
        if self._given_up.get(order.subject) == order.sequence:
            return
        if len(self._given_up) >= REMEMBERED:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[order.subject] = order.sequence
        self._metrics.count("dead_letters", by=GROUP)
        self._work.put_back(order)

    # Time and share

    async def _tick(self) -> None:
        """Turn wake-ups into ticks when the log's time has come to them."""
        while True:
            now = self._clock.now()
            self._work.wake(now)
            self._dispatch()
            self._wake.clear()
            first = self._work.wakeups.first()
            self._asleep_until = now + int(SWEEP * SECOND) if first is None else first
            pause = SWEEP if first is None else min(SWEEP, max(0.001, (first - now) / SECOND))
            # Not wait_for: it swallows a cancellation that comes together with the event (Python 3.11).
            alarm = asyncio.get_running_loop().call_later(pause, self._wake.set)
            await self._wake.wait()
            alarm.cancel()

    async def _share_out(self) -> None:
        """When the members change, and every minute: take the share anew and decide afresh on all of it."""
        assert self._membership is not None
        while True:
            await self._membership.changed(SWEEP)
            try:
                self._clock.observe((await self._log.bounds()).now)
            except LogUnavailable as error:
                await self._back_off("bounds", error)
            members = self._membership.members()
            self._share.update(member.name for member in members)
            aggregates = self._work.aggregates()
            self._metrics.gauge("reconciler_views", sum(map(self._share.owns, aggregates)))
            for first in range(0, len(aggregates), BATCH):
                monotonic = asyncio.get_running_loop().time()
                for aggregate in aggregates[first : first + BATCH]:
                    self._decide_on(aggregate, monotonic)
                self._dispatch()
                await asyncio.sleep(0)

    async def _back_off(self, what: str, error: Exception) -> None:
        """Wait, with jitter, doubling over failures in a row; those that come at once count once."""
        monotonic = asyncio.get_running_loop().time()
        if monotonic >= self._backing_off_until:
            self._failures += 1
        pause = min(RETRY_LIMIT, RETRY_FIRST * 2 ** min(self._failures - 1, 10)) * self._randomness.uniform(0.5, 1.0)
        self._backing_off_until = monotonic + pause
        logger.warning("waits for NATS", what=what, error=str(error)[:200], seconds=round(pause, 2))
        await asyncio.sleep(pause)
