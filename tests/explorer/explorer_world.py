"""The whole system in one thread under virtual time, from a seed: every role's real class over the memory twins and a simulated cluster.

Every append, commit, API call and ack has two points, before and after, numbered as they come. `at_point` is called at each of them and may
disturb the world.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec
from explorer_api_checker import ApiChecker
from explorer_cluster import RoleClient, SimulatedCluster
from explorer_log_checker import CheckedBucket, CheckedStream, folded_wrongly, of_lists, unfinished, untold
from explorer_objects import Json, difference, normalised
from explorer_pause_checker import PauseChecker
from explorer_process import CURRENT, Process, ProcessLoop

from bridge.execute import ExecuteSettings, Executor
from bridge.recent import Recent
from bridge.watch import Watcher, WatchSettings
from bus.clock import LogClock
from bus.log_memory import MemoryLog
from bus.membership_memory import MemoryGroups, MemoryMemberships
from bus.memory import never
from bus.metrics import NoMetrics
from bus.viewstore_memory import MemoryViewStore
from projector.service import Projector, ProjectorSettings
from reconciler.service import Reconciler
from reconciler.settings import Settings

CLUSTER: Final = "c1"
ROLES: Final = ("bridge", "executor", "projector", "reconciler")
PARTITIONS: Final = 2
REGISTRY: Final = "registry.test/snap"
MEMBER_TTL: Final = 20.0
"""As on a NATS cluster (DESIGN §9)."""
STEPS: Final = frozenset(("add", "append", "flush", "commit", "ack", "api"))
SETTLED_WITHIN: Final = 200.0
"""Virtual seconds that a stage may take, whatever was disturbed: less than the 270 s after which lists would hide what was missed."""
MINUTE: Final = 60.0
STILL: Final = 10 * MINUTE
TRACE: Final = 30
FAULTS: Final = frozenset(
    ("watch_crashes", "command_faults", "reconciler_failed_decisions", "reconciler_unreadable_views", "dead_letters")
)
"""Counted by a role when its own code failed: nothing in a scenario may do that unless it says so."""


class Point(msgspec.Struct, frozen=True):
    """A moment that can be disturbed. `kind` is `api.before` and the like."""

    number: int
    time: float
    process: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.number:5} {self.time:9.3f}s {self.process:13} {self.kind:14} {self.detail}"


class Failed(AssertionError):
    """The world is not as it should be."""


class World:
    def __init__(self, loop: ProcessLoop, seed: int, expected: dict[str, dict[str, Json]] | None = None) -> None:
        """`expected`: the normalised objects of each stage of the undisturbed run; None if this is the undisturbed one."""
        self.loop = loop
        self.seed = seed
        self.cluster = SimulatedCluster(seed)
        self.stream = CheckedStream(PARTITIONS, self.say)
        self.bucket = CheckedBucket(self.say)
        self.groups = MemoryGroups(MEMBER_TTL)
        self.checker = ApiChecker(self.cluster.store, self.say)
        self.pause_checker = PauseChecker(self.cluster.store, self.say)
        self.violations: list[str] = []
        self.allowed: frozenset[str] = frozenset()
        self.points = 0
        self.numbering = True
        self.trace: deque[Point] = deque(maxlen=TRACE)
        self.at_point: Callable[[World, Point], None] = lambda world, point: None
        self.stages: dict[str, dict[str, Json]] = {}
        self._expected = expected
        self._born: dict[str, int] = dict.fromkeys(ROLES, 0)
        self._tasks: list[asyncio.Task[None]] = []

    def say(self, text: str) -> None:
        if len(self.violations) < 20:
            self.violations.append(f"[{self.loop.time():.3f}s] {text}")

    # Processes

    def begin(self, instances: int = 1) -> None:
        self._tasks.append(self.loop.create_task(self.cluster.run()))
        for _ in range(instances):
            for role in ROLES:
                self.start(role)

    def start(self, role: str) -> Process:
        self._born[role] += 1
        process = Process(role, self._born[role])
        process.log = MemoryLog(self.stream, on_step=self.step)
        process.views = MemoryViewStore(self.bucket, on_step=self.step)
        self.loop.processes.append(process)
        process.start(self.loop, lambda: self._live(process))
        return process

    async def _live(self, process: Process) -> None:
        try:
            await MAKERS[process.role](self, process)
        except Exception as error:  # noqa: BLE001 - the world's outermost: a role that ends is what the explorer looks for
            self.say(f"{process.name} failed: {error!r}")
        else:
            self.say(f"{process.name} ended by itself")

    def running(self, role: str) -> list[Process]:
        return [process for process in self.loop.processes if process.role == role and process.runs]

    def progress(self, role: str) -> int:
        """Rises whenever the role's first process may have done something since."""
        return sum(process.turns for process in self.running(role)[:1])

    def randomness(self, process: Process) -> random.Random:
        return random.Random(f"{self.seed}/{process.name}")

    # Points

    def step(self, kind: str, detail: str) -> Awaitable[None] | None:
        """The hook of everything that others can see."""
        process = CURRENT.get()
        if kind.partition(".")[0] in STEPS and self.numbering:
            point = Point(self.points, self.loop.time(), process.name if process else "", kind, detail)
            self.points += 1
            self.trace.append(point)
            self.at_point(self, point)
            if process is not None:
                process.turns += 1
        if process is None or process.runs:
            return None
        return never() if process.dead else asyncio.sleep(0)

    # What scenarios wait for

    async def until(self, what: str, condition: Callable[[], object], within: float = SETTLED_WITHIN) -> None:
        end = self.loop.time() + within
        while not condition():
            self._stand()
            if self.loop.time() > end:
                raise Failed(f"not within {within} s: {what}")
            await asyncio.sleep(0.02)

    async def stage(self, name: str) -> None:
        """All is as in the undisturbed run, the views say so and the log has told all of it. Without that run: until it is quiet."""
        end = self.loop.time() + SETTLED_WITHIN
        last: object = None
        since = looked = -1.0
        while True:
            await asyncio.sleep(0.5)
            self._stand()
            now, state = self.loop.time(), (self.stream.last, self.cluster.store.resource_version, self.bucket.changes)
            if state != last:
                last, since, looked = state, now, -1.0
            if looked < 0 and now - since >= (3.0 if self._expected is None else 1.0):
                looked = now
                lacking = self._lacking(name)
                if not lacking:
                    return
            if now > end:
                raise Failed(
                    "\n".join([f"stage {name!r} not reached within {SETTLED_WITHIN} s:", *self._lacking(name)])
                )

    def _lacking(self, name: str) -> list[str]:
        found = self.stages[name] = normalised(self.cluster)
        lacking = [] if self._expected is None else difference(self._expected[name], found)
        lacking += unfinished(self.bucket)
        return lacking + (untold(self.stream, self.cluster.store, CLUSTER) if self.stream.whole else [])

    async def still(self) -> None:
        """When nobody is stopped, every command is acked and nothing was written for a minute: ten minutes in which nothing happens but lists."""
        self.numbering = False
        await self.until("all run, every command is acked, and no Job is left", self._at_rest, STILL)
        before = await self._quiet_minute()
        await asyncio.sleep(STILL)
        if before != self._written():
            news = [
                f"{r.sequence} {r.subject}" for r in self.stream.after(before[0]) if not of_lists(r.subject, r.data)
            ]
            raise Failed("\n".join([f"not quiet: (log, store) went from {before} to {self._written()}", *news[:20]]))
        lacking = unfinished(self.bucket) + folded_wrongly(self.stream, self.bucket)
        if lacking:
            raise Failed("\n".join(lacking))
        self._stand()

    def _at_rest(self) -> bool:
        stopped = any(process.stopped for process in self.loop.processes)
        # Finished Jobs go by themselves after five minutes.
        return not self.stream.unacked and not stopped and not self.cluster.objects("jobs")

    def _written(self) -> tuple[int, int]:
        return self.stream.news, self.cluster.store.resource_version

    async def _quiet_minute(self) -> tuple[int, int]:
        for _ in range(10):
            before = self._written()
            await asyncio.sleep(MINUTE)
            if before == self._written() and self._at_rest():
                return before
        raise Failed("something was written in every one of ten minutes")

    def _stand(self) -> None:
        if self.violations:
            raise Failed("\n".join(self.violations))

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


