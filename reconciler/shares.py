"""Which aggregates a reconciler decides about: its share of the slots among live members (DESIGN §9).

Spreads the load only. Two that both own a view decide the same, and the log refuses one of them (DESIGN §6).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bus.hashing import mixed
from bus.membership import shares
from bus.subjects import Aggregate

SLOTS: Final = 256
REMEMBERED: Final = 100_000
GROUP: Final = "reconciler"


class Share:
    def __init__(self, name: str) -> None:
        self._name = name
        self._slots: frozenset[int] = frozenset()
        self._all = False
        self._slot: dict[Aggregate, int] = {}

    def update(self, members: Iterable[str]) -> None:
        self._slots = frozenset(shares(SLOTS, members).get(self._name, ()))
        self._all = len(self._slots) == SLOTS

    def owns(self, aggregate: Aggregate) -> bool:
        if self._all:
            return True
        slot = self._slot.get(aggregate)
        if slot is None:
            if len(self._slot) >= REMEMBERED:
                self._slot.clear()
            slot = self._slot[aggregate] = mixed(str(aggregate)) % SLOTS
        return slot in self._slots

    def __len__(self) -> int:
        return len(self._slots)
