"""The executor's ops on whole API servers, the simulated one and the real one: what their refusals look like, and what is made of them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from execute_world import CLUSTER, TEMPLATE, Figures, create_pods, target, version
from support.api import Api

from bridge.credentials import Source
from bridge.execute import ExecuteSettings, Executor
from bridge.kube import KubeClient, KubeSettings
from bus import names
from bus.clock import LogClock
from bus.log_memory import SECOND, MemoryLog, MemoryStream
from bus.messages import CONFLICT, DONE, EARLY, FAILED, MISSING, Command, Outcome, Result, decode, encode, headers
from bus.ops import DeleteExpired, DeletePod, Op, PatchMetadata, PatchSandboxStatus, RecordEvent, Target
from bus.resources import Condition, SandboxStatus
from bus.subjects import Aggregate, of_aggregate, partition_of
from bus.version import CODE_VERSION

pytestmark = pytest.mark.cluster
SECRET = "hunter2-secret"


class Bench:
    """An executor on a memory log in real time; commands go in, results come out."""

    def __init__(self, client: KubeClient, api: Api) -> None:
        self.api = api
        self.log = MemoryLog(MemoryStream(time=time.time_ns))
        self.executor = Executor(
            CLUSTER, client, self.log, LogClock(), random.Random(1), Figures(), ExecuteSettings(by="test", poll=0.05)
        )

    async def results(self, *ops: Op) -> tuple[Result, ...]:
        namespace = self.api.namespace
        reader = await self.log.follow(["log.*.*.*.out.>"], after=(await self.log.bounds()).last_sequence)
        body = Command(view=1, expires=time.time_ns() + 30 * SECOND, reason="test", ops=ops)
        aggregate = Aggregate(CLUSTER, namespace, "sandbox", "a")
        subject = of_aggregate("cmd", partition_of(CLUSTER, namespace, 64), aggregate)
        await self.log.append(subject, encode(body), headers(CODE_VERSION))
        (record,) = await reader.batch(1, 20)
        outcome: Outcome = decode(record.data, record.headers, Outcome)
        return outcome.results

    async def result(self, op: Op) -> Result:
        (result,) = await self.results(op)
        return result

    async def sandbox(self, **spec: Any) -> dict[str, Any]:
        return await self.create("BatchSandbox", "a", "sandbox.opensandbox.io/v1alpha1", {"template": TEMPLATE, **spec})

    async def create(self, kind: str, name: str, version: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        made: dict[str, Any] = await self.api.create(kind, body)
        return made

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] | None = await self.api.get(kind, name)
        assert found is not None
        return found

    def told(self) -> bytes:
        return b"".join(record.data for record in self.log.stream.after(0))


@pytest.fixture
async def bench(server: Any, api: Api, tmp_path: Path) -> AsyncIterator[Bench]:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": server.tokens["admin"]}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    async with await KubeClient.open(KubeSettings(Source(kubeconfig=path))) as client:
        made = Bench(client, api)
        running = asyncio.create_task(made.executor.run())
        yield made
        made.executor.stop()
        await running


async def test_the_writes_of_create_to_ready_and_their_repeat(bench: Bench) -> None:
    sandbox = await bench.sandbox()
    at = version(sandbox)
    condition = Condition("Ready", "True", "PodsReady", "Sandbox is running", "2026-01-01T12:00:00Z")
    status = SandboxStatus(
        observed_generation=1, replicas=1, allocated=1, ready=1, phase="Succeed", conditions=(condition,)
    )
    first = await bench.results(
        create_pods(sandbox, 0, id="1"),
        PatchMetadata("2", target(sandbox), at, {names.ENDPOINTS: '["10.0.0.1"]'}),
        PatchSandboxStatus("3", target(sandbox), at, status),
        RecordEvent("4", target(sandbox), "batchsandbox-controller", "Normal", "R", "m", time.time_ns()),
    )
    assert [result.result for result in first] == [DONE, DONE, DONE, "accepted"]
    live = await bench.get("BatchSandbox", "a")
    assert version(live) == first[2].resource_version
    assert live["status"]["phase"] == "Succeed"
    assert live["metadata"]["annotations"][names.ENDPOINTS] == '["10.0.0.1"]'
    pod = await bench.get("Pod", "a-0")
    assert first[0].names["a-0"].uid == pod["metadata"]["uid"]

    # What stands already is done again at no new version.
    now = version(live)
    again = await bench.results(
        create_pods(sandbox, 0, id="1"),
        PatchMetadata("2", target(sandbox), now, {names.ENDPOINTS: '["10.0.0.1"]'}),
        PatchSandboxStatus("3", target(sandbox), now, status),
    )
    assert [result.result for result in again] == [DONE, DONE, DONE]
    assert again[2].resource_version == now
    assert again[0].names == {"a-0": msgspec.structs.replace(first[0].names["a-0"], resource_version=version(pod))}

    # An empty list of conditions clears them (B86).
    cleared = msgspec.structs.replace(status, conditions=())
    assert (await bench.result(PatchSandboxStatus("5", target(sandbox), now, cleared))).result == DONE
    assert not (await bench.get("BatchSandbox", "a"))["status"].get("conditions")


async def test_conflicts_and_strangers(bench: Bench) -> None:
    sandbox = await bench.sandbox()
    stale = await bench.result(PatchMetadata("1", target(sandbox), version(sandbox) - 1, {"x": "y"}))
    assert (stale.result, stale.resource_version) == (CONFLICT, version(sandbox))
    stranger = Target("batchsandbox", "a", "00000000-0000-0000-0000-000000000000")
    assert (await bench.result(PatchMetadata("2", stranger, version(sandbox) - 1, {"x": "y"}))).result == MISSING
    assert (await bench.result(PatchMetadata("3", Target("batchsandbox", "b", "u"), 5, {"x": "y"}))).result == MISSING
    await bench.result(create_pods(sandbox, 0))
    pod = await bench.get("Pod", "a-0")
    other = await bench.result(DeletePod("4", Target("pod", "a-0", stranger.uid)))
    assert (other.result, other.reason) == (DONE, "Replaced")
    assert "deletionTimestamp" not in (await bench.get("Pod", "a-0"))["metadata"]
    assert (await bench.result(DeletePod("5", target(pod)))).result == DONE


async def test_expiry_goes_by_the_servers_clock_and_the_version(bench: Bench) -> None:
    sandbox = await bench.sandbox()
    far = time.time_ns() + 3600 * SECOND
    assert (await bench.result(DeleteExpired("1", target(sandbox), version(sandbox), far))).result == EARLY
    assert (await bench.result(DeleteExpired("2", target(sandbox), version(sandbox) - 1, 0))).result == CONFLICT
    assert (await bench.result(DeleteExpired("3", target(sandbox), version(sandbox), 0))).result == DONE
    assert (await bench.result(DeleteExpired("3", target(sandbox), version(sandbox), 0))).reason == "Gone"


@pytest.mark.parametrize(
    ("container", "place", "simulated"),
    [
        ({"name": f"Bad_{SECRET}"}, "spec.containers[0].name: Invalid value", True),
        ({"env": [{"name": "A", "value": {"x": SECRET}}]}, "the object cannot be read", True),
        ({"env": [{"name": f"={SECRET}", "value": SECRET}]}, "spec.containers[0].env[0].name: Invalid value", False),
        ({"imagePullPolicy": SECRET}, "spec.containers[0].imagePullPolicy: Unsupported value", False),
        (
            {"env": [{"name": "A", "value": SECRET, "valueFrom": {"fieldRef": {"fieldPath": SECRET}}}]},
            "spec.containers[0].env[0].valueFrom",
            False,
        ),
    ],
)
async def test_a_refused_pod_tells_where_and_no_value(
    bench: Bench, server: Any, container: dict[str, Any], place: str, simulated: bool
) -> None:
    """traces.md malformed: the original's Event holds the whole pod."""
    if not simulated and not server.real:
        pytest.skip("the simulated API server does not look at this")
    template = {"spec": {"containers": [{"name": "main", "image": "busybox:1"}]}}
    patch = {"spec": {"containers": [{"$patch": "replace"}, {"name": "main", "image": "busybox:1", **container}]}}
    sandbox = await bench.sandbox(template=template, shardPatches=[patch])
    result = await bench.result(create_pods(sandbox, 0))
    assert result.result == FAILED
    assert result.code in (400, 422)
    assert place in result.message
    assert SECRET.encode() not in bench.told()
    assert SECRET not in json.dumps(msgspec.to_builtins(result))


async def test_an_exceeded_quota_is_told(bench: Bench, server: Any) -> None:
    if not server.real:
        pytest.skip("the simulated API server has no admission plugins")
    await bench.create("ResourceQuota", "q", "v1", {"hard": {"pods": "0"}})
    sandbox = await bench.sandbox()
    # No quota controller runs here: its part is the status.
    await bench.api.patch("ResourceQuota", "q", {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}, "status")
    result = await bench.result(create_pods(sandbox, 0))
    assert (result.result, result.code) == (FAILED, 403)
    assert "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0" in result.message
