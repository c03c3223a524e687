"""Projectors on in-memory parts under virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from projector_world import Story, stored

from bus import subjects, viewcodec
from bus.clock import LogClock
from bus.log_memory import MemoryLog, MemoryStream
from bus.membership_memory import MemoryGroups, MemoryMemberships
from bus.metrics import NoMetrics
from bus.views import PartitionState
from bus.viewstore_memory import MemoryBucket, MemoryViewStore
from projector.fold import Partition
from projector.service import Projector, ProjectorSettings


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0

    def time(self) -> float:
        return self._virtual

    def _run_once(self) -> None:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        pending = [timer.when() for timer in timers if not timer.cancelled()]
        if pending and not self._ready:  # type: ignore[attr-defined]
            self._virtual = max(self._virtual, min(pending))
        super()._run_once()  # type: ignore[misc]


def virtually(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


class Counted(NoMetrics):
    def __init__(self) -> None:
        self.counts: dict[str, float] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        key = "/".join((name, *labels.values()))
        self.counts[key] = self.counts.get(key, 0) + amount


class Stage:
    """A log, a bucket, groups; and the projectors on them. Messages come from a `Story`, whose own partition is what must result."""

    def __init__(self, partitions: int = 1) -> None:
        self.stream = MemoryStream(partitions=partitions)
        self.bucket = MemoryBucket()
        self.groups = MemoryGroups()
        self.metrics = Counted()
        self.partitions = partitions
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def say(self, story: Story, since: int = 0) -> None:
        """Append what the story said after its record number `since`."""
        for record in story.records[since:]:
            self.stream.store(record.subject, record.data, record.headers, expected=None, message_id=None)

    def start(self, name: str, *, on_commit: Any = None) -> Projector:
        projector = Projector(
            MemoryLog(self.stream),
            MemoryViewStore(self.bucket, on_step=on_commit),
            MemoryMemberships(self.groups),
            LogClock(),
            random.Random(1),
            self.metrics,
            ProjectorSettings(),
            name=name,
        )
        self.tasks[name] = asyncio.get_running_loop().create_task(projector.run())
        return projector

    async def crashed(self, projector: Projector) -> None:
        """Its task ended with an exception of ours: neither does its heart beat any more."""
        assert projector._membership is not None
        projector._membership.kill()  # type: ignore[attr-defined]

    async def stop(self, name: str, projector: Projector | None = None) -> None:
        if projector is not None:
            await projector.stop()
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for name in list(self.tasks):
            await self.stop(name)

    async def caught_up(self, timeout: float = 600.0) -> None:
        """Until the store holds what a fold of the whole log gives, cursors of quiet partitions apart."""
        end = asyncio.get_running_loop().time() + timeout
        wanted, last = self.wanted(), self.stream.last
        while self.held() != wanted:
            if self.stream.last != last:
                wanted, last = self.wanted(), self.stream.last
            for task in self.tasks.values():
                if task.done():
                    task.result()
            assert asyncio.get_running_loop().time() < end, set(self.held().items()) ^ set(wanted.items())
            await asyncio.sleep(0.25)

    def held(self) -> dict[str, bytes]:
        return {e.key: e.data for e in self.bucket.matching((">",)) if e.data is not None and not e.key.endswith("._")}

    def wanted(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for number in range(self.partitions):
            partition = Partition(number, self.partitions, self.fresh())
            for record in self.stream.after(0):
                partition.fold(record)
            found |= {key: data for key, data in stored(partition).items() if not key.endswith("._")}
        return found

    def fresh(self) -> PartitionState:
        return PartitionState(log=self.stream.identity, cursor=self.stream.first - 1)

    def cursor(self, partition: int = 0) -> int:
        entry = self.bucket.get(subjects.fence_key(partition))
        assert entry is not None
        assert entry.data is not None
        return viewcodec.decode_fence(entry.data).cursor

    def cursor_or_none(self) -> int | None:
        entry = self.bucket.get(subjects.fence_key(0))
        return viewcodec.decode_fence(entry.data).cursor if entry is not None and entry.data is not None else None

    def count(self, message: str) -> int:
        return sum(subjects.parse(r.subject).message == message for r in self.stream.after(0))
