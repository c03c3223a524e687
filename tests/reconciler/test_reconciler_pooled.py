"""A pooled sandbox whose pods go: given back, lost, or told of in words that cannot be read (B05, B07, B90, N-05; DESIGN §8.4, §8.7, §11)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from reconciler_model import (
    CREATING,
    NOW,
    READY,
    World,
    condition,
    kinds,
    of_kind,
    ready_pod,
    sandbox,
    status,
    view,
    written,
)

from bus.names import ENDPOINTS
from bus.ops import PatchMetadata, RecordEvent
from bus.resources import Condition
from bus.times import SECOND
from bus.views import Pod, SandboxView
from reconciler.decide import decide
from reconciler.settings import DEFAULT

SERVED = {ENDPOINTS: '["10.0.0.1"]'}
GONE = Pod((1, 60), gone=True)
LOST = Condition("PodFailed", "True", "PodLost", "m", "2025-12-31T23:50:00Z")


def pooled(*conditions: Condition, held: Any = None, phase: str = "Succeed", **fields: Any) -> SandboxView:
    made: dict[str, Any] = {
        "pool_ref": "p",
        "has_template": False,
        "allocated": ("pool-pod",),
        "annotations": SERVED,
        "status": status(phase, conditions=conditions or (READY,)),
    }
    of_view = {key: fields.pop(key) for key in ("pause_generation", "unshown_since") if key in fields}
    there = {} if held is None else {"pool-pod": held}
    return view(sandbox(**(made | fields)), there, **of_view)


def test_b90_pods_that_were_all_given_back_leave_no_address_and_a_sandbox_that_is_done() -> None:
    decision = decide(pooled(allocated=(), released=True))
    (patch,) = of_kind(decision, PatchMetadata)
    assert patch.annotations == {ENDPOINTS: "[]"}
    made = written(decision)
    assert (made.phase, made.replicas, made.allocated, made.ready, made.conditions) == ("Succeed", 0, 0, 0, ())


def test_b90_one_that_failed_and_was_given_back_says_still_why() -> None:
    held = pooled(LOST, phase="Failed", allocated=(), released=True, annotations={ENDPOINTS: "[]"})
    made = written(decide(held))
    assert (made.phase, made.condition("PodFailed")) == ("Failed", LOST)


@pytest.mark.parametrize("phase", ["Pending", "Succeed", "Failed"])
def test_n05_a_pause_of_what_was_given_back_is_refused_and_acknowledged(phase: str) -> None:
    asked = pooled(phase=phase, allocated=(), released=True, generation=2, pause=True, pause_generation=2)
    made = written(decide(asked))
    assert (made.phase, made.pause_observed_generation) == (phase, 2)
    assert (condition(made, "PauseFailed") or ("",))[0] == "PodNotFound"


def test_n24_before_the_first_allocation_nothing_is_said() -> None:
    assert decide(pooled(allocated=(), annotations={}, status=status("", (0, 0, 0)))).ops == ()


def test_an_allocation_that_was_taken_away_is_waited_for_without_an_address() -> None:
    """Its annotation is gone: the pool may give it another pod."""
    world = World(pooled(allocated=(), unshown_since=1))
    world.settle()
    assert (world.status.phase, world.status.ready) == ("Pending", 0)
    assert world.view.object is not None
    assert world.view.object.annotations[ENDPOINTS] == "[]"


@pytest.mark.parametrize("phase", ["Succeed", "Pending", "Failed"])
def test_b07_a_lost_pod_fails_its_sandbox_for_good(phase: str) -> None:
    world = World(pooled(held=GONE, phase=phase))
    world.settle()
    assert world.status.phase == "Failed"
    assert condition(world.status, "PodFailed") == (
        "PodLost",
        "1/1 observed pods failed; primary reason=PodLost; sample pod=pool-pod",
    )
    # Also when its tombstone is forgotten.
    world.view = replace(world.view, pods={}, now=NOW + 3600 * SECOND)
    assert decide(world.view).ops == ()
    world.view = replace(world.view, pods={"pool-pod": replace(ready_pod(0), owner="uid-pool")})
    assert written(decide(world.view)).phase == "Succeed"


def test_b07_before_it_was_delivered_its_pool_replaces_it() -> None:
    made = written(decide(pooled(CREATING, held=GONE, phase="Pending", annotations={}, unshown_since=1)))
    assert (made.phase, made.condition("PodFailed")) == ("Pending", None)


def test_a_pod_that_is_only_not_known_is_lost_when_nothing_came_for_the_grace() -> None:
    """Its observation may be on its way: what says Failed is deleted by the server (server-client.md §4)."""
    world = World(pooled(unshown_since=1))
    world.settle()
    assert world.status.phase == "Pending"
    decision = decide(world.view)
    assert decision.wake_at is not None
    assert NOW < decision.wake_at <= world.view.now + DEFAULT.pod_failure_grace
    world.view = replace(world.view, now=decision.wake_at)
    assert written(decide(world.view)).phase == "Failed"


def test_a_pause_whose_pod_was_lost_is_refused_once_failed() -> None:
    for phase in ("Succeed", "Pending"):
        world = World(pooled(held=GONE, phase=phase, generation=2, pause=True, pause_generation=2))
        world.settle()
        assert (world.status.phase, world.status.pause_observed_generation) == ("Failed", 2)
        assert (condition(world.status, "PauseFailed") or ("",))[0] == "PodNotFound"


def test_b05_an_allocation_that_cannot_be_read_is_told_and_what_was_known_of_it_holds() -> None:
    held = replace(ready_pod(0), owner="uid-pool")
    decision = decide(pooled(held=held, malformed=("sandbox.opensandbox.io/alloc-status",)))
    assert kinds(decision) == ["PatchSandboxStatus"]
    made = written(decision)
    assert (made.phase, made.ready) == ("Succeed", 1)
    said = ("MalformedAllocation", "cannot be read: annotation sandbox.opensandbox.io/alloc-status")
    assert condition(made, "PodFailed") == said
    assert [(each.reason, each.message) for each in of_kind(decision, RecordEvent)] == [said]


@pytest.mark.parametrize("phase", ["", "Succeed"])
def test_b05_where_nothing_is_known_of_it_nothing_is_concluded(phase: str) -> None:
    """After a fresh list: the pods may well be its own, and serve."""
    world = World(pooled(phase=phase, allocated=(), malformed=("sandbox.opensandbox.io/alloc-status",)))
    decision = world.step()
    assert kinds(decision) == ["PatchSandboxStatus"]
    assert written(decision).phase == (phase or "Pending")
    assert (condition(world.status, "PodFailed") or ("",))[0] == "MalformedAllocation"
    assert world.status.condition("Ready") == READY
    assert [each.reason for each in of_kind(decision, RecordEvent)] == ["MalformedAllocation"]
    assert world.step().ops == ()
