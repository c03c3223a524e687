"""One task that sleeps until something comes or a time is over: what the pulls of readers and work queues share."""

from __future__ import annotations

import asyncio


class Waiter:
    """For one sleeper at a time."""

    def __init__(self) -> None:
        self._sleeper: asyncio.Future[None] | None = None

    @property
    def asleep(self) -> bool:
        """Whether somebody waits; so too after `wake`, until the sleeper has had its turn."""
        return self._sleeper is not None

    def wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def sleep(self, timeout: float | None) -> None:
        """Until `wake`, or after `timeout` seconds; the caller looks which it was."""
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = loop.call_later(timeout, self.wake) if timeout is not None else None
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()
