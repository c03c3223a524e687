"""Tables as wide as the terminal: long cells of the columns that bear it are cut. Pure but for `terminal_width`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from rich.text import Text

Cell = str | Text
GAP: Final = 3
"""Spaces between two columns."""
NARROWEST: Final = 8
"""Characters below which a column is not cut: less says nothing."""


def terminal_width() -> int | None:
    """Of standard output; None if it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _width(cell: Cell) -> int:
    return cell.cell_len if isinstance(cell, Text) else Text(cell).cell_len


def _cut(cell: Cell, width: int) -> Cell:
    if _width(cell) <= width:
        return cell
    text = cell.copy() if isinstance(cell, Text) else Text(cell)
    text.truncate(width, overflow="ellipsis")
    return text


def fitted(
    headings: Sequence[str], rows: Iterable[Sequence[Cell]], width: int | None, shrinkable: Iterable[str]
) -> list[list[Cell]]:
    """The rows with the widest of the `shrinkable` columns cut, with …, until all fit into `width` (None: as they are).

    Where even that is not enough, lines stay too long.
    """
    table = [list(row) for row in rows]
    if width is None or not table:
        return table
    wide = [max(len(h), *(_width(row[n]) for row in table)) for n, h in enumerate(headings)]
    least = {n: max(len(h), NARROWEST) for n, h in enumerate(headings) if h in set(shrinkable)}
    while sum(wide) + GAP * (len(wide) - 1) > width:
        columns = [n for n in least if wide[n] > least[n]]
        if not columns:
            break
        wide[max(columns, key=lambda n: wide[n])] -= 1
    return [[_cut(cell, wide[n]) if n in least else cell for n, cell in enumerate(row)] for row in table]


def few(items: Sequence[str], most: int = 10) -> str:
    """The first of them by commas, and how many more there are."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" … and {more} more" if more > 0 else "")


def by_text(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """(who, what) as `who, who: what`: what several say is said once."""
    found: dict[str, list[str]] = {}
    for who, what in pairs:
        found.setdefault(what, []).append(who)
    return [f"{', '.join(dict.fromkeys(names))}: {what}" for what, names in found.items()]
