"""Figures and how they are shown: percentiles of latencies in milliseconds, as a table for people or as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds, over `count` sandboxes."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float


def latency(seconds: Iterable[float]) -> Latency | None:
    """Nearest-rank percentiles; None of nothing."""
    ordered = sorted(seconds)
    if not ordered:
        return None

    def at(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000, 1)

    return Latency(len(ordered), at(0.5), at(0.9), at(0.99), at(1.0))


def between(since: dict[str, float], until: dict[str, float]) -> list[float]:
    """The seconds from one to the other, of every name that has both; never negative (two watches may swap places)."""
    return [max(0.0, end - since[name]) for name, end in until.items() if name in since]


def show(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with its first column to the left and numbers to the right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*("–" if cell is None else f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row))
    console.print(table)
