"""Pods of template-mode sandboxes (scenarios SCL-*, E2C-12 to E2C-14; B105, §8.9)."""

from __future__ import annotations

import pytest
from reconciler_model import (
    NOW,
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
    view,
    written,
)

from bus.messages import CONFLICT, DONE
from bus.names import parse_pod_index
from bus.ops import CreatePods, DeletePod, PatchSandboxStatus, Target
from bus.times import SECOND
from bus.views import Failure, Open, Pod, Reported
from reconciler.decide import decide
from reconciler.settings import DEFAULT


def new(replicas: int = 1) -> World:
    return World(view(sandbox(replicas=replicas), unshown_since=NOW))


def test_scl_01_creates_the_missing_pods_and_counts_them() -> None:
    world = new(3)
    decision = world.step()
    (create,) = of_kind(decision, CreatePods)
    assert create.names == {"a-0": 0, "a-1": 1, "a-2": 2}
    assert (create.sandbox, create.generation, create.template) == (Target("batchsandbox", "a", UID), 1, "t1")
    world.settle()
    assert world.view.object is not None
    status = world.view.object.status
    assert (status.observed_generation, status.replicas) == (1, 3)


def test_scl_02_endpoints_are_by_index_and_blank_where_not_ready() -> None:
    world = new(3)
    world.step()
    world.start(2, 0)
    world.settle()
    assert endpoints(world.view) == '["10.0.0.1","","10.0.0.3"]'


def test_scl_03_scale_out_adds_only_the_new_indices() -> None:
    world = World(running(3))
    world.edit(replicas=4)
    decision = world.step()
    assert [op.names for op in of_kind(decision, CreatePods)] == [{"a-3": 3}]
    world.settle()
    assert world.view.object is not None
    assert (world.view.object.status.observed_generation, world.view.object.status.replicas) == (2, 4)
    assert endpoints(world.view) == '["10.0.0.1","10.0.0.2","10.0.0.3",""]'


def test_scl_04_a_lost_pod_comes_back_under_its_name() -> None:
    world = World(running(3))
    world.lose("a-1")
    decision = world.step()
    assert [op.names for op in of_kind(decision, CreatePods)] == [{"a-1": 1}]
    assert endpoints(world.view) == '["10.0.0.1","","10.0.0.3"]'
    world.start(1)
    world.settle()
    assert endpoints(world.view) == '["10.0.0.1","10.0.0.2","10.0.0.3"]'


@pytest.mark.parametrize(
    ("name", "label", "index"),
    [
        pytest.param("sbx-0", "1", 1, id="scl_06_the_label_wins"),
        pytest.param("sbx-0", None, 0, id="scl_07_from_the_name"),
        pytest.param("sbx", None, None, id="scl_08_no_number"),
        pytest.param("invalid-name-no-index", None, None, id="scl_15_suffix_is_no_number"),
    ],
)
def test_scl_06_07_08_15_index_of_a_pod(name: str, label: str | None, index: int | None) -> None:
    assert parse_pod_index(name, label) == index


def test_scl_13_14_each_pod_stands_at_its_index() -> None:
    held = {f"a-{i}": ready_pod(i) for i in (2, 0, 1)}
    world = World(view(sandbox(replicas=3), held))
    world.settle()
    assert endpoints(world.view) == '["10.0.0.1","10.0.0.2","10.0.0.3"]'


def test_scl_15_a_pod_without_an_index_is_counted_and_harms_nothing() -> None:
    """The original fails the whole pass; here only that pod has no address (§8.7)."""
    held = {"odd-name": ready_pod(0, index=None), "a-0": ready_pod(0)}
    decision = decide(view(sandbox(), held))
    assert written(decision).replicas == 2
    assert not of_kind(decision, DeletePod)
    assert not of_kind(decision, CreatePods)


def test_scl_16_no_pods_wanted_and_none_there() -> None:
    """Replicas 0 is `Succeed` with nothing to wait for (DESIGN §11)."""
    decision = decide(view(sandbox(replicas=0), unshown_since=NOW))
    status = written(decision)
    assert (status.phase, status.replicas) == ("Succeed", 0)
    assert condition(status, "Ready") == ("PodsReady", "Sandbox is running")
    assert len(decision.ops) == 1


