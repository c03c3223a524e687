"""How the demo looks: a grid of sandboxes that fill with colour on a terminal, plain lines elsewhere, nothing with JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sandlog.demo_course import CREATED, FAILED, POD_READY, READY, STARTED, STATES, WAITING, Course, Spread, Summary

MARKS: Final = {
    WAITING: ("·", "dim"),
    CREATED: ("◌", "yellow"),
    STARTED: ("◔", "yellow"),
    POD_READY: ("◕", "cyan"),
    READY: ("●", "green"),
    FAILED: ("✗", "bold red"),
}
REFRESH: Final = 12
PLAIN_STEPS: Final = 10
PER_ROW: Final = 25


class Display(Protocol):
    def say(self, text: str) -> None: ...

    @contextlib.contextmanager
    def following(self, course: Course) -> Iterator[None]:
        """Show the course while the block runs; `changed` after each change."""
        ...

    def changed(self) -> None: ...

    def end(self, summary: Summary, hints: list[str]) -> None: ...


class Plain:
    """One line a step, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._course: Course | None = None
        self._told = 0

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def following(self, course: Course) -> Iterator[None]:
        self._course, self._told = course, 0
        yield

    def changed(self) -> None:
        assert self._course is not None
        total, ready = len(self._course.states), self._course.count(READY)
        step = max(1, total // PLAIN_STEPS)
        if ready - self._told >= step or (ready == total and self._told < total):
            self._told = ready
            self.say(f"{ready} of {total} ready")

    def end(self, summary: Summary, hints: list[str]) -> None:
        _end(self._console, summary, hints)


class Silent(Plain):
    """Says nothing: the summary is printed as JSON by the caller."""

    def say(self, text: str) -> None:
        pass

    def end(self, summary: Summary, hints: list[str]) -> None:
        pass


class Grid:
    """For a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._course: Course | None = None
        self._live: Live | None = None

    def say(self, text: str) -> None:
        self._console.print(Text.assemble(("✓ ", "green"), text), soft_wrap=True)

    @contextlib.contextmanager
    def following(self, course: Course) -> Iterator[None]:
        self._course = course
        live = Live(console=self._console, refresh_per_second=REFRESH, get_renderable=self._render)
        with live:
            yield
            live.refresh()

    def changed(self) -> None:
        """Drawn by time, not by change: a burst costs the roles no CPU."""

    def _render(self) -> RenderableType:
        assert self._course is not None
        course, total = self._course, len(self._course.states)
        ready = course.count(READY)
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right", no_wrap=True)
        bar.add_row(ProgressBar(total=total, completed=ready, complete_style="green"), f"{ready}/{total} ready")
        return Panel(
            Group(_dots(course), Text(), bar, Text(), _legend(course), _latest(course)),
            title="sandboxes",
            border_style="green" if course.done else "blue",
            padding=(1, 2),
            width=min(self._console.width, 84),
        )

    def end(self, summary: Summary, hints: list[str]) -> None:
        _end(self._console, summary, hints)


def _dots(course: Course) -> Text:
    """Two columns a sandbox; rows of 25, so that a hundred are counted at a glance, unless there are too many."""
    text = Text(justify="center")
    many = len(course.states) > 10 * PER_ROW
    for number, state in enumerate(course.states.values()):
        if number and number % PER_ROW == 0 and not many:
            text.append("\n")
        mark, style = MARKS[state]
        text.append(f"{mark} ", style=style)
    return text


def _legend(course: Course) -> Text:
    text = Text()
    for state in STATES:
        number = course.count(state)
        if number or state != FAILED:
            mark, style = MARKS[state]
            text.append(f"{mark} {state} {number}   ", style=style if number else "dim")
    return text


def _latest(course: Course) -> Text:
    words = "  ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in course.recent[-3:])
    return Text(f"latest  {words}" if words else "", style="dim", no_wrap=True, overflow="ellipsis")


def _row(table: Table, title: str, found: Spread | None) -> None:
    if found is not None:
        table.add_row(title, *(f"{value:.0f}" for value in (found.p50, found.p90, found.p99, found.longest)))


def _end(console: Console, summary: Summary, hints: list[str]) -> None:
    good = summary.ready == summary.sandboxes
    console.print()
    text = f"{summary.ready} of {summary.sandboxes} sandboxes ready in {summary.seconds:.2f} s"
    console.print(Text(text, style="bold green" if good else "bold red"))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("milliseconds")
    for heading in ("P50", "P90", "P99", "max"):
        table.add_column(heading, justify="right")
    _row(table, "asked for → ready", summary.asked_to_ready_ms)
    _row(table, "pod ready → sandbox ready", summary.pod_ready_to_ready_ms)
    console.print(table)
    console.print()
    for hint in hints:
        console.print(Text(hint), soft_wrap=True)


def choose(*, plain: bool, silent: bool) -> Display:
    """The display for this process's standard output."""
    console = Console(highlight=False)
    if silent:
        return Silent(console)
    pipe = not console.is_terminal or console.is_dumb_terminal
    return Plain(console) if plain or pipe else Grid(console)
