from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from simcluster_api import Api
from simcluster_clock import Clock
from support.servers import Server

from simcluster.client import HttpClient
from simcluster.skin import SimServer
from simcluster.store import Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Store:
    return Store(clock, random.Random(1))


@pytest_asyncio.fixture(params=["simulated", "real"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """A client with a namespace of its own, on the simulator, and on a real server where its binaries are."""
    if request.param == "real":
        server: Server = request.getfixturevalue("real_server")
        async with HttpClient(server.url, server.tokens["admin"], agent="conformance", insecure=True) as client:
            name = f"conf-{secrets.token_hex(4)}"
            code, _, _ = await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            assert code == 201
            yield Api(client, name, real=True)
            await client.call("DELETE", f"/api/v1/namespaces/{name}")
        return
    async with SimServer(seed=1) as server_, HttpClient(server_.url, "t", agent="conformance") as client:
        server_.store.add_namespace("conf")
        yield Api(client, "conf", real=False)
