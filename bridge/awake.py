"""Whether this process slept (SIGSTOP, a frozen machine): then what it is amid of may be another's by now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LIMIT: Final = 3.0
"""Seconds without a turn of the loop that count as sleep: with the second before them, less than an executor's `ack_wait`."""
_BEAT: Final = 1.0


class Awake:
    """One for all that a process is amid of. A timer beats only while somebody asks; a beat that comes late was slept through."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._watching = 0
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._slept = -1.0

    @contextmanager
    def watch(self) -> Iterator[Callable[[], bool]]:
        """Gives a function that tells whether the process has slept since."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._timer is None:
            self._last = began
            self._timer = loop.call_later(_BEAT, self._beat, loop)
        self._note(began)
        self._watching += 1

        def slept() -> bool:
            self._note(loop.time())
            return self._slept > began

        try:
            yield slept
        finally:
            self._watching -= 1

    def _note(self, now: float) -> None:
        if now - self._last > self._limit:
            self._slept = now
        self._last = now

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._note(loop.time())
        self._timer = loop.call_later(_BEAT, self._beat, loop) if self._watching else None
