"""The table of a sandbox's life (DESIGN §6, §8): every combination of phase, intent, snapshot, pods and deletion, and what must hold in each."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from reconciler_model import IMAGES, NOW, READY, UID, World, pod, ready_pod, sandbox, snapshot, status, view

from bus.names import ENDPOINTS, FAILED_SPEC_DIGEST
from bus.ops import (
    CreatePods,
    CreateSnapshot,
    DeleteObject,
    DeletePod,
    DetachFromPool,
    PatchMetadata,
    PatchSandboxStatus,
    RecordEvent,
    RewriteTemplate,
)
from bus.resources import Condition, SnapshotStatus
from bus.times import SECOND
from bus.views import Failure, Pod, SandboxView, Snapshot
from reconciler.decide import decide
from reconciler.intent import Intent, intent_of
from reconciler.lifecycle import ROWS, Held, Kept, Phase, Situation, phase_of, row_of, situation_of
from reconciler.plan import Plan
from reconciler.settings import DEFAULT

RAW, RESTORED = {"main": "busybox:1"}, {"main": "a-main:snap-gen2"}
REST = {"Succeed", "Paused", "Failed"}
PHASES = ["", "Pending", "Succeed", "Failed", "Pausing", "Paused", "Resuming"]


def test_no_situation_is_undefined_and_every_row_is_met() -> None:
    met = {ROWS.index(row_of(Situation(*each))) for each in product(Phase, Intent, Kept, Held)}
    assert met == set(range(len(ROWS)))


def failed(type: str) -> Condition:
    return Condition(type, "True", "Because", "m", "2025-12-31T23:50:00Z")


@st.composite
def a_pod(draw: st.DrawFn) -> Pod | None:
    kind = draw(st.sampled_from(["none", "gone", "ready", "running", "pending", "broken", "ended", "leaving"]))
    template = draw(st.sampled_from(["t1", "t1", "t0", ""]))
    uid = draw(st.sampled_from(["uid-0-50", "uid-0-50", "uid-late"]))
    runs = draw(st.sampled_from([{}, RAW, RESTORED]))
    said: dict[str, Any] = {"template": template, "uid": uid, "containers": ("main",), "images": tuple(runs.values())}
    match kind:
        case "none":
            return None
        case "gone":
            return Pod((1, 60), gone=True)
        case "ready":
            return ready_pod(0, **said)
        case "running":
            return pod(0, phase="Running", ip="10.0.0.1", node="n", **said)
        case "pending":
            return pod(0, **said)
        case "broken":
            return pod(0, reason="ImagePullBackOff", since=1, **said)
        case "ended":
            return pod(0, phase="Failed", reason="Evicted", terminal=True, **said)
    return ready_pod(0, deleting=True, **said)


@st.composite
def a_snapshot(draw: st.DrawFn) -> Snapshot | None:
    kind = draw(st.sampled_from(["none", "gone", "there", "there", "there", "there"]))
    if kind == "none":
        return None
    if kind == "gone":
        return Snapshot((1, 80), "a-pause", gone=True)
    made = snapshot(
        draw(st.sampled_from(["", "Pending", "Committing", "Succeed", "Succeed", "Failed"])),
        intent=draw(st.sampled_from(["1", "2", "2", "3", ""])),
        pod_uid=draw(st.sampled_from(["uid-0-50", "uid-0-50", "uid-other", ""])),
        owner=draw(st.sampled_from([UID, UID, UID, "uid-old"])),
        deleting=draw(st.integers(0, 5)) == 0,
        created=draw(st.sampled_from([NOW, NOW - DEFAULT.snapshot_patience])),
    )
    return replace(made, status=SnapshotStatus("Succeed")) if draw(st.integers(0, 8)) == 0 else made


@st.composite
def views(draw: st.DrawFn) -> SandboxView:
    generation = draw(st.integers(2, 4))
    conditions = [each for each in (failed("PauseFailed"), failed("ResumeFailed")) if draw(st.integers(0, 3)) == 0]
    stood = status(
        draw(st.sampled_from(PHASES)),
        draw(st.sampled_from([(0, 0, 0), (1, 1, 1)])),
        observed_generation=draw(st.integers(1, generation)),
        pause_observed_generation=draw(st.integers(1, generation)),
        conditions=tuple(conditions),
    )
    pooled = draw(st.integers(0, 3)) == 0
    held = draw(a_pod())
    name = "pool-pod" if pooled else "a-0"
    if held is not None and pooled:
        held = replace(held, owner="uid-pool", index=None)
    annotations = draw(st.sampled_from([{}, {ENDPOINTS: "[]"}, {ENDPOINTS: '["10.0.0.1"]'}]))
    if draw(st.booleans()):
        annotations = annotations | {FAILED_SPEC_DIGEST: "s"}
    object = sandbox(
        generation=generation,
        pause=draw(st.sampled_from([True, False, None])),
        replicas=draw(st.sampled_from([1, 1, 1, 0, 2])),
        deleting=draw(st.sampled_from([0, 0, 0, 0, NOW])),
        pool_ref="p" if pooled else "",
        has_template=not pooled,
        allocated=("pool-pod",) if pooled else (),
        images={} if pooled else draw(st.sampled_from([{}, RAW, RESTORED, {"renamed": "busybox:1"}])),
        patched=draw(st.integers(0, 5)) == 0,
        spec="s",
        annotations=annotations,
        status=stood,
    )
    failure = draw(st.sampled_from([None, None, None, "create-snapshot", "rewrite-template"]))
    kept = draw(a_snapshot())
    if kept is not None and pooled and not kept.gone:
        kept = replace(kept, pod_name="pool-pod")
    return view(
        object,
        {} if held is None else {name: held},
        snapshot=kept,
        pause_generation=draw(st.sampled_from([None, *range(generation + 1)])),
        unshown_since=draw(st.sampled_from([0, NOW - 10 * SECOND])),
        failure=None if failure is None else Failure(failure, "x/a", 422, "Invalid", "m", NOW - 60 * SECOND),
    )


def situation(made: SandboxView) -> Situation:
    return situation_of(Plan(made, DEFAULT))


@settings(max_examples=600, deadline=None)
@given(views())
def test_nothing_is_left_where_no_event_and_no_timer_will_move_it(made: SandboxView) -> None:
    """A decision acts, or wakes, or the sandbox rests: `Succeed`, `Paused` or `Failed` with nothing asked of it."""
    decision = decide(made)
    assert made.object is not None
    if decision.ops or decision.wake_at is not None or made.object.deleting:
        return
    found = situation(made)
    assert found.phase not in (Phase.PAUSING, Phase.ASKED, Phase.RESUMING)
    if found.phase in (Phase.RUNNING, Phase.FAILED) and found.intent in (Intent.PAUSE, Intent.RESUME):
        # A pause that waits for a pod to start waits for that pod's own events.
        assert row_of(found).step.__name__ == "run"
    if found.phase is Phase.PAUSED:
        assert found.intent in (Intent.NOTHING, Intent.CLEARED)


@settings(max_examples=600, deadline=None)
@given(views())
def test_a_good_snapshot_is_deleted_only_beside_a_running_pod(made: SandboxView) -> None:
    """DESIGN §8.2. While Paused or Resuming never; and none of a failed resume's."""
    assert made.object is not None
    for op in decide(made).ops:
        if isinstance(op, DeleteObject):
            kept = made.snapshot
            assert kept is not None
            phase = phase_of(made, made.object)
            assert phase in (Phase.STARTING, Phase.RUNNING, Phase.FAILED, Phase.PAUSING)
            if kept.status.phase == "Succeed" and kept.owner == UID:
                running = [pod for pod in made.live_pods().values() if pod.phase == "Running" and not pod.deleting]
                assert running
                if situation(made).intent is not Intent.PAUSE and phase is not Phase.PAUSING:
                    assert any(pod.uid == kept.pod_uid or may_be_restored(made, pod) for pod in running)
                if phase is Phase.PAUSING:
                    assert (
                        kept.intent != str(made.object.status.pause_observed_generation)
                        or not kept.pod_uid
                        or kept.owner != UID
                    )


