"""Steps of a resume, and of a sandbox that stays paused (scenarios RES-*; DESIGN §6, §8).

That the template was rewritten shows in the phase: the rewriting goes before the write of `Resuming`, in one chain, and that write alone
brings observedGeneration up to pauseObservedGeneration. A `Resuming` of the stock controller's, or one whose template is not known to be
rewritten, lags behind (`is_rewritten`). So no pod of the template of before is ever taken for a resumed one, whatever was lost.

An edit that puts other images into the template meanwhile changes nothing about a pod that was made of the snapshot: it ends the resume.
Where there is none yet, the template is rewritten again.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from bus.names import ENDPOINTS
from bus.ops import CreatePods, DeletePod, RewriteTemplate, Target
from bus.views import Pod, SandboxObject, SandboxView
from reconciler import events
from reconciler.health import Problem, problem
from reconciler.intent import RESUME_FAILED, Intent, finished, intent_of
from reconciler.pausing import object_of, writable
from reconciler.plan import PODS, Plan, sandbox_target
from reconciler.pods import Pods, scale_out, survey, usable
from reconciler.restored import SNAPSHOT_UNUSED, Taken, counts, good, images, is_restored, taken, template_holds
from reconciler.status import FAILED, NOTHING, desired_endpoints, desired_status, edit_remembered, same
from reconciler.transitions import PAUSED, RESUMING, annotate, empty_endpoints, moved, refusal, write, write_failure

SNAPSHOT_NOT_FOUND: Final = "SnapshotNotFound"
SNAPSHOT_NOT_READY: Final = "SnapshotNotReady"
TEMPLATE_REFUSED: Final = "TemplateRefused"
REWRITE_TEMPLATE: Final = "rewrite-template"


def is_rewritten(view: SandboxView, object: SandboxObject) -> bool:
    """Whether a Resuming sandbox's template is known to hold the snapshot's images, or a pod was made while it did."""
    status = object.status
    if object.pooled or status.observed_generation < status.pause_observed_generation:
        return False
    snapshot = good(view, object)
    if snapshot is None or template_holds(object, snapshot):
        return True
    if any(isinstance(each.op, CreatePods) for each in view.open):
        return True
    return any(not pod.deleting and is_restored(view, object, pod) for _, _, pod in survey(view, object).ours)


def others(view: SandboxView, object: SandboxObject, pods: Pods) -> list[tuple[str, Pod]]:
    """Pods that were made neither of the present template nor of the snapshot, and do not go yet."""
    return [
        (name, pod)
        for _, name, pod in pods.ours
        if not pod.deleting and pod.template != object.template and not is_restored(view, object, pod)
    ]


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
    unwanted = others(plan.view, object, pods) if object.status.phase == RESUMING else _live(pods)
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
    if object.images and not object.pooled and taken(object.images, snapshot) is Taken.NONE:
        lacking = ", ".join(sorted(images(snapshot)))
        _roll_back(plan, object, SNAPSHOT_UNUSED, f"the template has no container of the snapshot's: {lacking}")
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
    status = replace(desired_status(plan, object, pods, None), pause_observed_generation=finished(plan.view, object))
    op = write(plan, object, status)
    events.kept_snapshot(plan, op)
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


def arrived(view: SandboxView, object: SandboxObject, pods: Pods) -> bool:
    """Whether a resume is over: a wanted pod that was made of the rewritten template can be used, or none is wanted."""
    if object.replicas == 0:
        return True
    return any(index < object.replicas and usable(pod) and counts(view, object, pod) for index, _, pod in pods.ours)


def any_usable(pods: Pods) -> bool:
    return any(usable(pod) for _, _, pod in pods.ours)
