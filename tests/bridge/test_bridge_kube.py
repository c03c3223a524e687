"""Our client of an API server: configuration of every kind, errors that help, and lines whatever the chunks (issue 3, bridge.watch)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from bridge.cluster import Unreachable, WatchRefused
from bridge.credentials import CannotConfigure, Source
from bridge.kube import KubeClient, KubeSettings
from bridge.lines import Lines, LineTooLong
from bus.names import API_VERSION
from bus.version import CODE_VERSION
from simcluster.skin import SimServer

SANDBOXES = f"/apis/{API_VERSION}/namespaces/default/batchsandboxes"


def kubeconfig(folder: Path, server: str, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
                "users": [{"name": "u", "user": user}],
                "contexts": [
                    {"name": "here", "context": {"cluster": "c", "user": "u"}},
                    {"name": "there", "context": {"cluster": "c", "user": "u"}},
                ],
            }
        )
    )
    return path


def settings(path: Path, **rest: Any) -> KubeSettings:
    return KubeSettings(source=Source(kubeconfig=path), **rest)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_requests_and_a_watch_against_the_simulated_server(tmp_path: Path) -> None:
    async with SimServer() as server:
        path = kubeconfig(tmp_path, server.url, {"token": "t"})
        async with await KubeClient.open(settings(path)) as client:
            body = {
                "apiVersion": API_VERSION,
                "kind": "BatchSandbox",
                "metadata": {"name": "s1"},
                "spec": {"replicas": 1},
            }
            made = await client.request("POST", SANDBOXES, body=msgspec.json.encode(body))
            assert made.status == 201
            assert "date" in made.headers
            listed = await client.request("GET", SANDBOXES, query={"limit": "1"})
            version = msgspec.json.decode(listed.body)["metadata"]["resourceVersion"]
            missing = await client.request("GET", f"{SANDBOXES}/none")
            assert missing.status == 404

            query = {"watch": "1", "resourceVersion": version}
            async with aclosing(client.watch(SANDBOXES, query=query, idle_timeout=10.0)) as lines:
                first = asyncio.ensure_future(anext(lines))
                patch = b'{"spec":{"replicas":2}}'
                await client.request(
                    "PATCH", f"{SANDBOXES}/s1", body=patch, content_type="application/merge-patch+json"
                )
                event = msgspec.json.decode((await first)[0])
            assert event["type"] == "MODIFIED"
            assert event["object"]["spec"]["replicas"] == 2
            assert {agent for agent, _, _ in server.requests} == {f"sandlog/{CODE_VERSION}"}


async def test_a_watch_that_is_refused_says_how(tmp_path: Path) -> None:
    async with SimServer() as server:
        server.faults.fail(403, verbs=("watch",))
        async with await KubeClient.open(settings(kubeconfig(tmp_path, server.url, {}))) as client:
            with pytest.raises(WatchRefused) as refused:
                await anext(client.watch(SANDBOXES, query={"watch": "1"}, idle_timeout=5.0))
            assert refused.value.response.status == 403
            assert b"injected" in refused.value.response.body


async def test_a_silent_watch_and_a_dropped_one_are_unreachable(tmp_path: Path) -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"a":1}\n{"b"')
        if request.path == "/silent":
            await asyncio.Event().wait()
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serving(hang_up) as url, await KubeClient.open(settings(kubeconfig(tmp_path, url, {}))) as client:
        for path, text in (("/silent", "no answer within"), ("/dropped", "dropped: ")):
            async with aclosing(client.watch(path, query={}, idle_timeout=0.2)) as lines:
                assert await anext(lines) == [b'{"a":1}']
                with pytest.raises(Unreachable, match=text):
                    await anext(lines)


async def test_no_server_is_said_with_what_to_check(tmp_path: Path) -> None:
    async with await KubeClient.open(settings(kubeconfig(tmp_path, "http://127.0.0.1:1", {}))) as client:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: GET /api: .*check the server's address"):
            await client.request("GET", "/api")


async def test_no_answer_in_time(tmp_path: Path) -> None:
    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(never) as url, await KubeClient.open(settings(kubeconfig(tmp_path, url, {}))) as client:
        with pytest.raises(Unreachable, match="no answer within"):
            await client.request("GET", "/api", timeout=0.05)


async def test_a_401_is_tried_again_with_credentials_read_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.credentials.REFRESH_AT_MOST_EVERY", 0.0)
    token = tmp_path / "token"
    token.write_text("old\n")
    seen: list[str] = []

    async def check(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(status=200 if seen[-1] == "Bearer new" else 401)

    async with serving(check) as url:
        path = kubeconfig(tmp_path, url, {"tokenFile": str(token)})
        async with await KubeClient.open(settings(path)) as client:
            token.write_text("new\n")
            assert (await client.request("GET", "/api")).status == 200
            assert seen == ["Bearer old", "Bearer new"]
            token.write_text("bad\n")
            assert (await client.request("GET", "/api")).status == 200


async def test_an_exec_plugin_gives_the_token(tmp_path: Path) -> None:
    credential = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-exec"}}'
    )
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho '{credential}'\n")
    plugin.chmod(0o755)
    exec_user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(plugin),
            "interactiveMode": "Never",
        }
    }

    async def tell(request: web.Request) -> web.Response:
        return web.Response(text=request.headers.get("Authorization", ""))

    async with (
        serving(tell) as url,
        await KubeClient.open(settings(kubeconfig(tmp_path, url, exec_user))) as client,
    ):
        assert (await client.request("GET", "/api")).body == b"Bearer from-exec"


async def test_a_service_account_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert Source().is_in_cluster
    assert not Source(kubeconfig=tmp_path / "x").is_in_cluster
    with pytest.raises(CannotConfigure, match="service account"):
        await KubeClient.open(KubeSettings(source=Source()))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (Source(kubeconfig=Path("/nowhere/config")), "/nowhere/config"),
        (Source(kubeconfig=Path("CONFIG"), context="missing"), "context missing"),
    ],
)
async def test_a_configuration_that_is_not_there_is_named(
    source: Source, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    kubeconfig(tmp_path, "http://localhost", {})
    if source.context:
        source = Source(kubeconfig=tmp_path / "kubeconfig", context=source.context)
    with pytest.raises(CannotConfigure, match=text):
        await KubeClient.open(KubeSettings(source=source))


async def test_insecure_skip_tls_verify(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "https://localhost:1", {}, **{"insecure-skip-tls-verify": True})
    async with await KubeClient.open(settings(path)) as client:
        context = client._credentials.tls()
        assert not isinstance(context, bool)
        assert not context.check_hostname


async def test_at_most_so_many_requests_a_second(tmp_path: Path) -> None:
    async def ok(_: web.Request) -> web.Response:
        return web.Response()

    loop = asyncio.get_running_loop()
    async with (
        serving(ok) as url,
        await KubeClient.open(settings(kubeconfig(tmp_path, url, {}), qps=100, burst=5)) as client,
    ):
        begun = loop.time()
        await asyncio.gather(*(client.request("GET", "/api") for _ in range(25)))
        assert loop.time() - begun >= 0.19  # 5 at once, 20 more at 100 a second


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"") or b"x"), max_size=8), st.data())
def test_lines_come_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines) + b"unfinished"
    splitter = Lines()
    found: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == lines


def test_a_line_may_be_2_mib_and_not_without_end() -> None:
    splitter = Lines(longest=3 * 1024 * 1024)
    for _ in range(32):
        assert splitter.feed(b"x" * 65536) == []
    assert [len(line) for line in splitter.feed(b"\n")] == [2 * 1024 * 1024]
    for _ in range(48):
        splitter.feed(b"x" * 65536)
    with pytest.raises(LineTooLong):
        splitter.feed(b"x")


async def test_a_watch_event_of_2_mib_arrives(tmp_path: Path) -> None:
    line = b'{"x":"' + b"y" * (2 * 1024 * 1024) + b'"}'

    async def big(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line + b"\n" + b'{"z":1}\n')
        return response

    async with serving(big) as url, await KubeClient.open(settings(kubeconfig(tmp_path, url, {}))) as client:
        told = [each async for lines in client.watch("/x", query={}, idle_timeout=5.0) for each in lines]
        assert told == [line, b'{"z":1}']


async def test_the_environments_proxy_is_not_asked_for_what_it_excludes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    for host, expected in (("inside.example", None), ("outside.example", "http://proxy:3128")):
        path = kubeconfig(tmp_path, f"https://{host}", {}, **{"insecure-skip-tls-verify": True})
        async with await KubeClient.open(settings(path)) as client:
            assert client._credentials.proxy == expected
