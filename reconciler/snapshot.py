"""A snapshot's life as a table: (phase, source, Jobs) → step (controller-behaviour.md §7; scenarios SNP-*). The first row that matches counts."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from bus.names import job_name
from bus.views import Decision, Job, Snapshot, SnapshotView
from reconciler.committing import (
    COMMIT,
    acknowledge,
    await_end,
    begin,
    clear,
    done,
    fail_job,
    fail_source,
    make_job,
    mend,
    orphaned_until,
    refuse_job,
    result_of,
    tell_phase,
    unpause_again,
    wait,
)
from reconciler.open_ops import in_flight, open_again
from reconciler.plan import JOBS, SnapshotPlan
from reconciler.settings import Settings
from reconciler.snapshot_deletion import deletion


class Phase(StrEnum):
    PENDING = "Pending"
    """no phase yet, Pending, or a word that is none"""
    COMMITTING = "Committing"
    SUCCEED = "Succeed"
    FAILED = "Failed"


class Source(StrEnum):
    """What it is taken of, as far as it can be committed."""

    NO_REGISTRY = "no registry"
    NO_SANDBOX = "no sandbox"
    ORPHANED = "orphaned"
    """its owner is gone or leaves, and it is young: it will be deleted too"""
    NO_POD = "no running pod"
    NO_CONTAINERS = "no containers"
    BUSY = "busy"
    """another snapshot commits the same pod (B57)"""
    READY = "ready"


class Work(StrEnum):
    """Its commit Job."""

    ORDERED = "ordered"
    """an op on it is open: what is known of it is not the newest"""
    REFUSED = "refused"
    """the API server will never take it"""
    NONE = "none"
    LEAVING = "leaving"
    RUNS = "runs"
    DONE = "done"
    FAILED = "failed"


class Situation(msgspec.Struct, frozen=True):
    phase: Phase
    source: Source
    work: Work


Step = Callable[[SnapshotPlan], None]


class Row(msgspec.Struct, frozen=True):
    """One line of the table; an empty tuple matches anything."""

    phases: tuple[Phase, ...]
    sources: tuple[Source, ...]
    works: tuple[Work, ...]
    step: Step
    leads: tuple[str, ...]
    says: str

    def matches(self, situation: Situation) -> bool:
        pairs = ((self.phases, situation.phase), (self.sources, situation.source), (self.works, situation.work))
        return all(not wanted or value in wanted for wanted, value in pairs)


_P, _S, _W = Phase, Source, Work
_IMPOSSIBLE: Final = (_S.NO_REGISTRY, _S.NO_SANDBOX, _S.NO_POD, _S.NO_CONTAINERS)

ROWS: Final[tuple[Row, ...]] = (
    Row((_P.PENDING,), (_S.ORPHANED,), (), await_end, (), "wait for its own deletion, for a while"),
    Row((_P.PENDING,), _IMPOSSIBLE, (), fail_source, ("Failed",), "fail: there is nothing to commit"),
    Row((_P.PENDING,), (_S.BUSY,), (), tell_phase, ("Pending",), "wait for the other snapshot of the pod"),
    Row((_P.PENDING,), (), (_W.ORDERED, _W.LEAVING), wait, (), "wait until a Job of before is gone"),
    Row((_P.PENDING,), (), (_W.RUNS, _W.DONE, _W.FAILED), clear, ("Committing",), "delete a Job of before first"),
    Row((_P.PENDING,), (), (), begin, ("Committing",), "images and source into the status, then the commit Job"),
    Row((_P.COMMITTING,), (), (_W.DONE,), done, ("Succeed",), "Succeed, with digests"),
    Row((_P.COMMITTING,), (), (_W.FAILED,), fail_job, ("Failed",), "CommitJobFailed, then the unpause Job"),
    Row((_P.COMMITTING,), (), (_W.REFUSED,), refuse_job, ("Failed",), "BuildCommitJobFailed"),
    Row((_P.COMMITTING,), (), (_W.ORDERED, _W.LEAVING, _W.RUNS), wait, (), "wait for the Job's pod"),
    Row((_P.COMMITTING,), (_S.ORPHANED,), (), await_end, (), "wait for its own deletion, for a while"),
    Row((_P.COMMITTING,), _IMPOSSIBLE, (), fail_source, ("Failed",), "fail: the Job and its source are gone"),
    Row((_P.COMMITTING,), (_S.BUSY,), (), wait, (), "wait for the other snapshot of the pod"),
    Row((_P.COMMITTING,), (), (), make_job, (), "make the commit Job"),
    Row((_P.FAILED,), (), (_W.FAILED,), unpause_again, (), "over; make sure of the unpause Job"),
    Row((), (), (), mend, (), "over: acknowledge edits"),
)


def row_of(situation: Situation) -> Row:
    return next(row for row in ROWS if row.matches(situation))


def decide_snapshot(view: SnapshotView, settings: Settings) -> Decision:
    plan = SnapshotPlan(view, settings)
    for concern in CONCERNS:
        if concern(plan):
            break
    return plan.decision()


def nothing_there(plan: SnapshotPlan) -> bool:
    return plan.view.object is None


def unsettled(plan: SnapshotPlan) -> bool:
    """Absence means nothing yet (DESIGN §4, Completeness): only what was not found is a terminal failure, not what was not read (B43)."""
    if plan.view.settled:
        return False
    plan.because("not everything is known yet")
    return True


def life(plan: SnapshotPlan) -> bool:
    row_of(situation_of(plan)).step(plan)
    if not plan.ops:
        acknowledge(plan)
    return True


CONCERNS: Final[tuple[Callable[[SnapshotPlan], bool], ...]] = (
    nothing_there,
    in_flight,
    deletion,
    unsettled,
    open_again,
    life,
)


# -- what a view says


def situation_of(plan: SnapshotPlan) -> Situation:
    object = plan.view.object
    assert object is not None
    return Situation(phase_of(object), _source(plan, object), _work(plan, object))


def phase_of(object: Snapshot) -> Phase:
    try:
        return Phase(object.status.phase)
    except ValueError:
        return Phase.PENDING


def _source(plan: SnapshotPlan, object: Snapshot) -> Source:
    source = plan.view.source
    if not plan.settings.snapshot_registry and phase_of(object) is Phase.PENDING:
        return Source.NO_REGISTRY
    lost = not source.uid or object.owner not in ("", source.uid)
    if object.owner and (lost or source.leaving) and plan.now < orphaned_until(plan):
        return Source.ORPHANED
    if lost:
        return Source.NO_SANDBOX
    committing = phase_of(object) is Phase.COMMITTING
    if not source.pod or (committing and source.pod != object.status.source_pod_name):
        return Source.NO_POD
    if not (object.status.containers if committing else source.containers):
        return Source.NO_CONTAINERS
    return Source.BUSY if source.busy else Source.READY


def _work(plan: SnapshotPlan, object: Snapshot) -> Work:
    name = job_name(plan.view.name, COMMIT)
    job = plan.view.jobs.get(name)
    if job is not None and not job.gone and (result_of(plan.view, job) is not None or job.succeeded):
        return Work.DONE if plan.free(JOBS, name) or _is_new(plan, name, job) else Work.ORDERED
    if not plan.free(JOBS, name):
        return Work.ORDERED
    if job is None or job.gone:
        return Work.REFUSED if _is_refused(plan, name) else Work.NONE
    if job.failure:
        return Work.FAILED
    return Work.LEAVING if job.deleting else Work.RUNS


def _is_new(plan: SnapshotPlan, name: str, job: Job) -> bool:
    """Whether an open op on this Job is its own creation, reported with this uid: then it is the one that is meant."""
    key = f"{JOBS}/{name}"
    return all(each.waits[key].uid == job.uid for each in plan.view.open if key in each.waits)


def _is_refused(plan: SnapshotPlan, name: str) -> bool:
    failure = plan.view.failure
    if failure is None or failure.object != f"{JOBS}/{name}" or failure.op != "create-job":
        return False
    return failure.code in (400, 422)