def may_be_restored(made: SandboxView, pod: Pod) -> bool:
    """By its own images; or, for all that is known, by its template's."""
    assert made.object is not None
    if pod.images == tuple(RESTORED.values()):
        return True
    by_template = made.object.images in ({}, RESTORED) and not made.object.patched
    return pod.template == made.object.template and by_template


def resuming(made: SandboxView) -> SandboxView:
    """The same sandbox, rewritten from a good snapshot, and perhaps edited since."""
    assert made.object is not None
    stood = replace(made.object.status, phase="Resuming", observed_generation=made.object.generation)
    object = replace(made.object, pool_ref="", has_template=True, deleting=0, status=stood)
    pods = [replace(pod, owner=UID, index=0) for pod in made.pods.values() if not pod.gone]
    return replace(
        made, object=object, pods=dict(zip(["a-0"], pods, strict=False)), snapshot=snapshot(pod_uid="uid-source")
    )


@settings(max_examples=600, deadline=None)
@given(views().map(resuming))
def test_a_pod_that_was_made_of_the_snapshot_outlives_every_edit_of_a_resume(made: SandboxView) -> None:
    """DESIGN §8.2."""
    assert made.object is not None
    for op in decide(made).ops:
        if isinstance(op, DeletePod):
            assert made.pods[op.target.name].images != tuple(RESTORED.values())
        if isinstance(op, PatchSandboxStatus) and op.status.phase == "Succeed" and made.object.replicas:
            assert any(pod.ready and may_be_restored(made, pod) for pod in made.live_pods().values()) or (
                made.object.patched and made.object.images in ({}, RESTORED)
            )


