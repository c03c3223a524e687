"""Scenarios of pause, resume and snapshots: what users do, and what must have come of it at each stage."""

from __future__ import annotations

from typing import Any, Final

from explorer_users import behave, change, conditions, create, delete, fail_commits, from_now, until_phase
from explorer_world import REGISTRY, World

Stages = dict[str, dict[str, Any]]
SLOW: Final = 5.0
"""Seconds that a commit or a start takes where something is to happen meanwhile."""
ORIGINAL: Final = "busybox:1"
COMMITTED: Final = f"{REGISTRY}/a-main:snap"
"""As `explorer_objects` writes it, without the generation."""


class Pausing:
    """Create, pause, resume, pause again, resume."""

    name = "pause"

    async def drive(self, world: World) -> None:
        create(world, "a")
        await until_phase(world, "a", "Succeed")
        change(world, "a", pause=True)
        await until_phase(world, "a", "Paused")
        await world.stage("paused")
        change(world, "a", pause=False)
        await until_phase(world, "a", "Succeed")
        await world.stage("resumed")
        change(world, "a", pause=True)
        await until_phase(world, "a", "Paused")
        change(world, "a", pause=False)
        await until_phase(world, "a", "Succeed")
        await world.stage("resumed again")

    def right(self, stages: Stages) -> None:
        is_paused(stages["paused"], generation=2)
        is_resumed(stages["resumed"])
        is_resumed(stages["resumed again"])


class Renewal:
    """A paused sandbox is renewed and edited, and keeps its snapshot; resumed, it is edited again and does not bounce (N-07, N-08)."""

    name = "renewal"

    async def drive(self, world: World) -> None:
        create(world, "a", expireTime=from_now(world, 4 * 3600))
        await until_phase(world, "a", "Succeed")
        change(world, "a", pause=True)
        await until_phase(world, "a", "Paused")
        change(world, "a", expireTime=from_now(world, 5 * 3600))
        await world.stage("renewed")
        change(world, "a", pause=False)
        await until_phase(world, "a", "Succeed")
        change(world, "a", expireTime=from_now(world, 6 * 3600))
        await world.stage("resumed")
        change(world, "a", pause=True)
        await until_phase(world, "a", "Paused")
        change(world, "a", expireTime=from_now(world, 2))
        await world.stage("expired")

    def right(self, stages: Stages) -> None:
        is_paused(stages["renewed"], generation=2)
        assert stages["renewed"]["batchsandboxes/a"]["status"]["pauseObservedGeneration"] == 3
        is_resumed(stages["resumed"])
        assert stages["expired"] == {}


class Retry:
    """A commit fails: `Succeed` with `PauseFailed`. Renewed it still says so; then `null` and `true`, and it is paused."""

    name = "retry"

    async def drive(self, world: World) -> None:
        fail_commits(world, True)
        create(world, "a", expireTime=from_now(world, 4 * 3600))
        await until_phase(world, "a", "Succeed")
        change(world, "a", pause=True)
        await world.until("the pause has failed", lambda: "PauseFailed" in conditions(world, "a"))
        await world.until("its containers go on", lambda: unpaused(world, "a"))
        await world.stage("failed")
        change(world, "a", expireTime=from_now(world, 5 * 3600))
        await world.stage("renewed")
        fail_commits(world, False)
        change(world, "a", pause=None)
        change(world, "a", pause=True)
        await until_phase(world, "a", "Paused")
        await world.stage("paused")

    def right(self, stages: Stages) -> None:
        for stage in ("failed", "renewed"):
            found = stages[stage]["batchsandboxes/a"]
            assert found["status"]["phase"] == "Succeed"
            assert reasons(found)["PauseFailed"] == "SnapshotFailed"
            assert list(stages[stage]) == ["batchsandboxes/a", "pods/a-0", "sandboxsnapshots/a-pause"]
            assert image(stages[stage]) == ORIGINAL
        is_paused(stages["paused"], generation=5)


class Queued:
    """Paused at its creation; resumed while the commit still runs: paused first, then resumed. Two replicas: refused (PAU-06, PAU-31, N-22)."""

    name = "queued"

    async def drive(self, world: World) -> None:
        behave(world, commit_delay=SLOW)
        create(world, "a", pause=True)
        create(world, "b", replicas=2)
        await until_phase(world, "a", "Pausing")
        change(world, "a", pause=False)
        await until_phase(world, "b", "Succeed")
        change(world, "b", pause=True)
        await world.until("a was paused and resumed", lambda: image_of(world, "a") != ORIGINAL)
        await until_phase(world, "a", "Succeed")
        await world.stage("resumed")

    def right(self, stages: Stages) -> None:
        found = stages["resumed"]
        assert set(found) == {"batchsandboxes/a", "batchsandboxes/b", "pods/a-0", "pods/b-0", "pods/b-1"}
        assert image(found) == COMMITTED
        refused = found["batchsandboxes/b"]
        assert (refused["status"]["phase"], refused["status"]["pauseObservedGeneration"]) == ("Succeed", 2)
        assert reasons(refused)["PauseFailed"] == "UnsupportedReplicas"


class Unusable:
    """The snapshot is deleted while paused: the resume is refused, and the sandbox stays paused with `ResumeFailed` (RES-09)."""

    name = "unusable"

    async def drive(self, world: World) -> None:
        create(world, "a")
        await until_phase(world, "a", "Succeed")
        change(world, "a", pause=True)
        await until_phase(world, "a", "Paused")
        world.pause_checker.lost.add("a-pause")
        world.cluster.ask("DELETE", SNAPSHOTS.format("a-pause"))
        await world.stage("lost")
        change(world, "a", pause=False)
        await world.until("it is refused", lambda: "ResumeFailed" in conditions(world, "a"))
        await world.stage("refused")

    def right(self, stages: Stages) -> None:
        assert list(stages["refused"]) == ["batchsandboxes/a"]
        found = stages["refused"]["batchsandboxes/a"]
        assert (found["status"]["phase"], found["status"]["pauseObservedGeneration"]) == ("Paused", 3)
        assert reasons(found)["ResumeFailed"] == "SnapshotNotFound"


