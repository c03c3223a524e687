"""The published server and SDK drive our controller on the real control plane (issue 5, "Real client"; server-client.md §4, §5, §8)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from realclient_world import EXECD_PORT, Sdk, SdkRefused
from support.api import Api, conditions, endpoints, phase

from simcluster.kubelet import HttpKubelet
from simcluster.node import Behaviour

pytestmark = pytest.mark.real_client
IMAGE = "python:3.11"
COMMIT_LIMIT = 90.0
"""seconds; a failed commit is over when its Job has used up its retries or its time"""


async def create(sdk: Sdk, metadata: dict[str, str] | None = None) -> str:
    return str(await sdk.call("create", image=IMAGE, seconds=600, metadata=metadata or {}))


async def sandbox(cluster: Api, id: str) -> dict[str, Any]:
    found = await cluster.get("BatchSandbox", id)
    assert found is not None
    return found


async def pods(cluster: Api, id: str) -> list[dict[str, Any]]:
    return await cluster.list("Pod", f"batch-sandbox.sandbox.opensandbox.io/name={id}")


async def test_create_renew_list_and_kill(sdk: Sdk, cluster: Api) -> None:
    """server-client.md §8 rows 1, 2, 7, 8, 9, 11."""
    id = await create(sdk, {"team": "blue"})
    info = await sdk.call("info", id=id)
    assert (info["state"], info["reason"]) == ("Running", "RUNNING")

    (pod,) = await pods(cluster, id)
    assert pod["metadata"]["labels"]["opensandbox.io/id"] == id
    assert await sdk.call("endpoint", id=id, port=8000) == f"{pod['status']['podIP']}:8000"
    assert await sdk.call("endpoint", id=id, port=EXECD_PORT) == f"{pod['status']['podIP']}:{EXECD_PORT}"
    assert await sdk.call("healthy", id=id)

    other = await create(sdk, {"team": "red"})
    assert await sdk.call("list", metadata={"team": "blue"}) == [f"{id} Running"]
    assert await sdk.call("list", metadata={}) == sorted([f"{id} Running", f"{other} Running"])

    renewed = datetime.fromisoformat(await sdk.call("renew", id=id, seconds=3600))
    assert renewed - datetime.fromisoformat(info["expires_at"]) > timedelta(seconds=2900)
    assert (await sdk.until_state(id, "Running"))["expires_at"] == renewed.isoformat()
    assert [p["metadata"]["uid"] for p in await pods(cluster, id)] == [pod["metadata"]["uid"]]

    for each in (id, other):
        await sdk.call("kill", id=each)
        await sdk.until_gone(each)
    await cluster.until("no pod is left", "Pod", lambda left: not left)


async def test_an_expired_sandbox_is_gone_for_the_client(sdk: Sdk, cluster: Api) -> None:
    """§8 row 7: only the controller enforces expireTime, and it follows a renewal to an earlier time too."""
    id = await create(sdk)
    await sdk.call("renew", id=id, seconds=2)
    await sdk.until_gone(id, limit=20)
    await cluster.until("no pod is left", "Pod", lambda left: not left)


async def test_pause_renew_while_paused_resume_and_kill(sdk: Sdk, cluster: Api) -> None:
    """The stock controller runs the pause again at the renewal, which ends the sandbox; with ours it stays paused and resumes."""
    id = await create(sdk)
    (first,) = await pods(cluster, id)

    await sdk.call("pause", id=id)
    await sdk.until_state(id, "Paused")
    paused = await sandbox(cluster, id)
    assert endpoints(paused) == []
    assert paused["spec"]["pause"] is True
    (snapshot,) = await cluster.list("SandboxSnapshot")
    assert snapshot["status"]["phase"] == "Succeed"

    await sdk.call("renew", id=id, seconds=3600)
    generation = (await sandbox(cluster, id))["metadata"]["generation"]
    assert generation > paused["metadata"]["generation"]

    def acknowledged(objects: dict[str, dict[str, Any]]) -> bool:
        return bool(objects[id]["status"]["observedGeneration"] >= generation)

    seen = await cluster.until("the renewal is acknowledged", "BatchSandbox", acknowledged)
    assert phase(seen[id]) == "Paused"
    (kept,) = await cluster.list("SandboxSnapshot")
    assert kept["metadata"]["uid"] == snapshot["metadata"]["uid"]
    assert "deletionTimestamp" not in kept["metadata"]

    await sdk.call("resume", id=id)
    await sdk.until_state(id, "Running")
    (second,) = await pods(cluster, id)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    committed = {c["containerName"]: c["imageUri"] for c in snapshot["status"]["containers"]}
    assert {c["name"]: c["image"] for c in second["spec"]["containers"]} == committed
    assert endpoints(await sandbox(cluster, id)) == [second["status"]["podIP"]]
    assert await sdk.call("healthy", id=id)

    await sdk.call("kill", id=id)
    await sdk.until_gone(id)
    await cluster.until("no pod is left", "Pod", lambda left: not left)
    await cluster.until("no snapshot is left", "SandboxSnapshot", lambda left: not left)


async def test_a_failed_commit_shows_as_running_and_the_retry_pauses(sdk: Sdk, cluster: Api, node: HttpKubelet) -> None:
    """§5: Running with PauseFailed, which stands until the server's `null` then `true`; the pod is the one from before."""
    id = await create(sdk)
    (pod,) = await pods(cluster, id)
    node.set_rule(f"{id}-0", Behaviour(start_delay=0.05, commit_exit_code=1))

    await sdk.call("pause", id=id)
    await sdk.until_state(id, "Pausing")
    with pytest.raises(SdkRefused, match=r"INVALID_STATE|Pausing"):
        await sdk.call("pause", id=id)
    await sdk.until_state(id, "Running", COMMIT_LIMIT)
    failed = await sandbox(cluster, id)
    assert phase(failed) == "Succeed"
    assert conditions(failed)["PauseFailed"]["status"] == "True"
    assert endpoints(failed) == [pod["status"]["podIP"]]
    assert [p["metadata"]["uid"] for p in await pods(cluster, id)] == [pod["metadata"]["uid"]]

    # A renewal is no retry: the same pause stands, and so does what is said of it.
    await sdk.call("renew", id=id, seconds=3600)
    generation = (await sandbox(cluster, id))["metadata"]["generation"]
    seen = await cluster.until(
        "the renewal is acknowledged",
        "BatchSandbox",
        lambda objects: bool(objects[id]["status"]["observedGeneration"] >= generation),
    )
    assert conditions(seen[id])["PauseFailed"]["status"] == "True"

    node.clear_rule(f"{id}-0")
    await sdk.call("pause", id=id)
    await sdk.until_state(id, "Paused")
    assert conditions(await sandbox(cluster, id)).get("PauseFailed", {}).get("status") != "True"
    await sdk.call("kill", id=id)
    await sdk.until_gone(id)