def test_scl_17_labels_and_names_mixed() -> None:
    """a-0 is labelled 5, a-1 has its index by name. Of two wanted, index 5 is none: it has no address, but it is a wanted pod by its
    name, and a label is no reason to delete it."""
    held = {"a-0": ready_pod(0, index=5), "a-1": ready_pod(1)}
    world = World(view(sandbox(replicas=2), held)).settle()
    assert endpoints(world.view) == '["","10.0.0.2"]'
    assert sorted(world.view.live_pods()) == ["a-0", "a-1"]
    world.edit(replicas=6)
    world.settle()
    assert endpoints(world.view) == '["","10.0.0.2","","","","10.0.0.1"]'


def test_b105_scale_in_deletes_the_highest_indices_first() -> None:
    world = World(running(4))
    world.edit(replicas=1)
    decision = world.step()
    assert [op.target.name for op in of_kind(decision, DeletePod)] == ["a-3", "a-2", "a-1"]
    assert [reason for reason, _ in world.events] == ["SuccessfulDelete"] * 3
    world.settle()
    assert endpoints(world.view) == '["10.0.0.1"]'
    assert sorted(world.view.live_pods()) == ["a-0"]


def test_b105_a_terminating_pod_holds_its_name_until_it_is_gone() -> None:
    world = World(view(sandbox(), pods(ready_pod(0, deleting=True))))
    assert not of_kind(world.step(), CreatePods)
    world.lose("a-0")
    assert [op.names for op in of_kind(world.step(), CreatePods)] == [{"a-0": 0}]


def test_a_pod_of_an_old_incarnation_is_waited_for() -> None:
    """Identity is uid (DESIGN §8.9): the garbage collector is about to take it."""
    decision = decide(view(sandbox(), {"a-0": ready_pod(0, owner="uid-of-before")}, unshown_since=NOW))
    assert not decision.ops
    assert decision.wake_at == NOW + DEFAULT.in_between_delay


def test_a_pod_of_another_owner_that_stays_is_said() -> None:
    grace = DEFAULT.pod_failure_grace
    held = {"a-0": ready_pod(0, owner="uid-of-another")}
    status = written(decide(view(sandbox(created=NOW - grace), held)))
    assert status.phase == "Failed"
    reason, message = condition(status, "PodFailed") or ("", "")
    assert reason == "NameTaken"
    assert "a-0" in message


def test_ended_pods_are_not_replaced() -> None:
    for phase in ("Failed", "Succeeded"):
        ended = pod(0, phase=phase, terminal=True, reason="Evicted")
        assert not of_kind(decide(view(sandbox(), pods(ended))), CreatePods)


def test_at_most_64_creates_in_a_command() -> None:
    (create,) = of_kind(decide(view(sandbox(replicas=2**31 - 1))), CreatePods)
    assert list(create.names.values()) == list(range(64))


def test_creates_that_are_open_are_not_ordered_again_and_others_are() -> None:
    op = CreatePods("old:1:0", Target("batchsandbox", "a", UID), 1, "t1", {"a-0": 0, "a-1": 1})
    waits = {"pod/a-0": Reported(DONE, "u0", (1, 120)), "pod/a-1": Reported(DONE, "u1", (1, 121))}
    decision = decide(view(sandbox(replicas=3), open=(Open(op, 5, waits),), unshown_since=NOW))
    assert [create.names for create in of_kind(decision, CreatePods)] == [{"a-2": 2}]


