"""The HTTP skin: faults, tokens, streams, and clients that know nothing of the simulation."""

from __future__ import annotations

import asyncio
import email.utils
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import kubernetes_asyncio.client as kubernetes
import pytest
import pytest_asyncio
import yaml
from kubernetes_asyncio import config
from kubernetes_asyncio import watch as kubernetes_watch
from simcluster_api import MERGE, Api, job, pod, sandbox

from simcluster.client import HttpClient, WatchEnded
from simcluster.jobs import JobTiming
from simcluster.kubelet import HttpKubelet
from simcluster.node import Behaviour, Node
from simcluster.skin import SimServer

BS = "batchsandboxes"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[SimServer]:
    async with SimServer(seed=1, bookmark_seconds=0.05, timing=JobTiming(count_delay=0.01)) as running:
        yield running


@pytest_asyncio.fixture
async def sim(server: SimServer) -> AsyncIterator[Api]:
    async with HttpClient(server.url, "t", agent="tester") as client:
        yield Api(client, "default", real=False)


async def test_tokens_are_checked() -> None:
    async with SimServer(tokens={"good": "alice"}) as server:
        for token, code in (("good", 200), ("bad", 401), ("", 401)):
            async with HttpClient(server.url, token) as client:
                assert (await client.call("GET", "/api/v1/pods"))[0] == code


async def test_answers_carry_the_servers_date(sim: Api) -> None:
    _, headers, _ = await sim.client.call("GET", "/api/v1/pods")
    assert email.utils.parsedate_to_datetime(headers["Date"]).year >= 2024


async def test_bookmarks_come_regularly(sim: Api) -> None:
    events = await sim.events(BS, 2, resourceVersion=await sim.version(BS), allowWatchBookmarks="true")
    assert [kind for kind, _ in events] == ["BOOKMARK", "BOOKMARK"]


async def broken(stream: AsyncIterator[object]) -> bool:
    """Whether the stream breaks in the middle, as a cut connection does."""
    try:
        async with asyncio.timeout(5):
            async for _ in stream:
                pass
    except (aiohttp.ClientError, ConnectionError):
        return True
    return False


async def test_dropped_watches_break(server: SimServer, sim: Api) -> None:
    await sim.made(BS, sandbox("a"))
    stream = sim.client.watch(sim.path(BS), {"resourceVersion": "0"})
    assert (await anext(stream))[0] == "ADDED"
    assert server.faults.drop_watches() == 1
    assert await broken(stream)
    assert (await sim.get(BS, "a"))[0] == 200


async def test_a_silent_server_says_nothing_and_then_all(server: SimServer, sim: Api) -> None:
    server.faults.go_silent()
    asked = asyncio.create_task(sim.list(BS))
    done, _ = await asyncio.wait((asked,), timeout=0.1)
    assert not done
    server.faults.speak()
    assert (await asked)[0] == 200


async def test_silent_watches_are_noticed_by_idle_clients(server: SimServer, sim: Api) -> None:
    server.faults.go_silent(watches_only=True)
    assert (await sim.create(BS, sandbox("a")))[0] == 201
    stream = sim.client.watch(sim.path(BS), {"resourceVersion": "0"}, idle=0.1)
    with pytest.raises(TimeoutError):
        await anext(stream)


async def test_expired_watches(server: SimServer, sim: Api) -> None:
    server.faults.expire_watches(2)
    version = await sim.version(BS)
    for _ in range(2):
        assert await sim.watch_error(BS, resourceVersion=version) == 410
    await sim.made(BS, sandbox("a"))
    assert len(await sim.events(BS, 1, resourceVersion=version)) == 1


async def test_compaction_expires_old_versions_only(server: SimServer, sim: Api) -> None:
    version = await sim.version(BS)
    await sim.made(BS, sandbox("a"))
    server.compact()
    assert await sim.watch_error(BS, resourceVersion=version) == 410
    now = await sim.version(BS)
    await sim.made(BS, sandbox("b"))
    assert len(await sim.events(BS, 1, resourceVersion=now)) == 1


async def test_conflicts_by_kind(server: SimServer, sim: Api) -> None:
    await sim.made(BS, sandbox("a"))
    await sim.made("pods", pod("p"))
    server.faults.conflict(BS, 2)
    labels = {"metadata": {"labels": {"x": "1"}}}
    assert (await sim.patch("pods", "p", labels))[0] == 200
    assert [(await sim.patch(BS, "a", labels))[0] for _ in range(3)] == [409, 409, 200]


async def test_refusals_carry_retry_after(server: SimServer, sim: Api) -> None:
    server.faults.fail(429, verbs=["create"], resource="pods", retry_after=2)
    code, headers, _ = await sim.client.call("POST", sim.path("pods"), pod("p"))
    assert (code, headers["Retry-After"]) == (429, "2")
    assert (await sim.get("pods", "p"))[0] == 404
    assert (await sim.create("pods", pod("p")))[0] == 201


