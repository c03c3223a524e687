"""The published server and SDK as processes, our controller, and stand-ins for the kubelets and for execd, on the real control plane.

The SDK asks execd's port on each pod's address before it calls a sandbox usable. Pods get loopback addresses here, and one small
HTTP server on that port answers for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from realclient_world import EXECD_PORT, CommandLine, OpenSandboxServer, Sdk
from support.api import Api
from support.controlplane import ControlPlane, assets
from support.nats import NatsServer
from support.sandlog import Sandlog
from support.servers import required

from simcluster.client import HttpClient
from simcluster.kubelet import HttpKubelet
from simcluster.node import Behaviour, Node

REGISTRY = "registry.test/snapshots"
COMMIT_JOB_TIMEOUT = "15s"
"""A commit that fails is given up then; its three retries would take 70 s."""


@pytest.fixture(scope="session")
def environment() -> Path:
    """The folder that environment.sh prints."""
    folder = os.environ.get("SANDLOG_REAL_CLIENT", "")
    if not folder or not (Path(folder) / "bin" / "opensandbox-server").exists():
        required(
            "SANDLOG_REAL_CLIENT names no environment with the published server: see tests/realclient/environment.sh"
        )
    return Path(folder)


@pytest.fixture(scope="session")
def plane(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real control plane of this suite's own: others run kubelets and controllers for all namespaces of the shared one."""
    if assets() is None:
        required("KUBEBUILDER_ASSETS names no folder with kube-apiserver, kube-controller-manager and etcd")
    made = ControlPlane(tmp_path_factory.mktemp("realclient"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
async def cluster(plane: ControlPlane, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """The control plane, in a namespace of this test's own."""
    namespace = f"r{abs(hash((request.node.nodeid, os.getpid()))) % 10**10}"
    async with Api(plane.url, plane.token("admin"), namespace) as client:
        await client.ensure_namespace()
        yield client


@pytest.fixture
async def node(plane: ControlPlane) -> AsyncIterator[HttpKubelet]:
    """All kubelets; pods have loopback addresses, and the knobs can be turned while they run."""
    behaviour = Behaviour(start_delay=0.05, commit_delay=0.05)
    async with HttpClient(plane.url, plane.token("kubelet"), insecure=True) as client:
        kubelet = HttpKubelet(client, Node(behaviour, ip_prefix="127.1"))
        running = asyncio.create_task(kubelet.run())
        try:
            await asyncio.wait_for(kubelet.ready.wait(), 20)
            yield kubelet
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


@pytest.fixture
async def execd() -> AsyncIterator[None]:
    """Answers GET /ping for every pod of the node."""

    async def ping(request: web.Request) -> web.Response:
        return web.Response(text="pong")

    app = web.Application()
    app.router.add_get("/ping", ping)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", EXECD_PORT, reuse_port=True).start()
    yield
    await runner.cleanup()


@pytest.fixture
def controller(plane: ControlPlane, cluster: Api, tmp_path: Path) -> Iterator[Sandlog]:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    arguments = ["--nats", nats.url, "--kubeconfig", str(plane.kubeconfig("sandlog")), "--cluster", "test"]
    arguments += ["--namespace", cluster.namespace, "--snapshot-registry", REGISTRY]
    arguments += ["--commit-job-timeout", COMMIT_JOB_TIMEOUT]
    made = Sandlog(tmp_path / "roles", nats, arguments)
    try:
        made.start("all")
        yield made
    finally:
        codes = made.stop()
        nats.stop()
    assert codes == [0], made.output()[-4000:]


@pytest.fixture
def opensandbox(
    environment: Path, plane: ControlPlane, cluster: Api, tmp_path: Path, node: HttpKubelet, execd: None
) -> Iterator[OpenSandboxServer]:
    server = OpenSandboxServer(environment, tmp_path / "opensandbox", plane.kubeconfig("admin"), cluster.namespace)
    try:
        server.until_healthy()
        yield server
    finally:
        server.program.stop()


@pytest.fixture
async def sdk(environment: Path, opensandbox: OpenSandboxServer, controller: Sandlog) -> AsyncIterator[Sdk]:
    client = Sdk(lambda: controller.trouble() or opensandbox.program.trouble())
    await client.start(environment, opensandbox)
    try:
        yield client
    finally:
        await client.stop()


@pytest.fixture
def osb(environment: Path, opensandbox: OpenSandboxServer, controller: Sandlog) -> CommandLine:
    return CommandLine(environment, opensandbox)
