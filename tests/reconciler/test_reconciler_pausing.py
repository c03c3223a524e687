"""Dispatch and pause (scenarios DSP-*, PAU-*, N-01…N-23; DESIGN §6, §8)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from reconciler_model import (
    IMAGES,
    ME,
    NOW,
    READY,
    World,
    condition,
    endpoints,
    kinds,
    of_kind,
    pod,
    pods,
    ready_pod,
    running,
    sandbox,
    snapshot,
    status,
    view,
    written,
)

from bus.names import ENDPOINTS, FAILED_SPEC_DIGEST, pause_snapshot_name
from bus.ops import (
    CreatePods,
    CreateSnapshot,
    DeleteObject,
    DeletePod,
    DetachFromPool,
    PatchMetadata,
    PatchSandboxStatus,
    RecordEvent,
    Target,
)
from bus.resources import Condition, SnapshotStatus
from bus.times import SECOND, format_time
from bus.views import Decision, Failure, SandboxView
from reconciler.decide import decide
from reconciler.plan import LAST_RESORT
from reconciler.settings import DEFAULT

POD = Target("pod", "a-0", "uid-0-50")
SERVED = {ENDPOINTS: '["10.0.0.1"]'}
FAILURE = Condition("PauseFailed", "True", "SnapshotFailed", "previous attempt failed", "2025-12-31T23:50:00Z")


def asked(**fields: Any) -> SandboxView:
    """Running at generation 1, and `pause: true` since generation 2."""
    made: dict[str, Any] = {
        "generation": 2,
        "pause": True,
        "spec": "s2",
        "annotations": SERVED,
        "status": status(conditions=(READY,)),
    }
    view_fields = {key: fields.pop(key) for key in ("snapshot", "pause_generation", "failure") if key in fields}
    held = fields.pop("pods", pods(ready_pod(0)))
    return view(sandbox(**(made | fields)), held, **({"pause_generation": 2} | view_fields))


def pausing(phase: str | None = None, **fields: Any) -> SandboxView:
    """Acknowledged and Pausing, with a snapshot of this phase; None: without one."""
    stood = status("Pausing", observed_generation=2, pause_observed_generation=2)
    made: dict[str, Any] = {"status": stood, "snapshot": None if phase is None else snapshot(phase)}
    return asked(**(made | fields))


def waits(decision: Decision) -> bool:
    return not decision.ops and decision.wake_at is not None


# -- dispatch


def test_dsp_01_pau_01_pau_02_a_pause_is_acknowledged_with_pausing_and_the_snapshot_ordered_in_one_chain() -> None:
    decision = decide(asked())
    assert kinds(decision) == ["PatchSandboxStatus", "CreateSnapshot"]
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Pausing", 2)
    assert condition(made, "Progressing") == ("PauseInProgress", "Pausing sandbox")
    assert len(made.conditions) == 1
    (create,) = of_kind(decision, CreateSnapshot)
    assert (create.sandbox, create.name, create.intent, create.pod) == (ME, "a-pause", "2", POD)


def test_dsp_03_an_edit_is_acknowledged_with_the_next_status_and_by_no_write_of_its_own() -> None:
    decision = decide(asked(pause=None, pause_generation=0, annotations=SERVED))
    assert kinds(decision) == ["PatchSandboxStatus"]
    assert (written(decision).phase, written(decision).pause_observed_generation) == ("Succeed", 2)


def test_dsp_04_pau_20_while_pausing_the_snapshot_is_waited_for() -> None:
    for phase in ("", "Pending", "Committing", "Unheard"):
        decision = decide(pausing(phase))
        assert waits(decision)
        assert decision.wake_at is not None
        assert decision.wake_at <= NOW + LAST_RESORT


def test_dsp_05_nothing_new_is_nothing_to_do() -> None:
    stood = status(observed_generation=2, pause_observed_generation=2, conditions=(READY,))
    assert decide(asked(pause=None, status=stood, pause_generation=0)).ops == ()


def test_n19_an_acknowledged_true_on_a_running_sandbox_starts_nothing() -> None:
    stood = status(observed_generation=2, pause_observed_generation=2, conditions=(READY, FAILURE))
    assert decide(asked(status=stood, pause_generation=2)).ops == ()
    assert decide(asked(status=stood, pause_generation=None)).ops == ()


# -- start


@pytest.mark.parametrize("replicas", [0, 2, 5])
def test_pau_06_pau_07_pau_08_other_replicas_are_refused_in_one_write(replicas: int) -> None:
    """Of the status; the digest by which a retry is told from an edit goes before it (DESIGN §6)."""
    decision = decide(asked(replicas=replicas))
    assert kinds(decision) == ["PatchMetadata", "PatchSandboxStatus"]
    assert of_kind(decision, PatchMetadata)[0].annotations[FAILED_SPEC_DIGEST] == "s2"
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Succeed", 2)
    message = f"pause/resume currently supports only BatchSandbox spec.replicas=1; got spec.replicas={replicas}"
    assert condition(made, "PauseFailed") == ("UnsupportedReplicas", message)
    assert [op.reason for op in of_kind(decision, RecordEvent)] == ["PauseFailed"]


def test_n03_an_unset_replicas_is_one() -> None:
    """The CRD's default; the message about an unset one has no case."""
    assert kinds(decide(asked(replicas=1)))[0] == "PatchSandboxStatus"


