"""Resume (scenarios RES-*, STA-03, STA-05, STA-06, E2P-*, N-08…N-23; DESIGN §6, §8)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from reconciler_model import (
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
    waiting_pod,
    written,
)

from bus.names import ENDPOINTS, FAILED_SPEC_DIGEST
from bus.ops import CreatePods, DeleteObject, DeletePod, PatchSandboxStatus, RewriteTemplate
from bus.resources import Condition, SnapshotStatus
from bus.times import SECOND
from bus.views import Failure, Pod, SandboxView
from reconciler.decide import decide
from reconciler.settings import Settings

PAUSED = Condition("Paused", "True", "Paused", "Sandbox is paused", "2025-12-31T23:59:59Z")
RESUME_FAILED = Condition(
    "ResumeFailed", "True", "SnapshotNotFound", "SandboxSnapshot not found", "2025-12-31T23:59:00Z"
)


def held(made: dict[str, Any], fields: dict[str, Any]) -> SandboxView:
    made = made | fields
    of_view = {
        key: made.pop(key) for key in ("snapshot", "pause_generation", "failure", "unshown_since") if key in made
    }
    there = made.pop("pods", {})
    return view(sandbox(**made), there, **of_view)


def asked(**fields: Any) -> SandboxView:
    """Paused since generation 2, and `pause: false` since generation 3."""
    stood = status("Paused", (0, 0, 0), observed_generation=2, pause_observed_generation=2, conditions=(PAUSED,))
    made: dict[str, Any] = {
        "generation": 3,
        "pause": False,
        "spec": "s3",
        "status": stood,
        "snapshot": snapshot(),
        "pause_generation": 3,
        "annotations": {ENDPOINTS: "[]"},
    }
    return held(made, fields)


def resuming(**fields: Any) -> SandboxView:
    """Acknowledged, rewritten (generation 4), its pods to be of template `t4`."""
    stood = status("Resuming", (0, 0, 0), observed_generation=3, pause_observed_generation=3)
    return asked(**({"status": stood, "generation": 4, "template": "t4", "spec": "s4"} | fields))


def before_rewriting(**fields: Any) -> SandboxView:
    """As the stock controller says it first: acknowledged, nothing rewritten."""
    stood = status("Resuming", (0, 0, 0), observed_generation=2, pause_observed_generation=3)
    return asked(**({"status": stood} | fields))


def new_pod(**fields: Any) -> Pod:
    return ready_pod(0, **({"template": "t4"} | fields))


# -- beginning


def test_dsp_02_res_01_res_03_res_04_a_resume_rewrites_and_says_resuming_in_one_chain() -> None:
    decision = decide(asked(), Settings(resume_pull_secret="my-pull-secret"))
    assert kinds(decision) == ["RewriteTemplate", "PatchSandboxStatus"]
    rewrite = decision.ops[0]
    assert isinstance(rewrite, RewriteTemplate)
    assert rewrite.images == {"main": "registry/a-main:snap-gen2"}
    assert (rewrite.target, rewrite.pull_secret, rewrite.detach) == (ME, "my-pull-secret", False)
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Resuming", 3)
    assert [each.type for each in made.conditions] == ["Progressing"]
    assert condition(made, "Progressing") == ("ResumeInProgress", "Resuming sandbox")


def test_res_05_n16_the_pull_secret_is_passed_on_as_it_is_set() -> None:
    """Adding it once is the executor's; '' is none."""
    (rewrite,) = of_kind(decide(asked()), RewriteTemplate)
    assert rewrite.pull_secret == ""


@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_res_06_a_resume_does_not_ask_for_one_replica(replicas: int) -> None:
    assert kinds(decide(asked(replicas=replicas)))[0] == "RewriteTemplate"


def test_res_02_res_07_a_pooled_resume_leaves_the_pool_with_the_rewriting() -> None:
    (rewrite,) = of_kind(decide(asked(pool_ref="test-pool")), RewriteTemplate)
    assert rewrite.detach


def test_res_03_what_the_stock_controller_acknowledged_is_rewritten_first() -> None:
    """Its pods of before never count, whatever they say (DESIGN §8.2)."""
    for there in ({}, pods(ready_pod(0, template="t1"))):
        decision = decide(before_rewriting(pods=there))
        assert kinds(decision) == ["RewriteTemplate", "PatchSandboxStatus"]
        made = written(decision)
        assert (made.phase, made.observed_generation, made.pause_observed_generation) == ("Resuming", 3, 3)


