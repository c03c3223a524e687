"""When to look at a view again though nothing changed: one moment per aggregate, in log time (DESIGN §6, Wake-ups)."""

from __future__ import annotations

import heapq

from bus.subjects import Aggregate


class Wakeups:
    """As many entries as aggregates that wait; what was replaced leaves the heap when it comes up, or when it is half of it."""

    def __init__(self) -> None:
        self._due: dict[Aggregate, int] = {}
        self._heap: list[tuple[int, Aggregate]] = []

    def __len__(self) -> int:
        return len(self._due)

    def set(self, aggregate: Aggregate, at: int | None) -> bool:
        """Replace the aggregate's moment (None: no more). True if it is now the first of all."""
        if at is None:
            self._due.pop(aggregate, None)
            return False
        if self._due.get(aggregate) != at:
            self._due[aggregate] = at
            heapq.heappush(self._heap, (at, aggregate))
            if len(self._heap) > 2 * len(self._due) + 64:
                self._heap = [(due, name) for name, due in self._due.items()]
                heapq.heapify(self._heap)
        return self._heap[0][0] == at

    def first(self) -> int | None:
        while self._heap:
            due, aggregate = self._heap[0]
            if self._due.get(aggregate) == due:
                return due
            heapq.heappop(self._heap)
        return None

    def take_due(self, now: int) -> list[tuple[Aggregate, int]]:
        """Those whose moment has come, earliest first; they are forgotten."""
        taken: list[tuple[Aggregate, int]] = []
        while (due := self.first()) is not None and due <= now:
            _, aggregate = heapq.heappop(self._heap)
            del self._due[aggregate]
            taken.append((aggregate, due))
        return taken
