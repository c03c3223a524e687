"""The cluster's own controllers, stepped together: Jobs, garbage collection, namespaces."""

from __future__ import annotations

from datetime import datetime

from simcluster.gc import collect_garbage
from simcluster.jobs import JobController, JobTiming
from simcluster.store import Store

MAX_ROUNDS = 100


class Controllers:
    """`step` until quiet; `next_event_at` tells a virtual-time runner when to come back."""

    def __init__(self, store: Store, timing: JobTiming | None = None) -> None:
        self.store = store
        self.jobs = JobController(store, timing)

    def step(self) -> int:
        """Everything that can be done now; the number of writes."""
        total = 0
        for _ in range(MAX_ROUNDS):
            done = self.jobs.step() + collect_garbage(self.store)
            total += done
            if not done:
                break
        return total

    def next_event_at(self) -> datetime | None:
        """Now if something waits, else the next timer, else None."""
        owners = self.store.owners
        return self.store.now() if owners.dirty else self.jobs.next_event_at()
