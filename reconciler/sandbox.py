"""A sandbox: its concerns, in the order in which they are looked at. The first that says so is the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bus.names import TASK_CLEANUP
from bus.ops import PatchMetadata
from bus.views import Decision, SandboxView
from reconciler.expiry import expiry
from reconciler.health import problem
from reconciler.lifecycle import lifecycle
from reconciler.open_ops import again, in_flight, open_again
from reconciler.plan import SANDBOX, Plan, sandbox_target
from reconciler.pods import scale_in, scale_out, survey
from reconciler.settings import Settings
from reconciler.status import show, show_reduced


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


def not_template_mode(plan: Plan) -> bool:
    """Pooled sandboxes get their pods from the pool's view; one without a template makes none."""
    object = plan.view.object
    return object is None or object.pooled or not (object.has_template or object.reduced)


def run(plan: Plan) -> bool:
    """A sandbox that is to run: show what is, then make what is wanted.

    What a user waits for goes before what only begins (DESIGN §6, Writes are the cost).
    """
    object = plan.view.object
    assert object is not None
    if object.reduced:
        show_reduced(plan, object)
        return True
    pods = survey(plan.view, object)
    show(plan, object, pods, problem(plan, object, pods))
    scale_in(plan, object, pods)
    scale_out(plan, object)
    return True


Concern = Callable[[Plan], bool]
CONCERNS: Final[tuple[Concern, ...]] = (
    in_flight,
    deletion,
    unsettled,
    open_again,
    expiry,
    not_template_mode,
    lifecycle,
    run,
)


def decide_sandbox(view: SandboxView, settings: Settings) -> Decision:
    plan = Plan(view, settings)
    for concern in CONCERNS:
        if concern(plan):
            break
    return plan.decision()
