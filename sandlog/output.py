"""What commands print: tables and lines for people, JSON for programs. Pure but for `say`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from bus.times import SECOND, format_micro_time

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_WIDE: Final = 200
_UNBOUNDED: Final = 4000


def console() -> Console:
    """Standard output; not cut to a width where it is not a terminal."""
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE, highlight=False)


def say(value: Any) -> None:
    """One JSON document, indented, on standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=2).decode() + "\n")


def show(renderable: RenderableType) -> None:
    """Print without the spaces that fill a table's last column."""
    # As wide as it wants to be: a terminal breaks long lines itself, and a squeezed column says nothing.
    made = Console(width=_UNBOUNDED, highlight=False)
    with made.capture() as captured:
        made.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def age(nanoseconds: int) -> str:
    """As kubectl has it: two units at most (`45s`, `3m12s`, `5h2m`, `12d`); '-' if it is not known."""
    seconds = nanoseconds // SECOND
    if seconds < 0:
        return "0s"
    for place, (size, unit) in enumerate(_UNITS):
        if seconds >= size:
            rest = (seconds % size) // _UNITS[place + 1][0] if place + 1 < len(_UNITS) else 0
            smaller = f"{rest}{_UNITS[place + 1][1]}" if rest and unit != "d" else ""
            return f"{seconds // size}{unit}{smaller}"
    return "0s"


def moment(nanoseconds: int) -> str:
    """A time of day of today's, or date and time, in UTC with milliseconds."""
    text = format_micro_time(nanoseconds)
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    return text[11:23] if text.startswith(today) else f"{text[:10]} {text[11:23]}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Aligned columns without lines, as kubectl prints them."""
    made = Table(box=None, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for heading in headings:
        made.add_column(heading, no_wrap=True, overflow="ignore")
    for row in rows:
        made.add_row(*row)
    return made
