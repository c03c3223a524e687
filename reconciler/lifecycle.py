"""The sandbox's life as a table: (phase, intent, snapshot, pods) → step. `sandlog phases` prints it; the first row that matches counts."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from bus.names import ENDPOINTS
from bus.views import SandboxObject, SandboxView, Snapshot
from reconciler.health import long_in_making, problem
from reconciler.intent import Intent, intent_of
from reconciler.pausing import (
    begin,
    clear,
    complete,
    create,
    fail,
    intent_word,
    refuse_kept,
    refuse_no_pod,
    refuse_replicas,
    source_pod,
    wait,
)
from reconciler.plan import Plan
from reconciler.pods import Pods, is_released, survey
from reconciler.restored import good, images, is_unused
from reconciler.resuming import (
    any_usable,
    arrive,
    arrived,
    broken,
    is_rewritten,
    others,
    proceed,
    rest,
    resume,
    roll_back,
    sweep,
)
from reconciler.running import run, run_and_tidy


class Phase(StrEnum):
    """status.phase, told apart further where that decides."""

    STARTING = "Pending"
    """no phase yet, or Pending"""
    RUNNING = "Succeed"
    FAILED = "Failed"
    PAUSING = "Pausing"
    PAUSED = "Paused"
    ASKED = "Resuming (asked)"
    """the template is not known to hold the snapshot's images"""
    RESUMING = "Resuming"


class Kept(StrEnum):
    """The sandbox's pause snapshot."""

    NONE = "none"
    LEAVING = "leaving"
    """being deleted"""
    STALE = "stale"
    """of another intent, another pod or another sandbox: it does not count"""
    UNFINISHED = "unfinished"
    OVERDUE = "overdue"
    GOOD = "good"
    """Succeed, with images"""
    UNUSED = "unused"
    """good, and `ResumeFailed` stands: nothing has been made of it since"""
    BAD = "bad"
    """Failed, or Succeed without images"""


class Held(StrEnum):
    """The sandbox's pods, as far as the phase asks."""

    ANY = "-"
    UNSUPPORTED = "replicas not 1"
    RUNS = "one runs"
    NONE = "none runs"
    RELEASED = "given back"
    """a pooled sandbox's, all: none comes any more"""
    OLD = "some of before"
    """of another template, or any where a paused sandbox must have none"""
    READY = "ready"
    BROKEN = "failed"
    MAKING = "not ready"
    """where a pause is wanted: for less than the grace, and no address was ever written"""


class Situation(msgspec.Struct, frozen=True):
    phase: Phase
    intent: Intent
    kept: Kept
    held: Held


Step = Callable[[Plan], None]


class Row(msgspec.Struct, frozen=True):
    """One line of the table; an empty tuple matches anything."""

    phases: tuple[Phase, ...]
    intents: tuple[Intent, ...]
    kept: tuple[Kept, ...]
    held: tuple[Held, ...]
    step: Step
    leads: tuple[str, ...]
    """phases that the step may write; none: that which is"""
    says: str

    def matches(self, situation: Situation) -> bool:
        pairs = (
            (self.phases, situation.phase),
            (self.intents, situation.intent),
            (self.kept, situation.kept),
            (self.held, situation.held),
        )
        return all(not wanted or value in wanted for wanted, value in pairs)


_P, _I, _K, _H = Phase, Intent, Kept, Held
_AWAKE: Final = (_P.STARTING, _P.RUNNING, _P.FAILED)
_GOOD: Final = (_K.GOOD, _K.UNUSED)
_STAY: Final = ("Pending", "Succeed", "Failed")

