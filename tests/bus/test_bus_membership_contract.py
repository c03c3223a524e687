"""What `bus.membership` promises, on every implementation (DESIGN §9)."""

from __future__ import annotations

import asyncio
from typing import Any

from bus_worlds import WAIT, World

TTL = 1.0


async def until(membership: Any, names: list[str]) -> None:
    async with asyncio.timeout(WAIT):
        while [member.name for member in membership.members()] != names:
            await membership.changed(WAIT)


async def test_members_of_a_group_see_each_other_by_name_with_attributes(world: World) -> None:
    memberships = await world.memberships(TTL)
    a = await memberships.join("projector", "host-a.example", {"version": "1"})
    b = await memberships.join("projector", "b")
    other = await memberships.join("bridge.c1", "b")
    await until(a, ["b", "host-a.example"])
    await until(b, ["b", "host-a.example"])
    assert [m.name for m in other.members()] == ["b"]
    assert dict(b.members()[1].attributes) == {"version": "1"}
    assert [(m.group, m.name) for m in await memberships.all()] == [
        ("bridge.c1", "b"),
        ("projector", "b"),
        ("projector", "host-a.example"),
    ]
    for member in (a, b, other):
        await member.leave()


async def test_changed_tells_each_difference_once(world: World) -> None:
    memberships = await world.memberships(TTL)
    a = await memberships.join("projector", "a")
    assert await a.changed(WAIT)
    assert not await a.changed(0.02)
    b = await memberships.join("projector", "b")
    assert await a.changed(WAIT)
    assert [m.name for m in a.members()] == ["a", "b"]
    assert not await a.changed(0.02)
    await b.leave()
    await a.leave()


async def test_a_member_that_leaves_is_gone_before_its_ttl(world: World) -> None:
    memberships = await world.memberships(30.0)
    a, b = await memberships.join("projector", "a"), await memberships.join("projector", "b")
    await until(a, ["a", "b"])
    await b.leave()
    await until(a, ["a"])
    assert [m.name for m in await memberships.all()] == ["a"]
    await a.leave()


async def test_a_member_that_dies_expires_and_one_that_lives_does_not(world: World) -> None:
    memberships = await world.memberships(TTL)
    a, b = await memberships.join("projector", "a"), await memberships.join("projector", "b")
    await until(a, ["a", "b"])
    await world.crash_member(b)
    await until(a, ["a"])
    assert [m.name for m in await memberships.all()] == ["a"]
    await a.leave()


async def test_a_name_that_left_may_come_back(world: World) -> None:
    memberships = await world.memberships(TTL)
    a, b = await memberships.join("projector", "a"), await memberships.join("projector", "b")
    await until(a, ["a", "b"])
    await b.leave()
    await until(a, ["a"])
    b = await memberships.join("projector", "b")
    await until(a, ["a", "b"])
    await b.leave()
    await a.leave()
