"""Events (controller-behaviour.md §9.2), as ops behind the op they tell of.

A chain stops at the first op that is not done, so an Event in the same command is recorded only if what it says is true, and costs no
command of its own. Its id follows from that op's id: a re-issue names the same Event. Where a CreatePods is done only in part, the executor
knows the Events of that part by it (`<op>/<pod>`) and records them; so is the failure's own (`FailedCreate`, with the condition that shows
it, so once per message).
No Event holds any part of a pod (B104).
"""

from __future__ import annotations

from typing import Final

from bus.names import SANDBOX_COMPONENT, SNAPSHOT_COMPONENT
from bus.ops import CreateJob, CreatePods, DeleteExpired, DeletePod, PatchSandboxStatus, RecordEvent, Target
from bus.times import format_time
from reconciler.plan import SANDBOX, Plan, SnapshotPlan

NORMAL: Final = "Normal"
WARNING: Final = "Warning"


def created(plan: Plan, op: CreatePods) -> None:
    for name in op.names:
        plan.add(
            RecordEvent(
                f"{op.id}/{name}",
                op.sandbox,
                SANDBOX_COMPONENT,
                NORMAL,
                "SuccessfulCreate",
                f"succeed to create pod {name}",
                plan.now,
            )
        )


def failed_create(plan: Plan, op: PatchSandboxStatus, message: str) -> None:
    plan.add(RecordEvent(f"{op.id}/event", op.target, SANDBOX_COMPONENT, WARNING, "FailedCreate", message, plan.now))


def too_large(plan: Plan, op: PatchSandboxStatus, message: str) -> None:
    plan.add(RecordEvent(f"{op.id}/event", op.target, SANDBOX_COMPONENT, WARNING, "ObjectTooLarge", message, plan.now))


def deleted(plan: Plan, op: DeletePod) -> None:
    object = plan.view.object
    if object is not None:
        sandbox = Target(SANDBOX, plan.view.name, object.uid)
        message = f"deleted pod {op.target.name}: scaled in"
        plan.add(
            RecordEvent(f"{op.id}/event", sandbox, SANDBOX_COMPONENT, NORMAL, "SuccessfulDelete", message, plan.now)
        )


def expired(plan: Plan, op: DeleteExpired) -> None:
    message = f"deleted: its expireTime {format_time(op.expire_time)} has passed"
    plan.add(RecordEvent(f"{op.id}/event", op.target, SANDBOX_COMPONENT, NORMAL, "Expired", message, plan.now))


def lifecycle_failed(plan: Plan, op: PatchSandboxStatus, reason: str, message: str) -> None:
    """`PauseFailed` or `ResumeFailed`, with the condition of that name: the stock controller says neither."""
    plan.add(RecordEvent(f"{op.id}/event", op.target, SANDBOX_COMPONENT, WARNING, reason, message, plan.now))


def kept_snapshot(plan: Plan, op: PatchSandboxStatus) -> None:
    """A resume is over, and its snapshot stays: with the condition that says why."""
    said = op.status.condition("ResumeFailed")
    if said is not None:
        lifecycle_failed(plan, op, "ResumeFailed", f"{said.reason}: {said.message}")


def malformed(plan: Plan, op: PatchSandboxStatus, message: str) -> None:
    plan.add(
        RecordEvent(f"{op.id}/event", op.target, SANDBOX_COMPONENT, WARNING, "MalformedAllocation", message, plan.now)
    )


def of_snapshot(plan: SnapshotPlan, id: str, target: Target, type: str, reason: str, message: str) -> None:
    """§9.2, once per op it follows (B107)."""
    plan.add(RecordEvent(id, target, SNAPSHOT_COMPONENT, type, reason, message, plan.now))


def created_job(plan: SnapshotPlan, op: CreateJob) -> None:
    """Of a commit Job only, as the stock controller."""
    if op.action == "commit":
        of_snapshot(plan, f"{op.id}/event", op.snapshot, NORMAL, "CreatedJob", f"Created commit job: {op.name}")
