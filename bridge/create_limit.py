"""How many creates at a time (DESIGN §7): few where more would only wait inside the API server, more where each takes long by itself.

A create that takes no longer than the quickest of late has not waited: its time is that of webhooks or the network, and more of them at a
time cost nobody anything. One that takes a multiple of it stood in the server's queue, where it holds up what makes sandboxes ready.
The idea is that of TCP Vegas (Brakmo and Peterson, 1995): the best time seen lately stands for the empty road.
"""

from __future__ import annotations

import math
from typing import Final

WINDOW: Final = 60.0
"""Seconds after which a best time begins to be forgotten; it is gone after twice that."""
UNHINDERED: Final = 1.5
"""A mean of up to so many times the best: one more may go at a time."""
QUEUEING: Final = 2.5
"""A mean of more than so many times the best: one less."""


class CreateLimit:
    """`current` creates may run at a time, from `least` to `most`; it moves by one for each round of that many creates."""

    def __init__(self, least: int, most: int) -> None:
        self.current = least
        self._least = least
        self._most = max(least, most)
        self._best = self._best_before = math.inf
        self._window_since = -math.inf
        self._sum = 0.0
        self._count = 0

    def took(self, seconds: float, now: float) -> None:
        """A create was performed and took `seconds`; `now` is any monotonic time in seconds."""
        if now - self._window_since >= WINDOW:
            stale = now - self._window_since >= 2 * WINDOW
            self._best_before = math.inf if stale else self._best
            self._best, self._window_since = math.inf, now
        self._best = min(self._best, seconds)
        self._sum += seconds
        self._count += 1
        if self._count >= self.current:
            self._move(self._sum / self._count, min(self._best, self._best_before))
            self._sum, self._count = 0.0, 0

    def _move(self, mean: float, best: float) -> None:
        if mean <= UNHINDERED * best:
            self.current = min(self._most, self.current + 1)
        elif mean > QUEUEING * best:
            self.current = max(self._least, self.current - 1)
