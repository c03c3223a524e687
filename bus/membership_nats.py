"""Members as keys with a TTL in the key-value bucket MEMBERS (DESIGN §9, nats.md §4.1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from typing import Any, Self

import msgspec
import nats.errors
import structlog

from bus.bucket_nats import OPERATION, Bucket, bucket_config
from bus.connection import ApiError, Connection, Unreachable
from bus.membership import Member
from bus.roster import Roster
from bus.stored import SECOND
from bus.streams import StreamRefused

logger = structlog.get_logger(__name__)

BUCKET = "MEMBERS"
TTL_ALONE = 3.0
TTL_CLUSTERED = 15.0
"""A leader election takes 4–9 s and must not look like everybody's death (DESIGN §9)."""
MARKER_TTL = 60
TRIES = 5
PAUSE = 0.25
FAILURES = (ApiError, Unreachable, StreamRefused, nats.errors.Error, OSError)


class MembershipUnavailable(Exception):
    """The bucket of members could not be reached."""


class WatchLost(Exception):
    """The bucket was lost: watch again."""


class MembershipSettings(msgspec.Struct, frozen=True):
    """`ttl` in seconds, at least 1; None: 3 on one server, 15 where the server is one of a cluster."""

    ttl: float | None = None
    replicas: int = 1


def key_of(group: str, name: str) -> str:
    """A host's name may hold dots, which would make it several tokens."""
    return f"{group}.{name.replace('.', '_')}"


class NatsMembership:
    """`bus.membership.Membership`."""

    def __init__(self, bucket: Bucket, member: Member, ttl: float) -> None:
        self._bucket = bucket
        self._member = member
        self._key = key_of(member.group, member.name)
        self._ttl = ttl
        self._roster = Roster(member, ttl)
        self._body = msgspec.json.encode(member)
        self._told: tuple[Member, ...] = ()
        self._stirred = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def member(self) -> Member:
        return self._member

    def members(self) -> tuple[Member, ...]:
        return self._roster.members(asyncio.get_running_loop().time())

    async def changed(self, timeout: float | None = None) -> bool:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            self._stirred.clear()
            now = self.members()
            if now != self._told:
                self._told = now
                return True
            left = self._ttl / 4 if deadline is None else min(deadline - loop.time(), self._ttl / 4)
            if left <= 0:
                return False
            # Woken by the watch; and looked at every quarter TTL, because a thaw is a matter of time alone.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stirred.wait()

    async def start(self) -> None:
        """Store the first heartbeat, see who is there, then go on with both. Raises MembershipUnavailable."""
        if not await self._refresh():
            raise MembershipUnavailable(f"{self._key}: heartbeat could not be stored")
        ready = asyncio.Event()
        self._tasks = [self._run(self._beat()), self._run(self._follow(ready))]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ttl):
                await ready.wait()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            logger.error("membership task failed", member=self._key, error=repr(task.exception()))

    async def leave(self) -> None:
        """Stop and say so; the others see it at once."""
        await self.abandon()
        headers = {OPERATION: "DEL", "Nats-TTL": f"{MARKER_TTL}s"}
        try:
            await self._bucket.connection.request(self._bucket.prefix + self._key, b"", headers, timeout=self._ttl / 2)
        except FAILURES as error:
            logger.info("leave not told, the heartbeat expires instead", member=self._key, error=str(error))

    async def abandon(self) -> None:
        """Stop without a word, as a crash would."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._ttl / 4)
            await self._refresh()

    async def _refresh(self) -> bool:
        """A plain publish with the TTL header: `kv.update` of nats-py would make the key permanent (nats.md §4.1)."""
        headers = {"Nats-TTL": f"{int(self._ttl * 1000)}ms"}
        loop = asyncio.get_running_loop()
        try:
            message = await self._bucket.connection.request(
                self._bucket.prefix + self._key, self._body, headers, timeout=self._ttl / 4
            )
            refused = msgspec.json.decode(message.data).get("error")
            if refused is not None:
                raise ApiError(self._key, refused)
        except FAILURES as error:
            self._roster.failed()
            logger.warning("heartbeat not stored", member=self._key, error=str(error))
            if isinstance(error, Unreachable) and error.no_responders:
                with contextlib.suppress(*FAILURES):
                    await self._bucket.ensure()
            return False
        self._roster.refreshed(loop.time())
        self._stirred.set()
        return True

    async def _follow(self, ready: asyncio.Event) -> None:
        while True:
            try:
                await self._watch(ready)
            except (WatchLost, *FAILURES) as error:
                logger.info("watching the members anew", member=self._key, error=str(error))
            await asyncio.sleep(PAUSE)

    async def _watch(self, ready: asyncio.Event) -> None:
        pull = await self._bucket.open((f"{self._member.group}.*",), WatchLost)
        names: dict[str, str] = {}
        self._roster.forget_all()
        try:
            while True:
                if pull.given >= pull.initial:
                    ready.set()
                for entry in await pull.batch(256, self._ttl):
                    if entry.data is None:
                        self._roster.gone(names.pop(entry.key, ""))
                    else:
                        member = msgspec.json.decode(entry.data, type=Member)
                        names[entry.key] = member.name
                        self._roster.seen(member)
                self._stirred.set()
        finally:
            await pull.close()


class NatsMemberships:
    """`bus.membership.Memberships`."""

    def __init__(self, connection: Connection, settings: MembershipSettings) -> None:
        self._connection = connection
        self._settings = settings
        config = bucket_config(
            BUCKET, storage="memory", replicas=settings.replicas, subject_delete_marker_ttl=MARKER_TTL * SECOND
        )
        self._bucket = Bucket(connection, BUCKET, config)

    @classmethod
    async def open(cls, connection: Connection, settings: MembershipSettings | None = None) -> Self:
        """Create the bucket or check it. Raises StreamRefused or MembershipUnavailable."""
        self = cls(connection, settings or MembershipSettings())
        try:
            await self._bucket.ensure()
        except (ApiError, Unreachable) as error:
            raise MembershipUnavailable(str(error)) from error
        return self

    @property
    def ttl(self) -> float:
        return self._settings.ttl or (TTL_CLUSTERED if self._connection.clustered else TTL_ALONE)

    async def join(self, group: str, name: str, attributes: Mapping[str, str] | None = None) -> NatsMembership:
        membership = NatsMembership(self._bucket, Member(group, name, dict(attributes or {})), self.ttl)
        await membership.start()
        return membership

    async def all(self) -> list[Member]:
        try:
            for _ in range(TRIES):
                entries = await self._bucket.present(">", exact=False)
                if entries is not None:
                    found = [msgspec.json.decode(e.data, type=Member) for e in entries.values() if e.data is not None]
                    return sorted(found, key=lambda member: (member.group, member.name))
        except FAILURES as error:
            raise MembershipUnavailable(str(error)) from error
        raise MembershipUnavailable("the members could not be read whole")
