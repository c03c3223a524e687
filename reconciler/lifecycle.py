"""Pause and resume: the seam. Until they are built, a sandbox in one of their phases is left alone (expiry and deletion apply)."""

from __future__ import annotations

from typing import Final

from bus.views import SandboxObject, SandboxView
from reconciler.plan import Plan

PHASES: Final = frozenset({"Pausing", "Paused", "Resuming"})


def lifecycle(plan: Plan) -> bool:
    """True if pausing or resuming decides about this sandbox, and running it does not."""
    object = plan.view.object
    return object is not None and object.status.phase in PHASES


def acknowledged(view: SandboxView, object: SandboxObject) -> int:
    """The pauseObservedGeneration that a status written in a running phase carries (DESIGN §6, Intent; DSP-03, N-29).

    An edit, and a `false` or none that changes nothing here, is acknowledged. A new `true` is not: whoever starts the pause does
    that. Nor is a none while `PauseFailed` stands, the first half of a retry.
    """
    status = object.status
    observed = status.pause_observed_generation
    changed = view.pause_generation
    edit = object.pause is not True if changed is None else changed <= observed
    bridge = object.pause is None and status.condition("PauseFailed") is not None
    if not edit and (object.pause is True or bridge):
        return observed
    return max(observed, object.generation)
