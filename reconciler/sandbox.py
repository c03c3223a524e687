"""A sandbox: its concerns, in the order in which they are looked at. The first that says so is the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bus.names import TASK_CLEANUP
from bus.ops import PatchMetadata
from bus.views import Decision, SandboxView
from reconciler.expiry import expiry
from reconciler.lifecycle import lifecycle
from reconciler.open_ops import again, in_flight, open_again
from reconciler.plan import SANDBOX, Plan, sandbox_target
from reconciler.settings import Settings
from reconciler.status import show_reduced


def deletion(plan: Plan) -> bool:
    """An object that is being deleted: our finalizer goes, whatever is open (DESIGN §8.6); the garbage collector does the rest.

    Stopping tasks first has its place here. What was *seen* deleting is not decided from absence, so this does not wait for completeness.
    """
    view = plan.view
    object = view.object
    if object is None or not object.deleting:
        return object is None
    if TASK_CLEANUP not in object.finalizers:
        return True
    ordered = [each for each in view.open if isinstance(each.op, PatchMetadata) and each.op.finalizers is not None]
    if ordered:
        again(plan, ordered)
    elif not plan.refused(SANDBOX):
        kept = tuple(each for each in object.finalizers if each != TASK_CLEANUP)
        plan.add(PatchMetadata(plan.next_id(), sandbox_target(view, object), object.version[1], finalizers=kept))
        plan.because("deleting: finalizer removed")
    return True


def unsettled(plan: Plan) -> bool:
    """Absence means nothing yet (DESIGN §4, Completeness)."""
    if plan.view.settled:
        return False
    plan.because("not everything is known yet")
    return True


def reduced(plan: Plan) -> bool:
    """An object whose spec is not known: nothing is made or removed for it, and it says so (DESIGN §8.7)."""
    object = plan.view.object
    if object is None or not object.reduced:
        return False
    show_reduced(plan, object)
    return True


Concern = Callable[[Plan], bool]
CONCERNS: Final[tuple[Concern, ...]] = (
    in_flight,
    deletion,
    unsettled,
    open_again,
    expiry,
    reduced,
    lifecycle,
)


def decide_sandbox(view: SandboxView, settings: Settings) -> Decision:
    plan = Plan(view, settings)
    for concern in CONCERNS:
        if concern(plan):
            break
    return plan.decision()
