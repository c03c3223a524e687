"""What the tests of the command line share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from bus.connection import Connection, ConnectionSettings
from bus.log_nats import LogSettings, NatsLog
from bus.viewstore_nats import NatsViewStore


class Ran(msgspec.Struct, frozen=True):
    """What a command left: exit code, standard output and standard error."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


class Nats(msgspec.Struct, frozen=True):
    url: str
    directory: Path

    def do(self, work: Callable[[NatsLog, NatsViewStore], object]) -> None:
        """Run `await work(log, views)` against it."""

        async def whole() -> None:
            async with await Connection.open(ConnectionSettings(url=self.url)) as connection:
                log = await NatsLog.open(connection, LogSettings(partitions=4))
                views = await NatsViewStore.open(connection)
                await work(log, views)  # type: ignore[misc]

        asyncio.run(whole())
