"""Steps of a snapshot: from its source to a commit Job to an image (controller-behaviour.md §7.3…7.5, with B43, B44, B51, B56, B57, B59, B107)."""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec
from msgspec.structs import replace

from bus.names import SNAPSHOT_CLEANUP, image_repository, job_name
from bus.ops import CreateJob, DeleteObject, PatchMetadata, PatchSnapshotStatus, Target
from bus.resources import Condition, SnapshotContainer, SnapshotStatus
from bus.times import format_time
from bus.views import Job, Pod, Snapshot, SnapshotView
from reconciler import events
from reconciler.plan import JOBS, PODS, SNAPSHOT, SnapshotPlan

COMMIT: Final = "commit"
UNPAUSE: Final = "unpause"
CREATE_JOB: Final = "create-job"
_PUBLIC_NAME: Final = re.compile(r"osb-snap-([0-9a-f]{32})")
TERMINAL: Final = ("Succeed", "Failed")


def object_of(plan: SnapshotPlan) -> Snapshot:
    assert plan.view.object is not None
    return plan.view.object


def target_of(plan: SnapshotPlan) -> Target:
    return Target(SNAPSHOT, plan.view.name, object_of(plan).uid)


def writable(plan: SnapshotPlan) -> bool:
    return plan.free(SNAPSHOT, plan.view.name) and not plan.refused(SNAPSHOT)


def write(plan: SnapshotPlan, status: SnapshotStatus) -> PatchSnapshotStatus:
    op = PatchSnapshotStatus(plan.next_id(), target_of(plan), object_of(plan).version[1], status)
    plan.add(op)
    return op


def moved(plan: SnapshotPlan, phase: str, *conditions: tuple[str, str, str], **fields: object) -> SnapshotStatus:
    """The status in this phase, with these true conditions (type, reason, message) alone."""
    object = object_of(plan)
    made = tuple(Condition(type, "True", reason, text, format_time(plan.now)) for type, reason, text in conditions)
    changed = {"phase": phase, "conditions": made, "observed_generation": object.generation} | fields
    return replace(object.status, **changed)


def tag_of(name: str, owner: str, generation: int) -> str:
    """The images' tag: of a pause `snap-gen<sandbox generation>` (SNP-10, B69), else from the snapshot's name (SNP-12, N-38)."""
    if owner:
        return f"snap-gen{generation}"
    known = _PUBLIC_NAME.fullmatch(name)
    return f"snap-{known[1]}" if known else f"snap-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def images_of(plan: SnapshotPlan) -> tuple[SnapshotContainer, ...]:
    """What to commit to where: resolved once, and what the status says of this pod holds (B51); the pod's own containers (B52)."""
    object, source = object_of(plan), plan.view.source
    stored = object.status.containers or ()
    if stored and object.status.source_pod_name == source.pod and all(each.image_uri for each in stored):
        return stored
    tag = tag_of(plan.view.name, object.owner, source.generation)
    registry = plan.settings.snapshot_registry
    return tuple(
        SnapshotContainer(name, f"{image_repository(registry, object.sandbox, name)}:{tag}")
        for name in source.containers
    )


# -- Pending


def fail_source(plan: SnapshotPlan) -> None:
    """Nothing there to commit: terminal, and only because it was looked for and not found (B43)."""
    if writable(plan):
        reason, message = _why_not(plan)
        write(plan, moved(plan, "Failed", ("Failed", reason, message)))
        plan.because(reason)


def _why_not(plan: SnapshotPlan) -> tuple[str, str]:
    object, source = object_of(plan), plan.view.source
    name = object.sandbox
    if not plan.settings.snapshot_registry and object.status.phase != "Committing":
        return "RegistryNotConfigured", "snapshot-registry not configured in controller manager"
    if not source.uid or object.owner not in ("", source.uid):
        missing = f'BatchSandbox.sandbox.opensandbox.io "{name}" not found'
        return "BatchSandboxLookupFailed", f"failed to get BatchSandbox {name}: {missing}"
    if not source.pod or (object.status.phase == "Committing" and source.pod != object.status.source_pod_name):
        return "SourcePodNotFound", f"source pod not found: no running pod found for BatchSandbox {name}"
    return "NoContainers", f"no containers found in BatchSandbox {name} template"


