"""One pass over a view: what its concerns have decided so far.

Concerns (`reconciler.sandbox`) are called in order and add to the plan; the plan gives ops their ids and keeps them off objects
that an open op names.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from bus.ops import Op, Target
from bus.resources import BATCH_SANDBOX, JOB, POD, SANDBOX_SNAPSHOT
from bus.times import SECOND
from bus.views import Decision, SandboxObject, SandboxView, SnapshotView, backoff
from reconciler.settings import Settings

SANDBOX: Final = BATCH_SANDBOX.word
SNAPSHOT: Final = SANDBOX_SNAPSHOT.word
PODS: Final = POD.word
JOBS: Final = JOB.word
LAST_RESORT: Final = 60 * SECOND
"""After so long what waits for an event is looked at again, in case the event was missed (DESIGN §8.8)."""

V = TypeVar("V", bound=SandboxView | SnapshotView)


class BasePlan(Generic[V]):
    """Ops in order, the earliest wake-up, and the reasons, for one view."""

    __slots__ = ("_count", "_prefix", "busy", "now", "ops", "reasons", "settings", "view", "wake_at")

    def __init__(self, view: V, settings: Settings) -> None:
        self.view = view
        self.settings = settings
        self.now = view.now
        self.ops: list[Op] = []
        self.reasons: list[str] = []
        self.wake_at: int | None = None
        self.busy: frozenset[str] = frozenset(name for each in view.open for name in each.waits)
        """objects that an open op is not over for: nothing else is decided about them (DESIGN §5)"""
        self._prefix = ""
        self._count = 0

    def next_id(self) -> str:
        """An op's id: the aggregate, the view's position, the op's place. The same view gives the same ids."""
        if not self._prefix:
            self._prefix = f"{self.view.aggregate}:{self.view.sequence}:"
        made = f"{self._prefix}{self._count}"
        self._count += 1
        return made

    def add(self, op: Op) -> None:
        self.ops.append(op)

    def because(self, reason: str) -> None:
        self.reasons.append(reason)

    def wake(self, at: int) -> None:
        """Look again at this log time, if it is still to come."""
        if at > self.now and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at

    def wait(self, reason: str) -> None:
        """Nothing to do until something is seen."""
        self.because(reason)
        self.wake(self.now + LAST_RESORT)

    def free(self, kind: str, name: str) -> bool:
        return not self.busy or f"{kind}/{name}" not in self.busy

    def refused(self, kind: str) -> bool:
        """Whether the present back-off comes from a refusal about an object of this kind; then a wake-up is noted.

        `retry_at` is one for the whole view; that it stems from `failure` shows in its value.
        """
        view = self.view
        if view.retry_at <= self.now or not self._from_failure():
            return False
        assert view.failure is not None
        if kind not in (view.failure.object.partition("/")[0], *view.failure.also):
            return False
        self.wake(view.retry_at)
        return True

    def backing_off(self, kind: str) -> bool:
        """As `refused`, and also where the cause of the back-off is not known."""
        if self.view.retry_at <= self.now:
            return False
        if self._from_failure():
            return self.refused(kind)
        self.wake(self.view.retry_at)
        return True

    def _from_failure(self) -> bool:
        failure = self.view.failure
        return failure is not None and self.view.retry_at == failure.at + backoff(self.view.tries)

    def decision(self) -> Decision:
        return Decision(tuple(self.ops), self.wake_at, "; ".join(self.reasons))


class Plan(BasePlan[SandboxView]):
    __slots__ = ()


class SnapshotPlan(BasePlan[SnapshotView]):
    __slots__ = ()


def sandbox_target(view: SandboxView, object: SandboxObject) -> Target:
    return Target(SANDBOX, view.name, object.uid)
