"""The crash explorer (DESIGN §1 "crash any process at any instant", §8.10; ROADMAP 1): the basic scenario, disturbed at every point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from explorer_claims import EVERY, course, holds
from explorer_world import ROLES


@pytest.mark.parametrize("role", ROLES)
def test_a_role_killed_before_and_after_every_step_changes_nothing(role: str) -> None:
    points = course("basic").points
    own = sum(point.process.startswith(role) for point in points)
    runs = holds("basic", "kill", role)
    # Before and after each of its own steps at least, once at the beginning, and wherever it ran between others' steps.
    assert runs >= own > 20


@pytest.mark.parametrize("role", ROLES)
def test_where_two_of_each_run_one_that_never_comes_back_is_not_missed(role: str) -> None:
    assert holds("basic", "kill", role, instances=2, restart=False, every=EVERY) > 10


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("instances", [1, 2])
def test_a_role_that_is_stopped_for_a_minute_and_wakes_does_no_harm(role: str, instances: int) -> None:
    assert holds("basic", "stop", role, instances=instances, every=EVERY) > 10


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("what", ["trim", "wipe-views", "wipe-log"])
def test_what_nats_loses_costs_a_list_never_a_sandbox(what: str, instances: int) -> None:
    assert holds("basic", what, instances=instances, every=EVERY) > 10


def test_a_run_is_the_same_whatever_the_hash_seed() -> None:
    """Else the number of a point that a failure prints would mean another one in the replay."""

    def steps(seed: str) -> str:
        replay = str(Path(__file__).with_name("explorer_replay.py"))
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, replay, "--instances", "2", "--steps"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    first = steps("1")
    assert len(first.splitlines()) > 500
    assert first == steps("2")