@settings(max_examples=600, deadline=None)
@given(views())
def test_paused_never_precedes_emptied_endpoints_or_deleted_pods(made: SandboxView) -> None:
    """DESIGN §8.3, by the order of the ops: a chain stops at the first that is not done."""
    assert made.object is not None
    if made.object.status.phase == "Paused":
        return
    emptied = made.object.annotations.get(ENDPOINTS, "[]") == "[]"
    going = {name for name, pod in made.live_pods().items() if pod.deleting}
    for op in decide(made).ops:
        match op:
            case PatchMetadata() if ENDPOINTS in op.annotations:
                emptied = op.annotations[ENDPOINTS] == "[]"
            case DetachFromPool():
                emptied = True
                going |= set(made.object.allocated)
            case DeletePod():
                going.add(op.target.name)
            case PatchSandboxStatus() if op.status.phase == "Paused":
                assert emptied
                if made.object.status.phase == "Pausing":
                    assert going >= set(made.live_pods())
            case PatchSandboxStatus() if op.status.phase == "Succeed" and made.object.status.phase == "Resuming":
                assert not emptied or made.object.replicas == 0


@settings(max_examples=600, deadline=None)
@given(views())
def test_a_write_acknowledges_only_what_it_starts_or_finishes(made: SandboxView) -> None:
    """DESIGN §6, Intent; one status write a decision, of a phase that its row names, and never back in time."""
    object = made.object
    assert object is not None
    writes = [op.status for op in decide(made).ops if isinstance(op, PatchSandboxStatus)]
    assert len(writes) <= 1
    for each in writes:
        row = row_of(situation(made))
        assert each.phase in (row.leads or (object.status.phase,))
        assert each.pause_observed_generation >= object.status.pause_observed_generation
        intent = intent_of(made, object)
        took_up = each.pause_observed_generation > object.status.pause_observed_generation
        if intent is Intent.PAUSE and took_up:
            assert each.phase in ("Pausing", "Paused") or each.condition("PauseFailed") is not None
            assert object.status.phase not in ("Pausing", "Resuming")
            if object.status.phase in ("", "Pending"):
                # Started first, unless that is over, or comes to nothing.
                assert not any(pod.ready and not pod.deleting and pod.owner == UID for pod in made.pods.values())
        if intent is Intent.RESUME and took_up:
            assert object.status.phase not in ("Pausing", "Resuming")
        if each.phase == "Resuming":
            assert each.observed_generation >= each.pause_observed_generation


