"""A sandbox that is to run: show what is, then make what is wanted."""

from __future__ import annotations

from bus.ops import DeleteObject, Target
from reconciler.health import problem
from reconciler.pausing import object_of
from reconciler.plan import SNAPSHOT, Plan
from reconciler.pods import scale_in, scale_out, survey
from reconciler.restored import Taken, used_up
from reconciler.status import show, show_malformed


def run(plan: Plan) -> None:
    """What a user waits for goes before what only begins (DESIGN §6, Writes are the cost). A pooled sandbox's pods are its pool's to make."""
    object = object_of(plan)
    if object.pooled and not object.allocated:
        if object.malformed:
            show_malformed(plan, object)
            return
        if not object.released and not object.status.phase:
            return  # N-24
    if not object.pooled and not object.has_template:
        return
    pods = survey(plan.view, object)
    show(plan, object, pods, problem(plan, object, pods))
    if not object.pooled:
        scale_in(plan, object, pods)
        scale_out(plan, object)


def run_and_tidy(plan: Plan) -> None:
    """As `run`; and the snapshot that it was resumed from goes, once `Succeed` was seen and a pod made of it can be used (STA-03, DESIGN §8.2)."""
    run(plan)
    object = object_of(plan)
    snapshot = plan.view.snapshot
    assert snapshot is not None
    if used_up(object, survey(plan.view, object), snapshot) is not Taken.ALL:
        return
    if plan.free(SNAPSHOT, snapshot.name) and not plan.refused(SNAPSHOT):
        plan.add(DeleteObject(plan.next_id(), Target(SNAPSHOT, snapshot.name, snapshot.uid)))
        plan.because("the snapshot is used up")
