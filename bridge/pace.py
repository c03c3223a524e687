"""How fast to call and how soon to try again, by the running loop's clock."""

from __future__ import annotations

import asyncio

from bus.clock import Randomness


class Backoff:
    """Growing pauses with jitter: from half to the whole of `first`, doubled up to `longest` seconds. `reset` after a success."""

    def __init__(self, randomness: Randomness, first: float = 0.5, longest: float = 30.0) -> None:
        self._randomness = randomness
        self._first = first
        self._longest = longest
        self._next = first

    def pause(self) -> float:
        """The seconds to wait now."""
        base, self._next = self._next, min(self._longest, self._next * 2)
        return self._randomness.uniform(base / 2, base)

    def reset(self) -> None:
        self._next = self._first


class TokenBucket:
    """At most `rate` takes a second, after a burst of `burst`; waiters are served in turn."""

    def __init__(self, rate: float, burst: int) -> None:
        self._interval = 1 / rate
        self._burst = max(1, burst)
        self._free_at = float("-inf")
        """When the bucket would be empty of debts: a take moves it on by one interval."""

    async def take(self) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - self._burst * self._interval) + self._interval
        if (wait := self._free_at - now) > 1e-9:
            await asyncio.sleep(wait)
