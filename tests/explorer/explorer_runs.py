"""Runs of a scenario: undisturbed, disturbed at one point, and explored: one child process forked off the undisturbed run per disturbance.

A child shares the past with all others and lives only what comes after its point; it ends with the process, so nothing of it leaks.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import msgspec
import structlog
from explorer_process import ProcessLoop
from explorer_scenarios import SCENARIOS, Scenario
from explorer_world import Failed, Point, World

WORKERS: Final = max(1, min(4, os.cpu_count() or 1))
CHILD_SECONDS: Final = 60
"""Real seconds after which a child is taken to hang."""
RESTART: Final = (0.2, 3.0)
"""Virtual seconds until a killed process's successor starts; which, says the seed."""


class Disturbance(msgspec.Struct, frozen=True):
    """What happens at point `at`. `what`: kill, stop (for `seconds`), trim, wipe-views, wipe-log. `restart`: a killed process has a successor."""

    what: str
    at: int
    role: str = ""
    restart: bool = True
    seconds: float = 60.0

    def apply(self, world: World) -> None:
        randomness = random.Random(f"{world.seed}/{self.at}/{self.role}")
        if self.what == "kill":
            self._kill(world, randomness.uniform(*RESTART))
        elif self.what == "stop":
            self._stop(world)
        elif self.what == "trim":
            world.bucket.strict = False
            world.stream.trim(world.stream.last)
        elif self.what == "wipe-views":
            world.bucket.wipe()
        elif self.what == "wipe-log":
            world.bucket.strict = False
            world.stream.wipe()
        else:
            raise ValueError(self.what)

    def _kill(self, world: World, pause: float) -> None:
        for process in world.running(self.role)[:1]:
            process.kill()
            if self.restart:
                _outside(world.loop.call_later, pause, world.start, self.role)

    def _stop(self, world: World) -> None:
        for process in world.running(self.role)[:1]:
            process.stop()
            _outside(world.loop.call_later, self.seconds, process.wake, world.loop)


def _outside(call: Callable[..., Any], *arguments: Any) -> None:
    """Call it in no process's context."""
    call(*arguments, context=contextvars.Context())


class Verdict(msgspec.Struct, frozen=True):
    """How a run ended. `trouble` is empty if all was well."""

    scenario: str
    seed: int
    instances: int
    disturbance: Disturbance | None
    trouble: str
    trace: tuple[str, ...]
    points: int
    virtual: float
    real: float

    def report(self) -> str:
        what = "undisturbed" if self.disturbance is None else str(self.disturbance)
        again = f"python tests/explorer/explorer_replay.py --scenario {self.scenario} --seed {self.seed} --instances {self.instances}"
        if self.disturbance is not None:
            d = self.disturbance
            again += f" --what {d.what} --at {d.at}" + (f" --role {d.role}" if d.role else "")
            again += ("" if d.restart else " --gone") + (f" --seconds {d.seconds}" if d.what == "stop" else "")
        lines = [f"{self.scenario}, seed {self.seed}, {self.instances} of each, {what}:", self.trouble]
        return "\n".join([*lines, "the last steps before:", *self.trace, f"again: {again}"])


class Course(msgspec.Struct, frozen=True):
    """What the undisturbed run was: the objects at each stage, and every point."""

    stages: dict[str, dict[str, Any]]
    points: tuple[Point, ...]
    virtual: float


def undisturbed(scenario: Scenario, seed: int, instances: int = 1) -> Course:
    """Raises Failed."""
    points: list[Point] = []
    ended: list[float] = []

    def prepare(world: World) -> None:
        world.at_point = lambda _, point: points.append(point)

    def finish(world: World) -> None:
        ended.append(world.loop.time())
        scenario.right(world.stages)

    stages = _run(scenario, seed, instances, None, prepare, finish)
    return Course(stages, tuple(points), ended[0])


def disturbed(
    scenario: Scenario,
    seed: int,
    course: Course,
    disturbance: Disturbance | None,
    instances: int = 1,
    watch: Callable[[Point], None] = lambda point: None,
    begin: Callable[[World], None] = lambda world: None,
    loud: bool = False,
) -> Verdict:
    """One run in this process, for a debugger. `watch` is told of every point, `begin` is given the world; `loud`: the roles log."""
    begun = time.perf_counter()
    made: list[World] = []

    def prepare(world: World) -> None:
        made.append(world)
        begin(world)

        def at_point(world: World, point: Point) -> None:
            watch(point)
            if disturbance is not None and point.number == disturbance.at:
                disturbance.apply(world)

        world.at_point = at_point

    trouble = ""
    try:
        _run(scenario, seed, instances, course.stages, prepare, lambda world: None, loud=loud)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the verdict
        trouble = _trouble_of(error)
    return _verdict(scenario, made[0], instances, disturbance, trouble, begun)


