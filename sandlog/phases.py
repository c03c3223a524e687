"""`sandlog phases`: the tables that sandboxes and snapshots live by, as they are decided from (`reconciler.lifecycle`, `reconciler.snapshot`).

Pure but for `run`. The document `docs/phases.md` holds the same text; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from reconciler import lifecycle, snapshot
from sandlog.output import say, show, table

SANDBOX_HEADINGS: Final = ("PHASE", "INTENT", "SNAPSHOT", "PODS", "STEP", "MEANS")
SNAPSHOT_HEADINGS: Final = ("PHASE", "SOURCE", "COMMIT JOB", "STEP", "MEANS")
ANYTHING: Final = "*"


class Line(msgspec.Struct, frozen=True):
    """One row of a table, in words. `leads`: the phases that its step may write."""

    when: dict[str, list[str]]
    step: str
    means: str
    leads: list[str]


def sandbox_lines() -> list[Line]:
    return [
        Line(
            _when(phase=row.phases, intent=row.intents, snapshot=row.kept, pods=row.held),
            row.step.__name__,
            row.says,
            list(row.leads),
        )
        for row in lifecycle.ROWS
    ]


def snapshot_lines() -> list[Line]:
    return [
        Line(
            _when(phase=row.phases, source=row.sources, job=row.works),
            row.step.__name__,
            row.says,
            list(row.leads),
        )
        for row in snapshot.ROWS
    ]


def _when(**columns: Iterable[str]) -> dict[str, list[str]]:
    return {name: [str(value) for value in values] for name, values in columns.items()}


def cells(line: Line) -> list[str]:
    return [*(", ".join(values) or ANYTHING for values in line.when.values()), line.step, line.means]


def mermaid() -> str:
    """The phases of a sandbox as a state diagram: what each step can lead to. Steps that write no phase have no arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in lifecycle.ROWS:
        for start in row.phases:
            before = str(start).partition(" ")[0]
            for after in row.leads:
                steps = arrows.setdefault((before, after), [])
                if before != after and row.step.__name__ not in steps:
                    steps.append(row.step.__name__)
    lines = ["stateDiagram-v2", "    [*] --> Pending"]
    lines += [f"    {before} --> {after}: {', '.join(steps)}" for (before, after), steps in arrows.items() if steps]
    return "\n".join(lines)


def document() -> str:
    """The body of docs/phases.md."""
    parts = [
        "# Phases",
        "",
        "What is decided about a sandbox and a snapshot, by what is seen of them. The first row that matches counts; `*` is anything. Printed by",
        "`sandlog phases` from the tables that the reconciler decides with (`reconciler/lifecycle.py`, `reconciler/snapshot.py`).",
        "",
        "Before the table: a command in flight is waited for; an object that is being deleted only loses its finalizer; nothing is decided before",
        "everything is known; ops that were lost are issued again; a sandbox whose time is over is deleted, in every phase.",
        "",
        "## Sandbox",
        "",
        *_markdown(SANDBOX_HEADINGS, map(cells, sandbox_lines())),
        "",
        "- An intent is a change of `spec.pause` that is not acknowledged yet; an edit is any other change of the spec.",
        "- A snapshot is stale if it was made for another intent, another pod or another sandbox; bad if it failed or holds no images;",
        "  unused if it is good, `ResumeFailed` stands, and no pod that can be used was made of it.",
        "- `Resuming (asked)`: the template is not known to hold the snapshot's images yet.",
        "",
        "```mermaid",
        mermaid(),
        "```",
        "",
        "## Snapshot",
        "",
        *_markdown(SNAPSHOT_HEADINGS, map(cells, snapshot_lines())),
        "",
    ]
    return "\n".join(parts)


def _markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(heading.lower() for heading in headings)} |", f"|{'---|' * len(headings)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return lines


def run(*, as_mermaid: bool, as_json: bool) -> None:
    """Print the tables."""
    if as_json:
        value: dict[str, Any] = {"sandbox": sandbox_lines(), "snapshot": snapshot_lines()}
        say(value)
    elif as_mermaid:
        print(mermaid())
    else:
        show(table(SANDBOX_HEADINGS, map(cells, sandbox_lines())))
        print()
        show(table(SNAPSHOT_HEADINGS, map(cells, snapshot_lines())))
