"""A whole sandlog on an API server: one process with all roles, or two of each, over a nats-server of its own.

Starting eight processes takes seconds, so they and the kubelet stand-in are kept for all tests on one server; each test has a namespace of
its own. A test that kills parts starts them again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.nats import NatsServer
from support.programs import Program, python
from support.sandlog import MODES, Sandlog
from support.servers import Server

KUBELET = ["--bad-image", "cannot-be-pulled", "--crash-image", "crashes"]
# A commit's argument names the image, and that the sandbox and its generation.
KUBELET += ["--fail-commit", "never-main:", "--fail-commit", "once-main:snap-gen2"]
REGISTRY = "registry.test/snap"
SNAPSHOTS = ["--snapshot-registry", REGISTRY, "--commit-job-timeout", "15s"]
"""A commit that fails is given up after 15 s; its three retries would take 70."""


@pytest.fixture(scope="session")
def kubelet(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    arguments = ["--server", server.url, "--token", server.tokens["kubelet"], "--insecure", *KUBELET]
    program = python("kubelet", "simcluster.kubelet", arguments, tmp_path_factory.mktemp("kubelet"))
    yield program
    program.stop()


@pytest.fixture(scope="session", params=list(MODES))
def sandlog(request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp(f"sandlog-{server.kind}-{request.param}")
    nats = NatsServer(folder / "nats")
    nats.start()
    arguments = ["--nats", nats.url, "--kubeconfig", str(server.kubeconfig), "--cluster", "test", *SNAPSHOTS]
    made = Sandlog(folder / "roles", nats, arguments)
    try:
        made.start(*MODES[request.param])
        yield made
    finally:
        codes = made.stop()
        nats.stop()
    assert codes == [0] * len(codes), f"{codes}\n{made.output()[-4000:]}"
