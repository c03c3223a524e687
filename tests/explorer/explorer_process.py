"""Processes in one thread: every turn of the loop belongs to a process by its context, and so a process can be killed or stopped.

A kill runs none of the process's code: its turns are dropped, and its tasks are kept, so that nothing collects them and runs a `finally`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from support.virtual_time import VirtualLoop

from bus.log_memory import MemoryLog
from bus.viewstore_memory import MemoryViewStore

CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """One simulated process of a role. `name` is what it calls itself among its peers."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.number = number
        self.name = f"{role}-{number}"
        self.dead = False
        self.stopped = False
        self.turns = 0
        """How often it ran: at two moments of the same number its own state is the same."""
        self.held: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.log: MemoryLog | None = None
        self.views: MemoryViewStore | None = None

    @property
    def runs(self) -> bool:
        return not self.dead and not self.stopped

    def start(self, loop: ProcessLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it as this process: whatever comes of it has this process's context."""
        context = contextvars.Context()
        context.run(CURRENT.set, self)
        context.run(lambda: loop.create_task(work(), name=self.name))

    def kill(self) -> None:
        """SIGKILL."""
        self.dead = True
        self.held.clear()
        for part in (self.log, self.views):
            if part is not None:
                part.kill()

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True
        if self.log is not None:
            self.log.stopped = True

    def wake(self, loop: ProcessLoop) -> None:
        """SIGCONT: what became due meanwhile is taken up in its order."""
        self.stopped = False
        if self.log is not None:
            self.log.stopped = False
        loop.take_up(self.held)
        self.held = []


class ProcessLoop(VirtualLoop):
    """A virtual loop whose turns belong to processes; those without one are the world's own."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Process] = []
        """All that ever ran: keeps the tasks of the dead."""

    def create_task(
        self, coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any], *, name: object = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        process = CURRENT.get()
        if process is not None:
            process.tasks.append(task)
        return task

    def admits(self, handle: asyncio.Handle) -> bool:
        process: Process | None = handle._context.get(CURRENT)  # type: ignore[attr-defined]
        if process is None:
            return True
        if process.runs:
            process.turns += 1
            return True
        if not process.dead:
            process.held.append(handle)
        return False

    def take_up(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def bury(self) -> None:
        """When all is over and judged: let go of what is left, so that nothing is said of it at the interpreter's end."""
        for process in self.processes:
            process.kill()
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        self.close()


def _close(coroutine: Any) -> None:
    try:
        coroutine.close()
    except (RuntimeError, asyncio.CancelledError, BaseExceptionGroup):
        return