ROWS: Final[tuple[Row, ...]] = (
    Row((_P.STARTING,), (_I.PAUSE,), (), (_H.MAKING,), run, _STAY, "start first"),
    Row(_AWAKE, (_I.PAUSE,), (_K.UNUSED,), (), refuse_kept, (), "refuse: the snapshot is the good one"),
    Row(_AWAKE, (_I.PAUSE,), (), (_H.UNSUPPORTED,), refuse_replicas, (), "refuse, acknowledged"),
    Row((_P.STARTING, _P.RUNNING), (_I.PAUSE,), (), (_H.NONE,), run, _STAY, "start first"),
    Row(_AWAKE, (_I.PAUSE,), (), (_H.NONE, _H.RELEASED), refuse_no_pod, (), "refuse: nothing to commit"),
    Row(_AWAKE, (_I.PAUSE,), (_K.LEAVING,), (), wait, (), "wait until the old snapshot is gone"),
    Row(_AWAKE, (_I.PAUSE,), (_K.STALE, _K.BAD, _K.OVERDUE), (), clear, (), "delete the old snapshot first"),
    Row(_AWAKE, (_I.PAUSE,), (), (), begin, ("Pausing",), "acknowledge, say Pausing, order the snapshot"),
    Row((_P.RUNNING,), (), (_K.GOOD,), (), run_and_tidy, _STAY, "run; the snapshot is used up"),
    Row(_AWAKE, (), (), (), run, _STAY, "run, acknowledge"),
    Row((_P.PAUSING,), (), _GOOD, (), complete, ("Paused", "Succeed", "Failed"), "endpoints, pods, then Paused"),
    Row((_P.PAUSING,), (), (_K.BAD, _K.OVERDUE), (), fail, ("Succeed", "Failed"), "PauseFailed"),
    Row((_P.PAUSING,), (), (_K.LEAVING,), (), wait, (), "wait until it is gone"),
    Row((_P.PAUSING,), (), (_K.STALE,), (), clear, (), "delete it first"),
    Row((_P.PAUSING,), (), (_K.UNFINISHED,), (), wait, (), "wait for the commit"),
    Row((_P.PAUSING,), (), (_K.NONE,), (_H.RUNS,), create, ("Succeed",), "make the snapshot"),
    Row((_P.PAUSING,), (), (_K.NONE,), (), fail, ("Succeed", "Failed"), "PauseFailed: the pod is gone"),
    Row((_P.PAUSED,), (), (), (_H.OLD,), sweep, (), "delete pods that should not be"),
    Row((_P.PAUSED,), (_I.RESUME,), _GOOD, (), resume, ("Resuming", "Paused"), "rewrite the template, say Resuming"),
    Row((_P.PAUSED,), (_I.RESUME,), (), (), roll_back, ("Paused",), "ResumeFailed: the snapshot cannot be used"),
    Row((_P.PAUSED,), (), (), (), rest, ("Paused",), "stay paused, acknowledge"),
    Row((_P.ASKED,), (), _GOOD, (), resume, ("Resuming", "Paused"), "rewrite the template"),
    Row((_P.ASKED,), (), (_K.NONE,), (_H.READY,), arrive, ("Succeed",), "a ready pod without snapshot is done"),
    Row((_P.ASKED,), (), (), (), roll_back, ("Paused",), "ResumeFailed: the snapshot cannot be used"),
    Row((_P.RESUMING,), (), (), (_H.OLD,), sweep, (), "delete pods of the template of before"),
    Row((_P.RESUMING,), (), (), (_H.BROKEN,), broken, ("Failed",), "ResumeFailed, the snapshot stays"),
    Row((_P.RESUMING,), (), (), (_H.READY,), arrive, ("Succeed",), "endpoints, then Succeed"),
    Row((_P.RESUMING,), (), (), (), proceed, (), "make the pods, wait for one"),
)


def row_of(situation: Situation) -> Row:
    """The row that counts. There is one for every situation (a test walks them all)."""
    return next(row for row in ROWS if row.matches(situation))


def lifecycle(plan: Plan) -> bool:
    row_of(situation_of(plan)).step(plan)
    return True


# -- what a view says


def situation_of(plan: Plan) -> Situation:
    object = plan.view.object
    assert object is not None
    phase = phase_of(plan.view, object)
    intent = intent_of(plan.view, object)
    return Situation(phase, intent, _kept(plan, object, phase, intent), _held(plan, object, phase, intent))


_PHASES: Final = {
    "Succeed": Phase.RUNNING,
    "Failed": Phase.FAILED,
    "Pausing": Phase.PAUSING,
    "Paused": Phase.PAUSED,
    "Resuming": Phase.RESUMING,
}


