"""Courses that went wrong once, with every role for real on a simulated cluster: what a user then saw, and what is right (DESIGN §8)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from reconciler_whole import PODS, SANDBOXES, Whole, now, whole
from support.virtual_time import until

from bus.names import ALLOC_RELEASE, ALLOC_STATUS, ENDPOINTS
from simcluster.node import Behaviour

RAW = "busybox:1"
SNAP = "registry.test/snap/a-main:snap-gen2"
SLOW = Behaviour(start_delay=5.0, stop_delay=0.02)


def template(*images: tuple[str, str]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, "image": image} for name, image in images]}}


async def started(made: Whole, **spec: object) -> None:
    made.create(**spec)
    await made.phase("Succeed")
    await made.quiet(2.0)


async def paused(made: Whole) -> None:
    made.edit(pause=True)
    await made.phase("Paused")
    await made.quiet()


async def until_pod(made: Whole, image: str) -> None:
    def there() -> bool:
        return any(
            pod["spec"]["containers"][0]["image"] == image and "deletionTimestamp" not in pod["metadata"]
            for pod in made.items(PODS)
        )

    await until(there, 60.0)


def annotate(made: Whole, **annotations: Any) -> None:
    made._ask("PATCH", f"{SANDBOXES}/a", {"metadata": {"annotations": annotations}})


def unready(made: Whole, name: str) -> None:
    status = {"conditions": [{"type": "Ready", "status": "False"}]}
    made._ask("PATCH", f"{PODS}/{name}/status", {"status": status})


def endpoints(made: Whole) -> Any:
    sandbox = made.get("a")
    assert sandbox is not None
    return json.loads(sandbox["metadata"]["annotations"][ENDPOINTS])


def observed(made: Whole) -> tuple[int, int]:
    sandbox = made.get("a")
    assert sandbox is not None
    return sandbox["metadata"]["generation"], sandbox["status"]["pauseObservedGeneration"]


@whole
async def test_a_template_put_back_while_resuming_costs_no_state(made: Whole) -> None:
    """kubectl apply, GitOps. The restored pod stays, and ends the resume; the edit is acknowledged as anywhere else (§8.2)."""
    await started(made)
    await paused(made)
    made.node.set_rule("snap-gen2", SLOW, now())
    made.edit(pause=False)
    await until_pod(made, SNAP)
    made.edit(template={"spec": {"containers": [{"name": "main", "image": RAW}]}})
    await made.phase("Succeed")
    assert made.image() == SNAP
    await made.quiet()
    assert made.image() == SNAP
    assert made.snapshot() is None
    generation, acknowledged = observed(made)
    assert acknowledged == generation
    sandbox = made.get("a")
    assert sandbox is not None
    assert sandbox["spec"]["template"]["spec"]["containers"][0]["image"] == RAW
    assert made.phases == ["Succeed", "Pausing", "Paused", "Resuming", "Succeed"]


@whole
async def test_a_template_put_back_before_the_restored_pod_is_made_is_rewritten_again(made: Whole) -> None:
    await started(made)
    await paused(made)
    made.edit(pause=False)
    await made.phase("Resuming")
    made.edit(template={"spec": {"containers": [{"name": "main", "image": RAW}]}})
    await made.phase("Succeed")
    await made.quiet()
    assert made.image() == SNAP
    assert made.snapshot() is None


@whole
async def test_a_failed_resume_mended_with_another_image_keeps_the_snapshot(made: Whole) -> None:
    """Until the user gives it up; a pause would replace it, so it is refused meanwhile."""
    await started(made)
    await paused(made)
    made.node.set_rule("snap-gen2", Behaviour(waiting="ErrImagePull"), now())
    made.edit(pause=False)
    await made.phase("Failed", 60.0)
    made.edit(template={"spec": {"containers": [{"name": "main", "image": RAW}]}})
    made.delete(f"{PODS}/a-0")
    await made.phase("Succeed", 60.0)
    await made.quiet()
    assert made.image() == RAW
    kept = made.snapshot()
    assert kept is not None
    assert "deletionTimestamp" not in kept["metadata"]
    assert (made.condition("ResumeFailed") or ("",))[0] == "SnapshotUnused"
    made.edit(pause=True)
    await until(lambda: made.condition("PauseFailed"))
    await made.quiet()
    assert made.status["phase"] == "Succeed"
    assert made.snapshot() == kept
    made.delete("/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/sandboxsnapshots/a-pause")
    await made.quiet()
    assert made.condition("ResumeFailed") is None
    made.edit(pause=None)
    made.edit(pause=True)
    await made.phase("Paused", 60.0)


@whole
async def test_a_snapshot_that_the_template_cannot_take_keeps_the_sandbox_paused(made: Whole) -> None:
    """Its only container was renamed: a resume that brings nothing back is none (§8.5)."""
    await started(made)
    made.edit(pause=True)
    await made.phase("Pausing")
    made.edit(template={"spec": {"containers": [{"name": "renamed", "image": RAW}]}})
    await made.phase("Paused")
    await made.quiet()
    made.edit(pause=False)
    await until(lambda: made.condition("ResumeFailed"))
    await made.quiet()
    assert made.status["phase"] == "Paused"
    assert (made.condition("ResumeFailed") or ("",))[0] == "SnapshotUnused"
    assert made.snapshot() is not None
    made.edit(template={"spec": {"containers": [{"name": "main", "image": RAW}]}})
    await made.quiet()
    made.edit(pause=None)
    made.edit(pause=False)
    await made.phase("Succeed")
    assert made.image() == SNAP
    await made.quiet()
    assert made.snapshot() is None


@whole
async def test_a_snapshot_of_which_one_container_is_not_used_is_kept_and_said(made: Whole) -> None:
    await started(made, template=template(("main", RAW), ("side", RAW)))
    await paused(made)
    made.edit(template={"spec": {"containers": [{"name": "main", "image": RAW}, {"name": "renamed", "image": RAW}]}})
    await made.quiet()
    made.edit(pause=False)
    await made.phase("Succeed")
    await made.quiet()
    assert made.image() == SNAP
    kept = made.snapshot()
    assert kept is not None
    reason, message = made.condition("ResumeFailed") or ("", "")
    assert reason == "SnapshotPartlyUsed"
    assert "side" in message
    await paused(made)
    again = made.snapshot()
    assert again is not None
    assert again["metadata"]["uid"] != kept["metadata"]["uid"]


@whole
async def test_b90_n05_a_pooled_sandbox_whose_pods_were_given_back(made: Whole) -> None:
    """No address of a pod that is another's by now; and nothing to pause."""
    made.pooled()
    await made.phase("Succeed")
    await made.quiet()
    assert endpoints(made) != []
    made.guarded = False
    annotate(made, **{ALLOC_RELEASE: '{"pods":["p-1"]}'})
    await made.quiet()
    assert endpoints(made) == []
    assert (made.status["phase"], made.status["replicas"], made.status["ready"]) == ("Succeed", 0, 0)
    made.edit(pause=True)
    await until(lambda: made.condition("PauseFailed"))
    assert (made.condition("PauseFailed") or ("",))[0] == "PodNotFound"
    generation, acknowledged = observed(made)
    assert acknowledged == generation
    await made.quiet()
    assert made.status["phase"] == "Succeed"
    made.broken.clear()


