"""A reconciler on in-memory parts under virtual time, and a stand-in for the projector that stores views as told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from bus import messages, subjects, viewcodec
from bus.clock import LogClock
from bus.log import Record
from bus.log_memory import MemoryLog, MemoryStream
from bus.membership_memory import MemoryGroups, MemoryMemberships
from bus.messages import Command, Dead, Tick
from bus.metrics import NoMetrics
from bus.views import SandboxView
from bus.viewstore_memory import MemoryBucket, MemoryViewStore
from reconciler.service import Reconciler

PARTITION = 5


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer whenever nothing else can run."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 1000.0

    def time(self) -> float:
        return self._virtual

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        pending = [timer.when() for timer in timers if not timer.cancelled()]
        if pending and not self._ready:  # type: ignore[attr-defined]
            self._virtual = max(self._virtual, min(pending))
        super()._run_once()  # type: ignore[misc]


def virtually(scenario: Callable[[], Awaitable[None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


class Counted(NoMetrics):
    def __init__(self) -> None:
        self.counts: dict[str, float] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount


class Stage:
    """Shared parts, and the reconcilers on them."""

    def __init__(self) -> None:
        self.stream = MemoryStream()
        self.bucket = MemoryBucket()
        self.groups = MemoryGroups()
        self.metrics = Counted()
        self.running: list[asyncio.Task[None]] = []
        self._stored: dict[str, SandboxView] = {}

    def reconciler(self, name: str = "r1", log: MemoryLog | None = None) -> Reconciler:
        return Reconciler(
            log or MemoryLog(self.stream),
            MemoryViewStore(self.bucket),
            MemoryMemberships(self.groups),
            LogClock(),
            random.Random(1),
            self.metrics,
            name=name,
        )

    async def start(self, reconciler: Reconciler) -> Reconciler:
        self.running.append(asyncio.get_running_loop().create_task(reconciler.run()))
        await self.turns()
        return reconciler

    @staticmethod
    async def turns(count: int = 50) -> None:
        """Let everybody do what can be done now."""
        for _ in range(count):
            await asyncio.sleep(0)

    async def stop(self, *reconcilers: Reconciler) -> None:
        for each in reconcilers:
            await each.stop()
        await asyncio.gather(*self.running)

    def now(self) -> int:
        return self.stream.now()

    def note(self) -> int:
        """Some message lands, so that the log's position moves on; its sequence."""
        return self.stream.store("log.5.c1.default.obs.batchsandbox.a", b"{}", {}, expected=None, message_id=None)

    def put(self, *views: SandboxView) -> None:
        for view in views:
            for key, data in viewcodec.encode(PARTITION, view, self._stored.get(view.name)).items():
                self.bucket.put(key, data)
            self._stored[view.name] = view
        self.bucket.bell.ring()

    def fold(self, name: str, **changes: Any) -> SandboxView:
        """Store the view anew, as of the log's end and knowing its latest command."""
        view = replace(
            self._stored[name],
            **{"sequence": self.stream.last, "last_command": self.last_command(name), "now": self.now()} | changes,
        )
        self.put(view)
        return view

    def last_command(self, name: str) -> int:
        return self.stream.last_sequence_of(f"log.{PARTITION}.c1.default.cmd.sandbox.{name}")

    def records(self, kind: str, name: str = "*") -> list[Record]:
        subject = f".{kind}.sandbox."
        return [
            record
            for record in self.stream.after(0)
            if subject in record.subject and (name == "*" or record.subject.endswith(f".{name}"))
        ]

    def commands(self, name: str = "*") -> list[Command]:
        return [messages.decode(r.data, r.headers, Command) for r in self.records(subjects.COMMAND, name)]

    def ticks(self) -> list[Tick]:
        return [messages.decode(r.data, r.headers, Tick) for r in self.records(subjects.TICK)]

    def dead(self) -> list[Dead]:
        return [messages.decode(r.data, r.headers, Dead) for r in self.records(subjects.DEAD)]