@settings(max_examples=400, deadline=None)
@given(views())
def test_pods_and_snapshots_are_made_only_where_their_phase_allows(made: SandboxView) -> None:
    object = made.object
    assert object is not None
    decision = decide(made)
    for op in decision.ops:
        match op:
            case CreatePods():
                assert object.status.phase not in ("Pausing", "Paused")
                assert not object.pooled
                assert op.template == object.template
            case CreateSnapshot():
                assert object.replicas == 1 or object.status.phase == "Pausing"
                assert any(pod.uid == op.pod.uid and pod.phase == "Running" for pod in made.live_pods().values())
            case RewriteTemplate():
                assert made.snapshot is not None
                assert made.snapshot.status.phase == "Succeed"
                assert set(op.images) == {each.container_name for each in IMAGES}
                assert op.detach == object.pooled
            case DeleteObject() | DetachFromPool():
                assert not object.deleting
            case RecordEvent():
                assert len(op.message) < 1000


@settings(max_examples=400, deadline=None)
@given(views())
def test_a_failure_stays_until_the_next_intent_is_taken_up(made: SandboxView) -> None:
    """DESIGN §8.5; that of a failed resume ends also when the sandbox runs after all."""
    object = made.object
    assert object is not None
    intent = intent_of(made, object)
    for op in decide(made).ops:
        if isinstance(op, PatchSandboxStatus) and object.status.phase not in ("Pausing", "Resuming"):
            for type in ("PauseFailed", "ResumeFailed"):
                lost = object.status.condition(type) is not None and op.status.condition(type) is None
                mended = type == "ResumeFailed" and op.status.phase == "Succeed"
                assert not lost or mended or intent in (Intent.PAUSE, Intent.RESUME)


@settings(max_examples=300, deadline=None)
@given(views())
def test_from_anywhere_a_sandbox_comes_to_rest(made: SandboxView) -> None:
    """With a snapshot controller that commits and a kubelet that starts pods, every course ends, and soon."""
    assert made.object is not None
    if made.object.deleting or made.object.pooled:
        return
    world = World(replace(made, failure=None))
    for _ in range(40):
        world.settle(30)
        assert world.view.object is not None
        kept = world.view.snapshot
        if kept is not None and not kept.gone and (kept.deleting or kept.owner != UID):
            world.view = replace(world.view, snapshot=Snapshot((1, 9999), "a-pause", gone=True))
        elif kept is not None and not kept.gone and kept.status.phase not in ("Succeed", "Failed"):
            world.commit()
        elif lost := [name for name, pod in world.view.live_pods().items() if pod.deleting or pod.terminal]:
            world.lose(lost[0])
        elif idle := [pod for pod in world.view.live_pods().values() if not pod.ready and pod.index is not None]:
            world.start(idle[0].index or 0)
            world.pod(idle[0].index or 0, reason="")
        else:
            break
    else:
        raise AssertionError(f"never at rest: {situation(world.view)}")
    assert world.status.phase in REST
    again = decide(world.view)
    assert again.ops == ()


def test_without_memory_and_with_it_the_same_is_decided_where_nothing_was_missed() -> None:
    """A fresh list after a plain pause or resume decides as the watch did (DESIGN §6, Intent)."""
    for phase, pause in (("Succeed", True), ("Paused", False), ("Succeed", False), ("Paused", True)):
        stood = status(phase, conditions=(READY,) if phase == "Succeed" else ())
        new = pause == (phase == "Succeed")
        made = sandbox(generation=2, pause=pause, status=stood)
        for remembered in (2 if new else 1, None):
            found = intent_of(view(made, pause_generation=remembered), made)
            assert found is ((Intent.PAUSE if pause else Intent.RESUME) if new else Intent.EDIT)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_every_step_says_what_it_is(row: Any) -> None:
    assert row.says
    assert row.step.__name__.isidentifier()
