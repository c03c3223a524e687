"""What a contract test may do to the place it runs on, besides the interfaces under test."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from bus.connection import ApiError, Connection
from bus.log import Log, Record
from bus.log_memory import MemoryLog, MemoryStream
from bus.log_nats import LogSettings, NatsLog
from bus.membership import Memberships
from bus.membership_memory import MemoryGroups, MemoryMemberships
from bus.membership_nats import MembershipSettings, NatsMemberships
from bus.viewstore import ViewStore
from bus.viewstore_memory import MemoryBucket, MemoryViewStore
from bus.viewstore_nats import NatsViewStore

WAIT = 10.0
"""Seconds that a test waits for something that must happen."""


class World(Protocol):
    async def log(self) -> Any: ...
    async def store(self) -> Any: ...
    async def memberships(self, ttl: float) -> Memberships: ...
    async def trim(self, to_sequence: int) -> None: ...
    async def wipe_log(self) -> None: ...
    async def wipe_views(self) -> None: ...
    async def crash_member(self, membership: Any) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.stream = MemoryStream()
        self.bucket = MemoryBucket()
        self.groups: MemoryGroups | None = None

    async def log(self) -> Log:
        return MemoryLog(self.stream)

    async def store(self) -> ViewStore:
        return MemoryViewStore(self.bucket)

    async def memberships(self, ttl: float) -> Memberships:
        if self.groups is None:
            self.groups = MemoryGroups(ttl)
        return MemoryMemberships(self.groups)

    async def trim(self, to_sequence: int) -> None:
        self.stream.trim(to_sequence)

    async def wipe_log(self) -> None:
        self.stream.wipe(recreate=False)

    async def wipe_views(self) -> None:
        self.bucket.wipe()

    async def crash_member(self, membership: Any) -> None:
        membership.kill()


class NatsWorld:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def clean(self) -> None:
        for name in ("LOG", "KV_VIEWS", "KV_MEMBERS"):
            with contextlib.suppress(ApiError):
                await self.connection.api(f"STREAM.DELETE.{name}")

    async def log(self) -> NatsLog:
        return await NatsLog.open(self.connection, LogSettings(max_bytes=256 * 1024 * 1024))

    async def store(self) -> NatsViewStore:
        return await NatsViewStore.open(self.connection)

    async def memberships(self, ttl: float) -> Memberships:
        return await NatsMemberships.open(self.connection, MembershipSettings(ttl=ttl))

    async def trim(self, to_sequence: int) -> None:
        await self.connection.api("STREAM.PURGE.LOG", {"seq": to_sequence + 1})

    async def wipe_log(self) -> None:
        await self.connection.api("STREAM.DELETE.LOG")

    async def wipe_views(self) -> None:
        await self.connection.api("STREAM.DELETE.KV_VIEWS")

    async def crash_member(self, membership: Any) -> None:
        await membership.abandon()


async def gather(reader: Any, count: int, limit: int = 1000) -> list[Any]:
    """Read until there are `count`."""
    found: list[Any] = []
    while len(found) < count:
        batch = await reader.batch(limit, WAIT)
        assert batch, f"{len(found)} of {count} came within {WAIT} s"
        found += batch
    return found


def numbers(records: Sequence[Record]) -> list[int]:
    return [int(record.data) for record in records]
