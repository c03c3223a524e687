"""What is measured side by side, and the bars: at most so many times the floor's figure, or so much outright."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import msgspec

Reports = list[dict[str, Any]]
"""Of one contender and one work, a report of lifecycle.py each round."""


class Work(msgspec.Struct, frozen=True):
    name: str
    sandboxes: int
    rate: float = 0.0
    pause: bool = False


# What is measured alone is measured ten times, half a second apart: nothing of one is left when the next begins.
WORKS: Mapping[str, Work] = {
    work.name: work
    for work in (
        Work("one", 10, 2.0),
        Work("steady20", 200, 20.0),
        Work("steady40", 400, 40.0),
        Work("burst128", 128),
        Work("burst512", 512),
        Work("pause1", 10, 2.0, pause=True),
        Work("pause50", 50, pause=True),
    )
}


def _stages(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {stage["name"]: stage for stage in report["stages"]}


def _latency(stage: str, name: str, share: str) -> Callable[[dict[str, Any]], float | None]:
    def figure(report: dict[str, Any]) -> float | None:
        found = _stages(report).get(stage, {}).get("latencies", {}).get(name)
        return found[share] if found else None

    return figure


def _seconds(stage: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda report: _stages(report)[stage]["seconds"] if stage in _stages(report) else None


def _cpu(report: dict[str, Any]) -> float | None:
    """Of all the contender's processes, create → ready."""
    cpu = _stages(report)["ready"]["cpu"]
    return sum(cpu.values()) if cpu else None


def _writes(*stages: str) -> Callable[[dict[str, Any]], float | None]:
    """The contender's own writes, Events and 409s aside, over these stages."""

    def figure(report: dict[str, Any]) -> float | None:
        found = [_stages(report)[stage]["writes"] for stage in stages if stage in _stages(report)]
        own = [writes for users in found for user, writes in users.items() if user.startswith(OWN_USERS)]
        return sum(writes["without_events_and_conflicts"] for writes in own) if found else None

    return figure


OWN_USERS = ("sandlog ", "controller ", "stock ")
"""Users of the audit log that controllers run as, and nothing else."""


class Figure(msgspec.Struct, frozen=True):
    """`times`: at most so many times the floor's; `most`: at most so much, in the figure's own unit."""

    name: str
    of: Callable[[dict[str, Any]], float | None]
    times: Mapping[str, float] = msgspec.field(default_factory=dict)
    most: Mapping[str, float] = msgspec.field(default_factory=dict)


ASKED, OWN = "asked → ready", "pod ready → sandbox ready"
FIGURES = (
    Figure("asked → ready P50, ms", _latency("ready", ASKED, "p50")),
    Figure("asked → ready P99, ms", _latency("ready", ASKED, "p99"), {"burst128": 1.3}),
    Figure("pod ready → sandbox ready P50, ms", _latency("ready", OWN, "p50"), {"steady40": 2.5}),
    Figure(
        "pod ready → sandbox ready P99, ms",
        _latency("ready", OWN, "p99"),
        {"steady40": 3.0, "burst128": 1.3, "burst512": 0.5},
    ),
    Figure("all ready, s", _seconds("ready"), {"burst512": 1.3}),
    Figure("writes per sandbox", _writes("ready"), {}, {"steady40": 3.3, "burst128": 4.0, "burst512": 4.0}),
    Figure("CPU per sandbox, ms", _cpu, {}, {"steady40": 12.0, "burst128": 8.0}),
    Figure("intent → Paused P50, ms", _latency("paused", "intent → Paused", "p50"), {}, {"pause1": 100.0}),
    Figure("intent → Paused P99, ms", _latency("paused", "intent → Paused", "p99"), {"pause50": 1.4}),
    Figure("intent → Succeed P50, ms", _latency("resumed", "intent → Succeed", "p50")),
    Figure("intent → Succeed P99, ms", _latency("resumed", "intent → Succeed", "p99"), {"pause50": 1.4}),
    Figure("writes per pause and resume", _writes("paused", "resumed"), {}, {"pause1": 17.0, "pause50": 17.0}),
    Figure("delete → gone P99, ms", _latency("gone", "delete → gone", "p99")),
)


def value(figure: Figure, reports: Reports) -> float | None:
    """The median over the rounds; None where the work has no such figure."""
    values = [found for report in reports if (found := figure.of(report)) is not None]
    return round(median(values), 2) if values else None


class Verdict(msgspec.Struct, frozen=True):
    """`bar` is what was allowed, in the figure's unit. `met` is None without a bar."""

    ratio: float | None
    bar: float | None
    met: bool | None


def judge(figure: Figure, work: str, found: float | None, floor: float | None) -> Verdict:
    ratio = round(found / floor, 2) if found is not None and floor else None
    bar = figure.most.get(work)
    if work in figure.times:
        bar = None if floor is None else round(figure.times[work] * floor, 2)
    met = None if bar is None or found is None else found <= bar
    return Verdict(ratio, bar, met)
