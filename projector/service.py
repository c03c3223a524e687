"""The projector: consume the log, fold it, commit the views (DESIGN §5). A thin shell around `projector.fold`.

Commits are fenced by the partition's fence key: a second projector on the same partition, or one that was stopped and wakes up, is refused,
drops what it holds and loads again. Membership only spreads the partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import structlog

from bus import messages, subjects
from bus.clock import Clock, Randomness
from bus.log import Log, LogReset, LogUnavailable, Reader, Record
from bus.membership import Membership, Memberships, shares
from bus.metrics import Metrics
from bus.times import SECOND
from bus.version import CODE_VERSION
from bus.viewstore import Fenced, OwnedViews, ViewStore, ViewStoreUnavailable
from projector.keeper import Keeper
from projector.readiness import Readiness

GROUP = "projector"
BRIDGES = "bridge."
logger = structlog.get_logger(__name__)


class ProjectorSettings(msgspec.Struct, frozen=True):
    """Times in seconds."""

    batch: int = 500
    """records folded before a commit, at most"""
    idle: float = 1.0
    """how often to look at members, idle cursors and asks while the log is quiet"""
    ask_interval: float = 30.0
    """how often a list is asked for while one is missing"""
    fence_interval: float = 15.0
    """how often the cursor of a partition without messages is moved on, so that a restart reads little"""
    retry: float = 0.2
    """first pause after a refusal or a loss; doubles up to `retry_limit`"""
    retry_limit: float = 5.0


class Projector:
    def __init__(
        self,
        log: Log,
        views: ViewStore,
        memberships: Memberships,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        settings: ProjectorSettings,
        *,
        name: str,
    ) -> None:
        self._log = log
        self._views = views
        self._owner = views if isinstance(views, OwnedViews) else None
        self._memberships = memberships
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._settings = settings
        self._name = name
        self._membership: Membership | None = None
        self._keepers: dict[int, Keeper] = {}
        self._readiness = Readiness(metrics)
        self._position = 0
        self._position_time = 0
        self._target = 0
        self._caught_up = False
        self._folded_at = 0
        self._checked = 0

    def status(self) -> dict[str, object]:
        """For /readyz and `sandlog status`: ready once everything that was in the log at the start is folded."""
        return {
            "ready": self._caught_up,
            "partitions": len(self._keepers),
            "position": self._position,
            "views": sum(len(keeper.partition.views) for keeper in self._keepers.values()),
            "incomplete": sorted({c for keeper in self._keepers.values() for c in keeper.partition.incomplete()}),
            "lag_seconds": round(max(0, self._clock.now() - self._folded_at) / SECOND, 3) if self._folded_at else None,
        }

    async def run(self) -> None:
        """Until cancelled. A loss of the log, the store or a partition starts the session afresh."""
        self._membership = await self._memberships.join(GROUP, self._name)
        pause = self._settings.retry
        while True:
            started = asyncio.get_running_loop().time()
            try:
                await self._session(self._membership)
                pause = self._settings.retry
            except (Fenced, LogReset, LogUnavailable, ViewStoreUnavailable) as loss:
                if asyncio.get_running_loop().time() - started > 10 * self._settings.retry_limit:
                    pause = self._settings.retry
                self._metrics.count("projector_restarts", reason=type(loss).__name__)
                logger.info("projector starts afresh", reason=type(loss).__name__, detail=str(loss)[:200])
                await asyncio.sleep(pause * (0.5 + self._randomness.random()))
                pause = min(self._settings.retry_limit, pause * 2)
            self._caught_up = False

    async def stop(self) -> None:
        """Say that we leave, so that others take over at once."""
        if self._membership is not None:
            await self._membership.leave()

    # -- one session: one set of partitions, one reader

    async def _session(self, membership: Membership) -> None:
        bounds = await self._log.bounds()
        self._clock.observe(bounds.now)
        owned = self._owned(membership, bounds.partitions)
        self._keepers = {}
        if not owned:
            await membership.changed(self._settings.idle)
            return
        for number in owned:
            self._keepers[number] = await Keeper.load(number, bounds, self._log, self._views)
        after = min(keeper.partition.state.cursor for keeper in self._keepers.values())
        self._position, self._position_time, self._target = after, 0, bounds.last_sequence
        self._caught_up = after >= self._target
        everything = None if len(owned) == bounds.partitions else owned
        reader = await self._log.follow(subjects.folded_by(everything), after=after)
        logger.info("projector folds", partitions=len(owned), after=after, last=bounds.last_sequence)
        try:
            if self._owner is not None:
                self._owner.own(owned, bounds.partitions)
            await self._follow(membership, owned, bounds.partitions, reader)
        finally:
            if self._owner is not None:
                self._owner.own((), bounds.partitions)
            await reader.close()

    def _owned(self, membership: Membership, partitions: int) -> tuple[int, ...]:
        members = [member.name for member in membership.members()]
        return shares(partitions, members).get(self._name, ())

    async def _follow(self, membership: Membership, owned: tuple[int, ...], partitions: int, reader: Reader) -> None:
        loop = asyncio.get_running_loop()
        upkeep_at = loop.time()
        await self._commit(self._keepers.values())
        while True:
            records = await reader.batch(self._settings.batch, self._settings.idle)
            if records:
                await self._take(records)
            if loop.time() < upkeep_at:
                continue
            upkeep_at = loop.time() + self._settings.idle
            if await membership.changed(0) and self._owned(membership, partitions) != owned:
                return
            if not records and not self._caught_up:
                await self._reach_target()
            await self._upkeep()

    async def _reach_target(self) -> None:
        """Nothing more came although the target lies ahead: what is left of it is none of ours to fold."""
        if self._position < self._target:
            record = await self._log.get(self._target)
            if record is not None:
                self._position, self._position_time = self._target, record.time
        self._caught_up = True

    async def _take(self, records: list[Record]) -> None:
        touched: dict[int, Keeper] = {}
        for record in records:
            for keeper in self._keepers_of(record):
                error = keeper.fold(record)
                touched[keeper.partition.number] = keeper
                if error is not None:
                    await self._dead(record, error)
                if keeper.full:
                    await self._commit([keeper])
        last = records[-1]
        self._clock.observe(last.time)
        await self._commit(touched.values())
        self._position, self._position_time = last.sequence, last.time
        self._folded_at = last.time
        self._caught_up = self._caught_up or last.sequence >= self._target
        self._metrics.count("projector_records", len(records))
        if self._caught_up:
            self._metrics.observe("projector_lag_seconds", max(0, self._clock.now() - last.time) / SECOND)

    def _keepers_of(self, record: Record) -> Iterable[Keeper]:
        number = record.subject.split(".", 2)[1]
        if number == subjects.ALL:
            return self._keepers.values()
        keeper = self._keepers.get(int(number)) if number.isascii() and number.isdigit() else None
        return (keeper,) if keeper is not None else ()

    async def _commit(self, keepers: Iterable[Keeper]) -> None:
        changed = [keeper for keeper in keepers if keeper.dirty]
        if not changed:
            return
        if self._caught_up:
            # What is folded again after a restart is history, and was counted when it happened.
            for keeper in changed:
                self._readiness.look(keeper)
        if len(changed) == 1:
            await changed[0].commit(self._views)
        else:
            for first in range(0, len(changed), 16):
                commits = (keeper.commit(self._views) for keeper in changed[first : first + 16])
                # All of them end before a refusal is raised: one that is still on its way would fence us ourselves.
                for result in await asyncio.gather(*commits, return_exceptions=True):
                    if isinstance(result, BaseException):
                        raise result
        self._metrics.count("projector_commits", len(changed))

    async def _dead(self, record: Record, error: str) -> None:
        """Put what the fold could not take where the operator looks; it stops nothing."""
        logger.warning("message not understood", subject=record.subject, position=record.sequence, error=error)
        self._metrics.count("dead_letters", by=GROUP)
        try:
            subject = subjects.parse(record.subject)
        except ValueError:
            return
        if subject.partition is None:
            return
        place = subjects.of_aggregate(subjects.DEAD, subject.partition, subject.aggregate)
        for said in await self._log.read((place,), after=record.sequence):
            # Folded before, by us or by another; the message id alone forgets after some minutes.
            if (
                said.headers.get(messages.CAUSE_HEADER) == str(record.sequence)
                and f'"by":"{GROUP}"'.encode() in said.data
            ):
                return
        await self._log.append(
            place,
            messages.encode(messages.Dead(record.subject, record.sequence, GROUP, error)),
            messages.headers(CODE_VERSION, cause=record.sequence),
            message_id=f"dead-{GROUP}-{record.sequence}",
        )

    # -- upkeep

    async def _upkeep(self) -> None:
        now = asyncio.get_running_loop().time()
        interval = self._settings.fence_interval
        position, time = self._position, self._position_time
        idle = [k for k in self._keepers.values() if k.advance(position, time, now, interval)]
        await self._commit(idle)
        self._checked = (self._checked + 1) % len(self._keepers)
        await list(self._keepers.values())[self._checked].check(self._views)
        if self._caught_up:
            await self._ask(now)

    async def _ask(self, now: float) -> None:
        """Ask for lists of clusters of which something is not complete, and of those whose bridges live but have said nothing."""
        if not any(k.asks_at <= now for k in self._keepers.values()):
            return
        clusters = {c for keeper in self._keepers.values() for c in keeper.partition.incomplete()}
        known = {c for keeper in self._keepers.values() for c in keeper.partition.state.clusters}
        for member in await self._memberships.all():
            if member.group.startswith(BRIDGES) and member.group.removeprefix(BRIDGES) not in known:
                clusters.add(member.group.removeprefix(BRIDGES))
        for keeper in self._keepers.values():
            keeper.asks_at = now + self._settings.ask_interval
        interval = max(1, int(self._settings.ask_interval * SECOND))
        for cluster in sorted(clusters):
            ask = messages.Ask(by=self._name, reason="a list is missing")
            await self._log.append(
                subjects.ask_for(cluster, subjects.ALL),
                messages.encode(ask),
                messages.headers(CODE_VERSION),
                message_id=f"ask-{cluster}-{self._clock.now() // interval}",
            )
            self._metrics.count("projector_asks")
            logger.info("asked for lists", cluster=cluster)
