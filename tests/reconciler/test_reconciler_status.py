"""Phases, conditions, counts and endpoints (scenarios STA-*; controller-behaviour.md §6, §9.1; DESIGN §6, §11)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from reconciler_model import (
    CREATING,
    NOW,
    READY,
    UID,
    World,
    condition,
    endpoints,
    of_kind,
    pod,
    pods,
    ready_pod,
    running,
    sandbox,
    status,
    view,
    waiting_pod,
    written,
)

from bus.messages import DONE
from bus.names import ENDPOINTS
from bus.ops import CreatePods, PatchMetadata, PatchSandboxStatus, RecordEvent, Target
from bus.resources import Condition
from bus.times import SECOND, format_time
from bus.views import Failure, Open, Reported, backoff
from reconciler.decide import decide
from reconciler.settings import DEFAULT

GRACE = DEFAULT.pod_failure_grace
DELAY = DEFAULT.in_between_delay


def shown(world: World) -> tuple[str, list[str]]:
    assert world.view.object is not None
    made = world.view.object.status
    return made.phase, [each.type for each in made.conditions]


def test_sta_01_lifecycle_conditions_survive_status_writes() -> None:
    """Generation moved with an edit, beside the `true` of a pause that failed."""
    failed = Condition("PauseFailed", "True", "SnapshotFailed", "Commit job failed", "2025-12-31T23:50:00Z")
    stored = status(conditions=(READY, failed))
    stood = sandbox(generation=2, pause=True, status=stored, annotations={ENDPOINTS: '["10.0.0.1"]'})
    made = written(decide(view(stood, pods(ready_pod(0)), pause_generation=1)))
    assert made.condition("PauseFailed") == failed
    assert (made.observed_generation, made.pause_observed_generation) == (2, 2)


def test_sta_02_nothing_is_written_when_nothing_changed() -> None:
    stored = status(observed_generation=3, pause_observed_generation=3, conditions=(READY,))
    stood = sandbox(generation=3, status=stored, annotations={ENDPOINTS: '["10.0.0.1"]'})
    decision = decide(view(stood, pods(ready_pod(0))))
    assert (decision.ops, decision.wake_at) == ((), None)


def test_sta_04_the_failure_of_most_pods_is_shown() -> None:
    held = {
        "err-image-0": waiting_pod(0, "ErrImagePull"),
        "crash-1": waiting_pod(1, "CrashLoopBackOff"),
        "err-image-2": waiting_pod(2, "ErrImagePull"),
        "healthy-3": ready_pod(3),
    }
    made = written(decide(view(sandbox(replicas=4, status=status()), held)))
    message = "3/4 observed pods failed; primary reason=ErrImagePull; sample pod=err-image-0"
    assert made.phase == "Failed"
    assert condition(made, "PodFailed") == ("ErrImagePull", message)


def test_sta_07_an_unchanged_condition_keeps_its_transition_time() -> None:
    stood = sandbox(generation=3, status=status(conditions=(READY,)), annotations={ENDPOINTS: '["10.0.0.1"]'})
    made = written(decide(view(stood, pods(ready_pod(0)))))
    assert made.observed_generation == 3
    assert made.conditions == (READY,)


def test_sta_09_a_ready_pod_is_counted_before_the_phase_is_made() -> None:
    made = written(decide(view(sandbox(), pods(ready_pod(0)), unshown_since=NOW)))
    assert (made.phase, made.replicas, made.allocated, made.ready) == ("Succeed", 1, 1, 1)
    assert made.conditions == (replace(READY, last_transition_time="2026-01-01T00:00:00Z"),)


def test_an_edit_that_needs_nothing_is_acknowledged_at_once() -> None:
    """N-29: a renewal of a running sandbox; nothing is on its way, so there is nothing to wait for."""
    world = World(running(1))
    world.edit(expire_time=NOW + 3600 * SECOND)
    made = written(decide(world.view))
    assert (made.observed_generation, made.ready) == (2, 1)


def test_b105_the_end_of_a_scale_in_is_shown_at_once() -> None:
    """Right counts with the generation that they belong to: no client sees the new generation beside the old counts for long."""
    before = running(2)
    assert before.object is not None
    fewer = replace(before.object, replicas=1, generation=2, version=(1, 200))
    made = written(decide(replace(before, object=fewer, pods=pods(ready_pod(0)), unshown_since=NOW, unshown_last=NOW)))
    assert (made.observed_generation, made.replicas, made.ready) == (2, 1, 1)


def test_create_to_ready_is_three_writes_endpoints_before_succeed() -> None:
    """DESIGN §6: the least; and §8.4. A pod that starts within the delay shows no in-between state."""
    world = World(view(sandbox(), unshown_since=NOW))
    world.step()
    world.pod(0, node="node-1")
    assert not world.step(now=NOW + DELAY // 2).ops
    world.start(0)
    world.settle()
    assert world.writes == ["create a-0", "PatchMetadata", "PatchSandboxStatus"]
    assert shown(world) == ("Succeed", ["Ready"])
    assert world.events == [("SuccessfulCreate", "succeed to create pod a-0")]


def test_both_patches_assume_the_version_that_was_seen() -> None:
    decision = decide(view(sandbox(), pods(ready_pod(0)), unshown_since=NOW))
    patch, write = decision.ops
    assert isinstance(patch, PatchMetadata)
    assert isinstance(write, PatchSandboxStatus)
    assert patch.resource_version == write.resource_version == 100
    assert patch.annotations == {ENDPOINTS: '["10.0.0.1"]'}


def test_pending_is_written_when_it_still_holds_after_the_delay() -> None:
    held = view(sandbox(), pods(pod(0, node="node-1")), unshown_since=NOW)
    early = decide(held)
    assert (early.ops, early.wake_at) == ((), NOW + DELAY)
    made = written(decide(replace(held, now=NOW + DELAY)))
    assert (made.phase, made.replicas, made.allocated, made.ready) == ("Pending", 1, 1, 0)
    assert made.conditions == (replace(CREATING, last_transition_time=format_time(NOW + DELAY)),)


def test_pending_waits_for_pods_that_are_ordered_and_not_seen_yet() -> None:
    """In a burst a pod is created seconds after it was asked for; the status it gets then would tell of none. Bounded all the same."""
    op = CreatePods("x", Target("batchsandbox", "a", UID), 1, "d1", {"a-0": 0})
    opened = (Open(op, 5, {"pod/a-0": Reported(DONE, "p", (1, 150))}),)
    held = view(sandbox(), open=opened, unshown_since=NOW - 3 * DELAY, unshown_last=NOW - 3 * DELAY)
    limit = NOW - 3 * DELAY + DEFAULT.in_between_limit
    early = decide(held)
    assert (early.ops, early.wake_at) == ((), limit)
    made = written(decide(replace(held, now=limit)))
    assert (made.phase, made.replicas) == ("Pending", 0)


def test_no_endpoints_before_the_first_ready_pod() -> None:
    """With no phase yet the server takes an address for readiness (server-client.md §4)."""
    held = pods(pod(0, ip="10.0.0.1", node="node-1", phase="Running"))
    decision = decide(view(sandbox(), held, unshown_since=NOW - SECOND))
    assert not of_kind(decision, PatchMetadata)


def test_n26_endpoints_are_emptied_only_where_there_are_some() -> None:
    world = World(running(1))
    world.lose("a-0")
    world.step()
    assert endpoints(world.view) == "[]"
    assert shown(world)[0] == "Pending"
    world.done.clear()
    world.settle()
    assert "PatchMetadata" not in world.writes


@pytest.mark.parametrize("text", ["garbage", "{}", "[1]", '["10.0.0.1"', "null"])
def test_a_malformed_endpoints_annotation_is_replaced(text: str) -> None:
    stood = sandbox(annotations={ENDPOINTS: text}, status=status(conditions=(READY,)))
    (patch,) = decide(view(stood, pods(ready_pod(0)))).ops
    assert isinstance(patch, PatchMetadata)
    assert patch.annotations == {ENDPOINTS: '["10.0.0.1"]'}


def test_b101_succeed_at_the_first_ready_pod_and_ready_at_the_last() -> None:
    world = World(view(sandbox(replicas=2), unshown_since=NOW))
    world.step()
    world.start(1)
    world.step()
    assert shown(world) == ("Succeed", ["Progressing"])
    assert endpoints(world.view) == '["","10.0.0.2"]'
    world.start(0)
    world.step()
    assert shown(world) == ("Succeed", ["Ready"])


def test_b87_a_pod_without_an_address_is_not_handed_out() -> None:
    decision = decide(view(sandbox(), pods(ready_pod(0, ip="")), unshown_since=NOW - DELAY))
    assert written(decision).phase == "Pending"
    assert not of_kind(decision, PatchMetadata)


@pytest.mark.parametrize(
    "reason",
    [
        "ErrImagePull",
        "ImagePullBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    ],
)
def test_what_may_heal_fails_after_the_grace(reason: str) -> None:
    """DESIGN §11: the server deletes a sandbox that says Failed."""
    stood = sandbox(status=status("Pending", (1, 1, 0), conditions=(CREATING,)))
    within = view(stood, pods(waiting_pod(0, reason, since=NOW - GRACE + 1)))
    assert (decide(within).ops, decide(within).wake_at) == ((), NOW + 1)
    made = written(decide(view(stood, pods(waiting_pod(0, reason, since=NOW - GRACE)))))
    message = f"1/1 observed pods failed; primary reason={reason}; sample pod=a-0"
    assert (made.phase, condition(made, "PodFailed")) == ("Failed", (reason, message))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"reason": "InvalidImageName", "terminal": True}, "InvalidImageName"),
        ({"phase": "Failed", "reason": "Evicted", "terminal": True}, "Evicted"),
        ({"phase": "Failed", "reason": "", "terminal": True}, "Error"),
        ({"phase": "Succeeded", "terminal": True}, "Completed"),
    ],
)
def test_what_cannot_heal_fails_at_once(fields: dict[str, Any], reason: str) -> None:
    made = written(decide(view(sandbox(), pods(pod(0, since=NOW, **fields)), unshown_since=NOW)))
    assert (made.phase, (condition(made, "PodFailed") or ("",))[0]) == ("Failed", reason)


def test_a_completed_pod_does_not_fail_a_sandbox_that_still_serves() -> None:
    held = pods(ready_pod(0), pod(1, phase="Succeeded", terminal=True, reason="Completed"))
    made = written(decide(view(sandbox(replicas=2), held)))
    message = "1/2 observed pods failed; primary reason=Completed; sample pod=a-1"
    assert (made.phase, condition(made, "PodFailed")) == ("Succeed", ("Completed", message))


def test_b84_terminating_and_surplus_pods_fail_no_sandbox() -> None:
    sick = {"phase": "Failed", "reason": "Error", "terminal": True}
    held = pods(ready_pod(0), pod(1, deleting=True, **sick), pod(2, **sick))
    made = written(decide(view(sandbox(replicas=2), held)))
    assert made.phase == "Succeed"
    assert made.condition("PodFailed") is None


def test_b85_failed_is_left_when_the_pods_recover() -> None:
    world = World(view(sandbox(), pods(waiting_pod(0, "ErrImagePull"))))
    world.settle()
    assert shown(world) == ("Failed", ["PodFailed"])
    world.pod(0, reason="")
    world.start(0)
    world.settle()
    assert shown(world) == ("Succeed", ["Ready"])


def test_b86_conditions_that_no_longer_hold_are_not_in_the_write() -> None:
    old = Condition("PodFailed", "True", "ErrImagePull", "1/1", "2025-12-31T23:59:59Z")
    made = written(decide(view(sandbox(status=status(conditions=(old, CREATING))), pods(ready_pod(0)))))
    assert [each.type for each in made.conditions] == ["Ready"]


def test_n30_of_equal_reasons_the_one_that_first_reached_the_count_is_shown() -> None:
    reasons = ["ErrImagePull", "CrashLoopBackOff", "CrashLoopBackOff", "ErrImagePull"]
    held = pods(*(waiting_pod(i, reason) for i, reason in enumerate(reasons)))
    made = written(decide(view(sandbox(replicas=4), held)))
    message = "4/4 observed pods failed; primary reason=CrashLoopBackOff; sample pod=a-1"
    assert condition(made, "PodFailed") == ("CrashLoopBackOff", message)


def test_one_failure_counts_those_within_their_grace_too() -> None:
    held = pods(waiting_pod(0, "ErrImagePull"), waiting_pod(1, "ErrImagePull", since=NOW))
    made = written(decide(view(sandbox(replicas=2), held)))
    assert (condition(made, "PodFailed") or ("", ""))[1].startswith("2/2 observed pods failed")


def refused(code: int, reason: str, at: int = NOW, tries: int = 1, **fields: Any) -> dict[str, Any]:
    failure = Failure("create-pods", "pod/a-0", code, reason, "because", at, generation=1)
    return {"failure": failure, "tries": tries, "retry_at": at + backoff(tries), **fields}


@pytest.mark.parametrize(
    ("code", "reason"),
    [(422, "Invalid"), (400, "BadRequest"), (0, "InvalidTemplate"), (0, "InvalidShardPatch"), (0, "InvalidImageName")],
)
def test_a_pod_that_cannot_be_built_fails_the_sandbox_at_once(code: int, reason: str) -> None:
    decision = decide(view(sandbox(), unshown_since=NOW, **refused(code, reason)))
    made = written(decision)
    assert made.phase == "Failed"
    assert condition(made, "PodFailed") == (reason, "failed to create pod a-0: because")
    (event,) = of_kind(decision, RecordEvent)
    assert (event.type, event.reason, event.message) == ("Warning", "FailedCreate", "failed to create pod a-0: because")


def test_a_refusal_that_may_heal_is_said_at_once_and_fails_after_the_grace() -> None:
    world = World(view(sandbox(), unshown_since=NOW, **refused(403, "Forbidden")))
    world.step()
    assert shown(world) == ("Pending", ["Progressing", "PodFailed"])
    assert [reason for reason, _ in world.events] == ["FailedCreate"]
    later = NOW + GRACE
    decision = world.step(now=later, **refused(403, "Forbidden", at=later - SECOND, tries=5))
    assert decision.ops == ()
    assert decision.wake_at == NOW + GRACE + SECOND  # the condition's time is whole seconds, so at most one later
    world.step(now=NOW + GRACE + SECOND)
    assert shown(world) == ("Failed", ["PodFailed"])
    assert [reason for reason, _ in world.events] == ["FailedCreate"]


def test_a_refused_create_does_not_fail_a_sandbox_that_serves() -> None:
    long_ago = refused(403, "Forbidden", at=NOW - 10 * GRACE, tries=9)
    failure = replace(long_ago["failure"], object="pod/a-1")
    made = written(decide(view(sandbox(replicas=2), pods(ready_pod(0)), **(long_ago | {"failure": failure}))))
    assert (made.phase, (condition(made, "PodFailed") or ("",))[0]) == ("Succeed", "Forbidden")


def test_a_refused_create_is_forgotten_when_its_pod_exists() -> None:
    made = written(decide(view(sandbox(), pods(ready_pod(0)), **refused(422, "Invalid"))))
    assert (made.phase, made.condition("PodFailed")) == ("Succeed", None)


def test_a_refused_status_is_not_written_again_before_the_back_off() -> None:
    failure = Failure("patch-sandbox-status", "batchsandbox/a", 422, "Invalid", "no", NOW)
    held = view(sandbox(), pods(ready_pod(0)), failure=failure, tries=1, retry_at=NOW + SECOND)
    assert (decide(held).ops, decide(held).wake_at) == ((), NOW + SECOND)


def test_nothing_is_decided_about_a_sandbox_whose_patch_is_open() -> None:
    op = PatchMetadata("old:1:0", Target("batchsandbox", "a", UID), 99, {ENDPOINTS: "[]"})
    opened = (Open(op, 5, {"batchsandbox/a": Reported("done", UID, (1, 101))}),)
    assert decide(view(sandbox(), pods(ready_pod(0)), open=opened)).ops == ()


def test_in_between_counts_wait_and_come_with_what_is_awaited() -> None:
    world = World(running(1))
    world.edit(replicas=3)
    world.step()
    world.done.clear()
    world.pod(1, node="node-1")
    assert world.step(now=NOW + SECOND + 1, unshown_since=NOW + SECOND).ops == ()
    world.start(1, 2)
    world.step()
    assert world.writes == ["PatchMetadata", "PatchSandboxStatus"]
    assert shown(world) == ("Succeed", ["Ready"])


@pytest.mark.parametrize(
    ("pause", "changed_at", "conditions", "expected"),
    [
        pytest.param(None, 0, (), 2, id="an edit"),
        pytest.param(False, 2, (), 2, id="a new false: acknowledged while running"),
        pytest.param(True, 2, (), 1, id="a new true: the pause acknowledges it, once a pod runs"),
        pytest.param(True, 1, (), 2, id="an edit beside an old true"),
        pytest.param(None, 2, ("PauseFailed",), 1, id="the first half of a retry"),
        pytest.param(None, 2, (), 2, id="a new none"),
        pytest.param(True, None, (), 1, id="no memory: true disagrees with running"),
    ],
)
def test_n29_pause_observed_generation_follows_unless_a_pause_is_wanted(
    pause: bool | None, changed_at: int | None, conditions: tuple[str, ...], expected: int
) -> None:
    kept = tuple(Condition(each, "True", "R", "m", "2025-12-31T23:59:59Z") for each in conditions)
    stood = sandbox(generation=2, pause=pause, status=status(conditions=(READY, *kept)))
    made = written(decide(view(stood, pods(pod(0)), pause_generation=changed_at)))
    assert (made.observed_generation, made.pause_observed_generation) == (2, expected)


@pytest.mark.parametrize("mode", [{"pool_ref": "p"}, {"has_template": False}])
def test_pooled_and_template_less_sandboxes_make_no_pods_and_show_nothing_from_absence(mode: dict[str, Any]) -> None:
    assert decide(view(sandbox(**mode))).ops == ()


def test_an_object_too_large_to_be_observed_says_so_once() -> None:
    """DESIGN §8.7: its spec is not known, so nothing is made or removed for it."""
    stood = sandbox(reduced=True, has_template=False, status=status(conditions=(READY,)))
    world = World(view(stood, pods(ready_pod(0), ready_pod(1))))
    decision = world.step()
    assert written(decision).phase == "Succeed"
    assert (condition(written(decision), "PodFailed") or ("",))[0] == "ObjectTooLarge"
    assert not of_kind(decision, CreatePods)
    assert world.step().ops == ()


def test_an_object_of_which_not_even_the_status_is_known_is_left_alone() -> None:
    """A status written for it would replace the one that nobody sees."""
    for stood in (status("Paused"), status("")):
        assert decide(view(sandbox(reduced=True, bare=True, has_template=False, status=stood))).ops == ()
