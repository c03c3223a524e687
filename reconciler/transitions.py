"""Writes that move a sandbox from one phase of pause and resume to another: one status, conditions and acknowledgement included."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from bus.names import ENDPOINTS, FAILED_SPEC_DIGEST
from bus.ops import PatchMetadata, PatchSandboxStatus
from bus.resources import Condition, SandboxStatus
from bus.times import SECOND, format_time, parse_time
from bus.views import Failure, SandboxObject
from reconciler import events
from reconciler.intent import FAILURES
from reconciler.plan import Plan, sandbox_target
from reconciler.status import CONDITIONS, NOTHING, kept

PAUSING: Final = "Pausing"
PAUSED: Final = "Paused"
RESUMING: Final = "Resuming"

CONDITION_OF: Final = {
    PAUSING: ("Progressing", "PauseInProgress", "Pausing sandbox"),
    PAUSED: ("Paused", "Paused", "Sandbox is paused"),
    RESUMING: ("Progressing", "ResumeInProgress", "Resuming sandbox"),
}
"""phase → its one true condition: type, reason, message (controller-behaviour.md §6.4)."""


def moved(
    plan: Plan, object: SandboxObject, phase: str, observed: int, *, cleared: tuple[str, ...] = FAILURES
) -> SandboxStatus:
    """The status of one of the three phases. `observed`: its pauseObservedGeneration; `cleared`: …Failed conditions that it ends.

    While Paused no pod is the sandbox's any more, so the counts are zero (E2P-13); observedGeneration leaves out a queued intent as well, so that
    it tells by itself whether a `Resuming` of that generation has rewritten the template (`reconciler.resuming`).
    """
    stored = object.status
    conditions = [kept(stored, CONDITION_OF[phase], plan.now)]
    conditions.extend(each for each in stored.conditions if each.type in FAILURES and each.type not in cleared)
    made = replace(
        stored,
        phase=phase,
        observed_generation=observed if phase == PAUSED else object.generation,
        pause_observed_generation=observed,
        conditions=tuple(conditions),
    )
    return replace(made, replicas=0, allocated=0, ready=0) if phase == PAUSED else made


def in_phase(plan: Plan, object: SandboxObject, status: SandboxStatus, phase: str) -> SandboxStatus:
    """A running sandbox's status said to be of another phase, with the conditions of that one."""
    if status.phase == phase:
        return status
    theirs = [kept(object.status, each, plan.now) for each in CONDITIONS[phase, False]]
    others = [each for each in status.conditions if each.type not in ("Ready", "Progressing")]
    return replace(status, phase=phase, conditions=(*theirs, *others))


def with_failure(plan: Plan, status: SandboxStatus, type: str, reason: str, message: str) -> SandboxStatus:
    """The condition of a failed pause or resume; its time is that of this failure, also where the last one said the same."""
    others = tuple(each for each in status.conditions if each.type != type)
    return replace(status, conditions=(*others, Condition(type, "True", reason, message, format_time(plan.now))))


def write(plan: Plan, object: SandboxObject, status: SandboxStatus) -> PatchSandboxStatus:
    op = PatchSandboxStatus(plan.next_id(), sandbox_target(plan.view, object), object.version[1], status)
    plan.add(op)
    return op


def write_failure(
    plan: Plan,
    object: SandboxObject,
    status: SandboxStatus,
    failure: tuple[str, str, str],
    annotations: dict[str, str | None] | None = None,
) -> None:
    """Write a failed pause or resume: (condition, reason, message), in one chain with `annotations`.

    The digest of the spec goes with it, so that a retry is told from a renewal (DESIGN §6).
    """
    changed = dict(annotations or {})
    if object.spec and object.annotations.get(FAILED_SPEC_DIGEST) != object.spec:
        changed[FAILED_SPEC_DIGEST] = object.spec
    if changed:
        annotate(plan, object, changed)
    type, reason, message = failure
    op = write(plan, object, with_failure(plan, status, type, reason, message))
    events.lifecycle_failed(plan, op, type, f"{reason}: {message}")
    plan.because(f"{type} {reason}")


def annotate(plan: Plan, object: SandboxObject, annotations: dict[str, str | None]) -> None:
    plan.add(PatchMetadata(plan.next_id(), sandbox_target(plan.view, object), object.version[1], annotations))


def empty_endpoints(plan: Plan, object: SandboxObject) -> None:
    """No address outlives its pod; where there is no annotation none is written (N-26)."""
    if object.annotations.get(ENDPOINTS, NOTHING) != NOTHING:
        annotate(plan, object, {ENDPOINTS: NOTHING})


def refusal(plan: Plan, object: SandboxObject, op: str, type: str) -> Failure | None:
    """The API server's refusal of the latest op of this kind, if condition `type` does not tell of it yet."""
    failure = plan.view.failure
    if failure is None or failure.op != op:
        return None
    shown = object.status.condition(type)
    at = parse_time(shown.last_transition_time) if shown is not None else None
    return failure if at is None or failure.at > at + SECOND else None