def phase_of(view: SandboxView, object: SandboxObject) -> Phase:
    phase = _PHASES.get(object.status.phase, Phase.STARTING)
    return Phase.ASKED if phase is Phase.RESUMING and not is_rewritten(view, object) else phase


def _kept(plan: Plan, object: SandboxObject, phase: Phase, intent: Intent) -> Kept:
    snapshot = plan.view.snapshot
    if snapshot is None or snapshot.gone:
        return Kept.NONE
    if snapshot.deleting:
        return Kept.LEAVING
    if phase in _AWAKE and _is_unused(plan.view, object):
        return Kept.UNUSED
    if not _counts(plan.view, object, snapshot, phase, intent):
        return Kept.STALE
    if snapshot.status.phase == "Succeed":
        return Kept.GOOD if images(snapshot) else Kept.BAD
    if snapshot.status.phase == "Failed":
        return Kept.BAD
    late = snapshot.created + plan.settings.snapshot_patience <= plan.now
    return Kept.OVERDUE if late else Kept.UNFINISHED


def _is_unused(view: SandboxView, object: SandboxObject) -> bool:
    snapshot = good(view, object)
    return snapshot is not None and is_unused(object, survey(view, object), snapshot)


def _counts(view: SandboxView, object: SandboxObject, snapshot: Snapshot, phase: Phase, intent: Intent) -> bool:
    """Whether a snapshot is this sandbox's, and where a pause is concerned made for this intent and of this pod (DESIGN §8.2).

    While Pausing the pod may have gone meanwhile; the intent then says which one it was. A good snapshot beside no running pod is all that is
    left, whoever made it: the stock controller, mid-way, says no intent.
    """
    if snapshot.owner != object.uid:
        return False
    if phase is Phase.PAUSING:
        if snapshot.intent == intent_word(object.status.pause_observed_generation) and snapshot.pod_uid:
            return True
        return snapshot.status.phase == "Succeed" and source_pod(survey(view, object)) is None
    if intent is Intent.PAUSE and phase in _AWAKE:
        source = source_pod(survey(view, object))
        same_pod = source is not None and snapshot.pod_uid == source.uid
        return same_pod and snapshot.intent == intent_word(object.generation)
    return True


def _held(plan: Plan, object: SandboxObject, phase: Phase, intent: Intent) -> Held:
    pods = survey(plan.view, object)
    match phase:
        case Phase.STARTING | Phase.RUNNING | Phase.FAILED if intent is Intent.PAUSE:
            return _to_pause(plan, object, phase, pods)
        case Phase.PAUSING:
            return Held.RUNS if source_pod(pods) is not None else Held.NONE
        case Phase.PAUSED:
            ours = not object.pooled and any(not pod.deleting for _, _, pod in pods.ours)
            return Held.OLD if ours else Held.ANY
        case Phase.ASKED:
            return Held.READY if any_usable(pods) else Held.MAKING
        case Phase.RESUMING:
            if others(plan.view, object, pods):
                return Held.OLD
            if arrived(plan.view, object, pods):
                return Held.READY
            found = problem(plan, object, pods)
            return Held.BROKEN if found is not None and found.fatal else Held.MAKING
    return Held.ANY


def _to_pause(plan: Plan, object: SandboxObject, phase: Phase, pods: Pods) -> Held:
    """A sandbox is started first, then paused (DESIGN §6). But one that was delivered once, or does not get ready within the grace, is not
    waited for: what runs can be committed (DSP-01; DESIGN §8.8).
    """
    if phase is Phase.STARTING and not _is_ripe(plan, object, pods):
        return Held.MAKING
    if object.replicas != 1:
        return Held.UNSUPPORTED
    if source_pod(pods) is not None:
        return Held.RUNS
    return Held.RELEASED if is_released(object) else Held.NONE


def _is_ripe(plan: Plan, object: SandboxObject, pods: Pods) -> bool:
    if not object.status.phase or pods.usable or object.replicas == 0:
        return False
    return ENDPOINTS in object.annotations or is_released(object) or long_in_making(plan, object)
