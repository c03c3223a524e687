"""The ops of pause, resume and snapshots on whole API servers, with just the rights of deploy/rbac.yaml."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from execute_world import target, version
from support.api import Api
from test_bridge_execute_server import Bench

from bridge.credentials import Source
from bridge.kube import KubeClient, KubeSettings
from bus import names
from bus.messages import CONFLICT, DONE, FAILED
from bus.ops import (
    CreateJob,
    CreateSnapshot,
    DeleteObject,
    DetachFromPool,
    PatchMetadata,
    PatchSandboxStatus,
    PatchSnapshotStatus,
    RewriteTemplate,
    Target,
)
from bus.resources import Condition, SandboxStatus, SnapshotContainer, SnapshotStatus

pytestmark = pytest.mark.cluster
SECRET = "hunter2-secret"
POD = Target("pod", "a-0", "11111111-0000-0000-0000-000000000000")
IMAGES = {"main": "registry.example.com/a-main:snap-gen2"}
PENDING = SnapshotStatus(
    "Committing",
    (SnapshotContainer("main", IMAGES["main"]),),
    source_pod_name="a-0",
    source_node_name="node-a",
    observed_generation=1,
)


@pytest.fixture
async def bench(server: Any, api: Api) -> AsyncIterator[Bench]:
    async with await KubeClient.open(KubeSettings(Source(kubeconfig=server.kubeconfig))) as client:
        made = Bench(client, api)
        running = asyncio.create_task(made.executor.run())
        yield made
        made.executor.stop()
        await running


def pausing(sandbox: dict[str, Any]) -> PatchSandboxStatus:
    return PatchSandboxStatus("st", target(sandbox), version(sandbox), SandboxStatus(phase="Pausing"))


async def snapshotted(bench: Bench, name: str = "a-pause") -> dict[str, Any]:
    sandbox = await bench.sandbox()
    results = await bench.results(pausing(sandbox), CreateSnapshot("s", target(sandbox), name, "2", POD))
    assert [result.result for result in results] == [DONE, DONE]
    return await bench.get("SandboxSnapshot", name)


async def test_the_first_five_writes_of_a_pause_and_their_repeat(bench: Bench) -> None:
    snapshot = await snapshotted(bench)
    meta = snapshot["metadata"]
    assert meta["finalizers"] == [names.SNAPSHOT_CLEANUP]
    assert meta["annotations"][names.PAUSE_GENERATION] == "2"
    sandbox = await bench.get("BatchSandbox", "a")
    again = await bench.result(CreateSnapshot("s", target(sandbox), "a-pause", "2", POD))
    assert (again.result, again.uid, again.resource_version) == (DONE, meta["uid"], version(snapshot))
    other = await bench.result(CreateSnapshot("s", target(sandbox), "a-pause", "3", POD))
    assert (other.result, other.reason) == (CONFLICT, "OtherIntent")

    status = PatchSnapshotStatus("p", target(snapshot), version(snapshot), PENDING)
    job = CreateJob("j", target(snapshot), "a-pause-commit", "commit", POD, "node-a", IMAGES)
    results = await bench.results(status, job)
    assert [result.result for result in results] == [DONE, DONE]
    assert (await bench.result(job)).uid == results[1].uid
    live = await bench.get("SandboxSnapshot", "a-pause")
    assert live["status"]["phase"] == "Committing"
    assert live["status"]["containers"] == [{"containerName": "main", "imageUri": IMAGES["main"]}]

    # Failure and its conditions; what a later write leaves out goes (B86).
    failed = msgspec.structs.replace(
        PENDING, phase="Failed", conditions=(Condition("Failed", "True", "R", "m", "2026-01-01T12:00:00Z"),)
    )
    first = await bench.result(PatchSnapshotStatus("f", target(snapshot), version(live), failed))
    assert first.result == DONE
    cleared = SnapshotStatus("Failed", observed_generation=1)
    assert (
        await bench.result(PatchSnapshotStatus("g", target(snapshot), first.resource_version, cleared))
    ).result == DONE
    status_now = (await bench.get("SandboxSnapshot", "a-pause"))["status"]
    assert not status_now.get("conditions")
    assert not status_now.get("containers")


async def test_an_empty_phase_is_no_phase(bench: Bench) -> None:
    snapshot = await snapshotted(bench)
    result = await bench.result(PatchSnapshotStatus("p", target(snapshot), version(snapshot), SnapshotStatus()))
    assert result.result == DONE


async def test_b58_the_jobs_pod_tells_the_snapshot_and_the_source(bench: Bench, kubelet: Any) -> None:
    """By the Job controller of the cluster itself."""
    snapshot = await snapshotted(bench)
    job = CreateJob("j", target(snapshot), "a-pause-commit", "commit", POD, "node-a", IMAGES)
    assert (await bench.result(job)).result == DONE
    pods: list[dict[str, Any]] = []
    async with asyncio.timeout(30):
        while not pods:
            found = await bench.api.call("GET", bench.api.path("Pod"), labelSelector=f"{names.SNAPSHOT_NAME}=a-pause")
            pods = found["items"]
            await asyncio.sleep(0.05)
    meta = pods[0]["metadata"]
    assert meta["labels"][names.PRIVILEGED_NODE_ACCESS] == "true"
    assert meta["annotations"][names.SOURCE_POD_UID] == POD.uid
    assert pods[0]["spec"]["nodeName"] == "node-a"


@pytest.mark.parametrize("action", ["commit", "unpause"])
async def test_b106_a_long_name_makes_a_job_that_is_taken(bench: Bench, action: str) -> None:
    long = "a" * 240 + "-pause"
    snapshot = await snapshotted(bench, long)
    job = CreateJob("j", target(snapshot), names.job_name(long, action), action, POD, "node-a", IMAGES)
    assert (await bench.result(job)).result == DONE


async def test_deletes_go_by_uid_and_the_finalizer_lets_go(bench: Bench) -> None:
    snapshot = await snapshotted(bench)
    job_op = CreateJob("j", target(snapshot), "a-pause-commit", "commit", POD, "node-a", IMAGES)
    await bench.result(job_op)
    job = await bench.get("Job", "a-pause-commit")
    stranger = "00000000-0000-0000-0000-000000000000"
    other = await bench.result(DeleteObject("1", Target("job", "a-pause-commit", stranger)))
    assert (other.result, other.reason) == (DONE, "Replaced")
    assert (await bench.result(DeleteObject("2", target(job)))).result == DONE
    leaving = await bench.result(DeleteObject("3", target(snapshot)))
    live = await bench.get("SandboxSnapshot", "a-pause")
    assert "deletionTimestamp" in live["metadata"]
    assert (leaving.result, leaving.resource_version) == (DONE, version(live))
    sandbox = await bench.get("BatchSandbox", "a")
    create = CreateSnapshot("s", target(sandbox), "a-pause", "2", POD)
    assert (await bench.result(create)).reason == "Deleting"
    freed = await bench.result(PatchMetadata("4", target(snapshot), version(live), finalizers=()))
    # What is awaited is its end, which comes after all that was seen of it.
    assert freed.result == DONE
    assert freed.resource_version > version(live)
    assert await bench.api.get("SandboxSnapshot", "a-pause") is None
    assert (await bench.result(DeleteObject("3", target(snapshot)))).reason == "Gone"


async def test_a_template_is_rewritten_in_one_patch_after_the_status(bench: Bench) -> None:
    sandbox = await bench.sandbox()
    resuming = PatchSandboxStatus("st", target(sandbox), version(sandbox), SandboxStatus(phase="Resuming"))
    op = RewriteTemplate("rw", target(sandbox), version(sandbox), IMAGES, "pull-secret")
    results = await bench.results(resuming, op)
    assert [result.result for result in results] == [DONE, DONE]
    live = await bench.get("BatchSandbox", "a")
    assert version(live) == results[1].resource_version
    assert live["metadata"]["generation"] == sandbox["metadata"]["generation"] + 1
    spec = live["spec"]["template"]["spec"]
    assert (spec["containers"][0]["image"], spec["imagePullSecrets"]) == (IMAGES["main"], [{"name": "pull-secret"}])
    assert live["status"]["phase"] == "Resuming"
    # What stands already is no new version.
    again = await bench.result(msgspec.structs.replace(op, resource_version=version(live)))
    assert (again.result, again.resource_version) == (DONE, version(live))


async def test_a_pooled_sandbox_becomes_one_with_its_pods_template(bench: Bench) -> None:
    pod = await bench.api.create(
        "Pod",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pool-pod", "labels": {names.POOL_NAME: "p", "app": "demo"}},
            "spec": {
                "nodeName": "node-a",
                "containers": [{"name": "main", "image": "pool:1", "env": [{"name": "A", "value": SECRET}]}],
            },
        },
    )
    made = await bench.sandbox(template=None, poolRef="p", pause=True)
    annotations = {
        names.ALLOC_STATUS: '{"pods":["pool-pod"]}',
        names.ALLOC_RELEASED: "{}",
        names.ENDPOINTS: '["10.0.0.8"]',
    }
    meta = {"annotations": annotations, "finalizers": [names.POOL_ALLOCATION]}
    sandbox = await bench.api.patch("BatchSandbox", "a", {"metadata": meta})
    assert sandbox["metadata"]["uid"] == made["metadata"]["uid"]
    result = await bench.result(DetachFromPool("d", target(sandbox), version(sandbox), target(pod)))
    live = await bench.get("BatchSandbox", "a")
    assert (result.result, result.resource_version) == (DONE, version(live))
    assert not live["spec"].get("poolRef")
    assert live["spec"]["pause"] is True
    assert live["spec"]["template"]["metadata"]["labels"] == {"app": "demo"}
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "pool:1"
    assert "nodeName" not in live["spec"]["template"]["spec"]
    assert live["metadata"]["annotations"] == {names.ENDPOINTS: "[]"}
    assert not live["metadata"].get("finalizers")
    assert "deletionTimestamp" not in (await bench.get("Pod", "pool-pod"))["metadata"]
    assert SECRET.encode() not in bench.told()
    assert SECRET not in json.dumps(msgspec.to_builtins(result))


async def test_a_refused_job_tells_where(bench: Bench, server: Any) -> None:
    if not server.real:
        pytest.skip("the simulated API server does not look at this")
    snapshot = await snapshotted(bench)
    job = CreateJob("j", target(snapshot), "Not_A_Name", "commit", POD, "node-a", IMAGES)
    result = await bench.result(job)
    assert (result.result, result.code) == (FAILED, 422)
    assert "metadata.name" in result.message
