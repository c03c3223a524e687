"""Keeps roles running: each a task that is started again when it fails, all of them stopped in order when the process is asked to."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import structlog

from bus.clock import Randomness
from bus.metrics import Metrics
from sandlog.exits import Stop

logger = structlog.get_logger(__name__)

FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 30.0
HEALTHY: Final = 60.0
"""A role that ran for so many seconds starts its back-off from the beginning."""
STOP_BOUND: Final = 15.0
"""Seconds that a role has to finish and ack what is in flight. Kubernetes kills after 30 s."""


class Role(Protocol):
    async def run(self) -> None: ...

    async def stop(self) -> None: ...

    def status(self) -> Mapping[str, Any]: ...


Fatal = Callable[[BaseException], Stop | None]
"""Whether an error is one that starting again cannot mend, and how the process ends for it."""


class _Runner:
    """One role: makes it anew for every start."""

    def __init__(self, name: str, make: Callable[[], Role], fatal: Fatal, metrics: Metrics, random: Randomness) -> None:
        self.name = name
        self.role: Role | None = None
        self.waiting = ""
        self._make = make
        self._fatal = fatal
        self._metrics = metrics
        self._random = random
        self._stopping = False

    async def run(self) -> None:
        """Until it is stopped. Raises Stop for an error that no restart mends."""
        wait = FIRST_WAIT
        loop = asyncio.get_running_loop()
        while not self._stopping:
            began = loop.time()
            error = await self._once()
            if self._stopping:
                return
            if loop.time() - began > HEALTHY:
                wait = FIRST_WAIT
            self.waiting = f"ended ({error!r}), starts again"
            await self._release()
            self._metrics.count("role_restarts", role=self.name)
            logger.error("role ended, starting it again", role=self.name, error=repr(error), wait=round(wait, 1))
            await asyncio.sleep(wait * self._random.uniform(0.8, 1.2))
            wait = min(LONGEST_WAIT, wait * 2)

    async def _once(self) -> BaseException | None:
        try:
            self.role = self._make()
            self.waiting = ""
            self._metrics.gauge("role_up", 1, role=self.name)
            await self.role.run()
        except Exception as error:
            stop = self._fatal(error)
            if stop is not None:
                raise stop from error
            logger.error("role failed", role=self.name, exc_info=error)
            return error
        finally:
            self._metrics.gauge("role_up", 0, role=self.name)
        return None

    async def _release(self) -> None:
        """Let a role that failed leave its group, so that it can join again."""
        if self.role is None:
            return
        try:
            async with asyncio.timeout(STOP_BOUND):
                await self.role.stop()
        except Exception as error:  # noqa: BLE001
            logger.info("failed role did not stop cleanly", role=self.name, error=repr(error))

    async def stop(self) -> None:
        self._stopping = True
        if self.role is not None:
            await self.role.stop()

    def not_ready(self) -> str:
        """Why the role does not do its work yet, '' if it does."""
        if self.waiting or self.role is None:
            return self.waiting or "not started"
        status = self.role.status()
        if status.get("ready", True):
            return ""
        return str(status.get("why") or "not ready")


class Supervisor:
    """`add` roles, then `run` until `stop` is called or a signal comes."""

    def __init__(self, metrics: Metrics, randomness: Randomness, fatal: Fatal = lambda error: None) -> None:
        self._metrics = metrics
        self._random = randomness
        self._fatal = fatal
        self._runners: list[_Runner] = []
        self._stop = asyncio.Event()

    def add(self, name: str, make: Callable[[], Role]) -> None:
        self._runners.append(_Runner(name, make, self._fatal, self._metrics, self._random))

    def stop(self) -> None:
        self._stop.set()

    async def asked_to_stop(self) -> None:
        """Returns once `stop` was called or a signal came."""
        await self._stop.wait()

    def not_ready(self) -> dict[str, str]:
        """role → why it is not ready; empty when all are."""
        wrong = {runner.name: runner.not_ready() for runner in self._runners}
        for name, why in wrong.items():
            self._metrics.gauge("role_ready", 0 if why else 1, role=name)
        return {name: why for name, why in wrong.items() if why}

    def status(self) -> dict[str, Mapping[str, Any]]:
        return {runner.name: runner.role.status() for runner in self._runners if runner.role is not None}

    def on_signals(self) -> None:
        """SIGTERM and SIGINT stop in order; the second one ends the process at once, with exit code 1."""
        loop = asyncio.get_running_loop()

        def asked(number: signal.Signals) -> None:
            if self._stop.is_set():
                os._exit(1)
            logger.info("stopping", signal=number.name)
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked, number)

    async def run(self) -> None:
        """Returns when all roles have stopped. Raises Stop if one of them ended for good."""
        tasks = {asyncio.create_task(runner.run(), name=runner.name): runner for runner in self._runners}
        asked = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            await asyncio.wait({asked, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            await self._wind_down(tasks)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _wind_down(self, tasks: Mapping[asyncio.Task[None], _Runner]) -> None:
        stops = [asyncio.create_task(runner.stop(), name=f"stop {runner.name}") for runner in tasks.values()]
        _, late = await asyncio.wait({*stops, *tasks}, timeout=STOP_BOUND) if tasks else (set(), set())
        for task in late:
            logger.warning("role does not stop in time, cutting it off", task=task.get_name(), bound=STOP_BOUND)
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in stops:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                logger.warning("role did not stop cleanly", task=task.get_name(), error=repr(error))