async def test_an_answer_can_be_lost_after_the_deed(server: SimServer, sim: Api) -> None:
    server.faults.fail(500, verbs=["create"], after=True)
    assert (await sim.create("pods", pod("p")))[0] == 500
    assert (await sim.get("pods", "p"))[0] == 200


async def test_latency(server: SimServer, sim: Api) -> None:
    server.faults.latency(0.05, "list")
    clock = asyncio.get_running_loop().time
    before = clock()
    await sim.list(BS)
    assert clock() - before >= 0.05


async def test_faults_over_http(server: SimServer, sim: Api) -> None:
    order = {"do": "fail", "code": 503, "count": 1, "verbs": ["list"]}
    assert (await sim.call("POST", "/sim/faults", order))[0] == 200
    assert (await sim.call("GET", "/sim/faults"))[1]["pending"][0]["code"] == 503
    assert (await sim.list(BS))[0] == 503
    assert (await sim.list(BS))[0] == 200
    assert (await sim.call("POST", "/sim/faults", {"do": "nonsense"}))[0] == 400
    assert (await sim.call("POST", "/sim/faults", {"do": "fail", "what": 1}))[0] == 400
    await sim.call("POST", "/sim/faults", {"do": "go_silent"})
    assert (await sim.call("DELETE", "/sim/faults"))[1]["silent"] is False


async def test_requests_are_counted(server: SimServer, sim: Api) -> None:
    await sim.list(BS)
    await sim.create(BS, sandbox("a"))
    assert server.requests[("tester", "list", BS)] == 1
    assert server.requests[("tester", "create", BS)] == 1


async def test_stop_ends_open_watches(sim: Api, server: SimServer) -> None:
    stream = sim.client.watch(sim.path(BS), {"resourceVersion": "0"})
    await sim.made(BS, sandbox("a"))
    await anext(stream)
    async with asyncio.timeout(5):
        await server.stop()


async def test_the_kubelet_is_an_ordinary_client(server: SimServer, sim: Api) -> None:
    node = Node(Behaviour(start_delay=0.01))
    kubelet = HttpKubelet(sim.client, node)
    running = asyncio.create_task(kubelet.run())
    try:
        await kubelet.ready.wait()
        for number in range(20):
            await sim.made("pods", pod(f"p{number}"))
        await sim.made("jobs", job("j"))
        for number in range(20):
            await sim.until("pods", f"p{number}", lambda o: o["status"]["phase"] == "Running")
        await sim.until("jobs", "j", lambda o: o["status"].get("succeeded") == 1)
        server.faults.drop_watches()
        server.faults.fail(500, 3, verbs=["create", "patch"], agent="tester")
        code = 500
        while code == 500:
            code, _ = await sim.create("pods", pod("late"))
        await sim.until("pods", "late", lambda o: o["status"]["phase"] == "Running")
        await sim.delete("pods", "p0")
        await sim.gone("pods", "p0")
        kubelet.set_rule("bad", Behaviour(waiting="ErrImagePull"))
        await sim.made("pods", pod("q", {"containers": [{"name": "c", "image": "bad:1"}]}))
        await sim.until("pods", "q", lambda o: "containerStatuses" in o["status"])
        kubelet.clear_rule("bad")
        await sim.until("pods", "q", lambda o: o["status"]["phase"] == "Running")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_kubernetes_asyncio_works_unmodified(server: SimServer) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(yaml.safe_dump(server.kubeconfig()))
        settings = kubernetes.Configuration()
        await config.load_kube_config(str(path), client_configuration=settings)
    async with kubernetes.ApiClient(settings) as client:
        core, custom = kubernetes.CoreV1Api(client), kubernetes.CustomObjectsApi(client)
        body = {"apiVersion": "v1", "kind": "Pod", **pod("p")}
        made = await core.create_namespaced_pod("default", body)
        assert made.status.phase == "Pending"
        where = ("sandbox.opensandbox.io", "v1alpha1", "default", BS)
        await custom.create_namespaced_custom_object(*where, sandbox("a"))
        await custom.patch_namespaced_custom_object(*where, "a", {"spec": {"pause": True}}, _content_type=MERGE)
        listed = await custom.list_namespaced_custom_object(*where)
        assert listed["items"][0]["spec"]["pause"] is True
        await core.create_namespaced_event(
            "default",
            {
                "metadata": {"name": "e"},
                "reason": "x",
                "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            },
        )
        stream = kubernetes_watch.Watch()
        async for event in stream.stream(core.list_namespaced_pod, "default", timeout_seconds=5):
            assert (event["type"], event["object"].metadata.name) == ("ADDED", "p")
            break
        await stream.close()
        with pytest.raises(kubernetes.ApiException) as caught:
            await core.read_namespaced_pod("nope", "default")
        assert caught.value.status == 404


async def test_a_refused_watch_is_told(sim: Api) -> None:
    with pytest.raises(WatchEnded):
        await anext(sim.client.watch("/api/v1/nothings", {}))