def explore(
    scenario: Scenario,
    seed: int,
    course: Course,
    disturbances: Callable[[Point], Iterable[Disturbance]],
    instances: int = 1,
    stop_after: int = 3,
) -> tuple[list[Verdict], int]:
    """Every disturbance, each in a child forked off at its point. The verdicts of those that failed (about `stop_after` at most), and how many were born.

    Points between which the victim ran no turn are one: nobody could tell at which of them it was struck, except by when its successor starts.
    """
    nursery = _Nursery(stop_after)
    mine: list[tuple[Disturbance, float]] = []

    tried: dict[tuple[str, str], int] = {}

    def at_point(world: World, point: Point) -> None:
        for disturbance in disturbances(point):
            key = (disturbance.what, disturbance.role)
            if disturbance.role and tried.get(key) == (progress := world.progress(disturbance.role)):
                continue
            if disturbance.role:
                tried[key] = progress
            if nursery.fork():
                mine.append((disturbance, time.perf_counter()))
                world.at_point = lambda world, point: None
                # asyncio takes the loop of another process for none at all.
                asyncio._set_running_loop(world.loop)
                disturbance.apply(world)
                return

    made: list[World] = []

    def prepare(world: World) -> None:
        made.append(world)
        world.at_point = at_point

    trouble = ""
    gc.collect()
    gc.freeze()
    try:
        _run(scenario, seed, instances, course.stages, prepare, lambda world: None)
    except BaseException as error:
        if not mine:
            raise
        trouble = _trouble_of(error)
    finally:
        if mine:
            nursery.deliver(_verdict(scenario, made[0], instances, mine[0][0], trouble, mine[0][1]))
        gc.unfreeze()
    return nursery.failures(), nursery.born


class _Nursery:
    """Children that run beside us, as many as there are processors."""

    def __init__(self, stop_after: int) -> None:
        self._pipes: dict[int, int] = {}
        self._failed: list[Verdict] = []
        self._stop_after = stop_after
        self._out = -1
        self.born = 0

    def fork(self) -> bool:
        """True in the child."""
        if len(self._failed) >= self._stop_after:
            return False
        while len(self._pipes) >= WORKERS:
            self._reap()
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            gc.disable()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(CHILD_SECONDS)
            os.close(reading)
            self._out = writing
            return True
        os.close(writing)
        self._pipes[pid] = reading
        self.born += 1
        return False

    def deliver(self, verdict: Verdict) -> None:
        """The child's end: nothing else of this process runs."""
        try:
            with os.fdopen(self._out, "wb") as pipe:
                pipe.write(msgspec.msgpack.encode(verdict))
        finally:
            os._exit(0)

    def failures(self) -> list[Verdict]:
        while self._pipes:
            self._reap()
        return self._failed

    def _reap(self) -> None:
        # Only our own children are waited for, by their ids, the eldest first.
        pid, pipe = next(iter(self._pipes.items()))
        with os.fdopen(pipe, "rb") as reading:
            said = reading.read()
        _, status = os.waitpid(pid, 0)
        del self._pipes[pid]
        if not said:
            raise Failed(f"a child ended without a verdict, status {status}: it hung, or broke off")
        verdict = msgspec.msgpack.decode(said, type=Verdict)
        if verdict.trouble:
            self._failed.append(verdict)


def _run(
    scenario: Scenario,
    seed: int,
    instances: int,
    expected: dict[str, dict[str, Any]] | None,
    prepare: Callable[[World], None],
    finish: Callable[[World], None],
    *,
    loud: bool = False,
) -> dict[str, dict[str, Any]]:
    loop = ProcessLoop()
    stages: dict[str, dict[str, Any]] = {}

    async def main() -> None:
        world = World(loop, seed, expected)
        prepare(world)
        world.begin(instances)
        await scenario.drive(world)
        await world.still()
        finish(world)
        stages.update(world.stages)
        world.end()

    with nullcontext() if loud else _silence():
        try:
            loop.run_until_complete(main())
        finally:
            loop.bury()
    return stages


@contextmanager
def _silence() -> Iterator[None]:
    """Thousands of runs, each of which says what every role says."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _verdict(
    scenario: Scenario, world: World, instances: int, disturbance: Disturbance | None, trouble: str, begun: float
) -> Verdict:
    return Verdict(
        scenario.name,
        world.seed,
        instances,
        disturbance,
        trouble,
        tuple(map(str, world.trace)),
        world.points,
        world.loop.time(),
        time.perf_counter() - begun,
    )


def _trouble_of(error: BaseException) -> str:
    if isinstance(error, Failed):
        return str(error)
    return "".join(traceback.format_exception(error))[-4000:]


def scenario_named(name: str) -> Scenario:
    return SCENARIOS[name]()
