"""Views from the store's changes: one that cannot be read harms only itself (DESIGN §8.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from bus import subjects
from bus.subjects import Aggregate
from bus.viewcodec import Assembler, Unreadable
from bus.views import View
from bus.viewstore import Entry


class Unread(msgspec.Struct, frozen=True):
    """A key whose bytes, or whose name (then there is no aggregate), this version does not understand."""

    key: str
    revision: int
    error: str
    partition: int = 0
    aggregate: Aggregate | None = None


Read = tuple[Aggregate, int, View | None]
"""(aggregate, partition, its view; None: deleted, or not to be understood)"""


class Reading:
    """Follows the changes of a store. A view is given only while all its parts can be read: never one of mixed age."""

    def __init__(self) -> None:
        self._assembler = Assembler()
        self._bad: dict[Aggregate, set[str]] = {}

    def take(self, entries: Iterable[Entry]) -> Iterator[Read | Unread]:
        for entry in entries:
            try:
                partition, aggregate, _ = subjects.parse_view_key(entry.key)
            except ValueError as error:
                yield Unread(entry.key, entry.revision, str(error)[:200])
                continue
            if aggregate is None:
                continue
            try:
                made = self._assembler.feed(entry.key, entry.data)
            except Unreadable as error:
                self._bad.setdefault(aggregate, set()).add(entry.key)
                yield aggregate, partition, None
                yield Unread(entry.key, entry.revision, str(error)[:200], partition, aggregate)
                continue
            if self._bad:
                self._mend(aggregate, entry.key)
            if made is not None:
                yield aggregate, partition, None if aggregate in self._bad else made[1]

    def _mend(self, aggregate: Aggregate, key: str) -> None:
        bad = self._bad.get(aggregate)
        if bad is not None:
            bad.discard(key)
            if not bad:
                del self._bad[aggregate]
