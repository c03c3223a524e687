"""The status a sandbox should show, its endpoints annotation, and when they are worth a write (controller-behaviour.md §6, §9.1; DESIGN §6, §11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from bus.names import ENDPOINTS, FAILED_SPEC_DIGEST
from bus.ops import PatchMetadata, PatchSandboxStatus
from bus.resources import Condition, SandboxStatus
from bus.times import format_time
from bus.views import SandboxObject
from reconciler import events
from reconciler.health import MALFORMED, Problem, malformed
from reconciler.intent import FAILURES, PAUSE_FAILED, RESUME_FAILED, Intent, acknowledged, intent_of
from reconciler.plan import PODS, SANDBOX, Plan, sandbox_target
from reconciler.pods import Pods, is_released
from reconciler.restored import leftover

PENDING: Final = "Pending"
SUCCEED: Final = "Succeed"
FAILED: Final = "Failed"

_CREATING: Final = ("Progressing", "Creating", "Sandbox is being created")
_RUNNING: Final = ("Ready", "PodsReady", "Sandbox is running")
CONDITIONS: Final[dict[tuple[str, bool], tuple[tuple[str, str, str], ...]]] = {
    (PENDING, False): (_CREATING,),
    (SUCCEED, False): (_CREATING,),
    (SUCCEED, True): (_RUNNING,),
    (FAILED, False): (),
}
"""(phase, all wanted replicas ready) → true conditions: type, reason, message (§6.4; B101)."""
NOTHING: Final = "[]"
_POD: Final = f"{PODS}/"
_encode = msgspec.json.Encoder().encode


def show(plan: Plan, object: SandboxObject, pods: Pods, problem: Problem | None) -> None:
    """Write endpoints, then status, in one chain (DESIGN §8.4): at once if somebody waits for it, else after the in-between delay.

    Both carry the observed resourceVersion; the executor chains the one that the first produces to the second.
    """
    written = object.annotations.get(ENDPOINTS)
    endpoints = desired_endpoints(pods, written)
    status = desired_status(plan, object, pods, problem)
    stale_status = not same(status, object.status)
    if (endpoints == written and not stale_status) or not plan.free(SANDBOX, plan.view.name):
        return
    waited_for = awaited(object.status, status) or addresses_changed(written, endpoints) or _as_wanted(object, status)
    if not waited_for and _in_between(plan):
        return
    if plan.refused(SANDBOX):
        return
    target = sandbox_target(plan.view, object)
    changed: dict[str, str | None] = {} if endpoints == written else {ENDPOINTS: endpoints}
    if changed:
        plan.because("endpoints")
    changed |= edit_remembered(object, status)
    if changed:
        plan.add(PatchMetadata(plan.next_id(), target, object.version[1], changed))
    if stale_status:
        op = PatchSandboxStatus(plan.next_id(), target, object.version[1], status)
        plan.add(op)
        plan.because(f"status {status.phase} {status.ready}/{object.replicas}")
        _tell(plan, object, op, problem)


def _tell(plan: Plan, object: SandboxObject, op: PatchSandboxStatus, problem: Problem | None) -> None:
    if problem is not None and _failure(op.status) != _failure(object.status):
        if problem.create:
            events.failed_create(plan, op, problem.message)
        elif problem.reason == MALFORMED:
            events.malformed(plan, op, problem.message)
    if op.status.condition(RESUME_FAILED) != object.status.condition(RESUME_FAILED):
        events.kept_snapshot(plan, op)


def edit_remembered(object: SandboxObject, status: SandboxStatus) -> dict[str, str | None]:
    """The annotation that goes with the acknowledgement of an edit while a pause's or resume's failure stands.

    Else a later `null`, `true` that no watch showed apart would be taken for one more edit: the spec is no longer what it was at the
    failure (DESIGN §6, Intent).
    """
    marked = object.annotations.get(FAILED_SPEC_DIGEST)
    acknowledges = status.pause_observed_generation > object.status.pause_observed_generation
    stands = any(each.type in FAILURES for each in status.conditions)
    if marked == object.spec or not object.spec or not acknowledges or not stands:
        return {}
    return {FAILED_SPEC_DIGEST: object.spec}


_TOO_LARGE: Final = ("PodFailed", "ObjectTooLarge", "the object is too large to be observed whole; make it smaller")


def show_reduced(plan: Plan, object: SandboxObject) -> None:
    """An object whose spec is not known harms only itself, and says so (DESIGN §8.7): nothing is made or removed for it.

    Not where its status is not known either: a write would replace it, and would never be seen.
    """
    if not object.bare:
        _show_unread(plan, object, _TOO_LARGE, events.too_large)


def show_malformed(plan: Plan, object: SandboxObject) -> None:
    """A pooled sandbox whose allocation cannot be read, nor is known from before: as above (B05, B06)."""
    found = malformed(object)
    if found is not None:
        _show_unread(plan, object, ("PodFailed", found.reason, found.message), events.malformed)


def _show_unread(
    plan: Plan,
    object: SandboxObject,
    wanted: tuple[str, str, str],
    tell: Callable[[Plan, PatchSandboxStatus, str], None],
) -> None:
    stored = object.status
    others = tuple(each for each in stored.conditions if each.type != "PodFailed")
    condition = kept(stored, wanted, plan.now)
    status = msgspec.structs.replace(
        stored,
        observed_generation=object.generation,
        phase=stored.phase or PENDING,
        conditions=(condition, *others),
    )
    if not same(status, stored) and plan.free(SANDBOX, plan.view.name) and not plan.refused(SANDBOX):
        op = PatchSandboxStatus(plan.next_id(), sandbox_target(plan.view, object), object.version[1], status)
        plan.add(op)
        plan.because(condition.reason)
        if _failure(status) != _failure(stored):
            tell(plan, op, condition.message)


def _in_between(plan: Plan) -> bool:
    """Whether the delay still runs; where the view does not say since when, it does not.

    While pods are ordered and not seen yet a change is on its way, and a burst is no time for writes that tell of none.
    """
    since, last = plan.view.unshown_since, plan.view.unshown_last
    due = since + plan.settings.in_between_limit
    if not any(name.startswith(_POD) for name in plan.busy):
        due = min(max(since, last) + plan.settings.in_between_delay, due)
    plan.wake(due)
    return since > 0 and due > plan.now


def desired_status(plan: Plan, object: SandboxObject, pods: Pods, problem: Problem | None) -> SandboxStatus:
    stored = object.status
    whole = pods.usable == object.replicas
    phase = _phase(object, pods, problem)
    wanted = [] if is_released(object) else list(CONDITIONS[phase, whole and phase == SUCCEED])
    if problem is not None:
        wanted.append(("PodFailed", problem.reason, problem.message))
    conditions = [kept(stored, each, plan.now) for each in wanted]
    # A `false` on a running sandbox is fulfilled as it is: that takes up the intent, and the failure of the one before goes.
    settled = intent_of(plan.view, object) is Intent.RESUME and stored.phase != FAILED
    # That a resume failed is over when the sandbox runs, unless its snapshot holds what no pod does.
    ended = ((PAUSE_FAILED,) if settled else ()) + ((RESUME_FAILED,) if phase == SUCCEED else ())
    conditions.extend(each for each in stored.conditions if each.type in FAILURES and each.type not in ended)
    if phase == SUCCEED and (unused := leftover(plan.view, object, pods)) is not None:
        conditions.append(kept(stored, (RESUME_FAILED, *unused), plan.now))
    assigned = ready = 0
    for _, _, pod in pods.ours:
        assigned += pod.assigned
        ready += pod.ready and not pod.deleting
    return SandboxStatus(
        observed_generation=object.generation,
        replicas=len(pods.ours),
        allocated=assigned,
        ready=ready,
        task_running=stored.task_running,
        task_succeed=stored.task_succeed,
        task_failed=stored.task_failed,
        task_pending=stored.task_pending,
        task_unknown=stored.task_unknown,
        phase=phase,
        pause_observed_generation=acknowledged(plan.view, object),
        conditions=tuple(conditions),
    )


def _phase(object: SandboxObject, pods: Pods, problem: Problem | None) -> str:
    """Failed while the pods say so (B85); `Succeed` at the first pod that can be used (B101), or when none is wanted, or none any more (B90)."""
    if problem is not None and problem.fatal:
        return FAILED
    return SUCCEED if pods.usable or object.replicas == 0 or is_released(object) else PENDING


def kept(stored: SandboxStatus, wanted: tuple[str, str, str], now: int) -> Condition:
    """The stored condition while it says the same, its transition time included (STA-07)."""
    type, reason, message = wanted
    for each in stored.conditions:
        if each.type == type and each.status == "True" and each.reason == reason and each.message == message:
            return each
    return Condition(type, "True", reason, message, format_time(now))


def same(desired: SandboxStatus, stored: SandboxStatus) -> bool:
    """Whether a write would change nothing; the order of conditions means nothing (STA-02)."""
    if desired == stored:
        return True
    if len(desired.conditions) != len(stored.conditions):
        return False
    if any(each not in stored.conditions for each in desired.conditions):
        return False
    return msgspec.structs.replace(desired, conditions=stored.conditions) == stored


def awaited(stored: SandboxStatus, desired: SandboxStatus) -> bool:
    """Whether the difference is one that a user waits for: delivered, all ready, failed, or failed no more."""
    if desired.phase != stored.phase and desired.phase != PENDING:
        return True
    if (desired.condition("Ready") is None) != (stored.condition("Ready") is None):
        return True
    before, after = _failure(stored), _failure(desired)
    return (before and before[0]) != (after and after[0])


def _as_wanted(object: SandboxObject, desired: SandboxStatus) -> bool:
    """Whether nothing is on its way any more: the end of a scale-in, and an edit that needs nothing but to be acknowledged."""
    return desired.phase == SUCCEED and desired.replicas == desired.ready == object.replicas


def _failure(status: SandboxStatus) -> tuple[str, str] | None:
    condition = status.condition("PodFailed")
    return None if condition is None else (condition.reason, condition.message)


def desired_endpoints(pods: Pods, written: str | None) -> str | None:
    """Addresses by index; before the first usable pod none is written, and what is there is emptied to `[]` (N-26)."""
    if pods.usable:
        return _encode(pods.addresses).decode()
    return None if written is None else NOTHING


def addresses_changed(written: str | None, desired: str | None) -> bool:
    """Whether an address comes or goes; blanks at the end for pods to come do not count."""
    return _addresses(written) != _addresses(desired)


def _addresses(text: str | None) -> list[str] | None:
    """Without the blanks at the end; None for a text that is no list of strings (DESIGN §8.7)."""
    if text is None:
        return []
    try:
        addresses = msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        return None
    while addresses and not addresses[-1]:
        addresses.pop()
    return addresses
