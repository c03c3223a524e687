"""What a run of lifecycle.py found, stage by stage, and how people see it."""

from __future__ import annotations

import msgspec
from costs import Writes
from figures import Latency, show
from rich.console import Console


class Stage(msgspec.Struct, frozen=True):
    """One stage for all sandboxes. `reached` of `asked` got there, the last after `seconds`; CPU in ms per sandbox."""

    name: str
    asked: int
    reached: int
    refused: int
    seconds: float
    latencies: dict[str, Latency | None]
    cpu: dict[str, float]
    writes: dict[str, Writes]


class Report(msgspec.Struct, frozen=True):
    sandboxes: int
    rate: float
    stages: list[Stage]
    watches_resumed: int

    @property
    def complete(self) -> bool:
        return all(stage.reached == stage.asked for stage in self.stages)


def show_report(report: Report) -> None:
    console = Console()
    pace = f"{report.rate:g} a second" if report.rate else "at once"
    rows: list[tuple[object, ...]] = []
    for stage in report.stages:
        for name, found in stage.latencies.items():
            values = (found.p50, found.p90, found.p99, found.max) if found else (None,) * 4
            rows.append((name, f"{stage.reached}/{stage.asked}", *values, stage.seconds))
    columns = ("milliseconds", "sandboxes", "P50", "P90", "P99", "max", "all, s")
    show(console, f"{report.sandboxes} sandboxes, {pace}", columns, rows)
    if report.watches_resumed:
        console.print(f"{report.watches_resumed} watches ended early and were resumed: latencies may be too long")
    cpu = [(name, *(stage.cpu.get(name) for stage in report.stages)) for name in report.stages[0].cpu]
    if cpu:
        show(console, "CPU, ms per sandbox", ("process", *(stage.name for stage in report.stages)), cpu)
    writes = [
        (user, stage.name, found.all, found.without_events, ", ".join(f"{n} {call}" for call, n in found.calls.items()))
        for stage in report.stages
        for user, found in stage.writes.items()
        if found.calls
    ]
    if writes:
        show(console, "API writes per sandbox", ("user", "stage", "all", "no Events", "calls"), writes)
