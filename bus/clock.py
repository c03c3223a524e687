"""Time and chance as the roles see them: seams, so that the whole system also runs under virtual time from a seed.

Log time is the NATS server's (DESIGN §4, Time): nanoseconds since the epoch. A process estimates it from the timestamps of what
it reads and its own monotonic clock, so that one machine's wrong wall clock moves nothing. Monotonic deadlines and sleeps go through
the running event loop (`loop.time()`, `asyncio.sleep`), which a virtual-time loop replaces.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from bus.times import SECOND


class Clock(Protocol):
    def now(self) -> int:
        """The log's time now, in nanoseconds; never ahead of the server's."""
        ...

    def observe(self, time: int) -> None:
        """A server timestamp was just read."""
        ...


class LogClock:
    """Log time from the latest server timestamps seen and the loop's monotonic clock.

    A timestamp arrives late, never early, so the greatest of (timestamp − monotonic) is the best estimate. It ages by `drift`
    (parts per million), so that a server's clock set back is followed within minutes rather than never.
    """

    def __init__(self, drift: float = 200.0) -> None:
        self._offset: float | None = None
        self._at = 0.0
        self._drift = drift * 1e-6

    def observe(self, time: int) -> None:
        monotonic = asyncio.get_running_loop().time()
        offset = time - monotonic * SECOND
        if self._offset is None or offset >= self._aged(monotonic):
            self._offset, self._at = offset, monotonic

    def now(self) -> int:
        if self._offset is None:
            raise RuntimeError("log time is not known yet: read the log's bounds first")
        monotonic = asyncio.get_running_loop().time()
        return int(monotonic * SECOND + self._aged(monotonic))

    def _aged(self, monotonic: float) -> float:
        assert self._offset is not None
        return self._offset - (monotonic - self._at) * SECOND * self._drift


class Randomness(Protocol):
    """The part of `random.Random` that shells use (jitter, names of processes)."""

    def random(self) -> float: ...

    def uniform(self, a: float, b: float) -> float: ...

    def getrandbits(self, k: int, /) -> int: ...