class Deletions:
    """Four sandboxes, deleted while Pausing, Paused, Resuming, and when just resumed; the last one also while its pause is new."""

    name = "deletions"

    async def drive(self, world: World) -> None:
        for name in ("pausing", "paused", "resuming", "resumed", "asked"):
            create(world, name)
        for name in ("pausing", "paused", "resuming", "resumed", "asked"):
            await until_phase(world, name, "Succeed")
        change(world, "asked", pause=True)
        delete(world, "asked")
        for name in ("paused", "resuming", "resumed"):
            change(world, name, pause=True)
        for name in ("paused", "resuming", "resumed"):
            await until_phase(world, name, "Paused")
        behave(world, commit_delay=SLOW, start_delay=SLOW)
        change(world, "pausing", pause=True)
        for name in ("resuming", "resumed"):
            change(world, name, pause=False)
        await until_phase(world, "pausing", "Pausing")
        await until_phase(world, "resuming", "Resuming")
        for name in ("pausing", "paused", "resuming"):
            delete(world, name)
        await until_phase(world, "resumed", "Succeed")
        delete(world, "resumed")
        await world.stage("deleted")

    def right(self, stages: Stages) -> None:
        assert stages["deleted"] == {}


class PutBack:
    """While it is resumed, its pod just made, its template is put back to what it was (GitOps): what was paused comes back (§8.2)."""

    name = "put-back"

    async def drive(self, world: World) -> None:
        create(world, "a")
        await until_phase(world, "a", "Succeed")
        change(world, "a", pause=True)
        await until_phase(world, "a", "Paused")
        behave(world, start_delay=SLOW)
        change(world, "a", pause=False)
        await world.until("its pod is made", lambda: is_restored(world, "a"))
        change(world, "a", template=TEMPLATE)
        await until_phase(world, "a", "Succeed")
        await world.stage("resumed")

    def right(self, stages: Stages) -> None:
        found = stages["resumed"]
        assert list(found) == ["batchsandboxes/a", "pods/a-0"]
        assert image(found) == COMMITTED
        sandbox = found["batchsandboxes/a"]
        assert sandbox["spec"]["template"]["spec"]["containers"][0]["image"] == ORIGINAL
        assert sandbox["status"]["pauseObservedGeneration"] == sandbox["metadata"]["generation"]


TEMPLATE: Final = {"spec": {"containers": [{"name": "main", "image": ORIGINAL}]}}
PAUSES: Final = (Pausing, Renewal, Retry, Queued, Unusable, Deletions, PutBack)
SNAPSHOTS: Final = "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/sandboxsnapshots/{}"


def is_paused(found: dict[str, Any], generation: int) -> None:
    """Sandbox `a` is: no pod, no address, and the good snapshot of that generation's intent."""
    assert list(found) == ["batchsandboxes/a", "sandboxsnapshots/a-pause"]
    sandbox, snapshot = found["batchsandboxes/a"], found["sandboxsnapshots/a-pause"]
    assert sandbox["status"]["phase"] == "Paused"
    assert sandbox["metadata"]["annotations"]["sandbox.opensandbox.io/endpoints"] == []
    assert snapshot["metadata"]["annotations"]["sandbox.opensandbox.io/pause-generation"] == str(generation)
    assert snapshot["status"]["phase"] == "Succeed"
    assert snapshot["status"]["containers"][0]["imageUri"] == COMMITTED


def is_resumed(found: dict[str, Any]) -> None:
    """Sandbox `a` runs on its snapshot's image, and the snapshot is used up."""
    assert list(found) == ["batchsandboxes/a", "pods/a-0"]
    sandbox = found["batchsandboxes/a"]
    assert sandbox["status"]["phase"] == "Succeed"
    assert sandbox["metadata"]["annotations"]["sandbox.opensandbox.io/endpoints"] == ["a-0"]
    assert sandbox["status"]["pauseObservedGeneration"] == sandbox["metadata"]["generation"]
    assert sandbox["spec"]["template"]["spec"]["containers"][0]["image"] == COMMITTED
    assert image(found) == COMMITTED


def image(found: dict[str, Any]) -> str:
    return str(found["pods/a-0"]["spec"]["containers"][0]["image"])


def is_restored(world: World, name: str) -> bool:
    """Whether a pod is there that was made of its snapshot."""
    pods = {pod["metadata"]["name"]: pod for pod in world.cluster.objects("pods")}
    found = pods.get(f"{name}-0")
    return found is not None and f"{name}-main:snap" in found["spec"]["containers"][0]["image"]


def image_of(world: World, name: str) -> str:
    """Of the template."""
    sandbox = world.cluster.sandbox(name)
    assert sandbox is not None
    return str(sandbox["spec"]["template"]["spec"]["containers"][0]["image"])


def reasons(sandbox: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["reason"] for each in sandbox["status"]["conditions"] if each["status"] == "True"}


def unpaused(world: World, name: str) -> bool:
    """Whether the unpause Job of its pause has succeeded."""
    jobs = {job["metadata"]["name"]: job for job in world.cluster.objects("jobs")}
    return bool((jobs.get(f"{name}-pause-unpause", {}).get("status") or {}).get("succeeded"))
