"""Watches one cluster: every scope listed and watched, and the log told of it (DESIGN §4). Any number of them may watch the same cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from bridge.cluster import ClusterClient
from bridge.epochs import Epochs, Held
from bridge.observe import Observer
from bridge.outlet import Commit, Outlet
from bridge.presence import Presence
from bridge.recent import Recent
from bridge.redact import Redactor
from bridge.scope_watch import ScopeWatch
from bridge.watch_parts import Parts, ScopeStatus, WatchSettings
from bus import scopes, subjects
from bus.clock import Clock, Randomness
from bus.log import Log, LogReset, LogUnavailable, Record
from bus.metrics import Metrics

__all__ = ["ScopeStatus", "WatchSettings", "Watcher"]

logger = structlog.get_logger(__name__)

ASKS_AT_ONCE: Final = 256
ASK_WAIT: Final = 60.0
AGES_EVERY: Final = 5.0


class Watcher:
    """`run` until cancelled; then what was added is flushed within the appender's bound.

    `ready` is set once every scope has been listed whole. `recent`: BatchSandboxes whole, for an executor in the same process.
    `presence`: which other clusters are watched under this name.
    """

    def __init__(
        self,
        cluster: str,
        client: ClusterClient,
        log: Log,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        settings: WatchSettings,
        recent: Recent | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.ready = asyncio.Event()
        self._cluster = subjects.check_cluster(cluster)
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._recent = recent
        self._randomness = randomness
        redactor = Redactor(settings.digest_key, settings.digest_annotations)
        self._outlet = Outlet(
            cluster,
            log,
            clock,
            randomness,
            metrics,
            snapshot=self._snapshot,
            on_restored=lambda: self._restart("the log was lost", fresh=False),
        )
        self._epochs = Epochs(cluster, client, log, metrics, on_change=self._another_epoch, presence=presence)
        parts = Parts(
            cluster=cluster,
            client=client,
            outlet=self._outlet,
            observer=Observer(cluster, redactor, limit=settings.message_limit),
            epochs=self._epochs,
            randomness=randomness,
            metrics=metrics,
            settings=settings,
            recent=recent,
        )
        self._parts = parts
        self._watches = [
            ScopeWatch(scope, namespace, parts)
            for scope in scopes.SCOPES
            for namespace in sorted(set(settings.namespaces)) or ("",)
        ]

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._supervised("outlet", self._outlet.run))
                group.create_task(self._supervised("asks", self._follow))
                group.create_task(self._supervised("readiness", self._become_ready))
                group.create_task(self._supervised("ages", self._tell_ages))
                for watch in self._watches:
                    group.create_task(self._supervised(f"list {watch.scope.word}", watch.lister))
                    group.create_task(self._supervised(f"watch {watch.scope.word}", watch.watcher))
        finally:
            for watch in self._watches:
                await watch.close()
            await self._outlet.close()

    @property
    def held(self) -> str:
        """Why nothing is listed although the API server answers: another cluster has our name. '' if it is ours."""
        return self._epochs.held

    def status(self) -> list[ScopeStatus]:
        return [watch.status() for watch in self._watches]

    async def _supervised(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run it to its end; if it raises, say so and run it again after a while. One failing task stops none of the others."""
        backoff = self._parts.backoff()
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                await work()
                return
            except Exception as error:
                logger.exception("a part of the watch failed; starting it again", cluster=self._cluster, part=name)
                self._metrics.count("watch_crashes", cluster=self._cluster, part=name, error=type(error).__name__)
            if loop.time() - begun > self._parts.settings.backoff_longest:
                backoff.reset()
            await asyncio.sleep(backoff.pause())

    async def _become_ready(self) -> None:
        for watch in self._watches:
            await watch.listed.wait()
        self.ready.set()
        logger.info("every scope is listed", cluster=self._cluster, epoch=self._epochs.current)

    async def _tell_ages(self) -> None:
        while True:
            for status in self.status():
                labels = {"cluster": self._cluster, "scope": status.scope, "namespace": status.namespace}
                if status.age is not None:
                    self._metrics.gauge("watch_age_seconds", status.age, **labels)
                if status.list_age is not None:
                    self._metrics.gauge("watch_list_age_seconds", status.list_age, **labels)
            await asyncio.sleep(AGES_EVERY)

    # What the log tells

    async def _follow(self) -> None:
        """Lists that somebody asks for, and epochs that another bridge raised, from now on."""
        backoff = self._parts.backoff()
        after: int | None = None
        while True:
            try:
                if after is None:
                    after = (await self._log.bounds()).last_sequence
                after = await self._follow_from(after)
            except LogReset as error:
                logger.warning("the log is another one, or lost its tail", cluster=self._cluster, error=str(error))
                after = None
                self._outlet.lost()
                await self._outlet.usable()
            except LogUnavailable:
                await asyncio.sleep(backoff.pause())
                continue
            backoff.reset()

    async def _follow_from(self, after: int) -> int:
        """Read until a quiet minute; the position reached. Raises LogReset and LogUnavailable."""
        asks = f"log.{subjects.ALL}.{self._cluster}.{subjects.ASK}"
        reader = await self._log.follow((asks, f"{asks}.>", subjects.epoch_of(self._cluster)), after=after)
        try:
            while True:
                for record in await reader.batch(ASKS_AT_ONCE, ASK_WAIT):
                    await self._told(record)
        finally:
            await reader.close()

    async def _told(self, record: Record) -> None:
        self._clock.observe(record.time)
        subject = subjects.parse(record.subject)
        if subject.message == subjects.EPOCH:
            # What the log says is taken over even if the lists must wait.
            with contextlib.suppress(Held):
                await self._epochs.read()
            return
        wanted = [w for w in self._watches if w.scope.word == subject.kind] or self._watches
        for watch in wanted:
            watch.ask("asked")

    # What the parts tell each other

    def _snapshot(self) -> Commit:
        taken = [(watch, watch.snapshot()) for watch in self._watches]

        def commit() -> None:
            for watch, snapshot in taken:
                watch.stored(snapshot)

        return commit

    def _another_epoch(self) -> None:
        if self._recent is not None:
            self._recent.clear()
        self._restart("another epoch", fresh=True)

    def _restart(self, reason: str, *, fresh: bool) -> None:
        for watch in self._watches:
            watch.restart(reason, fresh=fresh)