def test_res_13_res_14_res_16_the_pool_pod_does_not_complete_a_pooled_resume() -> None:
    pool_pod = {"pool-pod-0": replace(ready_pod(0), owner="uid-pool")}
    stood = status("Resuming", observed_generation=5, pause_observed_generation=5)
    made = before_rewriting(generation=5, status=stood, pool_ref="test-pool", allocated=("pool-pod-0",), pods=pool_pod)
    decision = decide(made)
    assert kinds(decision) == ["RewriteTemplate", "PatchSandboxStatus"]
    assert written(decision).phase == "Resuming"


# -- snapshots that cannot be used


UNUSABLE = [
    pytest.param(None, "SnapshotNotFound", "SandboxSnapshot not found", id="none"),
    pytest.param(snapshot(deleting=True), "SnapshotNotFound", "SandboxSnapshot not found", id="going"),
    pytest.param(
        snapshot(owner="old"), "SnapshotNotFound", "SandboxSnapshot belongs to another BatchSandbox", id="of another"
    ),
    pytest.param(snapshot("Committing"), "SnapshotNotReady", "snapshot not ready: phase=Committing", id="committing"),
    pytest.param(snapshot("Failed"), "SnapshotNotReady", "snapshot not ready: phase=Failed", id="failed"),
    pytest.param(
        replace(snapshot(), status=SnapshotStatus("Succeed")),
        "SnapshotNotReady",
        "snapshot not ready: it holds no images",
        id="empty",
    ),
]


@pytest.mark.parametrize(("left", "reason", "message"), UNUSABLE)
@pytest.mark.parametrize("begun", [False, True])
def test_res_09_res_11_res_12_an_unusable_snapshot_means_paused_and_resume_failed(
    left: Any, reason: str, message: str, begun: bool
) -> None:
    """Rolled back where `Resuming` was said already; else that is not said at all."""
    decision = decide(before_rewriting(snapshot=left) if begun else asked(snapshot=left))
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Paused", 3)
    assert condition(made, "ResumeFailed") == (reason, message)
    assert condition(made, "Paused") == ("Paused", "Sandbox is paused")
    assert kinds(decision) == ["PatchMetadata", "PatchSandboxStatus"]
    assert decision.ops[0].annotations == {FAILED_SPEC_DIGEST: "s3"}  # type: ignore[union-attr]


def test_a_rolled_back_resume_rests_until_the_next_intent() -> None:
    world = World(asked(snapshot=None))
    world.step()
    assert world.status.phase == "Paused"
    assert world.step().ops == ()
    world.edit(expire_time=NOW + 3600 * SECOND)
    world.step()
    assert condition(world.status, "ResumeFailed") is not None


@pytest.mark.parametrize("remembered", [5, None])
def test_n17_null_then_false_tries_again_and_clears_the_failure(remembered: int | None) -> None:
    stood = status(
        "Paused", (0, 0, 0), observed_generation=3, pause_observed_generation=3, conditions=(PAUSED, RESUME_FAILED)
    )
    retried = asked(
        generation=5, pause_generation=remembered, status=stood, annotations={ENDPOINTS: "[]", FAILED_SPEC_DIGEST: "s3"}
    )
    decision = decide(retried)
    assert kinds(decision) == ["RewriteTemplate", "PatchSandboxStatus"]
    assert written(decision).condition("ResumeFailed") is None


def test_a_refused_rewriting_is_told_and_tried_again_at_the_next_intent() -> None:
    refused = Failure("rewrite-template", "batchsandbox/a", 422, "Invalid", "image is too long", NOW - 60 * SECOND)
    world = World(asked(failure=refused))
    world.step()
    assert world.status.phase == "Paused"
    assert condition(world.status, "ResumeFailed") == (
        "TemplateRefused",
        "failed to rewrite the template: image is too long",
    )
    world.want(None)
    world.want(False)
    assert kinds(world.step()) == ["RewriteTemplate", "PatchSandboxStatus"]


def test_res_10_a_ready_pod_without_a_snapshot_is_a_resume_that_is_done() -> None:
    decision = decide(before_rewriting(snapshot=None, pods=pods(ready_pod(0))))
    assert kinds(decision) == ["PatchMetadata", "PatchSandboxStatus"]
    made = written(decision)
    assert (made.phase, made.pause_observed_generation) == ("Succeed", 3)
    assert made.condition("ResumeFailed") is None


# -- pods


