"""Steps of a resume, and of a sandbox that stays paused (scenarios RES-*; DESIGN §6, §8).

That the template was rewritten shows in the phase: the rewriting goes before the write of `Resuming`, in one chain, and that write alone
brings observedGeneration up to pauseObservedGeneration. A `Resuming` of the stock controller's, or one whose template is not known to be
rewritten, lags behind (`is_rewritten`). So no pod of the template of before is ever taken for a resumed one, whatever was lost.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from bus.names import ENDPOINTS
from bus.ops import DeletePod, RewriteTemplate, Target
from bus.views import Pod, SandboxObject, Snapshot
from reconciler.health import Problem, problem
from reconciler.intent import RESUME_FAILED, Intent, finished, intent_of
from reconciler.pausing import object_of, writable
from reconciler.plan import PODS, Plan, sandbox_target
from reconciler.pods import Pods, scale_out, survey, usable
from reconciler.status import FAILED, NOTHING, desired_endpoints, desired_status, edit_remembered, same
from reconciler.transitions import PAUSED, RESUMING, annotate, empty_endpoints, moved, refusal, write, write_failure

SNAPSHOT_NOT_FOUND: Final = "SnapshotNotFound"
SNAPSHOT_NOT_READY: Final = "SnapshotNotReady"
TEMPLATE_REFUSED: Final = "TemplateRefused"
REWRITE_TEMPLATE: Final = "rewrite-template"


def is_rewritten(object: SandboxObject) -> bool:
    """Whether a Resuming sandbox's template is known to hold the snapshot's images."""
    status = object.status
    return not object.pooled and status.observed_generation >= status.pause_observed_generation


def images(snapshot: Snapshot) -> dict[str, str]:
    """Container → image URI; empty if any is missing: such a snapshot brings nothing back."""
    containers = snapshot.status.containers or ()
    found = {each.container_name: each.image_uri for each in containers if each.container_name and each.image_uri}
    return found if len(found) == len(containers) else {}


def others(object: SandboxObject, pods: Pods) -> list[tuple[str, Pod]]:
    """Pods that are not of the present template, and do not go yet."""
    return [(name, pod) for _, name, pod in pods.ours if pod.template != object.template and not pod.deleting]


# -- while paused


def rest(plan: Plan) -> None:
    """Stay paused, and say so: a renewal or an edit is acknowledged, a `true` once more as well; the snapshot is left alone (N-07)."""
    object = object_of(plan)
    if not writable(plan):
        return
    intent = intent_of(plan.view, object)
    observed = max(object.status.pause_observed_generation, object.generation)
    if intent is Intent.CLEARED and object.status.condition(RESUME_FAILED) is not None:
        observed = object.status.pause_observed_generation
    cleared = (RESUME_FAILED,) if intent is Intent.PAUSE else ()
    status = moved(plan, object, PAUSED, observed, cleared=cleared)
    empty_endpoints(plan, object)
    if not same(status, object.status):
        if changed := edit_remembered(object, status):
            annotate(plan, object, changed)
        write(plan, object, status)
    if plan.ops:
        plan.because("still paused")


def sweep(plan: Plan) -> None:
    """Delete pods that a paused or resuming sandbox must not have (DESIGN §8.2): a late executor may have made one."""
    object = object_of(plan)
    if plan.refused(PODS):
        return
    pods = survey(plan.view, object)
    unwanted = others(object, pods) if object.status.phase == RESUMING else _live(pods)
    for name, pod in unwanted[: plan.settings.creates_per_command]:
        if plan.free(PODS, name):
            plan.add(DeletePod(plan.next_id(), Target(PODS, name, pod.uid)))
    plan.wait("delete pods of before")


def _live(pods: Pods) -> list[tuple[str, Pod]]:
    return [(name, pod) for _, name, pod in pods.ours if not pod.deleting]


# -- resuming


def resume(plan: Plan) -> None:
    """The snapshot's images into the template, out of the pool, and `Resuming`, in one chain (RES-01…08)."""
    object = object_of(plan)
    snapshot = plan.view.snapshot
    assert snapshot is not None
    refused = refusal(plan, object, REWRITE_TEMPLATE, RESUME_FAILED)
    if refused is not None:
        _roll_back(plan, object, TEMPLATE_REFUSED, f"failed to rewrite the template: {refused.message}")
        return
    if not writable(plan):
        return
    target = sandbox_target(plan.view, object)
    secret = plan.settings.resume_pull_secret
    version = object.version[1]
    plan.add(RewriteTemplate(plan.next_id(), target, version, images(snapshot), secret, object.pooled))
    observed = object.generation if object.status.phase == PAUSED else finished(plan.view, object)
    write(plan, object, moved(plan, object, RESUMING, observed))
    plan.because("resume")


