"""One pass over a view: what its concerns have decided so far.

Concerns (`reconciler.sandbox`) are called in order and add to the plan; the plan gives ops their ids and keeps them off objects
that an open op names.
"""

from __future__ import annotations

from typing import Final

from bus.ops import Op, Target
from bus.resources import BATCH_SANDBOX, POD
from bus.views import Decision, SandboxObject, SandboxView, backoff
from reconciler.settings import Settings

SANDBOX: Final = BATCH_SANDBOX.word
PODS: Final = POD.word


class Plan:
    """Ops in order, the earliest wake-up, and the reasons, for one view."""

    __slots__ = ("_count", "_prefix", "busy", "now", "ops", "reasons", "settings", "view", "wake_at")

    def __init__(self, view: SandboxView, settings: Settings) -> None:
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
        if view.failure.object.partition("/")[0] != kind:
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


def sandbox_target(view: SandboxView, object: SandboxObject) -> Target:
    return Target(SANDBOX, view.name, object.uid)