def test_res_08_res_15_the_pod_is_made_of_the_rewritten_template() -> None:
    """From the view that shows it: the digest is the op's precondition."""
    (create,) = of_kind(decide(resuming()), CreatePods)
    assert (create.template, create.names) == ("t4", {"a-0": 0})
    assert decide(resuming()).wake_at is not None


def test_res_14_pods_of_before_are_deleted_and_never_complete_a_resume() -> None:
    decision = decide(resuming(pods=pods(ready_pod(0, template="t1"))))
    (delete,) = of_kind(decision, DeletePod)
    assert delete.target.name == "a-0"
    assert kinds(decision) == ["DeletePod"]


def test_res_17_res_18_a_pod_that_goes_does_not_complete_a_resume() -> None:
    decision = decide(resuming(pods=pods(new_pod(deleting=True))))
    assert (decision.ops, decision.wake_at is not None) == ((), True)


def test_a_ready_resumed_pod_means_endpoints_then_succeed() -> None:
    """DESIGN §8.4; the rewriting's own generation is acknowledged with it (N-09)."""
    decision = decide(resuming(pods=pods(new_pod())))
    assert kinds(decision) == ["PatchMetadata", "PatchSandboxStatus"]
    assert decision.ops[0].annotations == {ENDPOINTS: '["10.0.0.1"]'}  # type: ignore[union-attr]
    made = written(decision)
    assert (made.phase, made.observed_generation, made.pause_observed_generation) == ("Succeed", 4, 4)
    assert not of_kind(decision, DeleteObject)


def test_n10_a_pause_queued_while_resuming_is_not_acknowledged_but_follows() -> None:
    world = World(resuming(generation=5, pause=True, pause_generation=5, pods=pods(new_pod())))
    world.step()
    assert (world.status.phase, world.status.pause_observed_generation) == ("Succeed", 3)
    assert kinds(world.step()) == ["DeleteObject"]
    assert kinds(world.step()) == ["PatchSandboxStatus", "CreateSnapshot"]
    assert (world.status.phase, world.status.pause_observed_generation) == ("Pausing", 5)


def test_zero_replicas_are_resumed_with_nothing_to_wait_for_and_keep_their_snapshot() -> None:
    world = World(resuming(replicas=0))
    world.settle()
    assert world.status.phase == "Succeed"
    assert world.view.snapshot == snapshot()


def test_sta_05_sta_06_e2p_19_e2p_20_a_failing_resumed_pod() -> None:
    """`Failed` and `ResumeFailed` in one write; the snapshot stays."""
    failing = [waiting_pod(index, "ImagePullBackOff", 1, template="t4") for index in (0, 1)]
    decision = decide(resuming(replicas=3, pods=pods(*failing, pod(2, template="t4"))))
    made = written(decision)
    assert made.phase == "Failed"
    during = "2/3 observed pods failed during resume; primary reason=ImagePullBackOff; sample pod=a-0"
    plain = "2/3 observed pods failed; primary reason=ImagePullBackOff; sample pod=a-0"
    assert condition(made, "ResumeFailed") == ("ImagePullBackOff", during)
    assert condition(made, "PodFailed") == ("ImagePullBackOff", plain)
    assert not of_kind(decision, DeleteObject)


def test_n18_a_failed_resume_recovers_with_its_pod_and_a_retry_only_acknowledges() -> None:
    world = World(resuming(pods=pods(waiting_pod(0, "ErrImagePull", 1, template="t4"))))
    world.step()
    assert world.status.phase == "Failed"
    world.want(None)
    world.want(False)
    world.settle()
    assert (world.status.phase, world.status.pause_observed_generation) == ("Failed", 6)
    assert world.status.condition("ResumeFailed") is not None
    assert world.view.snapshot == snapshot()
    world.pod(0, phase="Running", ready=True, ip="10.0.0.1", reason="")
    world.step()
    assert (world.status.phase, endpoints(world.view)) == ("Succeed", '["10.0.0.1"]')
    assert kinds(world.step()) == ["DeleteObject"]


# -- afterwards


def test_sta_03_e2p_06_the_snapshot_goes_once_succeed_was_seen() -> None:
    stood = status(observed_generation=3, pause_observed_generation=3, conditions=(READY,))
    made = asked(status=stood, pods=pods(ready_pod(0)), annotations={ENDPOINTS: '["10.0.0.1"]'})
    assert kinds(decide(made)) == ["DeleteObject"]
    for left in (snapshot("Failed"), snapshot("Committing"), snapshot(deleting=True), snapshot(owner="old")):
        assert decide(replace(made, snapshot=left)).ops == ()


