"""The projector on a real nats-server: restarts, two on the same partitions, the server killed, the log another one (DESIGN §5)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from projector_stage import Counted
from projector_world import Story, pod, sandbox, stored

from bus.clock import LogClock
from bus.connection import ApiError, Connection, ConnectionSettings
from bus.log_nats import LogSettings, NatsLog
from bus.membership_nats import MembershipSettings, NatsMemberships
from bus.natsserver import LocalNats
from bus.views import PartitionState
from bus.viewstore import ViewStoreUnavailable
from bus.viewstore_nats import NatsViewStore
from projector.fold import Partition
from projector.service import Projector, ProjectorSettings

PARTITIONS = 4
WAIT = 20.0
SETTINGS = LogSettings(partitions=PARTITIONS, max_bytes=64 * 1024 * 1024)


class Process:
    """A projector with a connection of its own."""

    def __init__(self, url: str, name: str, group_of_its_own: bool) -> None:
        self.url, self.name = url, name
        self.metrics = Counted()
        self.alone = group_of_its_own

    async def __aenter__(self) -> Process:
        self.connection = await Connection.open(ConnectionSettings(url=self.url))
        log = await NatsLog.open(self.connection, SETTINGS)
        views = await NatsViewStore.open(self.connection)
        members = await NatsMemberships.open(self.connection, MembershipSettings(ttl=3.0))
        self.projector = Projector(
            log,
            views,
            members,
            LogClock(),
            random.Random(1),
            self.metrics,
            ProjectorSettings(idle=0.2, retry=0.05),
            name=self.name,
        )
        if self.alone:
            self.projector._owned = lambda membership, partitions: tuple(range(partitions))  # type: ignore[method-assign]
        self.task = asyncio.create_task(self.projector.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.projector.stop(), 2)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.connection.close()


class Place:
    """The log as the bridges write it, and the store as the reconcilers read it."""

    def __init__(self, server: LocalNats, connection: Connection, log: NatsLog, views: NatsViewStore) -> None:
        self.server, self.connection, self.log, self.views = server, connection, log, views

    async def say(self, story: Story, since: int = 0) -> None:
        appender = self.log.appender("test")
        for record in story.records[since:]:
            await appender.add(record.subject, record.data, record.headers)
        await appender.flush()
        await appender.close()

    async def held(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for number in range(PARTITIONS):
            keys, _ = await self.views.load(number)
            found |= {key: data for key, data in keys.items() if not key.endswith("._")}
        return found

    async def wanted(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        records = await self.log.read(["log.>"])
        for number in range(PARTITIONS):
            partition = Partition(number, PARTITIONS, PartitionState())
            for record in records:
                partition.fold(record)
            found |= {key: data for key, data in stored(partition).items() if not key.endswith("._")}
        return found

    async def caught_up(self) -> int:
        """Wait for the store to hold what a fold of the whole log gives; how many keys that is."""
        wanted = await self.wanted()
        async with asyncio.timeout(WAIT):
            while True:
                try:
                    watch = await self.views.watch()
                    while await self.held() != wanted:
                        await watch.batch(1000, 1.0)
                    await watch.close()
                    return len(wanted)
                except ViewStoreUnavailable:
                    await self.connection.nc.flush()


def many(story: Story, first: int, count: int) -> Story:
    for n in range(first, first + count):
        story.seen("batchsandbox", sandbox(100 + 2 * n, f"s{n}"))
        story.seen("pod", pod(101 + 2 * n, f"s{n}-0", of=f"s{n}", ready=True))
    return story


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with (
        LocalNats(tmp_path / "nats") as server,
        await Connection.open(ConnectionSettings(url=server.url)) as connection,
    ):
        log = await NatsLog.open(connection, SETTINGS)
        yield Place(server, connection, log, await NatsViewStore.open(connection))


async def test_a_restart_resumes(place: Place) -> None:
    story = Story(partitions=PARTITIONS)
    await place.say(many(story, 0, 50))
    async with Process(place.server.url, "a", False):
        assert await place.caught_up() == 50
    await place.say(many(story, 50, 10), 100)
    async with Process(place.server.url, "a", False) as again:
        assert await place.caught_up() == 60
        # From the oldest cursor of its partitions on: the new 20, and at most what the last commit before the end did not hold.
        assert 20 <= again.metrics.counts["projector_records"] < 60


async def test_two_on_the_same_partitions(place: Place) -> None:
    story = Story(partitions=PARTITIONS)
    async with Process(place.server.url, "a", True) as one, Process(place.server.url, "b", True) as two:
        for n in range(10):
            said = len(story.records)
            await place.say(many(story, n, 1), said)
            await place.caught_up()
        restarts = [p.metrics.counts.get("projector_restarts/Fenced", 0) for p in (one, two)]
    assert sum(restarts) >= 1


async def test_the_server_is_killed_and_the_views_with_it(place: Place) -> None:
    story = Story(partitions=PARTITIONS)
    await place.say(many(story, 0, 50))
    async with Process(place.server.url, "a", False):
        await place.caught_up()
        await place.server.kill()
        await place.server.start()
        await place.say(many(story, 50, 5), 100)
        assert await place.caught_up() == 55


async def test_the_log_is_another_one(place: Place) -> None:
    await place.say(many(Story(partitions=PARTITIONS), 0, 50))
    async with Process(place.server.url, "a", False):
        await place.caught_up()
        with contextlib.suppress(ApiError):
            await place.connection.api("STREAM.DELETE.LOG")
        await place.log.ensure()
        await place.say(many(Story(partitions=PARTITIONS), 500, 3))
        assert await place.caught_up() == 3