def await_end(plan: SnapshotPlan) -> None:
    """The garbage collector is on its way: whatever was written now would be noise. For a while only (DESIGN §8.8)."""
    plan.because("its sandbox goes: waiting for its own deletion")
    plan.wake(orphaned_until(plan))


def orphaned_until(plan: SnapshotPlan) -> int:
    return object_of(plan).created + plan.settings.orphan_patience


def tell_phase(plan: SnapshotPlan) -> None:
    """While it waits for its turn it is Pending (B57)."""
    if object_of(plan).status.phase != "Pending" and writable(plan):
        write(plan, moved(plan, "Pending"))
    plan.wait(f"waiting for snapshot {plan.view.source.busy}")


def begin(plan: SnapshotPlan) -> None:
    """Finalizer if it lacks one, then source and images with `Committing`, then the Job, in one chain."""
    object, source = object_of(plan), plan.view.source
    if not writable(plan) or not plan.free(JOBS, job_name(plan.view.name, COMMIT)):
        return
    if SNAPSHOT_CLEANUP not in object.finalizers:
        kept = (*object.finalizers, SNAPSHOT_CLEANUP)
        plan.add(PatchMetadata(plan.next_id(), target_of(plan), object.version[1], finalizers=kept))
    containers = images_of(plan)
    named = {"containers": containers, "source_pod_name": source.pod, "source_node_name": source.node}
    write(plan, moved(plan, "Committing", **named))
    order(plan, COMMIT, containers, Target(PODS, source.pod, source.pod_uid), source.node)
    plan.because("commit")


def clear(plan: SnapshotPlan) -> None:
    """A Job of this name is there before we ordered one: of a snapshot that had the name before, so its success is not ours.

    Unless it is this snapshot's own, seen before the status that went before it: it goes on. So does the stock controller's, where the
    status says what it commits (N-34).
    """
    name = job_name(plan.view.name, COMMIT)
    job = plan.view.jobs[name]
    if object_of(plan).status.containers or job.owner == object_of(plan).uid:
        begin(plan)
        return
    if not job.deleting and not plan.refused(JOBS):
        plan.add(DeleteObject(plan.next_id(), Target(JOBS, name, job.uid)))
    plan.wait("delete a Job of before")


# -- Committing


def order(
    plan: SnapshotPlan, action: str, containers: tuple[SnapshotContainer, ...], pod: Target, node: str
) -> CreateJob:
    images = {each.container_name: each.image_uri if action == COMMIT else "" for each in containers}
    op = CreateJob(plan.next_id(), target_of(plan), job_name(plan.view.name, action), action, pod, node, images)
    plan.add(op)
    events.created_job(plan, op)
    return op


def wait(plan: SnapshotPlan) -> None:
    plan.wait("waiting for the commit")


def make_job(plan: SnapshotPlan) -> None:
    """The commit Job is not there, or was refused for a reason that may pass: make it, of what the status says (B51)."""
    if plan.refused(JOBS):
        return
    object, source = object_of(plan), plan.view.source
    _tell_refusal(plan)
    pod = Target(PODS, source.pod, source.pod_uid)
    order(plan, COMMIT, object.status.containers or (), pod, object.status.source_node_name or source.node)
    plan.because("make the commit Job")


def _tell_refusal(plan: SnapshotPlan) -> None:
    """The Event of a commit Job that was refused, once per refusal (N-34)."""
    failure = plan.view.failure
    if failure is None or failure.op != CREATE_JOB:
        return
    message = f"Failed to create commit job: {failure.message}"
    id = f"{plan.view.aggregate}/{failure.at}/refused"
    events.of_snapshot(plan, id, target_of(plan), events.WARNING, "FailedCreateJob", message)


class _Image(msgspec.Struct, frozen=True):
    name: str = ""
    digest: str = ""


class _Result(msgspec.Struct, frozen=True):
    containers: tuple[_Image, ...] = ()


_result = msgspec.json.Decoder(_Result)


def result_of(view: SnapshotView, job: Job) -> str | None:
    """What a pod of this Job whose commit ended with exit code 0 left as its result; None while there is none.

    The pod's own status says so a second before the Job controller does, and where a container beside it goes on, or fails, the Job never
    does. Pods of an earlier Job of that name are another's.
    """
    results = [pod.result for pod in _committed(view, job)]
    return next((result for result in results if result.strip()), results[0] if results else None)


