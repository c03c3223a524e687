from __future__ import annotations

import os
import random
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from simcluster_api import Api
from simcluster_clock import Clock

from simcluster.client import HttpClient
from simcluster.skin import SimServer
from simcluster.store import Store

KUBECONFIG = os.environ.get("SANDLOG_TEST_KUBECONFIG", "")
SERVERS = ["sim", *(["real"] if KUBECONFIG else [])]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Store:
    return Store(clock, random.Random(1))


@pytest_asyncio.fixture(params=SERVERS)
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Api]:
    """A client with a namespace of its own, on the simulator, and on a real server if one is named."""
    if request.param == "real":
        async with real_client() as client:
            name = f"conf-{secrets.token_hex(4)}"
            code, _, _ = await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            assert code == 201
            yield Api(client, name, real=True)
            await client.call("DELETE", f"/api/v1/namespaces/{name}")
        return
    async with SimServer(seed=1) as server, HttpClient(server.url, "t", agent="conformance") as client:
        server.store.add_namespace("conf")
        yield Api(client, "conf", real=False)


def real_client() -> HttpClient:
    config = yaml.safe_load(Path(KUBECONFIG).read_text())
    cluster = config["clusters"][0]["cluster"]
    token = config["users"][0]["user"]["token"]
    return HttpClient(cluster["server"], token, agent="conformance", insecure=True)
