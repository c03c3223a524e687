"""A snapshot that is being deleted: nothing of its source stays paused, its Jobs go, our finalizer last (§7.6; B56; DESIGN §8.6)."""

from __future__ import annotations

from bus.names import SNAPSHOT_CLEANUP, job_name
from bus.ops import DeleteObject, PatchMetadata, Target
from bus.views import Job
from reconciler.committing import COMMIT, UNPAUSE, object_of, refused_job, result_of, target_of, unpause
from reconciler.open_ops import again
from reconciler.plan import JOBS, SNAPSHOT, SnapshotPlan


def deletion(plan: SnapshotPlan) -> bool:
    """True for a snapshot that is being deleted; what was *seen* deleting does not wait for completeness."""
    object = object_of(plan)
    if not object.deleting:
        return False
    if SNAPSHOT_CLEANUP not in object.finalizers:
        return True
    ordered = [each for each in plan.view.open if isinstance(each.op, PatchMetadata)]
    if ordered:
        again(plan, ordered)
    elif not _unpausing(plan) and not plan.refused(SNAPSHOT):
        _let_go(plan)
    return True


def _live(plan: SnapshotPlan, action: str) -> Job | None:
    job = plan.view.jobs.get(job_name(plan.view.name, action))
    return None if job is None or job.gone or job.deleting else job


def _unpausing(plan: SnapshotPlan) -> bool:
    """Whether an unpause Job is to be waited for: a commit that was cut short may hold the source's containers paused.

    Nothing is waited for once that Job was refused, lost or has ended, and in no case for longer than `unpause_patience`: the Job's own
    deadline may be hours, and is kept by another.
    """
    since = object_of(plan).deletion_time
    end = since + plan.settings.unpause_patience
    # A view that an older version has stored may not say since when.
    if not _may_hold(plan) or (since and end <= plan.now):
        return False
    plan.wake(end)
    name = job_name(plan.view.name, UNPAUSE)
    job = plan.view.jobs.get(name)
    if job is not None and (job.gone or job.deleting or job.succeeded or job.failure or _ended(plan, job)):
        return False
    if job is None and refused_job(plan, name):
        return False
    if job is None and not _order_unpause(plan, name):
        return False
    plan.wait("deleting: waiting for the unpause Job")
    return True


def _order_unpause(plan: SnapshotPlan, name: str) -> bool:
    """Stop the commit and order the unpause Job; False if it is not known what to unpause."""
    if not plan.free(JOBS, name):
        again(plan, plan.view.open)
        return True
    commit = _live(plan, COMMIT)
    commit_name = job_name(plan.view.name, COMMIT)
    if commit is not None and not commit.failure and plan.free(JOBS, commit_name):
        plan.add(DeleteObject(plan.next_id(), Target(JOBS, commit_name, commit.uid)))
    if unpause(plan):
        return True
    plan.ops.clear()
    return False


def _may_hold(plan: SnapshotPlan) -> bool:
    """Whether a commit may have left containers of the source paused: one that is not over, or that failed and was not unpaused."""
    status = object_of(plan).status
    job = plan.view.jobs.get(job_name(plan.view.name, COMMIT))
    if not status.containers:
        return False
    if status.phase == "Committing":
        over = job is not None and (job.succeeded > 0 or result_of(plan.view, job) is not None)
        return not over and plan.view.source.pod == status.source_pod_name
    failed = job is not None and not job.gone and job.failure != ""
    return status.phase == "Failed" and (failed or job_name(plan.view.name, UNPAUSE) in plan.view.jobs)


def _ended(plan: SnapshotPlan, job: Job) -> bool:
    return any(pod.owner == job.uid and pod.ended for pod in plan.view.pods.values())


def _let_go(plan: SnapshotPlan) -> None:
    """The Jobs, then the finalizer. Jobs that cannot be deleted are left to the garbage collector: they name the snapshot as their owner."""
    object = object_of(plan)
    failure = plan.view.failure
    if failure is None or failure.op != "delete-object":
        for action in (COMMIT, UNPAUSE):
            job = _live(plan, action)
            name = job_name(plan.view.name, action)
            if job is not None and plan.free(JOBS, name):
                plan.add(DeleteObject(plan.next_id(), Target(JOBS, name, job.uid)))
    kept = tuple(each for each in object.finalizers if each != SNAPSHOT_CLEANUP)
    plan.add(PatchMetadata(plan.next_id(), target_of(plan), object.version[1], finalizers=kept))
    plan.because("deleting: finalizer removed")
