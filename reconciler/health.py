"""What is wrong with a sandbox's pods, and whether it makes the sandbox Failed (controller-behaviour.md §6.2; DESIGN §11; B84, B85).

Recomputed from the pods each time, so `Failed` is left again when they recover.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus.names import ENDPOINTS, pod_name
from bus.times import SECOND, parse_time
from bus.views import Failure, Pod, SandboxObject
from reconciler.plan import PODS, Plan
from reconciler.pods import Pods, absent, foreign, is_released, wanted

HEALING: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    }
)
"""Reasons that may heal: a pod fails its sandbox only when one has stood for the grace."""
UNBUILDABLE: Final = frozenset({"InvalidTemplate", "InvalidShardPatch", "InvalidImageName"})
"""The executor's words for a template from which no pod can be built."""
NEVER: Final = (400, 422)
"""Codes of a refusal that no repeat mends: the pod cannot be read, or breaks a rule."""
NAME_TAKEN: Final = "NameTaken"
COMPLETED: Final = "Completed"
"""A pod of phase Succeeded."""
POD_LOST: Final = "PodLost"
"""A pod of the pool's that a sandbox was given is no more (B07)."""
MALFORMED: Final = "MalformedAllocation"
UNSAID: Final = "Error"
"""A Failed pod that says no reason; kubectl's word for it."""


class Problem(msgspec.Struct, frozen=True):
    """What condition PodFailed says. `fatal`: the phase is Failed. `create`: it is about a pod that could not be created."""

    reason: str
    message: str
    fatal: bool
    create: bool = False


def problem(plan: Plan, object: SandboxObject, pods: Pods) -> Problem | None:
    """The one that a user must see: what makes the sandbox Failed first, then pods before creates."""
    of_pods = _pod_problem(plan, object, pods)
    if of_pods is not None and of_pods.fatal:
        return of_pods
    if object.pooled:
        return of_pods or malformed(object) or _of_before(object)
    of_create = _create_problem(plan, object, pods)
    if of_create is not None and (of_create.fatal or of_pods is None):
        return of_create
    return of_pods


def malformed(object: SandboxObject) -> Problem | None:
    """A pooled sandbox's allocation that cannot be read (B05, B06); what was known of it before still holds."""
    if not object.pooled or not object.malformed:
        return None
    return Problem(MALFORMED, f"cannot be read: annotation {', '.join(object.malformed)}", fatal=False)


def _of_before(object: SandboxObject) -> Problem | None:
    """One that failed, and then gave its pods back, has nothing that could heal."""
    shown = object.status.condition("PodFailed")
    if not is_released(object) or shown is None or object.status.phase != "Failed":
        return None
    return Problem(shown.reason, shown.message, fatal=True)


def lost(plan: Plan, object: SandboxObject, pods: Pods) -> list[str]:
    """Pods that a pooled sandbox names and that are no more, once it was delivered: before, its pool replaces them (DESIGN §11, B07).

    Of one that was seen going that is certain. One that is only not there may be on its way to us: its sandbox shows `Failed` when nothing
    else is there for the grace.
    """
    if not object.pooled or not _was_delivered(object):
        return []
    named = [(name, plan.view.pods.get(name)) for name in object.allocated]
    gone = [name for name, pod in named if pod is not None and pod.gone]
    unknown = [name for name, pod in named if pod is None]
    if unknown and (_shows_lost(object) or (not pods.ours and _long_without(plan, object))):
        return [name for name, pod in named if pod is None or pod.gone]
    return gone


def _was_delivered(object: SandboxObject) -> bool:
    return object.status.phase in ("Succeed", "Pausing") or ENDPOINTS in object.annotations or _shows_lost(object)


def _shows_lost(object: SandboxObject) -> bool:
    shown = object.status.condition("PodFailed")
    return shown is not None and shown.reason == POD_LOST


def _long_without(plan: Plan, object: SandboxObject) -> bool:
    return object.status.phase == "Failed" or long_in_making(plan, object)


def long_in_making(plan: Plan, object: SandboxObject) -> bool:
    """Whether the sandbox has said for the grace that it is being created; else a wake-up is noted."""
    shown = object.status.condition("Progressing")
    since = parse_time(shown.last_transition_time) if shown is not None else None
    if since is None or object.status.phase not in ("Pending", "Succeed"):
        return False
    plan.wake(since + plan.settings.pod_failure_grace)
    return since + plan.settings.pod_failure_grace <= plan.now