def pooled(**fields: Any) -> SandboxView:
    held = {"pool-pod": replace(ready_pod(0), owner="uid-pool", index=None)}
    made = {"pool_ref": "test-pool", "has_template": False, "allocated": ("pool-pod",), "pods": held}
    return asked(**(made | fields))


def test_pau_09_pau_10_pau_11_a_pooled_pause_begins_without_the_pool_and_without_touching_the_spec() -> None:
    decision = decide(pooled())
    assert kinds(decision) == ["PatchSandboxStatus", "CreateSnapshot"]
    (create,) = of_kind(decision, CreateSnapshot)
    assert create.pod == Target("pod", "pool-pod", "uid-0-50")


def test_pau_12_pau_13_a_failed_snapshot_is_deleted_first_and_nothing_acknowledged() -> None:
    stood = status(conditions=(READY, FAILURE))
    decision = decide(asked(status=stood, snapshot=snapshot("Failed", intent="1")))
    (delete,) = decision.ops
    assert isinstance(delete, DeleteObject)
    assert delete.target == Target("sandboxsnapshot", "a-pause", "uid-snapshot")
    assert decision.wake_at is not None


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(snapshot("Succeed", intent="1"), id="another intent"),
        pytest.param(snapshot("Succeed", intent=""), id="no intent"),
        pytest.param(snapshot("Succeed", pod_uid="uid-other"), id="another pod"),
        pytest.param(snapshot("Committing", intent="1"), id="another intent, unfinished"),
        pytest.param(snapshot("Succeed", owner="uid-old"), id="another sandbox of that name"),
        pytest.param(snapshot("Failed"), id="this intent, failed"),
    ],
)
def test_pau_14_pau_15_a_snapshot_that_does_not_count_is_deleted_first(left: Any) -> None:
    """DESIGN §8.2; N-02's reuse is for this intent and this pod alone."""
    assert kinds(decide(asked(snapshot=left))) == ["DeleteObject"]


def test_n01_a_snapshot_that_goes_is_waited_for_unacknowledged() -> None:
    assert waits(decide(asked(snapshot=snapshot("Failed", deleting=True))))


@pytest.mark.parametrize("phase", ["", "Committing", "Succeed"])
def test_n02_this_intents_own_snapshot_is_taken_over(phase: str) -> None:
    assert kinds(decide(asked(snapshot=snapshot(phase)))) == ["PatchSandboxStatus"]


def test_pau_36_spec_pause_is_never_written_by_any_op() -> None:
    """No op has a field for it (DESIGN §8.5): what writes a spec are these two, and they say what they write."""
    from bus.ops import RewriteTemplate

    assert set(RewriteTemplate.__struct_fields__) == {
        "id",
        "target",
        "resource_version",
        "images",
        "pull_secret",
        "detach",
    }
    assert set(DetachFromPool.__struct_fields__) == {"id", "target", "resource_version", "pod"}


# -- not running


