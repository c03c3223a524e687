"""The three places that a contract test runs on: memory, a local nats-server, and a NATS container where a Docker daemon answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats_container
import pytest
from bus_worlds import MemoryWorld, NatsWorld, World

from bus.connection import Connection, ConnectionSettings
from bus.natsserver import LocalNats

PLACES = ["memory", "nats", pytest.param("container", marks=pytest.mark.container)]


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A local server for the whole session; tests begin by deleting its streams."""
    server = LocalNats(tmp_path_factory.mktemp("nats"))
    asyncio.run(server.start())
    yield server.url
    asyncio.run(server.stop())


@pytest.fixture(scope="session")
def container_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(nats_container.running(tmp_path_factory.mktemp("image")))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str | None:
    """The URL of the NATS to run on; None is memory."""
    fixtures = {"nats": "nats_url", "container": "container_url"}
    return request.getfixturevalue(fixtures[request.param]) if request.param in fixtures else None


@pytest.fixture
async def world(place: str | None) -> AsyncIterator[World]:
    if place is None:
        yield MemoryWorld()
        return
    async with await Connection.open(ConnectionSettings(url=place)) as connection:
        nats_world = NatsWorld(connection)
        await nats_world.clean()
        yield nats_world


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalNats]:
    """A server of this test's own, to be killed."""
    async with LocalNats(tmp_path / "nats") as local:
        yield local


@pytest.fixture
async def connection(server: LocalNats) -> AsyncIterator[Connection]:
    async with await Connection.open(ConnectionSettings(url=server.url)) as opened:
        yield opened