def _committed(view: SnapshotView, job: Job) -> list[Pod]:
    ours = [pod for pod in view.pods.values() if not pod.gone and pod.owner == job.uid]
    return [pod for pod in ours if pod.exit_code == 0 or (pod.exit_code is None and pod.phase == "Succeeded")]


def digests(result: str) -> dict[str, str]:
    """Container → digest; empty for a result that cannot be read: a kubelet cuts long ones, and the push went through all the same (B44)."""
    try:
        return {each.name: each.digest for each in _result.decode(result).containers if each.name and each.digest}
    except (msgspec.DecodeError, RecursionError):
        return {}


def done(plan: SnapshotPlan) -> None:
    if not writable(plan):
        return
    job = plan.view.jobs[job_name(plan.view.name, COMMIT)]
    found = digests(result_of(plan.view, job) or "")
    containers = tuple(
        replace(each, image_digest=found.get(each.container_name, each.image_digest))
        for each in object_of(plan).status.containers or ()
    )
    ready = ("Ready", "SnapshotReady", "Snapshot is ready")
    op = write(plan, moved(plan, "Succeed", ready, containers=containers))
    events.of_snapshot(plan, f"{op.id}/event", op.target, events.NORMAL, "JobSucceeded", "Commit job succeeded")
    _end_job(plan, job)
    plan.because("committed")


def _end_job(plan: SnapshotPlan, job: Job) -> None:
    """One that would run on, or try again and push what is there by then: a container beside the commit goes on, or failed."""
    name = job_name(plan.view.name, COMMIT)
    over = job.succeeded or job.deleting or any(pod.phase == "Succeeded" for pod in _committed(plan.view, job))
    if not over and plan.free(JOBS, name):
        plan.add(DeleteObject(plan.next_id(), Target(JOBS, name, job.uid)))


def fail_job(plan: SnapshotPlan) -> None:
    """Only once the Job has given up for good (SNP-05). The commit may have left containers paused: an unpause Job follows (SNP-07, B56)."""
    if not writable(plan):
        return
    job = plan.view.jobs[job_name(plan.view.name, COMMIT)]
    op = write(plan, moved(plan, "Failed", ("Failed", "CommitJobFailed", job.failure)))
    unpause(plan)
    events.of_snapshot(plan, f"{op.id}/event", op.target, events.WARNING, "JobFailed", "Commit job failed")
    plan.because("the commit Job failed")


def refuse_job(plan: SnapshotPlan) -> None:
    failure = plan.view.failure
    if writable(plan) and failure is not None:
        message = f"failed to build commit job: {failure.message}"
        write(plan, moved(plan, "Failed", ("Failed", "BuildCommitJobFailed", message)))
        _tell_refusal(plan)
        plan.because("the commit Job is refused")


# -- over


def unpause(plan: SnapshotPlan) -> bool:
    """Order the unpause Job, if it is known what to unpause and there is none yet (N-40). True if it was ordered."""
    object = object_of(plan)
    status = object.status
    name = job_name(plan.view.name, UNPAUSE)
    if not (status.source_pod_name and status.source_node_name and status.containers):
        return False
    if name in plan.view.jobs or not plan.free(JOBS, name) or refused_job(plan, name):
        return False
    source = plan.view.source
    uid = object.pod_uid or (source.pod_uid if source.pod == status.source_pod_name else "")
    pod = Target(PODS, status.source_pod_name, uid)
    order(plan, UNPAUSE, status.containers, pod, status.source_node_name)
    return True


def refused_job(plan: SnapshotPlan, name: str) -> bool:
    failure = plan.view.failure
    return failure is not None and failure.op == CREATE_JOB and failure.object == f"{JOBS}/{name}"


def unpause_again(plan: SnapshotPlan) -> None:
    """The chain that wrote `Failed` may have been cut before its unpause Job."""
    if not plan.refused(JOBS) and unpause(plan):
        plan.because("unpause")


def mend(plan: SnapshotPlan) -> None:
    """A snapshot that is over stays what it is (SNP-04)."""


def acknowledge(plan: SnapshotPlan) -> None:
    """An edit is acknowledged, and nothing else of the status is touched (B59)."""
    status = object_of(plan).status
    if status.phase and status.observed_generation < object_of(plan).generation and writable(plan):
        write(plan, replace(status, observed_generation=object_of(plan).generation))
        plan.because("edit acknowledged")