@pytest.mark.parametrize("phase", ["", "Pending"])
def test_n14_a_pause_waits_for_the_start(phase: str) -> None:
    """traces.md pause_before_ready, done right: start, then pause."""
    world = World(
        asked(
            generation=1,
            pause_generation=1,
            status=status(phase, (0, 0, 0), pause_observed_generation=0),
            pods={},
            annotations={},
        )
    )
    assert of_kind(world.step(), CreatePods)
    world.start(0)
    made = written(world.step())
    assert (made.phase, made.pause_observed_generation) == ("Succeed", 0)
    assert kinds(world.step()) == ["PatchSandboxStatus", "CreateSnapshot"]
    assert world.status.phase == "Pausing"


def test_n14_succeed_without_a_running_pod_starts_first() -> None:
    assert "CreateSnapshot" not in kinds(decide(asked(pods={})))
    assert of_kind(decide(asked(pods={})), CreatePods)


def test_n14_a_failed_sandbox_whose_pod_runs_is_paused() -> None:
    crashing = pods(pod(0, phase="Running", reason="CrashLoopBackOff", since=1, node="n"))
    assert kinds(decide(asked(status=status("Failed"), pods=crashing))) == ["PatchSandboxStatus", "CreateSnapshot"]


def test_n14_a_failed_sandbox_without_a_running_pod_is_refused() -> None:
    ended = pods(pod(0, phase="Failed", reason="Evicted", terminal=True))
    decision = decide(asked(status=status("Failed"), pods=ended))
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Failed", 2)
    assert condition(made, "PauseFailed") == ("PodNotFound", "no running pod found for BatchSandbox a")


def test_a_pause_is_refused_while_a_failed_resume_stands() -> None:
    """DESIGN §6: its snapshot is the good one."""
    unresumed = Condition("ResumeFailed", "True", "ImagePullBackOff", "m", "2025-12-31T23:50:00Z")
    decision = decide(asked(status=status("Failed", conditions=(unresumed,)), snapshot=snapshot()))
    made = written(decision)
    assert made.phase == "Failed"
    assert condition(made, "PauseFailed") is not None
    assert made.condition("ResumeFailed") == unresumed
    assert not of_kind(decision, DeleteObject)


@pytest.mark.parametrize("phase", ["Pending", "Succeed", "Failed"])
def test_dsp_01_a_running_pod_is_paused_in_any_phase_once_it_was_delivered(phase: str) -> None:
    """Ready or not (controller-behaviour.md §7.4)."""
    unready = pods(pod(0, phase="Running", node="n", ip="10.0.0.1"))
    emptied = {ENDPOINTS: "[]"}
    decision = decide(asked(status=status(phase, conditions=()), pods=unready, annotations=emptied))
    assert kinds(decision) == ["PatchSandboxStatus", "CreateSnapshot"]


def test_a_start_that_never_ends_delays_a_pause_by_the_grace() -> None:
    """DESIGN §8.8; since when it is made stands in its own condition."""
    since = NOW - DEFAULT.pod_failure_grace
    creating = Condition("Progressing", "True", "Creating", "Sandbox is being created", format_time(since + SECOND))
    stood = status("Pending", (1, 1, 0), pause_observed_generation=0, conditions=(creating,))
    made = asked(status=stood, pods=pods(pod(0, phase="Running", node="n")), annotations={})
    assert "CreateSnapshot" not in kinds(decide(made))
    assert decide(made).wake_at == NOW + SECOND
    assert kinds(decide(replace(made, now=NOW + SECOND))) == ["PatchSandboxStatus", "CreateSnapshot"]
    ready = replace(made, now=NOW + SECOND, pods=pods(ready_pod(0)))
    assert written(decide(ready)).phase == "Succeed"


# -- while Pausing


def test_pau_16_pau_17_pau_22_pau_23_a_good_snapshot_completes_the_pause_in_order() -> None:
    """DESIGN §8.3: endpoints emptied and the pod's deletion accepted before `Paused`."""
    decision = decide(pausing("Succeed"))
    assert kinds(decision) == ["PatchMetadata", "DeletePod", "PatchSandboxStatus"]
    patch, delete, _ = decision.ops
    assert isinstance(patch, PatchMetadata)
    assert patch.annotations == {ENDPOINTS: "[]"}
    assert isinstance(delete, DeletePod)
    assert delete.target == POD
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Paused", 2)
    assert (made.replicas, made.allocated, made.ready) == (0, 0, 0)
    assert [each.type for each in made.conditions] == ["Paused"]
    assert condition(made, "Paused") == ("Paused", "Sandbox is paused")


