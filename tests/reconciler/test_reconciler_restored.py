"""Whether a pod was really made of a pause's snapshot (DESIGN §8.2; N-15), and what follows from it. Images as the fold keeps them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from reconciler_model import READY, condition, kinds, of_kind, pods, ready_pod, sandbox, snapshot, status, view
from reconciler_model import pod as a_pod

from bus.names import ENDPOINTS
from bus.ops import CreatePods, DeleteObject, DeletePod, PatchSandboxStatus, RecordEvent, RewriteTemplate, Target
from bus.resources import Condition, SnapshotContainer, SnapshotStatus
from bus.views import Open, Pod, Reported, SandboxView
from reconciler.decide import decide
from reconciler.restored import Taken, pod_taken, taken

MAIN = SnapshotContainer("main", "registry.test/snap/a-main:snap-gen2", "sha256:aa")
SIDE = SnapshotContainer("side", "registry.test/snap/a-side:snap-gen2", "sha256:bb")
RAW, SNAP = {"main": "busybox:1"}, {"main": "a-main:snap-gen2"}
UNRESUMED = Condition("ResumeFailed", "True", "ImagePullBackOff", "m", "2025-12-31T23:50:00Z")


def made(*containers: SnapshotContainer) -> Any:
    return replace(snapshot(pod_uid="uid-source"), status=SnapshotStatus("Succeed", containers or (MAIN,)))


def of(images: dict[str, str], **fields: Any) -> Pod:
    return ready_pod(0, containers=tuple(images), images=tuple(images.values()), **fields)


@pytest.mark.parametrize(
    ("given", "containers", "expected"),
    [
        (SNAP, (MAIN,), Taken.ALL),
        (RAW, (MAIN,), Taken.OTHER),
        ({"other": "busybox:1"}, (MAIN,), Taken.NONE),
        ({**SNAP, "injected": "proxy:1"}, (MAIN,), Taken.ALL),
        (SNAP, (MAIN, SIDE), Taken.PART),
        ({**SNAP, "side": "busybox:1"}, (MAIN, SIDE), Taken.OTHER),
        ({"main": "a-main:snap-gen2@sha256:aa"}, (MAIN,), Taken.ALL),
        ({"main": "mirrored@sha256:aa"}, (MAIN,), Taken.ALL),
        ({"main": "mirrored@sha256:cc"}, (MAIN,), Taken.OTHER),
        ({"main": "a-main:snap-gen3"}, (MAIN,), Taken.OTHER),
    ],
)
def test_what_of_a_snapshot_is_taken(given: dict[str, str], containers: Any, expected: Taken) -> None:
    assert taken(given, made(*containers)) is expected


@pytest.mark.parametrize(
    ("pod", "object", "expected"),
    [
        pytest.param(of(SNAP, template="t9"), {"images": RAW}, Taken.ALL, id="the template was edited since"),
        pytest.param(of(RAW), {"images": RAW}, Taken.OTHER, id="of the edited template"),
        pytest.param(of(RAW), {"images": SNAP, "patched": True}, Taken.OTHER, id="a shard patch put another image in"),
        pytest.param(of({"main": "mirrored:9"}), {"images": SNAP}, Taken.ALL, id="a webhook renamed the image"),
        pytest.param(ready_pod(0, template="t1"), {}, Taken.ALL, id="images not known, the present template"),
        pytest.param(ready_pod(0, template="t0"), {}, Taken.OTHER, id="images not known, another template"),
    ],
)
def test_what_a_pod_has_taken(pod: Pod, object: dict[str, Any], expected: Taken) -> None:
    pod = pod if pod.template else replace(pod, template="t1")
    assert pod_taken(sandbox(**object), pod, made()) is expected


def resuming(*there: Pod, **fields: Any) -> SandboxView:
    """Rewritten at generation 4; at 5 its template was put back."""
    stood = status("Resuming", (0, 0, 0), observed_generation=3, pause_observed_generation=3)
    held: dict[str, Any] = {"generation": 5, "pause": False, "template": "t5", "images": RAW, "status": stood}
    held |= {"annotations": {ENDPOINTS: "[]"}}
    of_view = {key: fields.pop(key) for key in ("open", "snapshot") if key in fields}
    base = {"snapshot": made(), "pause_generation": 3}
    return view(sandbox(**(held | fields)), pods(*there), **(base | of_view))


def test_a_restored_pod_stays_and_ends_the_resume() -> None:
    starting = a_pod(0, template="t4", containers=("main",), images=("a-main:snap-gen2",))
    assert decide(resuming(starting)).ops == ()
    decision = decide(resuming(of(SNAP, template="t4")))
    (op,) = of_kind(decision, PatchSandboxStatus)
    assert (op.status.phase, op.status.pause_observed_generation) == ("Succeed", 5)
    assert not of_kind(decision, DeleteObject)


def test_where_no_pod_is_restored_the_template_is_rewritten_again() -> None:
    for there in ((), (of(RAW, template="t5"),), (of(SNAP, template="t4", deleting=True),)):
        assert kinds(decide(resuming(*there))) == ["RewriteTemplate", "PatchSandboxStatus"]
    (rewrite,) = of_kind(decide(resuming()), RewriteTemplate)
    assert rewrite.images == {"main": MAIN.image_uri}


def test_but_not_while_a_pod_of_the_rewritten_one_is_on_its_way() -> None:
    create = CreatePods("x", Target("batchsandbox", "a", "uid-a"), 4, "t4", {"a-0": 0})
    answered = Open(create, 6, {"pod/a-0": Reported("done", "uid-new", (1, 200))})
    decision = decide(resuming(open=(answered,)))
    assert decision.ops == ()
    assert decision.wake_at is not None


def test_a_pod_of_the_edited_template_goes_when_that_was_rewritten() -> None:
    decision = decide(resuming(of(RAW, template="t5"), template="t6", images=SNAP))
    assert kinds(decision) == ["DeletePod"]
    assert not of_kind(decide(resuming(of(SNAP, template="t4"), template="t6", images=SNAP)), DeletePod)


def test_a_snapshot_that_went_meanwhile_still_tells_its_pod() -> None:
    gone = replace(made(), gone=True)
    decision = decide(resuming(of(SNAP, template="t4"), snapshot=gone))
    assert not of_kind(decision, DeletePod)


def test_a_shard_patch_that_puts_another_image_in_keeps_the_snapshot() -> None:
    """The resume ends, for nothing else will ever come; the snapshot stays, and its sandbox says why."""
    decision = decide(resuming(of(RAW, template="t5"), images=SNAP, patched=True))
    (op,) = of_kind(decision, PatchSandboxStatus)
    assert op.status.phase == "Succeed"
    assert (condition(op.status, "ResumeFailed") or ("",))[0] == "SnapshotUnused"
    assert [each.reason for each in of_kind(decision, RecordEvent)] == ["ResumeFailed"]


def running(pod: Pod, *conditions: Condition, left: Any = None, **fields: Any) -> SandboxView:
    stood = status(observed_generation=5, pause_observed_generation=5, conditions=(READY, *conditions))
    held: dict[str, Any] = {"generation": 5, "images": RAW, "status": stood}
    held |= {"annotations": {ENDPOINTS: '["10.0.0.1"]'}}
    return view(sandbox(**(held | fields)), pods(pod), snapshot=left or made(), pause_generation=3)


def test_sta_03_the_snapshot_goes_beside_a_pod_made_of_all_of_it_or_its_source() -> None:
    assert kinds(decide(running(of(SNAP)))) == ["DeleteObject"]
    assert kinds(decide(running(of(RAW, uid="uid-source")))) == ["DeleteObject"]
    assert not of_kind(decide(running(of(RAW))), DeleteObject)
    assert not of_kind(decide(running(of(SNAP), left=made(MAIN, SIDE))), DeleteObject)


def test_a_resume_that_failed_is_over_when_its_pod_runs() -> None:
    (op,) = of_kind(decide(running(of(SNAP), UNRESUMED)), PatchSandboxStatus)
    assert op.status.condition("ResumeFailed") is None


def test_a_pause_is_refused_while_the_snapshot_is_unused_and_begins_when_it_was_given_up() -> None:
    unused = Condition("ResumeFailed", "True", "SnapshotUnused", "m", "2025-12-31T23:50:00Z")
    asked = running(of(RAW), unused, generation=6, pause=True)
    asked = replace(asked, pause_generation=6)
    decision = decide(asked)
    (op,) = of_kind(decision, PatchSandboxStatus)
    assert (condition(op.status, "PauseFailed") or ("",))[0] == "ResumeUnfinished"
    assert op.status.condition("ResumeFailed") == unused
    given_up = replace(asked, snapshot=None)
    assert kinds(decide(given_up)) == ["PatchSandboxStatus", "CreateSnapshot"]


def test_a_pause_replaces_a_snapshot_of_which_a_part_was_used() -> None:
    partly = Condition("ResumeFailed", "True", "SnapshotPartlyUsed", "m", "2025-12-31T23:50:00Z")
    asked = running(of(SNAP), partly, left=made(MAIN, SIDE), generation=6, pause=True)
    assert kinds(decide(replace(asked, pause_generation=6))) == ["DeleteObject"]


def test_failed_with_a_running_pod_is_paused_where_no_snapshot_is_left() -> None:
    """DESIGN §6, row Failed: what refuses is the snapshot, not a condition that outlived it."""
    crashing = a_pod(0, phase="Running", reason="CrashLoopBackOff", since=1, node="n")
    stood = status("Failed", pause_observed_generation=5, conditions=(UNRESUMED,))
    asked = view(sandbox(generation=6, pause=True, status=stood), pods(crashing), pause_generation=6)
    assert kinds(decide(asked)) == ["PatchSandboxStatus", "CreateSnapshot"]


@pytest.mark.parametrize("phase", ["Paused", "Resuming"])
def test_a_template_that_can_take_nothing_is_no_resume(phase: str) -> None:
    stood = status(phase, (0, 0, 0), observed_generation=3, pause_observed_generation=2 if phase == "Paused" else 3)
    held = resuming(status=stood, generation=3, images={"renamed": "busybox:1"})
    (op,) = of_kind(decide(held), PatchSandboxStatus)
    assert op.status.phase == "Paused"
    assert condition(op.status, "ResumeFailed") == (
        "SnapshotUnused",
        "the template has no container of the snapshot's: main",
    )
