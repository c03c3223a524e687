"""Who is there: live members of a group, for spreading load. Never what makes anything correct (DESIGN §6, §9)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from bus.hashing import mixed


class Member(msgspec.Struct, frozen=True):
    """A live process of a group (`projector`, `reconciler`, `bridge.<cluster>`, …)."""

    group: str
    name: str
    attributes: Mapping[str, str] = {}


class Membership(Protocol):
    """One member's own part in a group."""

    @property
    def member(self) -> Member: ...

    def members(self) -> tuple[Member, ...]:
        """Live members by name, this one included while it can refresh its own heartbeat; without it, only itself is unknown:
        a member that cannot refresh does not take over others' share, so it sees the last members it knew."""
        ...

    async def changed(self, timeout: float | None = None) -> bool:
        """Wait until the members differ from those at the last call; False after `timeout` seconds."""
        ...

    async def leave(self) -> None: ...


class Memberships(Protocol):
    async def join(self, group: str, name: str, attributes: Mapping[str, str] | None = None) -> Membership: ...

    async def all(self) -> list[Member]:
        """Every live member of every group, for people to look at."""
        ...


def shares(slots: int, members: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Who owns which of `slots`: rendezvous hashing with a bounded load (DESIGN §9).

    Each slot goes to the member with the highest hash of (slot, member) that is not yet full; full is the ceiling of
    slots / members. The same for every caller that sees the same members.
    """
    return dict(_shares(slots, tuple(sorted(set(members)))))


@functools.lru_cache(maxsize=64)
def _shares(slots: int, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    owned: dict[str, list[int]] = {name: [] for name in names}
    if not names:
        return {}
    full = -(-slots // len(names))
    for slot in range(slots):
        ranked = sorted(names, key=lambda name: (-mixed(f"{slot}/{name}"), name))
        owner = next(name for name in ranked if len(owned[name]) < full)
        owned[owner].append(slot)
    return {name: tuple(slots_of) for name, slots_of in owned.items()}