def test_pau_22_without_pods_and_endpoints_only_paused_is_written() -> None:
    decision = decide(pausing("Succeed", pods={}, annotations={}))
    assert kinds(decision) == ["PatchSandboxStatus"]
    assert written(decision).phase == "Paused"


def test_pau_18_a_failed_snapshot_and_no_pod() -> None:
    decision = decide(pausing("Failed", pods={}, annotations={}))
    made = written(decision)
    assert made.phase == "Failed"
    assert condition(made, "PauseFailed") == ("PodNotFound", "Job has reached the specified backoff limit")


def test_pau_18_a_pod_that_ended_is_none_that_is_left() -> None:
    """It said `Succeed` first, and `Failed` a moment later."""
    evicted = pods(pod(0, phase="Failed", reason="Evicted", terminal=True))
    made = written(decide(pausing("Failed", pods=evicted)))
    assert made.phase == "Failed"
    assert condition(made, "PauseFailed") == ("PodNotFound", "Job has reached the specified backoff limit")
    assert condition(made, "PodFailed") is not None


def test_n04_e2p_18_a_failed_snapshot_while_the_pod_lives() -> None:
    decision = decide(pausing("Failed"))
    assert kinds(decision) == ["PatchMetadata", "PatchSandboxStatus"]
    (patch,) = of_kind(decision, PatchMetadata)
    assert patch.annotations == {FAILED_SPEC_DIGEST: "s2"}
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Succeed", 2)
    assert condition(made, "PauseFailed") == ("SnapshotFailed", "Job has reached the specified backoff limit")
    assert condition(made, "Ready") is not None


def test_pau_18_a_failure_without_words() -> None:
    said = replace(snapshot("Failed"), status=SnapshotStatus("Failed", IMAGES))
    made = written(decide(pausing(snapshot=said)))
    assert condition(made, "PauseFailed") == ("SnapshotFailed", "snapshot failed")


def test_pau_19_a_refused_status_write_is_tried_again_after_the_back_off() -> None:
    refused = Failure("patch-sandbox-status", "batchsandbox/a", 403, "Forbidden", "no", NOW - SECOND)
    held = replace(pausing("Failed"), failure=refused, tries=2, retry_at=NOW + SECOND)
    assert (decide(held).ops, decide(held).wake_at) == ((), NOW + SECOND)
    assert of_kind(decide(replace(held, now=NOW + SECOND)), PatchSandboxStatus)


def test_pau_21_a_lost_snapshot_is_made_again_for_the_same_intent() -> None:
    decision = decide(pausing(pause_generation=3, generation=3, pause=False))
    (create,) = of_kind(decision, CreateSnapshot)
    assert (create.intent, create.pod) == ("2", POD)
    assert kinds(decision) == ["CreateSnapshot"]


def test_the_pod_was_lost_before_a_snapshot_was_made() -> None:
    made = written(decide(pausing(pods={}, annotations={})))
    assert (made.phase, condition(made, "PauseFailed")) == (
        "Failed",
        ("PodNotFound", "no running pod found for BatchSandbox a"),
    )


def test_the_pod_was_lost_but_its_snapshot_is_good() -> None:
    """What was committed is what the user gets back, whoever came to stand in the pod's place meanwhile."""
    late = pods(replace(ready_pod(0), uid="uid-late"))
    decision = decide(pausing("Succeed", pods=late))
    (delete,) = of_kind(decision, DeletePod)
    assert delete.target.uid == "uid-late"
    assert written(decision).phase == "Paused"


def test_no_pod_is_made_while_pausing_or_paused() -> None:
    for phase in ("Committing", "Succeed", "Failed"):
        assert not of_kind(decide(pausing(phase, pods={})), CreatePods)


def test_a_snapshot_of_another_intent_does_not_complete_a_pause() -> None:
    """DESIGN §8.2."""
    for left in (snapshot("Succeed", intent="1"), snapshot("Succeed", pod_uid="")):
        assert kinds(decide(pausing(snapshot=left))) == ["DeleteObject"]