@whole
async def test_b07_a_pooled_sandbox_whose_pod_is_lost(made: Whole) -> None:
    made.pooled()
    await made.phase("Succeed")
    await made.quiet()
    made.delete(f"{PODS}/p-1")
    await made.phase("Failed")
    await made.quiet()
    assert made.condition("PodFailed") == (
        "PodLost",
        "1/1 observed pods failed; primary reason=PodLost; sample pod=p-1",
    )
    assert endpoints(made) == []
    assert made.status["phase"] == "Failed"


@whole
async def test_a_pooled_sandbox_whose_pod_is_lost_while_pausing_is_failed_and_refuses_the_next_pause(
    made: Whole,
) -> None:
    made.pooled()
    await made.phase("Succeed")
    await made.quiet()
    made.edit(pause=True)
    await made.phase("Pausing")
    await until(lambda: (made.snapshot() or {}).get("status", {}).get("phase") == "Committing")
    made.delete(f"{PODS}/p-1")
    await until(lambda: made.condition("PauseFailed"), 60.0)
    await made.quiet(30.0)
    assert made.phases == ["Succeed", "Pausing", "Failed"]
    assert (made.condition("PauseFailed") or ("",))[0] == "PodNotFound"
    for pause in (None, True):
        made.edit(pause=pause)
        await made.quiet()
    generation, acknowledged = observed(made)
    assert acknowledged == generation
    assert made.status["phase"] == "Failed"


