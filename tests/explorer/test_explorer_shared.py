"""The crash explorer where projector and reconciler share a process and its commits do not go round by the store (`bus.viewstore_shared`).

The replay line of a failure knows nothing of that: call `disturbed` under the fixture `shared` instead.
"""

from __future__ import annotations

import asyncio

import explorer_world
import pytest
from explorer_process import Process
from explorer_runs import Course, Disturbance, explore, scenario_named, undisturbed
from explorer_world import MAKERS, Point, World

from bus.memory import never
from bus.viewstore_shared import SharedViewStore

SEED = 1
SAMPLED = 12
"""One of so many points."""


async def _both(world: World, process: Process) -> None:
    assert process.views is not None
    process.views = SharedViewStore(process.views)  # type: ignore[assignment]
    await asyncio.gather(explorer_world._projector(world, process), explorer_world._reconciler(world, process))


async def _none(world: World, process: Process) -> None:
    await never()


@pytest.fixture(params=["one process", "two processes"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Course:
    """One process owns all partitions, or two have one each. The course of the basic scenario there."""
    monkeypatch.setattr(SharedViewStore, "kill", lambda self: self._within.kill(), raising=False)
    monkeypatch.setitem(MAKERS, "projector", _both)
    monkeypatch.setitem(MAKERS, "reconciler", _both if request.param == "two processes" else _none)
    return undisturbed(scenario_named("basic"), SEED)


@pytest.mark.parametrize(
    ("what", "role", "restart"),
    [
        ("kill", "projector", True),
        ("stop", "projector", True),
        ("wipe-views", "", True),
        ("wipe-log", "", True),
        ("kill", "executor", True),
    ],
)
def test_whatever_is_disturbed_all_ends_as_it_should(shared: Course, what: str, role: str, restart: bool) -> None:
    def at(point: Point) -> list[Disturbance]:
        return [Disturbance(what, point.number, role, restart=restart)] if point.number % SAMPLED == 0 else []

    failed, runs = explore(scenario_named("basic"), SEED, shared, at)
    assert not failed, "\n\n".join(verdict.report() for verdict in failed)
    assert runs > 5