def test_a_good_snapshot_is_not_deleted_where_no_pod_runs_any_more() -> None:
    """The stock controller, stopped after the pod's deletion: its snapshot says no intent, and is all that is left."""
    decision = decide(pausing(snapshot=snapshot("Succeed", intent="", pod_uid=""), pods={}))
    assert written(decision).phase == "Paused"
    assert not of_kind(decision, DeleteObject)


def test_a_snapshot_without_images_fails_the_pause() -> None:
    empty = replace(snapshot("Succeed"), status=SnapshotStatus("Succeed"))
    made = written(decide(pausing(snapshot=empty)))
    assert condition(made, "PauseFailed") == ("SnapshotFailed", "the snapshot holds no images")


def test_a_snapshot_that_never_ends_fails_the_pause() -> None:
    """DESIGN §8.8."""
    old = snapshot("Committing", created=NOW - DEFAULT.snapshot_patience)
    made = written(decide(pausing(snapshot=old)))
    assert condition(made, "PauseFailed") == ("SnapshotFailed", "the snapshot was not ready in time")
    younger = decide(pausing(snapshot=replace(old, created=old.created + SECOND)))
    assert (younger.ops, younger.wake_at) == ((), NOW + SECOND)


def test_a_snapshot_that_the_api_server_refuses_fails_the_pause() -> None:
    refused = Failure("create-snapshot", "sandboxsnapshot/a-pause", 403, "Forbidden", "exceeded quota", NOW - SECOND)
    made = written(decide(pausing(failure=refused)))
    assert made.phase == "Succeed"
    assert condition(made, "PauseFailed") == ("SnapshotFailed", "failed to create the snapshot: exceeded quota")


# -- completion


def test_pau_24_a_refused_delete_leaves_pausing() -> None:
    """The chain stops before `Paused`; then the back-off is waited for."""
    refused = Failure("delete-pod", "pod/a-0", 403, "Forbidden", "no", NOW - SECOND)
    held = replace(pausing("Succeed"), failure=refused, tries=2, retry_at=NOW + SECOND)
    assert (decide(held).ops, decide(held).wake_at) == ((), NOW + SECOND)


def detaching(**fields: Any) -> SandboxView:
    stood = status("Pausing", observed_generation=2, pause_observed_generation=2)
    made = snapshot(pod_name="pool-pod")
    return pooled(**({"status": stood, "snapshot": made} | fields))


def test_pau_25_pau_27_pau_28_pau_29_pau_30_pau_31_a_pooled_sandbox_is_detached_and_its_pod_left_to_the_pool() -> None:
    decision = decide(detaching())
    assert kinds(decision) == ["DetachFromPool", "PatchSandboxStatus"]
    detach = decision.ops[0]
    assert isinstance(detach, DetachFromPool)
    assert detach.pod == Target("pod", "pool-pod", "uid-0-50")
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Paused", 3)


def test_pau_32_a_queued_resume_is_not_acknowledged() -> None:
    decision = decide(detaching(generation=3, pause=False, pause_generation=3))
    assert written(decision).pause_observed_generation == 2
    template_mode = decide(pausing("Succeed", generation=3, pause=False, pause_generation=3))
    assert (written(template_mode).phase, written(template_mode).pause_observed_generation) == ("Paused", 2)


def test_n05_a_pooled_pause_whose_pod_is_lost_fails_instead_of_waiting_for_ever() -> None:
    made = written(decide(detaching(pods={})))
    assert (made.phase, condition(made, "PauseFailed")) == (
        "Failed",
        ("PodNotFound", "no running pod found for BatchSandbox a"),
    )


def test_a_refused_detaching_fails_the_pause() -> None:
    refused = Failure("detach-from-pool", "batchsandbox/a", 422, "Invalid", "no", NOW - SECOND)
    made = written(decide(detaching(failure=refused)))
    assert (made.phase, condition(made, "PauseFailed")) == (
        "Succeed",
        ("DetachRefused", "failed to detach from the pool: no"),
    )


def test_the_queued_resume_of_a_detached_sandbox_completes_first() -> None:
    """Between detaching and `Paused` the user queued a resume: the write conflicts, and the next view is no pool's any more."""
    held = detaching(generation=4, pause=False, pause_generation=4, pool_ref="", has_template=True)
    decision = decide(held)
    assert written(decision).phase == "Paused"
    assert written(decision).pause_observed_generation == 2
    assert not of_kind(decision, DeletePod)


