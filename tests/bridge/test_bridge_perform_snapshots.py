"""What an executor makes of the ops of pause, resume and snapshots (DESIGN §6, §7), on a simulated API server with faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from execute_world import (
    NAMESPACE,
    PODS,
    SANDBOXES,
    Fault,
    World,
    create_pods,
    run_virtually,
    status,
    target,
    version,
)

from bridge.execute import ExecuteSettings
from bridge.jobbuild import CommitSettings
from bus import names
from bus.messages import CONFLICT, DONE, EXPIRED, FAILED, MISSING, SKIPPED, UNFINISHED, encode
from bus.ops import (
    CreateJob,
    CreateSnapshot,
    DeleteObject,
    DetachFromPool,
    Op,
    PatchSandboxStatus,
    PatchSnapshotStatus,
    RewriteTemplate,
    Target,
)
from bus.resources import Condition, SandboxStatus, SnapshotContainer, SnapshotStatus

SNAPSHOTS = SANDBOXES.replace("batchsandboxes", "sandboxsnapshots")
JOBS = "/apis/batch/v1/namespaces/default/jobs"
POD = Target("pod", "a-0", "u-pod")
PAUSING = SandboxStatus(observed_generation=2, phase="Pausing", pause_observed_generation=2)
IMAGES = {"main": "reg/a-main:snap-gen2"}
SECRET = "hunter2-secret"


def create_snapshot(made: dict[str, Any], **changes: Any) -> CreateSnapshot:
    return msgspec.structs.replace(CreateSnapshot("snap", target(made), "a-pause", "2", POD), **changes)


def create_job(made: dict[str, Any], **changes: Any) -> CreateJob:
    op = CreateJob("job", target(made), "a-pause-commit", "commit", POD, "node-a", IMAGES)
    return msgspec.structs.replace(op, **changes)


def put_snapshot(world: World, name: str = "a-pause", **metadata: Any) -> dict[str, Any]:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "SandboxSnapshot",
        "metadata": {"name": name, **metadata},
        "spec": {"sandboxName": "a"},
    }
    return world.put(SNAPSHOTS, body)


def owned_by(sandbox: dict[str, Any]) -> list[dict[str, Any]]:
    meta = sandbox["metadata"]
    reference = {"apiVersion": names.API_VERSION, "kind": sandbox["kind"], "name": meta["name"], "uid": meta["uid"]}
    return [{**reference, "controller": True}]


def leave(world: World, path: str) -> None:
    """Delete what a finalizer still holds: it is terminating then."""
    code, _, answer = world.direct.request("DELETE", path)
    assert code in (200, 202), answer


class TestCreateSnapshot:
    def test_finalizer_owner_intent_and_pod_from_the_first(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                result = await world.result(create_snapshot(sandbox))
                made = world.get(f"{SNAPSHOTS}/a-pause")
                assert made is not None
                assert result.result == DONE
                assert (result.uid, result.resource_version) == (made["metadata"]["uid"], version(made))
                assert made["spec"] == {"sandboxName": "a"}
                assert made["metadata"]["finalizers"] == ["sandboxsnapshot.sandbox.opensandbox.io/cleanup"]
                assert made["metadata"]["annotations"] == {
                    "sandbox.opensandbox.io/pause-generation": "2",
                    "sandbox.opensandbox.io/source-pod-name": "a-0",
                    "sandbox.opensandbox.io/source-pod-uid": "u-pod",
                }
                (owner,) = made["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["uid"]) == ("BatchSandbox", sandbox["metadata"]["uid"])
                assert owner["controller"] is True
                # A repeat finds its own work.
                again = await world.result(create_snapshot(sandbox))
                assert (again.result, again.uid) == (DONE, result.uid)

        run_virtually(scenario)

    def test_after_a_write_to_the_sandbox_it_needs_no_read(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                pausing = PatchSandboxStatus("st", target(sandbox), version(sandbox), PAUSING)
                results = await world.results(pausing, create_snapshot(sandbox))
                assert [result.result for result in results] == [DONE, DONE]
                assert world.client.calls == [("PATCH", f"{SANDBOXES}/a/status"), ("POST", SNAPSHOTS)]

        run_virtually(scenario)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"annotations": {names.PAUSE_GENERATION: "1", names.SOURCE_POD_UID: "u-pod"}}, "OtherIntent"),
            (
                {
                    "annotations": {
                        names.PAUSE_GENERATION: "2",
                        names.SOURCE_POD_NAME: "a-0",
                        names.SOURCE_POD_UID: "u-other",
                    }
                },
                "OtherIntent",
            ),
        ],
    )
    def test_one_made_for_another_intent_or_pod_is_a_conflict(self, changes: dict[str, Any], reason: str) -> None:
        """DESIGN §8.2: a snapshot counts only for its own intent and its own pod."""

        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                there = put_snapshot(world, ownerReferences=owned_by(sandbox), **changes)
                result = await world.result(create_snapshot(sandbox))
                assert (result.result, result.reason) == (CONFLICT, reason)
                assert result.resource_version == version(there)

        run_virtually(scenario)

    def test_a_terminating_one_is_a_conflict_and_a_strangers_name_is_refused(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                put_snapshot(world)
                stranger = await world.result(create_snapshot(sandbox))
                assert (stranger.result, stranger.reason) == (FAILED, "NameTaken")
                leave(world, f"{SNAPSHOTS}/a-pause")
                assert (await world.result(create_snapshot(sandbox))).result == DONE
                leave(world, f"{SNAPSHOTS}/a-pause")
                terminating = await world.result(create_snapshot(sandbox))
                assert (terminating.result, terminating.reason) == (CONFLICT, "Deleting")

        run_virtually(scenario)

    @pytest.mark.parametrize("in_a_chain", [False, True])
    def test_b83_not_for_a_sandbox_that_is_leaving_gone_or_another(self, in_a_chain: bool) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.change(f"{SANDBOXES}/a", {"metadata": {"finalizers": ["x/y"]}})
                leave(world, f"{SANDBOXES}/a")
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                before: tuple[Op, ...] = ()
                if in_a_chain:
                    before = (PatchSandboxStatus("st", target(sandbox), version(live), PAUSING),)
                result = (await world.results(*before, create_snapshot(sandbox)))[-1]
                assert (result.result, result.reason) == (CONFLICT, "Deleting")
                other = create_snapshot(sandbox, sandbox=Target("batchsandbox", "a", "u-other"))
                assert (await world.result(other)).result == MISSING
                absent = create_snapshot(sandbox, sandbox=Target("batchsandbox", "b", "u"))
                assert (await world.result(absent)).result == MISSING
                assert not world.items(SNAPSHOTS)

        run_virtually(scenario)

    def test_an_unclear_create_finds_its_own_work(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.client.faults.append(Fault("POST", SNAPSHOTS, lost=True, applied=True))
                result = await world.result(create_snapshot(sandbox))
                assert result.result == DONE
                assert len(world.items(SNAPSHOTS)) == 1

        run_virtually(scenario)

    def test_before_a_retry_the_sandbox_is_looked_at_again(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()

                def remove() -> None:
                    leave(world, f"{SANDBOXES}/a")

                world.client.faults.append(Fault("POST", SNAPSHOTS, status(503, "ServiceUnavailable"), before=remove))
                assert (await world.result(create_snapshot(sandbox))).result == MISSING
                assert not world.items(SNAPSHOTS)

        run_virtually(scenario)


class TestCreateJob:
    def test_it_is_built_with_the_executors_settings(self) -> None:
        async def scenario() -> None:
            settings = ExecuteSettings(by="test", commit=CommitSettings("committer:1", push_secret="push"))
            async with World(settings) as world:
                snapshot = put_snapshot(world)
                result = await world.result(create_job(snapshot))
                made = world.get(f"{JOBS}/a-pause-commit")
                assert made is not None
                assert (result.result, result.uid) == (DONE, made["metadata"]["uid"])
                spec = made["spec"]["template"]["spec"]
                assert spec["containers"][0]["image"] == "committer:1"
                assert spec["containers"][0]["args"] == ["a-0", NAMESPACE, "main:reg/a-main:snap-gen2"]
                assert (await world.result(create_job(snapshot))).uid == result.uid

        run_virtually(scenario)

    def test_one_for_another_pod_or_of_another_owner_is_not_it(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                snapshot = put_snapshot(world)
                await world.result(create_job(snapshot))
                another = await world.result(create_job(snapshot, pod=Target("pod", "a-0", "u-new")))
                assert (another.result, another.reason) == (CONFLICT, "OtherIntent")
                renewed = await world.result(create_job(snapshot, snapshot=Target("sandboxsnapshot", "a-pause", "u2")))
                assert (renewed.result, renewed.reason) == (EXPIRED, "FormerOwner")
                stranger = await world.result(create_job(snapshot, snapshot=Target("sandboxsnapshot", "b", "u2")))
                assert (stranger.result, stranger.reason) == (FAILED, "NameTaken")

        run_virtually(scenario)

    def test_an_action_that_no_version_knows_is_unknown(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                snapshot = put_snapshot(world)
                assert (await world.result(create_job(snapshot, action="erase"))).result == "unknown"

        run_virtually(scenario)


class TestPatchSnapshotStatus:
    def test_a_chain_from_pending_to_its_job(self) -> None:
        """The fourth and fifth write of a pause: status, then Job; a Job of a snapshot that changed meanwhile is not made."""

        async def scenario() -> None:
            async with World() as world:
                snapshot = put_snapshot(world)
                wanted = SnapshotStatus(
                    "Committing",
                    (SnapshotContainer("main", IMAGES["main"]),),
                    source_pod_name="a-0",
                    source_node_name="node-a",
                    observed_generation=1,
                )
                patch = PatchSnapshotStatus("st", target(snapshot), version(snapshot), wanted)
                results = await world.results(patch, create_job(snapshot))
                assert [result.result for result in results] == [DONE, DONE]
                live = world.get(f"{SNAPSHOTS}/a-pause")
                assert live is not None
                assert live["status"] == {
                    "phase": "Committing",
                    "containers": [{"containerName": "main", "imageUri": IMAGES["main"]}],
                    "sourcePodName": "a-0",
                    "sourceNodeName": "node-a",
                    "observedGeneration": 1,
                }
                stale = await world.results(patch, create_job(snapshot, name="x"))
                assert [result.result for result in stale] == [CONFLICT, SKIPPED]
                assert stale[0].resource_version == version(live)

        run_virtually(scenario)

    def test_what_it_leaves_out_goes_and_a_lost_answer_is_seen_through(self) -> None:
        """B86 for snapshots: a Failed condition does not stay by being left out."""

        async def scenario() -> None:
            async with World() as world:
                snapshot = put_snapshot(world)
                failed = SnapshotStatus("Failed", conditions=(Condition("Failed", "True", "R", "m"),))
                first = await world.result(PatchSnapshotStatus("1", target(snapshot), version(snapshot), failed))
                pending = SnapshotStatus("Pending", observed_generation=1)
                world.client.faults.append(Fault("PATCH", "status", lost=True, applied=True))
                second = await world.result(PatchSnapshotStatus("2", target(snapshot), first.resource_version, pending))
                live = world.get(f"{SNAPSHOTS}/a-pause")
                assert live is not None
                assert (second.result, second.resource_version) == (DONE, version(live))
                assert "conditions" not in live["status"]

        run_virtually(scenario)


class TestDeleteObject:
    @pytest.mark.parametrize("kind", ["sandboxsnapshot", "job"])
    def test_by_uid_and_gone_already_is_success(self, kind: str) -> None:
        async def scenario() -> None:
            async with World() as world:
                snapshot = put_snapshot(world)
                await world.result(create_job(snapshot))
                path, name = (SNAPSHOTS, "a-pause") if kind == "sandboxsnapshot" else (JOBS, "a-pause-commit")
                made = world.get(f"{path}/{name}")
                assert made is not None
                other = await world.result(DeleteObject("1", Target(kind, name, "u-other")))
                assert (other.result, other.reason) == (DONE, "Replaced")
                assert world.get(f"{path}/{name}") is not None
                assert (await world.result(DeleteObject("2", target(made)))).result == DONE
                assert world.get(f"{path}/{name}") is None
                assert (await world.result(DeleteObject("3", target(made)))).reason == "Gone"

        run_virtually(scenario)

    def test_one_with_a_finalizer_is_told_at_the_version_it_leaves_at(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                snapshot = put_snapshot(world, finalizers=[names.SNAPSHOT_CLEANUP])
                result = await world.result(DeleteObject("1", target(snapshot)))
                live = world.get(f"{SNAPSHOTS}/a-pause")
                assert live is not None
                assert "deletionTimestamp" in live["metadata"]
                assert (result.result, result.resource_version) == (DONE, version(live))

        run_virtually(scenario)


def rewrite(sandbox: dict[str, Any], at: int | None = None, **changes: Any) -> RewriteTemplate:
    op = RewriteTemplate("rw", target(sandbox), version(sandbox) if at is None else at, {"main": "reg/a-main:snap"})
    return msgspec.structs.replace(op, **changes)


class TestRewriteTemplate:
    def test_one_patch_after_the_resuming_status_and_pods_of_the_new_template(self) -> None:
        async def scenario() -> None:
            async with World(seen=True) as world:
                sandbox = world.sandbox(pause=False)
                resuming = PatchSandboxStatus("st", target(sandbox), version(sandbox), SandboxStatus(phase="Resuming"))
                results = await world.results(resuming, rewrite(sandbox))
                assert [result.result for result in results] == [DONE, DONE]
                assert world.client.calls == [("PATCH", f"{SANDBOXES}/a/status"), ("PATCH", f"{SANDBOXES}/a")]
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert results[1].resource_version == version(live)
                assert live["spec"]["pause"] is False
                assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "reg/a-main:snap"
                # What this process's watch saw last is older: it does not count for the new generation.
                assert (await world.result(create_pods(live, 0))).result == DONE
                pod = world.get(f"{PODS}/a-0")
                assert pod is not None
                assert pod["spec"]["containers"][0]["image"] == "reg/a-main:snap"

        run_virtually(scenario)

    def test_pull_secret_and_detach_go_in_the_same_patch(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                world.sandbox(poolRef="p")
                meta = {"annotations": {names.ALLOC_STATUS: "{}"}, "finalizers": [names.POOL_ALLOCATION]}
                sandbox = world.change(f"{SANDBOXES}/a", {"metadata": meta})
                result = await world.result(rewrite(sandbox, pull_secret="pull", detach=True))
                assert result.result == DONE
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert not live["spec"].get("poolRef")
                assert live["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "pull"}]
                assert names.ALLOC_STATUS not in live["metadata"].get("annotations", {})
                assert not live["metadata"].get("finalizers")
                assert [method for method, _ in world.client.calls] == ["GET", "PATCH"]

        run_virtually(scenario)

    def test_another_version_is_a_conflict_and_another_uid_is_missing(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                stale = await world.result(rewrite(sandbox, version(sandbox) - 1))
                assert (stale.result, stale.resource_version) == (CONFLICT, version(sandbox))
                other = rewrite(sandbox, target=Target("batchsandbox", "a", "u-other"))
                assert (await world.result(other)).result == MISSING
                assert (await world.result(rewrite(sandbox, target=Target("batchsandbox", "b", "u")))).result == MISSING
                assert all(method == "GET" for method, _ in world.client.calls)

        run_virtually(scenario)

    def test_a_lost_answer_is_seen_through_and_a_change_in_between_is_not_overwritten(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.client.faults.append(Fault("PATCH", "/a", lost=True, applied=True))
                first = await world.result(rewrite(sandbox))
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert (first.result, first.resource_version) == (DONE, version(live))

                def edit() -> None:
                    world.change(f"{SANDBOXES}/a", {"spec": {"expireTime": "2030-01-01T00:00:00Z"}})

                world.client.faults.append(Fault("PATCH", "/a", before=edit))
                second = await world.result(rewrite(live, images={"main": "x:1"}))
                now = world.get(f"{SANDBOXES}/a")
                assert now is not None
                assert (second.result, second.resource_version) == (CONFLICT, version(now))
                assert now["spec"]["template"]["spec"]["containers"][0]["image"] == "reg/a-main:snap"

        run_virtually(scenario)

    def test_no_value_of_the_template_is_in_any_text(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                env = [{"name": "A", "value": SECRET}]
                container = {"name": "main", "image": "b:1", "env": env, "args": [SECRET]}
                sandbox = world.sandbox(template={"spec": {"containers": [container]}})
                refusal = status(
                    403, "Forbidden", f'admission webhook "w.example.com" denied the request: saw {SECRET} in it'
                )
                world.client.faults.append(Fault("PATCH", "/a", refusal))
                result = await world.result(rewrite(sandbox))
                assert result.result == FAILED
                assert "w.example.com" in result.message
                assert SECRET.encode() not in msgspec.json.encode(result)
                assert all(SECRET.encode() not in encode(outcome) for outcome in await world.outcomes())

        run_virtually(scenario)

    def test_a_template_that_is_none_is_refused(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox(template={"spec": {"containers": {"name": SECRET}}})
                result = await world.result(rewrite(sandbox))
                assert (result.result, result.reason) == (FAILED, "InvalidTemplate")
                assert SECRET not in result.message
                assert "spec.template.spec.containers" in result.message

        run_virtually(scenario)


def pooled(world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    labels = {names.POOL_NAME: "p", names.POOL_REVISION: "r", "app": "demo"}
    env = [{"name": "A", "value": SECRET}]
    spec = {"nodeName": "node-a", "containers": [{"name": "main", "image": "pool-image:latest", "env": env}]}
    pod = world.put(
        PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pool-pod", "labels": labels}, "spec": spec}
    )
    world.sandbox(poolRef="p", pause=True, template=None)
    annotations = {names.ALLOC_STATUS: '{"pods":["pool-pod"]}', names.ENDPOINTS: '["10.0.0.8"]'}
    meta = {"annotations": annotations, "finalizers": [names.POOL_ALLOCATION]}
    return world.change(f"{SANDBOXES}/a", {"metadata": meta}), pod


class TestDetachFromPool:
    def test_pau_27_28_29_30_one_patch_and_the_pod_is_left_alone(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox, pod = pooled(world)
                op = DetachFromPool("d", target(sandbox), version(sandbox), target(pod))
                result = await world.result(op)
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert (result.result, result.resource_version) == (DONE, version(live))
                assert not live["spec"].get("poolRef")
                assert live["spec"]["pause"] is True
                template = live["spec"]["template"]
                assert template["metadata"] == {"labels": {"app": "demo"}}
                assert template["spec"]["containers"][0]["image"] == "pool-image:latest"
                assert "nodeName" not in template["spec"]
                assert live["metadata"]["annotations"] == {names.ENDPOINTS: "[]"}
                assert not live["metadata"].get("finalizers")
                assert [method for method, _ in world.client.calls] == ["GET", "GET", "PATCH"]
                assert world.get(f"{PODS}/pool-pod") == pod

        run_virtually(scenario)

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (lambda op: msgspec.structs.replace(op, pod=Target("pod", "pool-pod", "u-other")), MISSING),
            (lambda op: msgspec.structs.replace(op, pod=Target("pod", "gone", "u")), MISSING),
            (lambda op: msgspec.structs.replace(op, resource_version=op.resource_version - 1), CONFLICT),
            (lambda op: msgspec.structs.replace(op, target=Target("batchsandbox", "a", "u-other")), MISSING),
        ],
    )
    def test_its_preconditions(self, change: Callable[[DetachFromPool], DetachFromPool], expected: str) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox, pod = pooled(world)
                op = DetachFromPool("d", target(sandbox), version(sandbox), target(pod))
                assert (await world.result(change(op))).result == expected
                assert world.get(f"{SANDBOXES}/a") == sandbox

        run_virtually(scenario)

    def test_no_value_of_the_pod_is_in_any_text(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox, pod = pooled(world)
                refusal = status(403, "Forbidden", f'admission webhook "w.example.com" denied the request: {SECRET}')
                world.client.faults.append(Fault("PATCH", "/a", refusal))
                op = DetachFromPool("d", target(sandbox), version(sandbox), target(pod))
                result = await world.result(op)
                assert result.result == FAILED
                assert SECRET.encode() not in msgspec.json.encode(result)

        run_virtually(scenario)

    def test_without_an_answer_in_time_it_is_unfinished(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox, pod = pooled(world)
                world.client.faults += [Fault("PATCH", "/a", lost=True) for _ in range(200)]
                op = DetachFromPool("d", target(sandbox), version(sandbox), target(pod))
                assert (await world.result(op, lasts=5.0)).result == UNFINISHED

        run_virtually(scenario)
