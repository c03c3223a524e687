"""What the tests claim of a scenario: it ends as if nothing had happened, wherever it is disturbed."""

from __future__ import annotations

import functools
import os

from explorer_runs import Course, Disturbance, explore, scenario_named, undisturbed
from explorer_world import Point

SEED = int(os.environ.get("SANDLOG_EXPLORER_SEED", "1"))
"""Another seed: other delays, another order, other points."""
EVERY = int(os.environ.get("SANDLOG_EXPLORER_EVERY", "24"))
"""What is not tried at every point is tried at every so many; 1 for a night's run of all."""


@functools.cache
def course(name: str, instances: int = 1) -> Course:
    return undisturbed(scenario_named(name), SEED, instances)


def holds(
    name: str, what: str, role: str = "", *, instances: int = 1, restart: bool = True, every: int = 1, first: int = 0
) -> int:
    """The scenario ends as if nothing had happened, whichever of the points it is disturbed at; how many runs that took.

    Of the points every `every`th is tried, from `first` on.
    """

    def at(point: Point) -> list[Disturbance]:
        wanted = point.number % every == first % every
        return [Disturbance(what, point.number, role, restart=restart)] if wanted else []

    failed, runs = explore(scenario_named(name), SEED, course(name, instances), at, instances)
    assert not failed, "\n\n".join(verdict.report() for verdict in failed)
    return runs
