"""The demo's figures and how it looks: states only go forward, percentiles by nearest rank, plain lines off a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from bus.names import SANDBOX_NAME
from sandlog.demo_course import CREATED, FAILED, POD_READY, READY, STARTED, WAITING, Course, Spread, spread
from sandlog.demo_display import Grid, Plain
from sandlog.output import age, show, table


def pod(name: str, ready: bool) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": {"name": f"{name}-0", "labels": {SANDBOX_NAME: name}}, "status": {"conditions": conditions}}


def sandbox(name: str, phase: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"phase": phase}}


def test_a_sandbox_goes_through_its_states_and_only_forward() -> None:
    course = Course(["a"])
    told = [course.states["a"]]
    course.asked("a", 10.0)
    told.append(course.states["a"])
    course.pod("ADDED", pod("a", False), 10.1)
    told.append(course.states["a"])
    course.pod("MODIFIED", pod("a", True), 10.4)
    told.append(course.states["a"])
    course.sandbox("MODIFIED", sandbox("a", "Succeed"), 10.5)
    course.pod("MODIFIED", pod("a", True), 10.6)
    told.append(course.states["a"])

    assert told == [WAITING, CREATED, STARTED, POD_READY, READY]
    assert course.done
    summary = course.summary()
    assert (summary.ready, summary.seconds) == (1, 0.5)
    assert summary.asked_to_ready_ms == Spread(500.0, 500.0, 500.0, 500.0)
    assert summary.pod_ready_to_ready_ms == Spread(100.0, 100.0, 100.0, 100.0)


def test_a_failed_sandbox_that_recovers_is_ready() -> None:
    """DESIGN §11: Failed is left again when the pods recover (B85)."""
    course = Course(["a", "b"])
    course.asked("a", 0.0)
    course.sandbox("MODIFIED", sandbox("a", "Failed"), 1.0)
    assert course.states["a"] == FAILED
    assert course.summary().failed == 1

    course.sandbox("MODIFIED", sandbox("a", "Succeed"), 2.0)
    assert course.states["a"] == READY
    assert not course.done


def test_what_is_not_the_demos_is_left_alone() -> None:
    course = Course(["a"])
    course.sandbox("ADDED", sandbox("stranger", "Succeed"), 1.0)
    course.pod("ADDED", {"metadata": {"name": "x"}}, 1.0)
    course.sandbox("DELETED", sandbox("a", "Succeed"), 1.0)

    assert course.states == {"a": WAITING}


def test_percentiles_are_nearest_ranks() -> None:
    assert spread([n / 1000 for n in range(1, 101)]) == Spread(50.0, 90.0, 99.0, 100.0)
    assert spread([0.002, 0.001]) == Spread(1.0, 2.0, 2.0, 2.0)
    assert spread([]) is None


def test_plain_lines_are_a_few_however_many_sandboxes() -> None:
    out = io.StringIO()
    display = Plain(Console(file=out))
    course = Course([f"s{n}" for n in range(95)])
    with display.following(course):
        for name in course.states:
            course.sandbox("MODIFIED", sandbox(name, "Succeed"), 1.0)
            display.changed()

    lines = out.getvalue().splitlines()
    assert lines[0] == "9 of 95 ready"
    assert lines[-1] == "95 of 95 ready"
    assert len(lines) <= 12


def test_the_grid_shows_every_sandbox_once() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=40, color_system=None)
    display = Grid(console)
    course = Course([f"s{n}" for n in range(60)])
    for name in list(course.states)[:20]:
        course.sandbox("MODIFIED", sandbox(name, "Succeed"), 1.0)
    with display.following(course):
        pass

    last = out.getvalue().rpartition("sandboxes")[2]
    assert last.count("●") == 20 + 1, "and one in the legend"
    assert last.count("·") == 40 + 1
    assert "20/60 ready" in last


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (45, "45s"), (192, "3m12s"), (180, "3m"), (18120, "5h2m"), (1_040_000, "12d"), (-5, "0s")],
)
def test_ages_are_kubectls(seconds: int, text: str) -> None:
    assert age(seconds * 1_000_000_000) == text


def test_a_table_squeezes_no_column_and_leaves_no_spaces_behind(capsys: pytest.CaptureFixture[str]) -> None:
    show(table(("A", "B"), [("short", "x" * 500), ("a longer one", "y")]))

    assert capsys.readouterr().out.splitlines() == [
        "A              B",
        f"short          {'x' * 500}",
        "a longer one   y",
    ]
