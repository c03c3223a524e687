"""The courses of traces.md that have a pause, with every role for real on a simulated cluster (DESIGN §6, §8, §11)."""

from __future__ import annotations

import asyncio

from reconciler_whole import JOBS, PODS, SANDBOXES, SNAPSHOTS, Whole, now, whole
from support.virtual_time import until

from simcluster.node import Behaviour


async def started(made: Whole, **spec: object) -> None:
    made.create(**spec)
    await made.phase("Succeed")
    await made.quiet(2.0)


async def paused(made: Whole) -> None:
    made.edit(pause=True)
    await made.phase("Paused")


async def resumed(made: Whole) -> None:
    made.edit(pause=False)
    await made.phase("Succeed")
    await made.quiet()


@whole
async def test_e2p_01_e2p_02_e2p_03_e2p_04_e2p_05_e2p_07_pause_and_resume_twice(made: Whole) -> None:
    """traces.md pause_resume, its second cycle too, without the bounce."""
    await started(made)
    for generation in (2, 5):
        begun = asyncio.get_running_loop().time()
        await paused(made)
        assert asyncio.get_running_loop().time() - begun < 0.4
        assert not [
            pod
            for pod in made.items(PODS)
            if pod["metadata"]["name"] == "a-0" and "deletionTimestamp" not in pod["metadata"]
        ]
        snapshot = made.snapshot()
        assert snapshot is not None
        assert snapshot["status"]["phase"] == "Succeed"
        assert snapshot["status"]["containers"][0]["imageDigest"].startswith("sha256:")
        await made.quiet()
        await resumed(made)
        assert made.image() == f"registry.test/snap/a-main:snap-gen{generation}"
    assert made.phases == ["Succeed", *["Pausing", "Paused", "Resuming", "Succeed"] * 2]
    assert made.items(SNAPSHOTS) == []
    assert made.items(JOBS) == []
    sandbox = made.get("a")
    assert sandbox is not None
    assert sandbox["status"]["pauseObservedGeneration"] == sandbox["metadata"]["generation"]
    assert sandbox["spec"]["pause"] is False
    assert sandbox["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "pull"}]


@whole
async def test_the_writes_of_a_cycle_are_at_most_seventeen(made: Whole) -> None:
    await started(made)
    before = made.own_writes()
    await paused(made)
    await made.quiet()
    pause = made.own_writes() - before
    assert sum(pause.values()) == 8, pause
    await resumed(made)
    cycle = made.own_writes() - before
    assert sum(cycle.values()) == 16, cycle


@whole
async def test_renew_while_paused_keeps_the_snapshot_and_resumes(made: Whole) -> None:
    await started(made)
    await paused(made)
    await made.quiet()
    first = made.snapshot()
    made.renew()
    await made.quiet()
    assert made.status["phase"] == "Paused"
    assert made.snapshot() == first
    assert made.status["pauseObservedGeneration"] == 3
    await resumed(made)
    assert made.phases == ["Succeed", "Pausing", "Paused", "Resuming", "Succeed"]


@whole
async def test_edit_after_resume_does_not_bounce(made: Whole) -> None:
    await started(made)
    await paused(made)
    await made.quiet()
    await resumed(made)
    made.renew()
    await made.quiet()
    made.edit(taskResourcePolicyWhenCompleted="Release")
    await made.quiet()
    assert made.phases == ["Succeed", "Pausing", "Paused", "Resuming", "Succeed"]
    assert made.status["pauseObservedGeneration"] == 6


@whole
async def test_e2p_18_e2p_21_e2p_22_e2p_23_a_failed_commit_and_its_retry(made: Whole) -> None:
    """traces.md commit_fails_then_retry; a renewal in between is no retry."""
    await started(made)
    made.fail_commits(True)
    made.edit(pause=True)
    await made.phase("Pausing")
    await made.phase("Succeed", 300.0)
    assert made.condition("PauseFailed") == ("SnapshotFailed", "Job has reached the specified backoff limit")
    await made.quiet()
    made.renew()
    await made.quiet()
    assert made.condition("PauseFailed") is not None
    made.fail_commits(False)
    made.edit(pause=None)
    await made.quiet()
    assert made.condition("PauseFailed") is not None
    await paused(made)
    assert made.condition("PauseFailed") is None
    await made.quiet()
    await resumed(made)
    assert made.phases == ["Succeed", "Pausing", "Succeed", "Pausing", "Paused", "Resuming", "Succeed"]


@whole
async def test_e2p_22_a_retry_of_two_patches_at_once(made: Whole) -> None:
    await started(made)
    made.fail_commits(True)
    made.edit(pause=True)
    await made.phase("Pausing")
    await made.phase("Succeed", 300.0)
    made.fail_commits(False)
    made.edit(pause=None)
    made.edit(pause=True)
    await made.phase("Paused", 60.0)


@whole
async def test_pause_at_creation_starts_first(made: Whole) -> None:
    """traces.md pause_before_ready."""
    made.create(pause=True)
    await made.phase("Paused")
    assert made.phases == ["Succeed", "Pausing", "Paused"]
    await made.quiet()
    await resumed(made)


@whole
async def test_resume_while_pausing_finishes_first(made: Whole) -> None:
    """traces.md resume_while_pausing."""
    await started(made)
    made.edit(pause=True)
    await made.phase("Pausing")
    made.edit(pause=False)
    await until(lambda: made.phases[-1:] == ["Succeed"] and len(made.phases) > 2)
    assert made.phases == ["Succeed", "Pausing", "Paused", "Resuming", "Succeed"]
    assert made.image().startswith("registry.test/snap/a-main:snap-gen")


@whole
async def test_pause_while_resuming_finishes_first(made: Whole) -> None:
    await started(made)
    await paused(made)
    await made.quiet()
    made.edit(pause=False)
    await made.phase("Resuming")
    made.edit(pause=True)
    await until(lambda: made.phases[-2:] == ["Pausing", "Paused"] and len(made.phases) > 3)
    assert made.phases == ["Succeed", "Pausing", "Paused", "Resuming", "Succeed", "Pausing", "Paused"]


async def deleted_in(made: Whole, phase: str) -> None:
    await started(made)
    if phase == "Pausing":
        made.edit(pause=True)
    else:
        await paused(made)
        await made.quiet()
        if phase == "Resuming":
            made.edit(pause=False)
    await made.phase(phase)
    made.delete()
    await made.quiet()
    for path in (SANDBOXES, SNAPSHOTS, JOBS):
        assert made.items(path) == []
    assert made.items(PODS) == []


@whole
async def test_delete_while_pausing(made: Whole) -> None:
    """traces.md delete_while_pausing: the snapshot fails no look-up and holds nothing up."""
    await deleted_in(made, "Pausing")


@whole
async def test_delete_while_paused(made: Whole) -> None:
    await deleted_in(made, "Paused")


@whole
async def test_delete_while_resuming(made: Whole) -> None:
    await deleted_in(made, "Resuming")


@whole
async def test_resume_fails_without_a_snapshot(made: Whole) -> None:
    """traces.md resume_fails."""
    await started(made)
    await paused(made)
    await made.quiet()
    made.guarded = False
    made.delete(f"{SNAPSHOTS}/a-pause")
    await made.quiet()
    made.edit(pause=False)
    await until(lambda: made.condition("ResumeFailed"))
    assert made.condition("ResumeFailed") == ("SnapshotNotFound", "SandboxSnapshot not found")
    assert made.status["phase"] == "Paused"
    assert made.status["pauseObservedGeneration"] == 3


@whole
async def test_e2p_19_e2p_20_a_resumed_pod_that_cannot_start(made: Whole) -> None:

    await started(made)
    await paused(made)
    await made.quiet()
    made.node.set_rule("snap-gen2", Behaviour(waiting="ErrImagePull"), now())
    made.edit(pause=False)
    await made.phase("Failed", 60.0)
    assert made.condition("ResumeFailed") is not None
    assert made.snapshot() is not None
    await made.quiet()
    assert made.snapshot() is not None


@whole
async def test_pause_refused_replicas(made: Whole) -> None:
    await started(made, replicas=2)
    made.edit(pause=True)
    await until(lambda: made.condition("PauseFailed"))
    assert made.status["pauseObservedGeneration"] == 2
    await made.quiet()
    made.renew()
    await made.quiet()
    assert made.condition("PauseFailed") is not None


@whole
async def test_public_snapshots(made: Whole) -> None:
    """traces.md public_snapshot: one of a running sandbox, one of nothing; both can be deleted."""
    await started(made)
    for name, of in (("s", "a"), ("x", "none")):
        body = {
            "apiVersion": "sandbox.opensandbox.io/v1alpha1",
            "kind": "SandboxSnapshot",
            "metadata": {"name": name},
            "spec": {"sandboxName": of},
        }
        assert made.user.request("POST", SNAPSHOTS, body)[0] == 201
    await made.quiet()
    good, bad = made.get("s", SNAPSHOTS), made.get("x", SNAPSHOTS)
    assert good is not None
    assert bad is not None
    assert good["status"]["phase"] == "Succeed"
    assert (
        good["status"]["containers"][0]["imageUri"] == "registry.test/snap/a-main:snap-043a718774c572bd8a25adbeb1bfcd5c"
    )
    assert (bad["status"]["phase"], bad["status"]["conditions"][0]["reason"]) == ("Failed", "BatchSandboxLookupFailed")
    for name in ("s", "x"):
        made.delete(f"{SNAPSHOTS}/{name}")
    await made.quiet()
    assert made.items(SNAPSHOTS) == []
    assert made.items(JOBS) == []


@whole
async def test_e2p_09_e2p_10_e2p_11_e2p_14_a_pooled_sandbox_with_its_allocation_there(made: Whole) -> None:
    """traces.md pooled: detached with its source pod's template; the pool's pod is left to the pool, and the second pause is of its own (B40)."""
    made.pooled()
    await made.phase("Succeed")
    await made.quiet()
    for generation in (2, 6):
        await paused(made)
        await made.quiet()
        sandbox = made.get("a")
        assert sandbox is not None
        assert "poolRef" not in sandbox["spec"]
        assert sandbox["spec"]["template"]["spec"]["containers"][0]["name"] == "main"
        assert not sandbox["metadata"].get("finalizers")
        assert sandbox["status"]["pauseObservedGeneration"] == sandbox["metadata"]["generation"]
        assert [pod["metadata"]["name"] for pod in made.items(PODS) if "commit" not in pod["metadata"]["name"]] == [
            "p-1"
        ]
        snapshot = made.snapshot()
        assert snapshot is not None
        assert snapshot["status"]["sourcePodName"] == ("p-1" if generation == 2 else "a-0")
        await resumed(made)
        assert made.image() == f"registry.test/snap/a-main:snap-gen{generation}"
    assert made.phases == ["Succeed", *["Pausing", "Paused", "Resuming", "Succeed"] * 2]
