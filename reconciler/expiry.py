"""expireTime: a sandbox whose time is over is deleted, in every phase, and follows renewals (EXP-01; server-client.md §8.7)."""

from __future__ import annotations

from bus.ops import DeleteExpired
from reconciler import events
from reconciler.plan import SANDBOX, Plan, sandbox_target


def expiry(plan: Plan) -> bool:
    """True once the time is over: nothing else is worth doing then.

    The executor checks the API server's own clock before it deletes; where that is behind (`early`) the back-off paces the next try.
    """
    object = plan.view.object
    if object is None or object.expire_time is None:
        return False
    if object.expire_time > plan.now:
        plan.wake(object.expire_time)
        return False
    if plan.free(SANDBOX, plan.view.name) and not plan.backing_off(SANDBOX):
        op = DeleteExpired(
            plan.next_id(), sandbox_target(plan.view, object), object.version[1], expire_time=object.expire_time
        )
        plan.add(op)
        events.expired(plan, op)
        plan.because("expired")
    return True
