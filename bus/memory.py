"""What the in-memory implementations share: a step hook for the crash explorer, waiting without sleeps, and a process's death."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import NoReturn

Hook = Callable[[str, str], Awaitable[None] | None]
"""Called with a kind (`append.before`, `append.after`, `add.…`, `flush.…`, `ack.…`, `commit.…`) and a detail (a subject, a partition)
before and after each step that changes what others see; awaited if it returns an awaitable. It may raise, or never return."""


async def step(hook: Hook | None, kind: str, detail: str) -> None:
    if hook is None:
        return
    result = hook(kind, detail)
    if inspect.isawaitable(result):
        await result


async def never() -> NoReturn:
    """What a dead process's calls do: they do not return."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")


class Bell:
    """Wakes everyone who waits for something to change. Plain futures in the order of waiting, so the order of waking is fixed."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], None] = {}

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            _settle(future, True)

    async def wait(self, deadline: float | None) -> bool:
        """Until the next ring; False if `deadline` (loop time) comes first."""
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            return False
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting[future] = None
        timer = loop.call_at(deadline, _settle, future, False) if deadline is not None else None
        try:
            return await future
        finally:
            self._waiting.pop(future, None)
            if timer is not None:
                timer.cancel()


def _settle(future: asyncio.Future[bool], rung: bool) -> None:
    if not future.done():
        future.set_result(rung)


def deadline_of(timeout: float | None) -> float | None:
    return None if timeout is None else asyncio.get_running_loop().time() + timeout
