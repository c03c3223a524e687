"""Steps of a pause (scenarios PAU-*; DESIGN §6, §8). Each is one decision; `reconciler.lifecycle` says when it is taken."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from bus.names import ENDPOINTS, pause_snapshot_name
from bus.ops import CreateSnapshot, DeleteObject, DeletePod, DetachFromPool, Target
from bus.resources import SandboxStatus
from bus.views import SandboxObject, Snapshot
from reconciler.health import problem
from reconciler.intent import PAUSE_FAILED, RESUME_FAILED, finished
from reconciler.plan import PODS, SANDBOX, SNAPSHOT, Plan, sandbox_target
from reconciler.pods import Pods, survey
from reconciler.status import FAILED, SUCCEED, desired_endpoints, desired_status
from reconciler.transitions import PAUSED, PAUSING, empty_endpoints, in_phase, moved, refusal, write, write_failure

POD_NOT_FOUND: Final = "PodNotFound"
SNAPSHOT_FAILED: Final = "SnapshotFailed"
UNSUPPORTED_REPLICAS: Final = "UnsupportedReplicas"
RESUME_UNFINISHED: Final = "ResumeUnfinished"
DETACH_REFUSED: Final = "DetachRefused"
CREATE_SNAPSHOT: Final = "create-snapshot"
DETACH: Final = "detach-from-pool"
"""Words of ops, as failures name them."""


def object_of(plan: Plan) -> SandboxObject:
    assert plan.view.object is not None
    return plan.view.object


def source_pod(pods: Pods) -> Target | None:
    """The pod to commit: the first that runs (controller-behaviour.md §7.4)."""
    for _, name, pod in pods.ours:
        if pod.phase == "Running" and not pod.deleting:
            return Target(PODS, name, pod.uid)
    return None


def intent_word(generation: int) -> str:
    """What a pause's snapshot says it was made for.

    The acknowledged generation: it stands in the status all through the pause, so it is still known when the log is not.
    """
    return str(generation)


def tasks_stopped(plan: Plan) -> bool:
    """Tasks are stopped before the snapshot is made, the pod still theirs (§4.9, PAU-03…05). There are none yet."""
    return True


def writable(plan: Plan) -> bool:
    return plan.free(SANDBOX, plan.view.name) and not plan.refused(SANDBOX)


# -- steps


def wait(plan: Plan) -> None:
    """Wait until the snapshot is seen changed."""
    snapshot = plan.view.snapshot
    if snapshot is not None and not snapshot.gone and not snapshot.deleting:
        plan.wake(snapshot.created + plan.settings.snapshot_patience)
    plan.wait("waiting for the snapshot")


def clear(plan: Plan) -> None:
    """Delete a snapshot that does not count, and wait until it is gone: nothing is acknowledged before (PAU-12…15)."""
    snapshot = plan.view.snapshot
    assert snapshot is not None
    if plan.free(SNAPSHOT, snapshot.name) and not plan.refused(SNAPSHOT):
        plan.add(DeleteObject(plan.next_id(), Target(SNAPSHOT, snapshot.name, snapshot.uid)))
        plan.because("delete a snapshot of another pause")
    plan.wait("waiting until it is gone")


def begin(plan: Plan) -> None:
    """Acknowledge and say `Pausing`, failures of before cleared; then order the snapshot, unless this intent's is there already (N-02)."""
    object = object_of(plan)
    pod = source_pod(survey(plan.view, object))
    assert pod is not None
    if not writable(plan) or not plan.free(SNAPSHOT, pause_snapshot_name(plan.view.name)):
        return
    write(plan, object, moved(plan, object, PAUSING, object.generation))
    plan.because("pause")
    if not _there(plan.view.snapshot) and tasks_stopped(plan):
        _order(plan, object, pod, object.generation)


def _there(snapshot: Snapshot | None) -> bool:
    return snapshot is not None and not snapshot.gone


def _order(plan: Plan, object: SandboxObject, pod: Target, generation: int) -> None:
    name = pause_snapshot_name(plan.view.name)
    plan.add(CreateSnapshot(plan.next_id(), sandbox_target(plan.view, object), name, intent_word(generation), pod))


def create(plan: Plan) -> None:
    """The snapshot was lost, or was never made: make it (PAU-21). One that the API server refuses fails the pause."""
    object = object_of(plan)
    refused = refusal(plan, object, CREATE_SNAPSHOT, PAUSE_FAILED)
    if refused is not None:
        _fail(plan, SNAPSHOT_FAILED, f"failed to create the snapshot: {refused.message}")
        return
    pod = source_pod(survey(plan.view, object))
    assert pod is not None
    if plan.free(SNAPSHOT, pause_snapshot_name(plan.view.name)) and tasks_stopped(plan):
        _order(plan, object, pod, object.status.pause_observed_generation)
        plan.because("make the snapshot")
    plan.wait("waiting for the snapshot")


def complete(plan: Plan) -> None:
    """The snapshot is good. Addresses go, then the pods, then `Paused` is written, in one chain (DESIGN §8.3)."""
    object = object_of(plan)
    if object.pooled:
        _detach(plan, object)
        return
    leaving = [(name, pod) for _, name, pod in survey(plan.view, object).ours if not pod.deleting]
    limit = plan.settings.creates_per_command
    if not writable(plan) or plan.refused(PODS) or not all(plan.free(PODS, name) for name, _ in leaving):
        return
    empty_endpoints(plan, object)
    for name, pod in leaving[:limit]:
        plan.add(DeletePod(plan.next_id(), Target(PODS, name, pod.uid)))
    if len(leaving) <= limit:
        write(plan, object, moved(plan, object, PAUSED, finished(plan.view, object)))
    plan.because("paused")