@whole
async def test_a_retry_after_a_refusal_is_recognised_though_no_bridge_saw_it(made: Whole) -> None:
    await started(made, replicas=3)
    made.edit(pause=True)
    await until(lambda: made.condition("PauseFailed"))
    await made.quiet()
    made.edit(replicas=1)
    await made.quiet()
    assert observed(made) == (3, 3)
    bridge = made.tasks[1]
    await made.without_bridge(lambda: (made.edit(pause=None), made.edit(pause=True)))
    assert bridge.done()
    await made.phase("Paused", 60.0)


@whole
async def test_a_resume_that_failed_and_healed_leaves_nothing_behind(made: Whole) -> None:
    """Else the next crash would be told as a failed resume, whose snapshot is long gone."""
    await started(made)
    await paused(made)
    made.node.set_rule("snap-gen2", Behaviour(waiting="ErrImagePull"), now())
    made.edit(pause=False)
    await made.phase("Failed", 60.0)
    made.node.clear_rule("snap-gen2", now())
    await made.phase("Succeed", 60.0)
    await made.quiet()
    assert made.condition("ResumeFailed") is None
    assert made.snapshot() is None
    running = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    status = {"containerStatuses": [running], "conditions": [{"type": "Ready", "status": "False"}]}
    made._ask("PATCH", f"{PODS}/a-0/status", {"status": status})
    await made.phase("Failed", 60.0)
    await made.quiet()
    made.edit(pause=True)
    await made.phase("Paused", 60.0)


@whole
async def test_a_running_pod_that_is_not_ready_any_more_can_be_paused(made: Whole) -> None:
    """DSP-01, controller-behaviour.md §7.4."""
    await started(made)
    unready(made, "a-0")
    await made.phase("Pending", 60.0)
    await made.quiet()
    made.edit(pause=True)
    begun = asyncio.get_running_loop().time()
    await made.phase("Paused", 60.0)
    assert asyncio.get_running_loop().time() - begun < 5.0
    assert observed(made) == (2, 2)


@whole
async def test_a_pod_that_never_becomes_ready_delays_a_pause_by_the_grace_and_no_more(made: Whole) -> None:
    """Started first (DESIGN §6); but no wait is without a bound (§8.8)."""
    made.node.set_default(Behaviour(start_delay=0.05, ready=False), now())
    made.create(pause=True)
    await made.phase("Pending", 60.0)
    begun = asyncio.get_running_loop().time()
    await made.phase("Paused", 60.0)
    assert 10.0 < asyncio.get_running_loop().time() - begun < 30.0


@whole
async def test_a_malformed_allocation_says_so(made: Whole) -> None:
    """DESIGN §8.7, B05."""
    made.pooled()
    await made.phase("Succeed")
    await made.quiet()
    annotate(made, **{ALLOC_STATUS: "{"})
    await made.quiet()
    assert (made.condition("PodFailed") or ("",))[0] == "MalformedAllocation"
    assert (made.status["phase"], endpoints(made) != []) == ("Succeed", True)
    assert any(each["reason"] == "MalformedAllocation" for each in made.items("/api/v1/namespaces/default/events"))
    annotate(made, **{ALLOC_STATUS: '{"pods":["p-1"]}'})
    await made.quiet()
    assert made.condition("PodFailed") is None
