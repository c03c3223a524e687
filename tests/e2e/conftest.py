"""A whole sandlog on an API server: one process with all roles, or two of each, over a nats-server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.sandlog import SEPARATE, Sandlog
from support.servers import Server

from bus.natsserver import LocalNats


@pytest.fixture
async def nats_url(tmp_path: Path) -> AsyncIterator[str]:
    async with LocalNats(tmp_path / "nats") as nats:
        yield nats.url


@pytest.fixture
def make_sandlog(server: Server, nats_url: str, tmp_path: Path) -> object:
    def make(*more: str) -> Sandlog:
        arguments = ["--nats", nats_url, "--kubeconfig", str(server.kubeconfig), "--cluster", "test", *more]
        return Sandlog(tmp_path / "roles", nats_url, arguments)

    return make


@pytest.fixture(params=["one", "two-of-each"])
def sandlog(request: pytest.FixtureRequest, make_sandlog: Callable[..., Sandlog]) -> object:
    made = make_sandlog()
    made.start(*(("all",) if request.param == "one" else SEPARATE * 2))
    yield made
    codes = made.stop()
    assert codes == [0] * len(codes), made.output()[-4000:]