def test_sta_03_but_not_while_no_pod_can_be_used() -> None:
    stood = status(observed_generation=3, pause_observed_generation=3, conditions=(READY,))
    assert not of_kind(decide(asked(status=stood, pods=pods(pod(0)))), DeleteObject)


def test_n08_n09_an_edit_after_a_resume_does_not_bounce_it() -> None:
    """traces.md edit_after_resume, done right; with and without memory."""
    for remembered in (3, None):
        stood = status(observed_generation=4, pause_observed_generation=4, conditions=(READY,))
        made = asked(
            generation=5,
            pause_generation=remembered,
            status=stood,
            snapshot=None,
            pods=pods(ready_pod(0)),
            annotations={ENDPOINTS: '["10.0.0.1"]'},
        )
        decision = decide(made)
        assert kinds(decision) == ["PatchSandboxStatus"]
        assert (written(decision).phase, written(decision).pause_observed_generation) == ("Succeed", 5)


def test_n11_two_whole_cycles_in_the_least_writes() -> None:
    """traces.md pause_resume without its bounce: five writes a pause and six a resume on sandbox, pod and snapshot (the rest is the snapshot's)."""
    world = World(running(1))
    shown = []
    for _ in range(2):
        world.done.clear()
        world.want(True)
        world.step()
        world.commit()
        world.settle()
        assert world.writes == [
            "PatchSandboxStatus",
            "CreateSnapshot",
            "PatchMetadata",
            "DeletePod",
            "PatchSandboxStatus",
        ]
        world.done.clear()
        world.want(False)
        world.step()
        world.step()
        world.start(0)
        world.settle()
        assert world.writes == [
            "RewriteTemplate",
            "PatchSandboxStatus",
            "create a-0",
            "PatchMetadata",
            "PatchSandboxStatus",
            "DeleteObject",
        ]
        shown += [op.status.phase for op in world.done if isinstance(op, PatchSandboxStatus)]
    assert shown == ["Resuming", "Succeed"] * 2
    assert world.status.condition("Ready") is not None


def test_n11_a_pooled_sandbox_is_paused_twice() -> None:
    """B40: the second pause is of its own pod, whatever its annotations still name."""
    world = World(running(1, pool_ref="p", allocated=("a-0",)))
    world.want(True)
    world.step()
    world.commit()
    world.step()
    world.lose("a-0")
    assert (world.status.phase, world.status.pause_observed_generation) == ("Paused", 3)
    assert world.view.object is not None
    assert not world.view.object.pooled
    assert world.step().ops == ()
    world.want(False)
    world.settle()
    world.start(0)
    world.settle()
    assert world.status.phase == "Succeed"
    world.want(True)
    world.step()
    assert world.view.snapshot is not None
    assert world.view.snapshot.pod_uid == world.view.pods["a-0"].uid


def test_n12_a_restart_in_the_middle_of_resuming_goes_on() -> None:
    assert of_kind(decide(resuming(pause_generation=None)), CreatePods)
    made = written(decide(resuming(pause_generation=None, pods=pods(new_pod()))))
    assert (made.phase, made.pause_observed_generation) == ("Succeed", 4)


def test_n13_expiry_and_deletion_while_resuming() -> None:
    assert kinds(decide(resuming(expire_time=NOW))) == ["DeleteExpired"]
    assert decide(resuming(deleting=NOW)).ops == ()


def test_n15_containers_that_the_snapshot_does_not_name_are_not_rewritten() -> None:
    """The op names those it has; the executor leaves the others (test_bridge_*)."""
    (rewrite,) = of_kind(decide(asked()), RewriteTemplate)
    assert list(rewrite.images) == ["main"]


def test_n20_a_ready_pod_counts_by_owner_not_by_label_or_name() -> None:
    """DESIGN §8.9: the stock controller looks by label and name too."""
    stranger = {"a-0": replace(ready_pod(0), owner="")}
    assert written(decide(before_rewriting(snapshot=None, pods=stranger))).phase == "Paused"


def test_n23_an_edit_of_replicas_while_resuming_is_followed() -> None:
    (create,) = of_kind(decide(resuming(replicas=2, generation=5)), CreatePods)
    assert create.names == {"a-0": 0, "a-1": 1}


def test_n22_every_write_assumes_the_version_that_was_seen() -> None:
    """A conflict is an outcome, and the next view is decided afresh; nothing is retried blindly."""
    for made in (asked(), resuming(pods=pods(new_pod())), asked(snapshot=None)):
        assert {op.resource_version for op in decide(made).ops if hasattr(op, "resource_version")} == {100}
