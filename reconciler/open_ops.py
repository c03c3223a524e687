"""Ops that were ordered and are not over: issued again when their command was lost (DESIGN §5, What is open replaces expectations)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from bus.messages import CONFLICT, DONE, MISSING
from bus.ops import UNOBSERVED, CreateJob, CreatePods, DeletePod, Op
from bus.views import Open, Pod, Reported
from reconciler import events
from reconciler.intent import PHASES
from reconciler.plan import BasePlan, Plan, SnapshotPlan

ANSWERED: Final = frozenset({DONE, CONFLICT, MISSING})
"""Outcomes after which only an observation is awaited: a repeat would be answered the same. The bridge's periodic list is the timer."""


def in_flight(plan: BasePlan[Any]) -> bool:
    """One command per aggregate is in flight: until its outcome is folded or its time is over, nothing is decided."""
    flying = plan.view.in_flight
    if flying is None or flying.expires <= plan.now:
        return False
    plan.wake(flying.expires)
    plan.because("a command is in flight")
    return True


def unanswered(each: Open, pods: Mapping[str, Pod]) -> Op | None:
    """What of an open op is to be issued again, with its own id; None if it only waits to be observed."""
    op = each.op
    if isinstance(op, UNOBSERVED):
        return None
    if isinstance(op, CreatePods):
        names = {
            name: index for name, index in op.names.items() if _lost(op, each.waits.get(f"pod/{name}"), pods.get(name))
        }
        if not names:
            return None
        return op if len(names) == len(op.names) else msgspec.structs.replace(op, names=names)
    return op if any(reported.result not in ANSWERED for reported in each.waits.values()) else None


def _lost(op: CreatePods, reported: Reported | None, pod: Pod | None) -> bool:
    """Whether a name is still to be created: not answered, or a pod that stood in its way has gone since."""
    if reported is None:
        return False
    if reported.result != CONFLICT:
        return reported.result not in ANSWERED
    about_the_pod = reported.uid not in ("", op.sandbox.uid)
    return about_the_pod and pod is not None and pod.gone and pod.version >= reported.version


def again(plan: BasePlan[Any], opened: Iterable[Open]) -> None:
    """Issue again what is unanswered, once the back-off is over. Its Events come with it, under the same ids."""
    ops = [op for each in opened if (op := unanswered(each, plan.view.pods)) is not None]
    if not ops:
        return
    if plan.view.retry_at > plan.now:
        plan.wake(plan.view.retry_at)
        return
    for op in ops:
        plan.add(op)
        _tell(plan, op)
    plan.because(f"{len(ops)} lost ops again")


def _tell(plan: BasePlan[Any], op: Op) -> None:
    if isinstance(plan, Plan):
        object = plan.view.object
        if isinstance(op, CreatePods):
            events.created(plan, op)
        elif isinstance(op, DeletePod) and object is not None and object.status.phase not in PHASES:
            events.deleted(plan, op)
    elif isinstance(plan, SnapshotPlan) and isinstance(op, CreateJob):
        events.created_job(plan, op)


def open_again(plan: BasePlan[Any]) -> bool:
    if plan.view.open:
        again(plan, plan.view.open)
    return False
