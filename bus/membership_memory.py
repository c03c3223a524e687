"""Members in memory, under the contract of `bus.membership`; time is the running loop's, so a virtual-time loop drives it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping

from bus.membership import Member
from bus.memory import Bell, deadline_of
from bus.roster import Roster

TTL = 3.0
_SERVER = contextvars.Context()
"""The bucket's timers run in none of the members' contexts: a dead member's heartbeat expires too."""


class MemoryGroups:
    """What several processes share. `available` False: no heartbeat gets through."""

    def __init__(self, ttl: float = TTL) -> None:
        self.ttl = ttl
        self.available = True
        self.bell = Bell()
        self._expiries: dict[tuple[str, str], float] = {}
        self._members: dict[tuple[str, str], Member] = {}

    def refresh(self, member: Member, now: float) -> bool:
        if not self.available:
            return False
        key = (member.group, member.name)
        self._expiries[key] = now + self.ttl
        if self._members.get(key) != member:
            self._members[key] = member
            self.bell.ring()
        asyncio.get_running_loop().call_at(now + self.ttl, self._expire, context=_SERVER)
        return True

    def remove(self, member: Member) -> None:
        self._members.pop((member.group, member.name), None)
        self._expiries.pop((member.group, member.name), None)
        self.bell.ring()

    def live(self, group: str | None = None) -> list[Member]:
        self._expire()
        return [self._members[key] for key in sorted(self._members) if group is None or key[0] == group]

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        gone = [key for key, expiry in self._expiries.items() if expiry <= now]
        for key in gone:
            del self._expiries[key], self._members[key]
        if gone:
            self.bell.ring()


class MemoryMembership:
    """`bus.membership.Membership`. `kill`: no more heartbeats, nothing said."""

    def __init__(self, groups: MemoryGroups, member: Member) -> None:
        self._groups = groups
        self._member = member
        self._roster = Roster(member, groups.ttl)
        self._told: tuple[Member, ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def member(self) -> Member:
        return self._member

    def members(self) -> tuple[Member, ...]:
        if self._groups.available:
            self._roster.forget_all()
            for member in self._groups.live(self._member.group):
                self._roster.seen(member)
        return self._roster.members(asyncio.get_running_loop().time())

    async def changed(self, timeout: float | None = None) -> bool:
        deadline = deadline_of(timeout)
        loop = asyncio.get_running_loop()
        while True:
            now = self.members()
            if now != self._told:
                self._told = now
                return True
            if deadline is not None and loop.time() >= deadline:
                return False
            # Looked at every quarter TTL too, because a thaw is a matter of time alone.
            look = loop.time() + self._groups.ttl / 4
            await self._groups.bell.wait(look if deadline is None else min(look, deadline))

    async def leave(self) -> None:
        self.kill()
        self._groups.remove(self._member)

    def kill(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """Refresh now and every quarter of the TTL."""
        loop = asyncio.get_running_loop()
        if self._groups.refresh(self._member, loop.time()):
            self._roster.refreshed(loop.time())
        else:
            self._roster.failed()
        self._timer = loop.call_later(self._groups.ttl / 4, self.beat)


class MemoryMemberships:
    """`bus.membership.Memberships`."""

    def __init__(self, groups: MemoryGroups | None = None) -> None:
        self.groups = groups if groups is not None else MemoryGroups()

    async def join(self, group: str, name: str, attributes: Mapping[str, str] | None = None) -> MemoryMembership:
        membership = MemoryMembership(self.groups, Member(group, name, dict(attributes or {})))
        membership.beat()
        return membership

    async def all(self) -> list[Member]:
        return self.groups.live()
