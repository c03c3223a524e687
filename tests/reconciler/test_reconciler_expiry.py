"""expireTime and deletion (scenarios EXP-*, E2C-18, E2C-19; DESIGN §8.6)."""

from __future__ import annotations

from typing import Any

import pytest
from reconciler_model import NOW, UID, World, of_kind, pods, ready_pod, running, sandbox, status, view

from bus.messages import DONE
from bus.names import POOL_ALLOCATION, TASK_CLEANUP
from bus.ops import CreatePods, DeleteExpired, PatchMetadata, PatchSandboxStatus, Target
from bus.times import SECOND
from bus.views import Failure, InFlight, Open, Reported
from reconciler.decide import decide

PAST = NOW - SECOND


def test_exp_01_wakes_at_the_expiry_and_then_deletes_once() -> None:
    world = World(running(3, expire_time=NOW + 60 * SECOND))
    waiting = decide(world.view)
    assert (waiting.ops, waiting.wake_at) == ((), NOW + 60 * SECOND)
    assert world.view.object is not None
    version = world.view.object.version[1]
    decision = world.step(now=NOW + 60 * SECOND)
    (delete,) = of_kind(decision, DeleteExpired)
    assert (delete.target, delete.expire_time) == (Target("batchsandbox", "a", UID), NOW + 60 * SECOND)
    assert delete.resource_version == version
    assert [reason for reason, _ in world.events][-1] == "Expired"
    assert decide(world.view).ops == ()


def test_exp_02_the_pods_are_left_to_the_garbage_collector() -> None:
    """Of a sandbox that goes nothing is created again, whatever order its pods leave in."""
    world = World(running(3, expire_time=PAST))
    world.done.clear()
    for name in ("a-1", "a-0", "a-2"):
        world.lose(name)
        world.step()
    assert not [op for op in world.done if isinstance(op, CreatePods)]
    assert not world.view.live_pods()


@pytest.mark.parametrize("phase", ["", "Pending", "Succeed", "Failed", "Pausing", "Paused", "Resuming"])
@pytest.mark.parametrize("mode", [{"has_template": True}, {"has_template": False, "pool_ref": "p"}])
def test_expiry_applies_in_every_phase_and_mode(phase: str, mode: dict[str, Any]) -> None:
    """Also while Paused: server-client.md §8.7."""
    decision = decide(view(sandbox(expire_time=NOW, status=status(phase), **mode), pods(ready_pod(0))))
    assert of_kind(decision, DeleteExpired)


def test_a_renewal_moves_the_wake_up() -> None:
    world = World(running(1, expire_time=NOW + 5 * SECOND))
    world.edit(expire_time=NOW + 3600 * SECOND)
    world.settle()
    decision = decide(world.view)
    assert (decision.ops, decision.wake_at) == ((), NOW + 3600 * SECOND)


def test_too_early_by_the_servers_clock_is_tried_again_after_the_back_off() -> None:
    early = view(sandbox(expire_time=PAST), tries=1, retry_at=NOW + SECOND)
    assert (decide(early).ops, decide(early).wake_at) == ((), NOW + SECOND)
    assert of_kind(decide(view(sandbox(expire_time=PAST), tries=1, retry_at=NOW)), DeleteExpired)


def test_a_refused_create_does_not_delay_the_expiry() -> None:
    """Quota that backs off by minutes is no reason to keep a sandbox that is over."""
    failure = Failure("create-pods", "pod/a-0", 403, "Forbidden", "exceeded quota", NOW - SECOND, generation=1)
    held = view(sandbox(expire_time=PAST), tries=9, retry_at=NOW - SECOND + 256 * SECOND, failure=failure)
    assert of_kind(decide(held), DeleteExpired)


def test_an_expiry_that_is_ordered_is_not_ordered_twice() -> None:
    op = DeleteExpired("old:1:0", Target("batchsandbox", "a", UID), 100, PAST)
    opened = (Open(op, 5, {"batchsandbox/a": Reported(DONE)}),)
    assert decide(view(sandbox(expire_time=PAST), open=opened)).ops == ()


def test_deletion_drops_our_finalizer_whatever_is_open() -> None:
    """DESIGN §8.6; others' finalizers stay."""
    status_op = PatchSandboxStatus("old:1:0", Target("batchsandbox", "a", UID), 99, status())
    opened = (Open(status_op, 5, {"batchsandbox/a": Reported()}),)
    leaving = sandbox(deleting=NOW, finalizers=(POOL_ALLOCATION, TASK_CLEANUP), expire_time=PAST)
    for settled in (True, False):
        decision = decide(view(leaving, open=opened, settled=settled))
        (patch,) = decision.ops
        assert isinstance(patch, PatchMetadata)
        assert patch.finalizers == (POOL_ALLOCATION,)


def test_a_finalizer_that_is_being_dropped_is_not_dropped_twice() -> None:
    op = PatchMetadata("old:1:0", Target("batchsandbox", "a", UID), 99, finalizers=())
    leaving = sandbox(deleting=NOW, finalizers=(TASK_CLEANUP,))
    answered = (Open(op, 5, {"batchsandbox/a": Reported(DONE, "", (1, 130))}),)
    assert decide(view(leaving, open=answered)).ops == ()
    lost = (Open(op, 5, {"batchsandbox/a": Reported()}),)
    assert decide(view(leaving, open=lost)).ops == (op,)


def test_a_command_in_flight_is_waited_for_until_it_expires() -> None:
    flying = view(sandbox(), in_flight=InFlight(3, NOW + 30 * SECOND))
    assert (decide(flying).ops, decide(flying).wake_at) == ((), NOW + 30 * SECOND)
    assert decide(view(sandbox(), in_flight=InFlight(3, NOW))).ops


def test_e2c_18_a_sandbox_with_an_expiry_runs_until_then() -> None:
    world = World(view(sandbox(expire_time=NOW + 45 * SECOND), unshown_since=NOW))
    world.step()
    world.start(0)
    world.settle()
    assert world.view.object is not None
    assert world.view.object.status.allocated == 1


def test_e2c_19_it_goes_when_its_time_is_over() -> None:
    world = World(running(1, expire_time=NOW + 45 * SECOND))
    world.step(now=NOW + 45 * SECOND)
    assert world.view.object is not None
    assert world.view.object.deleting
