"""How long sandboxes take from first seen to `Succeed`, for the histogram. Bounded; a restart forgets those on the way."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from bus.metrics import Metrics
from bus.times import SECOND
from bus.views import SandboxView

if TYPE_CHECKING:
    from projector.keeper import Keeper

CAPACITY = 20_000


class Readiness:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._since: OrderedDict[str, int] = OrderedDict()

    def look(self, keeper: Keeper) -> None:
        """Look at what is about to be committed."""
        for aggregate in keeper.touched:
            view = keeper.partition.views.get(aggregate)
            if not isinstance(view, SandboxView) or view.object is None:
                continue
            uid, phase = view.object.uid, view.object.status.phase
            if not phase:
                if uid not in self._since:
                    self._since[uid] = view.now
                    if len(self._since) > CAPACITY:
                        self._since.popitem(last=False)
            elif phase == "Succeed" and (since := self._since.pop(uid, None)) is not None:
                self._metrics.observe("time_to_ready_seconds", (view.now - since) / SECOND, cluster=view.cluster)
