"""Template-mode sandboxes on a whole sandlog: issue 3's "done when", on the simulated and the real API server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.api import Api, conditions, endpoints, phase, sandbox
from support.programs import Program

pytestmark = pytest.mark.cluster
Objects = dict[str, dict[str, Any]]


def all_ready(objects: Objects, names: list[str], replicas: int = 1) -> bool:
    return all(
        name in objects
        and phase(objects[name]) == "Succeed"
        and len(endpoints(objects[name])) == replicas
        and all(endpoints(objects[name]))
        for name in names
    )


async def test_128_at_once_all_become_ready_with_right_endpoints(api: Api, kubelet: Program, sandlog: Any) -> None:
    names = [f"burst-{n}" for n in range(128)]
    await asyncio.gather(*(api.create("BatchSandbox", sandbox(name)) for name in names))
    ready = await api.until(
        "128 sandboxes ready", "BatchSandbox", lambda o: all_ready(o, names), trouble=sandlog.trouble
    )
    pods = {pod["metadata"]["name"]: pod for pod in await api.list("Pod")}
    assert sorted(pods) == sorted(f"{name}-0" for name in names)
    for name in names:
        assert endpoints(ready[name]) == [pods[f"{name}-0"]["status"]["podIP"]]
        status = ready[name]["status"]
        assert (status["replicas"], status["allocated"], status["ready"]) == (1, 1, 1)
        assert conditions(ready[name])["Ready"]["reason"] == "PodsReady"


async def test_a_deleted_pod_comes_back_under_its_name(api: Api, kubelet: Program, sandlog: Any) -> None:
    """SCL-04; traces.md pod_lost."""
    await api.create("BatchSandbox", sandbox("lost", 3))
    await api.until("ready", "BatchSandbox", lambda o: all_ready(o, ["lost"], 3), trouble=sandlog.trouble)
    before = await api.get("Pod", "lost-1")
    assert before is not None
    await api.delete("Pod", "lost-1")

    def replaced(pods: Objects) -> bool:
        return "lost-1" in pods and pods["lost-1"]["metadata"]["uid"] != before["metadata"]["uid"]

    await api.until("the pod is back", "Pod", replaced, trouble=sandlog.trouble)
    await api.until("ready again", "BatchSandbox", lambda o: all_ready(o, ["lost"], 3), trouble=sandlog.trouble)


async def test_an_expired_sandbox_goes_with_its_pods(api: Api, kubelet: Program, sandlog: Any) -> None:
    """EXP-01, EXP-02; E2C-18, E2C-19."""
    soon = (datetime.now(UTC) + timedelta(seconds=4)).isoformat()
    await api.create("BatchSandbox", sandbox("brief", expireTime=soon))
    await api.until("ready first", "BatchSandbox", lambda o: all_ready(o, ["brief"]), trouble=sandlog.trouble)
    await api.until("gone", "BatchSandbox", lambda o: "brief" not in o, 15, sandlog.trouble)
    assert datetime.now(UTC) >= datetime.fromisoformat(soon)
    await api.until("pods gone", "Pod", lambda o: not o, 20, sandlog.trouble)


async def test_a_renewal_in_time_keeps_the_sandbox(api: Api, kubelet: Program, sandlog: Any) -> None:
    await api.create(
        "BatchSandbox", sandbox("renewed", expireTime=(datetime.now(UTC) + timedelta(seconds=3)).isoformat())
    )
    await api.until("ready", "BatchSandbox", lambda o: all_ready(o, ["renewed"]), trouble=sandlog.trouble)
    later = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    await api.patch("BatchSandbox", "renewed", {"spec": {"expireTime": later}})
    # A second sandbox that expires after the first one's old time proves that expiry had its turn.
    await api.create(
        "BatchSandbox", sandbox("other", expireTime=(datetime.now(UTC) + timedelta(seconds=4)).isoformat())
    )
    await api.until("created", "BatchSandbox", lambda o: "other" in o, trouble=sandlog.trouble)
    await api.until("the other one gone", "BatchSandbox", lambda o: "other" not in o, 15, sandlog.trouble)
    assert phase(await api.get("BatchSandbox", "renewed")) == "Succeed"


async def test_scaling_follows_both_ways(api: Api, kubelet: Program, sandlog: Any) -> None:
    """SCL-03; B105: the highest indices go first."""
    await api.create("BatchSandbox", sandbox("scaled", 2))
    await api.until("two", "BatchSandbox", lambda o: all_ready(o, ["scaled"], 2), trouble=sandlog.trouble)
    await api.patch("BatchSandbox", "scaled", {"spec": {"replicas": 4}})
    await api.until("four", "BatchSandbox", lambda o: all_ready(o, ["scaled"], 4), trouble=sandlog.trouble)
    await api.patch("BatchSandbox", "scaled", {"spec": {"replicas": 1}})
    await api.until("one", "BatchSandbox", lambda o: all_ready(o, ["scaled"], 1), trouble=sandlog.trouble)
    await api.until("pod 0 is left", "Pod", lambda o: sorted(o) == ["scaled-0"], trouble=sandlog.trouble)
    final = await api.until(
        "counts", "BatchSandbox", lambda o: o["scaled"]["status"]["replicas"] == 1, trouble=sandlog.trouble
    )
    generation = final["scaled"]["metadata"]["generation"]
    assert final["scaled"]["status"]["observedGeneration"] == generation


async def test_shard_patches_make_each_pod_its_own(api: Api, kubelet: Program, sandlog: Any) -> None:
    """SCL-05."""
    patches = [{"spec": {"containers": [{"name": "main", "command": [f"custom-command-{n}"]}]}} for n in range(3)]
    await api.create("BatchSandbox", sandbox("sharded", 3, shardPatches=patches))
    await api.until("ready", "BatchSandbox", lambda o: all_ready(o, ["sharded"], 3), trouble=sandlog.trouble)
    for pod in await api.list("Pod"):
        index = pod["metadata"]["labels"]["batch-sandbox.sandbox.opensandbox.io/pod-index"]
        assert pod["metadata"]["name"] == f"sharded-{index}"
        assert pod["spec"]["containers"][0]["command"] == [f"custom-command-{index}"]


async def test_no_replicas_is_succeed_with_nothing_to_wait_for(api: Api, kubelet: Program, sandlog: Any) -> None:
    """DESIGN §11; traces.md zero_replicas shows `Pending` for ever."""
    await api.create("BatchSandbox", sandbox("none", 0))
    await api.until("Succeed", "BatchSandbox", lambda o: phase(o.get("none")) == "Succeed", trouble=sandlog.trouble)
    assert await api.list("Pod") == []


async def test_deletion_takes_the_pods_along(api: Api, kubelet: Program, sandlog: Any) -> None:
    """E2C-14."""
    await api.create("BatchSandbox", sandbox("doomed", 2))
    await api.until("ready", "BatchSandbox", lambda o: all_ready(o, ["doomed"], 2), trouble=sandlog.trouble)
    await api.delete("BatchSandbox", "doomed")
    await api.until("gone", "BatchSandbox", lambda o: not o, trouble=sandlog.trouble)
    await api.until("pods gone", "Pod", lambda o: not o, 20, sandlog.trouble)