# -- while Paused


def paused(**fields: Any) -> SandboxView:
    stood = status(
        "Paused",
        (0, 0, 0),
        observed_generation=2,
        pause_observed_generation=2,
        conditions=(Condition("Paused", "True", "Paused", "Sandbox is paused", "2025-12-31T23:59:59Z"),),
    )
    made: dict[str, Any] = {"status": stood, "snapshot": snapshot(), "pods": {}, "annotations": {ENDPOINTS: "[]"}}
    return asked(**(made | fields))


def test_pau_33_a_paused_sandbox_gets_no_pods_and_no_writes() -> None:
    decision = decide(paused())
    assert (decision.ops, decision.wake_at) == ((), None)


def test_n07_renewing_a_paused_sandbox_only_acknowledges() -> None:
    """traces.md renew_while_paused, done right: the snapshot stays. With and without memory of the last change (a fresh list)."""
    for remembered in (2, None):
        decision = decide(paused(generation=3, expire_time=NOW + SECOND, pause_generation=remembered))
        assert kinds(decision) == ["PatchSandboxStatus"]
        made = written(decision)
        assert (made.phase, made.observed_generation, made.pause_observed_generation) == ("Paused", 3, 3)
        assert decision.wake_at == NOW + SECOND


def test_n23_replicas_template_and_pool_may_be_edited_while_paused() -> None:
    for edit in ({"replicas": 3}, {"template": "t9"}, {"pool_ref": "p"}):
        assert kinds(decide(paused(generation=3, **edit))) == ["PatchSandboxStatus"]


def test_a_pod_that_appears_while_paused_is_deleted() -> None:
    """DESIGN §8.2: a stalled executor may have made it."""
    decision = decide(paused(pods=pods(ready_pod(0))))
    assert kinds(decision) == ["DeletePod"]
    assert decision.wake_at is not None


def test_sta_08_paused_without_its_condition_gets_it_and_stale_endpoints_go_first() -> None:
    bare = status("Paused", observed_generation=2, pause_observed_generation=2)
    decision = decide(paused(status=bare, annotations=SERVED))
    assert kinds(decision) == ["PatchMetadata", "PatchSandboxStatus"]
    found = written(decision).condition("Paused")
    assert found is not None
    assert (found.reason, found.message) == ("Paused", "Sandbox is paused")
    assert found.last_transition_time


def test_none_while_paused_is_no_operation() -> None:
    assert written(decide(paused(generation=3, pause=None, pause_generation=3))).pause_observed_generation == 3
    failed = Condition("ResumeFailed", "True", "SnapshotNotFound", "m", "2025-12-31T23:59:59Z")
    stood = replace(paused().object.status, conditions=(*paused().object.status.conditions, failed))  # type: ignore[union-attr]
    assert decide(paused(generation=3, pause=None, pause_generation=3, status=stood)).ops == ()


# -- the retry of a failed pause


def failed_pause(**fields: Any) -> SandboxView:
    stood = status(observed_generation=2, pause_observed_generation=2, conditions=(READY, FAILURE))
    made = {"status": stood, "annotations": SERVED | {FAILED_SPEC_DIGEST: "s2"}}
    return asked(**(made | fields))


@pytest.mark.parametrize("remembered", [4, None])
def test_e2p_22_null_then_true_is_a_retry_seen_or_coalesced(remembered: int | None) -> None:
    assert kinds(decide(failed_pause(generation=4, pause_generation=remembered))) == [
        "PatchSandboxStatus",
        "CreateSnapshot",
    ]
    assert written(decide(failed_pause(generation=4, pause_generation=remembered))).condition("PauseFailed") is None


def test_a_renewal_beside_a_failed_pause_is_no_retry() -> None:
    """server-client.md §5: the case that generations alone do not settle."""
    for generation, spec in ((3, "s3"), (4, "s4"), (3, "s2")):
        made = written(decide(failed_pause(generation=generation, spec=spec, pause_generation=None)))
        assert (made.phase, made.pause_observed_generation) == ("Succeed", generation)
        assert made.condition("PauseFailed") == FAILURE