class CheckedMetrics(NoMetrics):
    """Says so when a role counts a fault of its own code."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        if name in FAULTS and name not in self._world.allowed:
            self._world.say(f"{self._process.name} counted {name} {labels}")


def _client(world: World, process: Process) -> RoleClient:
    randomness = world.randomness(process)
    return RoleClient(world.cluster, process.name, world.step, randomness, world.checker.witness)


async def _bridge(world: World, process: Process) -> None:
    assert process.log is not None
    await MemoryMemberships(world.groups).join(f"bridge.{CLUSTER}", process.name)
    settings = WatchSettings(digest_key=b"of the explorer")
    metrics = CheckedMetrics(world, process)
    watcher = Watcher(
        CLUSTER,
        _client(world, process),
        process.log,
        LogClock(),
        world.randomness(process),
        metrics,
        settings,
        Recent(),
    )
    await watcher.run()


async def _executor(world: World, process: Process) -> None:
    assert process.log is not None
    # A long poll, only so that little happens while nothing happens.
    settings = ExecuteSettings(by=process.name, poll=60.0)
    metrics = CheckedMetrics(world, process)
    randomness = world.randomness(process)
    await Executor(CLUSTER, _client(world, process), process.log, LogClock(), randomness, metrics, settings, None).run()


async def _projector(world: World, process: Process) -> None:
    assert process.log is not None
    assert process.views is not None
    await Projector(
        process.log,
        process.views,
        MemoryMemberships(world.groups),
        LogClock(),
        world.randomness(process),
        CheckedMetrics(world, process),
        ProjectorSettings(idle=5.0),
        name=process.name,
    ).run()


async def _reconciler(world: World, process: Process) -> None:
    assert process.log is not None
    assert process.views is not None
    await Reconciler(
        process.log,
        process.views,
        MemoryMemberships(world.groups),
        LogClock(),
        world.randomness(process),
        CheckedMetrics(world, process),
        Settings(snapshot_registry=REGISTRY),
        name=process.name,
    ).run()


MAKERS: Final[dict[str, Callable[[World, Process], Coroutine[Any, Any, None]]]] = {
    "bridge": _bridge,
    "executor": _executor,
    "projector": _projector,
    "reconciler": _reconciler,
}
