"""Fixtures that several suites share: clusters to run against, simulated and real.

A test marked `cluster` that takes `server` runs on the simulator, and on a real control plane where `KUBEBUILDER_ASSETS` names its
binaries. With SANDLOG_REQUIRE_REAL set (the checks) a missing part is a failure instead of a skip.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from support.api import Api
from support.controlplane import ControlPlane, assets, free_ports
from support.programs import Program, python
from support.servers import Server, required


@pytest.fixture(scope="session")
def simulated_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("simulated")
    (port,) = free_ports(1)
    kubeconfig = folder / "kubeconfig"
    arguments = ["--port", str(port), "--kubeconfig", str(kubeconfig)]
    tokens = {"admin": "admin-token", "kubelet": "kubelet-token", "sandlog": "sandlog-token"}
    for user, token in tokens.items():
        arguments += ["--token", f"{token}={user}"]
    program = python("simulated", "simcluster", arguments, folder)
    end = time.monotonic() + 20
    while not kubeconfig.exists() or not program.tail():
        assert program.trouble() is None, program.trouble()
        assert time.monotonic() < end, "the simulated cluster did not start"
        time.sleep(0.02)
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": tokens["sandlog"]}
    kubeconfig.write_text(yaml.safe_dump(config))
    yield Server("simulated", f"http://127.0.0.1:{port}", kubeconfig, tokens, None)
    program.stop()


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if assets() is None:
        required("KUBEBUILDER_ASSETS names no folder with kube-apiserver, kube-controller-manager and etcd")
    plane = ControlPlane(tmp_path_factory.mktemp("real"))
    try:
        plane.start()
        tokens = {user: plane.token(user) for user in ("admin", "kubelet", "sandlog")}
        yield Server("real", plane.url, plane.kubeconfig("sandlog"), tokens, plane)
    finally:
        plane.stop()


@pytest.fixture(scope="session", params=["simulated", "real"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of the API servers that are there, in turn."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
async def api(server: Server, request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """A client in a namespace that no other test uses."""
    namespace = f"t{abs(hash((request.node.nodeid, os.getpid()))) % 10**10}"
    async with Api(server.url, server.tokens["admin"], namespace) as client:
        await client.ensure_namespace()
        yield client


@pytest.fixture
def kubelet(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Program]:
    """The kubelet stand-in on this server; further arguments through `@pytest.mark.parametrize("kubelet", [[...]], indirect=True)`."""
    more = list(getattr(request, "param", []))
    arguments = ["--server", server.url, "--token", server.tokens["kubelet"], "--insecure", *more]
    program = python("kubelet", "simcluster.kubelet", arguments, tmp_path)
    yield program
    program.stop()