def test_an_acknowledged_renewal_is_remembered_so_that_a_retry_after_it_is_one_too() -> None:
    """The explorer saw it lost: failed, renewed, then `null` and `true` while no bridge looked (`retry`, bridge killed)."""
    decision = decide(failed_pause(generation=3, spec="s3", pause_generation=2))
    (patch,) = of_kind(decision, PatchMetadata)
    assert patch.annotations == {FAILED_SPEC_DIGEST: "s3"}
    stood = status(observed_generation=3, pause_observed_generation=3, conditions=(READY, FAILURE))
    remembered = SERVED | {FAILED_SPEC_DIGEST: "s3"}
    retried = failed_pause(generation=5, spec="s3", pause_generation=None, status=stood, annotations=remembered)
    assert written(decide(retried)).phase == "Pausing"
    kept = failed_pause(generation=3, spec="s3", pause_generation=2, status=stood, annotations=SERVED)
    assert not of_kind(decide(kept), PatchMetadata)


@pytest.mark.parametrize("refused", [{"replicas": 3}, {"status": status("Failed", conditions=()), "pods": {}}])
def test_a_retry_after_a_refusal_is_recognised_coalesced(refused: dict[str, Any]) -> None:
    """The digest is written when the failure is recorded, whatever failed; and with each edit after it (DESIGN §6)."""
    (patch,) = of_kind(decide(asked(**refused)), PatchMetadata)
    assert patch.annotations[FAILED_SPEC_DIGEST] == "s2"
    edited = failed_pause(generation=3, spec="s3", pause_generation=2, annotations=SERVED)
    (patch,) = of_kind(decide(edited), PatchMetadata)
    assert patch.annotations == {FAILED_SPEC_DIGEST: "s3"}


def test_the_null_of_a_retry_is_not_acknowledged() -> None:
    for remembered in (3, None):
        made = written(decide(failed_pause(generation=3, pause=None, pause_generation=remembered)))
        assert (made.observed_generation, made.pause_observed_generation) == (3, 2)
        assert made.condition("PauseFailed") == FAILURE


def test_a_false_after_a_failed_pause_ends_the_failure() -> None:
    made = written(decide(failed_pause(generation=3, pause=False, pause_generation=3)))
    assert made.pause_observed_generation == 3
    assert made.condition("PauseFailed") is None


# -- deletion, names


@pytest.mark.parametrize("made", [asked(), pausing("Committing"), pausing("Succeed"), paused()])
def test_n13_b83_deletion_comes_first_and_a_pause_of_what_goes_is_ignored(made: SandboxView) -> None:
    assert made.object is not None
    leaving = replace(made, object=replace(made.object, deleting=NOW))
    assert decide(leaving).ops == ()


@pytest.mark.parametrize("made", [asked(), pausing("Committing"), paused()])
def test_n13_expiry_applies_in_every_phase_of_a_pause(made: SandboxView) -> None:
    assert made.object is not None
    over = replace(made, object=replace(made.object, expire_time=NOW))
    assert kinds(decide(over)) == ["DeleteExpired"]


def test_n21_b106_a_long_name_gives_a_legal_snapshot_name() -> None:
    assert len(pause_snapshot_name("a" * 253)) == 253
    assert pause_snapshot_name("a" * 253) != pause_snapshot_name("a" * 252)


def test_n12_a_fresh_view_without_memory_goes_on_where_the_phase_says() -> None:
    assert kinds(decide(pausing("Succeed", pause_generation=None))) == [
        "PatchMetadata",
        "DeletePod",
        "PatchSandboxStatus",
    ]
    assert written(decide(pausing("Succeed", pause_generation=None))).pause_observed_generation == 2
    queued = decide(pausing("Succeed", pause_generation=None, generation=3, pause=False))
    assert written(queued).pause_observed_generation == 2


def test_least_writes_of_a_pause_and_a_second_cycle() -> None:
    """Six on sandbox, snapshot and pod here; committing and Job are the snapshot's own."""
    world = World(running(1))
    world.done.clear()
    world.want(True)
    world.step()
    world.commit()
    world.step()
    assert world.writes == ["PatchSandboxStatus", "CreateSnapshot", "PatchMetadata", "DeletePod", "PatchSandboxStatus"]
    assert (world.status.phase, endpoints(world.view)) == ("Paused", "[]")
    assert world.step().ops == ()
    assert msgspec.json.encode(decide(world.view)) == msgspec.json.encode(Decision())