def roll_back(plan: Plan) -> None:
    """Back to `Paused`, or still there: the snapshot cannot be used (RES-09, RES-11, RES-12)."""
    snapshot = plan.view.snapshot
    if snapshot is None or snapshot.gone or snapshot.deleting:
        reason, message = SNAPSHOT_NOT_FOUND, "SandboxSnapshot not found"
    elif snapshot.owner != object_of(plan).uid:
        reason, message = SNAPSHOT_NOT_FOUND, "SandboxSnapshot belongs to another BatchSandbox"
    elif snapshot.status.phase == "Succeed":
        reason, message = SNAPSHOT_NOT_READY, "snapshot not ready: it holds no images"
    else:
        reason, message = SNAPSHOT_NOT_READY, f"snapshot not ready: phase={snapshot.status.phase}"
    _roll_back(plan, object_of(plan), reason, message)


def _roll_back(plan: Plan, object: SandboxObject, reason: str, message: str) -> None:
    if not writable(plan):
        return
    observed = object.generation if object.status.phase == PAUSED else finished(plan.view, object)
    status = moved(plan, object, PAUSED, observed)
    emptied: dict[str, str | None] | None = (
        {ENDPOINTS: NOTHING} if object.annotations.get(ENDPOINTS, NOTHING) != NOTHING else None
    )
    write_failure(plan, object, status, (RESUME_FAILED, reason, message), emptied)


def proceed(plan: Plan) -> None:
    """Make the pods of the rewritten template, and wait for one to be ready."""
    scale_out(plan, object_of(plan))
    plan.wait("waiting for a resumed pod")


def arrive(plan: Plan) -> None:
    """A resumed pod is ready: endpoints, then `Succeed`; what our own writes did to the generation is acknowledged with it (N-09)."""
    object = object_of(plan)
    if not writable(plan):
        return
    pods = survey(plan.view, object)
    written = object.annotations.get(ENDPOINTS)
    endpoints = desired_endpoints(pods, written)
    if endpoints != written:
        annotate(plan, object, {ENDPOINTS: endpoints})
    status = desired_status(plan, object, pods, None)
    conditions = tuple(each for each in status.conditions if each.type != RESUME_FAILED)
    observed = finished(plan.view, object)
    write(plan, object, replace(status, pause_observed_generation=observed, conditions=conditions))
    plan.because("resumed")


def broken(plan: Plan) -> None:
    """A resumed pod fails: `Failed` with `ResumeFailed`, in one write; the snapshot stays (STA-05, STA-06, E2P-19, E2P-20)."""
    object = object_of(plan)
    pods = survey(plan.view, object)
    found = problem(plan, object, pods)
    assert found is not None
    if not writable(plan):
        return
    status = desired_status(plan, object, pods, found)
    assert status.phase == FAILED
    made = replace(status, pause_observed_generation=finished(plan.view, object))
    written = object.annotations.get(ENDPOINTS)
    emptied = desired_endpoints(pods, written)
    changed = {ENDPOINTS: emptied} if emptied != written else None
    write_failure(plan, object, made, (RESUME_FAILED, found.reason, during_resume(found)), changed)


def during_resume(found: Problem) -> str:
    return found.message.replace("observed pods failed;", "observed pods failed during resume;", 1)


def arrived(object: SandboxObject, pods: Pods) -> bool:
    """Whether a resume is over: a wanted pod of the present template can be used, or none is wanted."""
    if object.replicas == 0:
        return True
    return any(
        index < object.replicas and usable(pod) and pod.template == object.template for index, _, pod in pods.ours
    )


def any_usable(pods: Pods) -> bool:
    return any(usable(pod) for _, _, pod in pods.ours)