def test_lost_creates_are_issued_again_under_their_id_for_the_names_not_reported() -> None:
    op = CreatePods("old:1:0", Target("batchsandbox", "a", UID), 1, "t1", {"a-0": 0, "a-1": 1})
    opened = Open(op, 5, {"pod/a-0": Reported(DONE, "u0", (1, 120)), "pod/a-1": Reported()})
    before = view(sandbox(replicas=2), open=(opened,), unshown_since=NOW, retry_at=NOW + SECOND, tries=1)
    waiting = decide(before)
    assert not of_kind(waiting, CreatePods)
    assert waiting.wake_at is not None
    assert waiting.wake_at <= NOW + SECOND
    due = decide(view(sandbox(replicas=2), open=(opened,), unshown_since=NOW, retry_at=NOW, tries=1))
    (again,) = of_kind(due, CreatePods)
    assert (again.id, again.names) == ("old:1:0", {"a-1": 1})


@pytest.mark.parametrize(("uid", "version", "again"), [("u-old", 130, True), ("u-old", 120, False), (UID, 130, False)])
def test_a_create_that_met_a_leaving_pod_is_issued_again_when_that_is_gone(uid: str, version: int, again: bool) -> None:
    """The conflict names the pod's uid and version (120 is an older tombstone); a conflict about the sandbox waits for the sandbox."""
    op = CreatePods("old:1:0", Target("batchsandbox", "a", UID), 1, "t1", {"a-0": 0})
    opened = Open(op, 5, {"pod/a-0": Reported(CONFLICT, uid, (1, 125))})
    held = {"a-0": Pod((1, version), gone=True)}
    creates = of_kind(decide(view(sandbox(), held, open=(opened,), unshown_since=NOW)), CreatePods)
    assert [create.id for create in creates] == (["old:1:0"] if again else [])


def test_a_refused_create_backs_off_but_an_edit_is_tried_at_once() -> None:
    failure = Failure("create-pods", "pod/a-0", 403, "Forbidden", "exceeded quota", NOW - SECOND, generation=1)
    held = {"tries": 2, "retry_at": NOW + SECOND, "failure": failure}
    refused = decide(view(sandbox(), **held))
    assert not of_kind(refused, CreatePods)
    assert refused.wake_at == NOW + SECOND
    assert of_kind(decide(view(sandbox(generation=2), **held)), CreatePods)


def test_kinds_refused_in_turn_back_off_together() -> None:
    failure = Failure(
        "patch-sandbox-status", "batchsandbox/a", 403, "Forbidden", "no rights", NOW - SECOND, also=("pod",)
    )
    decision = decide(view(sandbox(), tries=2, retry_at=NOW + SECOND, failure=failure))
    assert (decision.ops, decision.wake_at) == ((), NOW + SECOND)


def test_e2c_12_two_pods_owned_by_the_sandbox() -> None:
    world = new(2)
    world.settle()
    assert {name: each.owner for name, each in world.view.live_pods().items()} == {"a-0": UID, "a-1": UID}


def test_e2c_13_all_ready_shows_in_counts_and_two_endpoints() -> None:
    world = new(2)
    world.step()
    world.start(0, 1)
    world.settle()
    assert world.view.object is not None
    status = world.view.object.status
    assert (status.replicas, status.allocated, status.ready) == (2, 2, 2)
    assert len((endpoints(world.view) or "").split(",")) == 2


def test_e2c_14_a_sandbox_that_is_deleted_gets_no_pods_back() -> None:
    """The garbage collector takes its pods, and nothing here hinders it."""
    gone = Pod((1, 200), gone=True)
    assert decide(view(sandbox(deleting=NOW), {"a-0": gone})).ops == ()
    assert decide(view(None, {"a-0": gone})).ops == ()


def test_nothing_is_decided_from_absence_before_everything_is_known() -> None:
    decision = decide(view(sandbox(replicas=3), settled=False))
    assert (decision.ops, decision.wake_at) == ((), None)


def test_the_status_does_not_wait_for_an_open_create() -> None:
    op = CreatePods("old:1:0", Target("batchsandbox", "a", UID), 1, "t1", {"a-1": 1})
    opened = Open(op, 5, {"pod/a-1": Reported(DONE, "u1", (1, 120))})
    decision = decide(view(sandbox(replicas=2), pods(ready_pod(0)), open=(opened,)))
    assert of_kind(decision, PatchSandboxStatus)
    assert not of_kind(decision, CreatePods)