def _detach(plan: Plan, object: SandboxObject) -> None:
    """The sandbox gets its source pod's template and leaves the pool, whose controller takes the pod back (PAU-27…30).

    That moves the generation by one, which the same write acknowledges, unless a resume is queued (PAU-31, PAU-32).
    """
    snapshot = plan.view.snapshot
    pod = plan.view.pods.get(snapshot.pod_name) if snapshot is not None else None
    if snapshot is None or pod is None or pod.gone or pod.uid != snapshot.pod_uid:
        _fail(plan, POD_NOT_FOUND, f"no running pod found for BatchSandbox {plan.view.name}")
        return
    refused = refusal(plan, object, DETACH, PAUSE_FAILED)
    if refused is not None:
        _fail(plan, DETACH_REFUSED, f"failed to detach from the pool: {refused.message}")
        return
    if not writable(plan):
        return
    source = Target(PODS, snapshot.pod_name, snapshot.pod_uid)
    plan.add(DetachFromPool(plan.next_id(), sandbox_target(plan.view, object), object.version[1], source))
    observed = finished(plan.view, object)
    detached = observed + 1 if observed == object.generation else observed
    write(plan, object, moved(plan, object, PAUSED, detached))
    plan.because("paused")


def fail(plan: Plan) -> None:
    """The snapshot failed, or there is nothing to make one of."""
    snapshot = plan.view.snapshot
    if snapshot is None or snapshot.gone:
        _fail(plan, POD_NOT_FOUND, f"no running pod found for BatchSandbox {plan.view.name}")
    elif pods_left(survey(plan.view, object_of(plan))):
        _fail(plan, SNAPSHOT_FAILED, _why(plan, snapshot))
    else:
        _fail(plan, POD_NOT_FOUND, _why(plan, snapshot))


def pods_left(pods: Pods) -> bool:
    """Whether a pod is left that goes on: one that has ended, or was evicted, does not."""
    return any(not pod.deleting and not pod.terminal for _, _, pod in pods.ours)


def _why(plan: Plan, snapshot: Snapshot) -> str:
    for condition in snapshot.status.conditions or ():
        if condition.type == "Failed" and condition.status == "True" and condition.message:
            return condition.message
    if snapshot.status.phase == "Succeed":
        return "the snapshot holds no images"
    return "snapshot failed" if snapshot.status.phase == "Failed" else "the snapshot was not ready in time"


def _fail(plan: Plan, reason: str, message: str) -> None:
    """Back to `Succeed`, and `Failed` only if no pod is left (DESIGN §8.5)."""
    object = object_of(plan)
    if not writable(plan):
        return
    pods = survey(plan.view, object)
    status = desired_status(plan, object, pods, problem(plan, object, pods))
    status = in_phase(plan, object, status, SUCCEED if pods_left(pods) else FAILED)
    made = replace(status, pause_observed_generation=finished(plan.view, object))
    _write_failed(plan, object, pods, made, reason, message)


def _refuse(plan: Plan, reason: str, message: str) -> None:
    """A pause that cannot begin: acknowledged and refused in one status write, the phase and a failed resume's condition as they were."""
    object = object_of(plan)
    if not writable(plan):
        return
    pods = survey(plan.view, object)
    status = desired_status(plan, object, pods, problem(plan, object, pods))
    status = in_phase(plan, object, status, object.status.phase)
    unresumed = [each for each in object.status.conditions if each.type == RESUME_FAILED]
    others = [each for each in status.conditions if each.type != RESUME_FAILED]
    made = replace(status, pause_observed_generation=object.generation, conditions=(*others, *unresumed))
    _write_failed(plan, object, pods, made, reason, message)


def _write_failed(
    plan: Plan, object: SandboxObject, pods: Pods, status: SandboxStatus, reason: str, message: str
) -> None:
    written = object.annotations.get(ENDPOINTS)
    endpoints = desired_endpoints(pods, written)
    changed = {ENDPOINTS: endpoints} if endpoints != written else None
    write_failure(plan, object, status, (PAUSE_FAILED, reason, message), changed)


def refuse_replicas(plan: Plan) -> None:
    """PAU-06…08."""
    replicas = object_of(plan).replicas
    message = f"pause/resume currently supports only BatchSandbox spec.replicas=1; got spec.replicas={replicas}"
    _refuse(plan, UNSUPPORTED_REPLICAS, message)


def refuse_no_pod(plan: Plan) -> None:
    """No pod runs that could be committed, and none will (N-05, N-14)."""
    _refuse(plan, POD_NOT_FOUND, f"no running pod found for BatchSandbox {plan.view.name}")


def refuse_kept(plan: Plan) -> None:
    """A resume failed and nothing was made of its snapshot since: it is the good one, and a new pause would replace it (DESIGN §6)."""
    _refuse(plan, RESUME_UNFINISHED, "the last resume failed; its snapshot is kept, and no new one is made of its pod")
