"""Virtual time for asyncio: nothing waits, time jumps to the next timer as soon as nothing is ready. The same calls give the same order."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

LONGEST = 1_000_000.0
"""Seconds of virtual time that a test may take."""
AT_ONE_INSTANT = 200_000
"""Turns at one moment after which it is taken for a loop that never waits."""


class NothingLeft(AssertionError):
    """Nothing is ready and no timer runs: nothing will ever happen any more."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without a selector. Sockets, pipes and subprocesses are not to be had on it."""

    _ready: deque[asyncio.Handle]

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self._now = start
        self._turns = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._made = 0

    def time(self) -> float:
        return self._now

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether a turn that has come may run; the explorer holds back or drops those of stopped and dead processes."""
        return True

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers of the same moment go off in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, timer))
        return timer

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise NothingLeft
            if timers[0][0] > self._now:
                self._now = timers[0][0]
                self._turns = 0
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        count = len(ready)
        self._turns += count
        if self._turns > AT_ONE_INSTANT:
            raise AssertionError(f"it runs without ever waiting, at {self._now}: {ready[0]!r}")
        for _ in range(count):
            handle = ready.popleft()
            if not handle.cancelled() and self.admits(handle):
                handle._run()

    def _write_to_self(self) -> None:
        """There is no other thread to wake it."""


def run_virtually(scenario: Callable[[], Coroutine[Any, Any, None]], *, start: float = 0.0) -> None:
    """Run it on a loop of its own to its end, then cancel what it left behind."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start)) as runner:
        runner.run(asyncio.wait_for(scenario(), LONGEST))


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test under virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtually(lambda: test(*args, **kwargs))

    return run


async def until(
    condition: Callable[[], object | Awaitable[object]], seconds: float = 600.0, every: float = 0.01
) -> None:
    """Wait in virtual time until it holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        found = condition()
        if await found if isinstance(found, Awaitable) else found:
            return
        assert loop.time() < end, f"it did not come to pass within {seconds} s"
        await asyncio.sleep(every)