def reason_of(pod: Pod) -> str:
    """Why a pod is failing or has ended; '' if it is neither."""
    if pod.phase == "Succeeded":
        return COMPLETED
    if pod.terminal or pod.phase == "Failed":
        return pod.reason or UNSAID
    return pod.reason if pod.reason in HEALING and not pod.ready else ""


def _pod_problem(plan: Plan, object: SandboxObject, pods: Pods) -> Problem | None:
    """Terminating pods, and those that are not wanted, are not counted (B84).

    Once one pod fails the sandbox all that show a reason are counted, also within their grace: one message instead of one per pod.
    Pods that completed make the sandbox Failed only when none is left that can be used: the phase has no word for it, `Pending` would
    promise one to come and `Succeed` an address.
    """
    observed = 0
    sick: list[tuple[str, str]] = []
    shown = fatal = False
    for index, name, pod in pods.ours:
        if pod.deleting or (index >= object.replicas and not wanted(plan.view, object, name)):
            continue
        observed += 1
        reason = reason_of(pod)
        if not reason:
            continue
        sick.append((reason, name))
        if reason == COMPLETED:
            shown = True
            fatal = fatal or pods.usable == 0
        elif pod.terminal or pod.phase == "Failed" or pod.since + plan.settings.pod_failure_grace <= plan.now:
            shown = fatal = True
        else:
            plan.wake(pod.since + plan.settings.pod_failure_grace)
    for name in lost(plan, object, pods):
        observed += 1
        sick.append((POD_LOST, name))
        shown = fatal = True
    if not shown:
        return None
    primary, sample = _primary(sick)
    message = f"{len(sick)}/{observed} observed pods failed; primary reason={primary}; sample pod={sample}"
    return Problem(primary, message, fatal)


def _primary(sick: list[tuple[str, str]]) -> tuple[str, str]:
    """The reason that first reaches the highest count, walking by index, and the first pod that has it (STA-04, N-30)."""
    counts: dict[str, int] = {}
    best = 0
    primary = ""
    for reason, _ in sick:
        counts[reason] = counts.get(reason, 0) + 1
        if counts[reason] > best:
            best, primary = counts[reason], reason
    return primary, next(name for reason, name in sick if reason == primary)


def _create_problem(plan: Plan, object: SandboxObject, pods: Pods) -> Problem | None:
    failure = plan.view.failure
    if failure is not None and (name := _refused_name(plan, object, failure)):
        reason = failure.reason or UNSAID
        message = f"failed to create pod {name}: {failure.message}"
        if failure.code in NEVER or failure.reason in UNBUILDABLE:
            return Problem(reason, message, fatal=True, create=True)
        return Problem(reason, message, _over(plan, pods, _since(object, failure, reason)), create=True)
    name = foreign(plan.view, object) if len(plan.view.pods) > len(pods.ours) else None
    if name is not None:
        since = object.created
        if since + plan.settings.pod_failure_grace > plan.now:
            plan.wake(since + plan.settings.pod_failure_grace)
            return None
        message = f"failed to create pod {name}: a pod of that name belongs to another owner"
        return Problem(NAME_TAKEN, message, pods.usable == 0, create=True)
    return None


def _refused_name(plan: Plan, object: SandboxObject, failure: Failure) -> str | None:
    """The wanted pod that the latest refusal is about, while it does not exist."""
    kind, _, name = failure.object.partition("/")
    if kind != PODS:
        if failure.reason not in UNBUILDABLE:
            return None
        name = pod_name(plan.view.name, 0)
        return name if object.replicas and absent(plan.view, name) else None
    return name if wanted(plan.view, object, name) and absent(plan.view, name) else None


def _since(object: SandboxObject, failure: Failure, reason: str) -> int:
    """Since when creating is refused: each refusal renews `failure.at`, but the condition that shows it stands."""
    shown = object.status.condition("PodFailed")
    if shown is None or shown.reason != reason:
        return failure.at
    written = parse_time(shown.last_transition_time)
    return failure.at if written is None else min(failure.at, written + SECOND)


def _over(plan: Plan, pods: Pods, since: int) -> bool:
    """A refusal that may heal (quota) fails the sandbox only after the grace, and only if no pod can be used."""
    if pods.usable:
        return False
    plan.wake(since + plan.settings.pod_failure_grace)
    return since + plan.settings.pod_failure_grace <= plan.now
