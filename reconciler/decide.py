"""`decide`: what to do about a view now. Pure: the same view gives the same bytes (DESIGN §6)."""

from __future__ import annotations

from bus.views import Decision, PoolView, SandboxView, SnapshotView, View
from reconciler.sandbox import decide_sandbox
from reconciler.settings import DEFAULT, Settings
from reconciler.snapshot import decide_snapshot

_NOTHING = Decision()


def decide(view: View, settings: Settings = DEFAULT) -> Decision:
    """The ops that bring a view's aggregate closer to what is wanted, and when to look again if nothing changes."""
    match view:
        case SandboxView():
            return decide_sandbox(view, settings)
        case SnapshotView():
            return decide_snapshot(view, settings)
        case PoolView():
            return _NOTHING
