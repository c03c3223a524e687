"""The watch over HTTP, with just the rights of deploy/rbac.yaml, against every API server that is there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from support.api import Api
from support.servers import Server
from watch_world import CLUSTER, KEY, CountedMetrics

from bridge.credentials import Source
from bridge.kube import KubeClient, KubeSettings
from bridge.lease import stock_controller_holds
from bridge.watch import Watcher, WatchSettings
from bus import messages, subjects
from bus.clock import LogClock
from bus.log_memory import MemoryLog
from bus.messages import Gone, Seen
from bus.names import API_VERSION, SANDBOX_NAME, STOCK_LEASE

pytestmark = pytest.mark.cluster


@pytest.fixture
async def client(server: Server) -> AsyncIterator[KubeClient]:
    async with await KubeClient.open(KubeSettings(source=Source(kubeconfig=server.kubeconfig))) as client:
        yield client


async def told(log: MemoryLog, namespace: str, name: str, count: int) -> list[Any]:
    """The first `count` observations of an object."""
    reader = await log.follow([f"log.*.{CLUSTER}.{namespace}.obs.*.{subjects.token(name)}"], after=0)
    found: list[Any] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += [messages.decode(r.data, r.headers, Seen | Gone) for r in await reader.batch(100, 1.0)]
    return found


async def test_a_cluster_is_told_to_the_log(client: KubeClient, api: Api) -> None:
    log, secret = MemoryLog(), "geheimnis-0815"
    env = [{"name": "A", "value": secret}]
    template = {"spec": {"containers": [{"name": "c", "image": "i", "env": env}]}}
    sandbox = {
        "apiVersion": API_VERSION,
        "kind": "BatchSandbox",
        "metadata": {"name": "w1"},
        "spec": {"replicas": 0, "template": template},
    }
    await api.call("POST", api.path("BatchSandbox"), sandbox)
    settings = WatchSettings(digest_key=KEY)
    metrics = CountedMetrics()
    watcher = Watcher(CLUSTER, client, log, LogClock(), random.Random(1), metrics, settings)
    running = asyncio.create_task(watcher.run())
    try:
        async with asyncio.timeout(30):
            await watcher.ready.wait()
        (first,) = await told(log, api.namespace, "w1", 1)
        assert first.listed
        assert msgspec.json.decode(first.object)["kind"] == "BatchSandbox"
        pod = {
            "metadata": {"name": "w1-0", "labels": {SANDBOX_NAME: "w1"}},
            "spec": {"containers": [{"name": "c", "image": "i", "env": env}], "terminationGracePeriodSeconds": 0},
        }
        await api.call("POST", api.path("Pod"), pod)
        (seen,) = await told(log, api.namespace, "w1-0", 1)
        assert msgspec.json.decode(seen.object)["apiVersion"] == "v1"
        unlabel = {"metadata": {"labels": {SANDBOX_NAME: None}}}
        await api.call("PATCH", api.path("Pod", "w1-0"), unlabel, "application/merge-patch+json")
        _, left = await told(log, api.namespace, "w1-0", 2)
        assert isinstance(left, Seen)
        assert left.uid == seen.uid
        await api.call("DELETE", api.path("BatchSandbox", "w1"))
        assert isinstance((await told(log, api.namespace, "w1", 2))[-1], Gone)
        assert {status.state for status in watcher.status()} == {"watching"}
        assert metrics.counts["watch_errors"] == 0
        assert not [record for record in log.stream.after(0) if secret.encode() in record.data]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await api.call("DELETE", api.path("Pod", "w1-0"))


async def test_the_stock_controllers_lease_is_found(client: KubeClient, api: Api) -> None:
    assert await stock_controller_holds(client) is None
    now = (await api.call("GET", "/api/v1/namespaces/kube-system"))["metadata"]["creationTimestamp"]
    spec = {"holderIdentity": "stock-0", "renewTime": now.replace("Z", ".000000Z"), "leaseDurationSeconds": 100_000}
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": STOCK_LEASE},
        "spec": spec,
    }
    await api.call("POST", api.path("Lease"), lease)
    try:
        assert await stock_controller_holds(client) == "stock-0"
        assert await stock_controller_holds(client, api.namespace) == "stock-0"
    finally:
        await api.call("DELETE", api.path("Lease", STOCK_LEASE))
