"""The bridge's way into the log: one appender per cluster, made anew after a failure, flushed once a second while there is something.

What was not flushed when it failed counts as lost, whoever added it; `on_restored` tells all scopes to go back and list (DESIGN §4, Appends).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from bridge.pace import Backoff
from bus import messages
from bus.clock import Clock, Randomness
from bus.log import Appender, Log, LogUnavailable
from bus.metrics import Metrics
from bus.version import CODE_VERSION

logger = structlog.get_logger(__name__)

FLUSH_EVERY: Final = 1.0
HEADERS: Final = messages.headers(CODE_VERSION)

Commit = Callable[[], None]


class Outlet:
    """`run` must run. `snapshot` is called before each flush; what it returned is called once all that was added until then is stored."""

    def __init__(
        self,
        cluster: str,
        log: Log,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        *,
        snapshot: Callable[[], Commit],
        on_restored: Callable[[], None],
    ) -> None:
        self.partitions = 0
        """P of DESIGN §4; 0 until the log was reached."""
        self._cluster = cluster
        self._log = log
        self._clock = clock
        self._metrics = metrics
        self._snapshot = snapshot
        self._on_restored = on_restored
        self._backoff = Backoff(randomness, first=0.25, longest=5.0)
        self._appender: Appender | None = None
        self._usable = asyncio.Event()
        self._stir = asyncio.Event()
        self._dirty = False

    async def add(self, subject: str, data: bytes) -> None:
        """Raises LogUnavailable (wait for `usable`, then go back) and MessageTooLarge."""
        if self._appender is None:
            raise LogUnavailable("waiting for the log")
        try:
            await self._appender.add(subject, data, HEADERS)
        except LogUnavailable:
            self.lost()
            raise
        if not self._dirty:
            self._dirty = True
            self._stir.set()

    async def flush(self) -> None:
        """Return when all that was added before is stored. Raises LogUnavailable."""
        appender = self._appender
        if appender is None:
            raise LogUnavailable("waiting for the log")
        commit = self._snapshot()
        self._dirty = False
        try:
            await appender.flush()
        except LogUnavailable:
            if appender is self._appender:
                self.lost()
            raise
        commit()

    async def usable(self) -> None:
        await self._usable.wait()

    def lost(self) -> None:
        """What was added and not flushed is lost, or the log is another one: a new appender is made, and all scopes list again."""
        if self._usable.is_set():
            self._usable.clear()
            self._metrics.count("watch_log_losses", cluster=self._cluster)
            logger.warning("the log is unavailable; listing again when it is back", cluster=self._cluster)
        self._stir.set()

    async def run(self) -> None:
        while True:
            if not self._usable.is_set():
                await self._restore()
            await self._stir.wait()
            self._stir.clear()
            if not self._usable.is_set():
                continue
            await asyncio.sleep(FLUSH_EVERY)
            if self._dirty and self._usable.is_set():
                try:
                    await self.flush()
                except LogUnavailable:
                    continue

    async def close(self) -> None:
        """Flush within the appender's own bound and let go."""
        if self._appender is not None:
            appender, self._appender = self._appender, None
            self._usable.clear()
            await appender.close()

    async def _restore(self) -> None:
        old, self._appender = self._appender, None
        while True:
            try:
                ensure = getattr(self._log, "ensure", None)
                if ensure is not None:
                    await ensure()
                bounds = await self._log.bounds()
                break
            except LogUnavailable as error:
                pause = self._backoff.pause()
                logger.warning("waiting for the log", cluster=self._cluster, error=str(error), pause=round(pause, 2))
                await asyncio.sleep(pause)
        if old is not None:
            # Not before there is a log: it would wait for one until its patience ends. What it still stores is a repeat.
            await old.close()
        self._clock.observe(bounds.now)
        self._backoff.reset()
        first = self.partitions == 0
        self.partitions = bounds.partitions
        self._appender = self._log.appender(f"bridge-{self._cluster}")
        self._dirty = False
        self._stir.clear()
        self._usable.set()
        if not first:
            self._on_restored()
