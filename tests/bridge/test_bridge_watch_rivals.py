"""Two clusters under one name must not fight over the epoch: whoever the log names goes on while it lives, the other one waits (DESIGN §4)."""

from __future__ import annotations

import asyncio

from watch_world import SANDBOXES, FakeCluster, World, virtual

from bridge.epochs import RAISE_APART, Held
from bus.membership_memory import MemoryGroups, MemoryMemberships
from sandlog.cluster_name import ClusterPresence


def presence(groups: MemoryGroups, name: str) -> ClusterPresence:
    return ClusterPresence(MemoryMemberships(groups), "c1", name)


def other_cluster() -> FakeCluster:
    other = FakeCluster(seed=99)
    for _ in range(100):
        other.sandbox("x")
        other.delete(f"{SANDBOXES}/x")
    return other


@virtual
async def test_the_second_cluster_of_a_name_waits_while_a_bridge_of_the_first_lives() -> None:
    groups = MemoryGroups()
    first, second = presence(groups, "z-first"), presence(groups, "a-second")
    async with World(presence=first) as world:
        await world.ready()
        async with World(other_cluster(), world.stream, presence=second) as other:
            await asyncio.sleep(600)
            assert [epoch.epoch for epoch in world.epochs()] == [1]
            assert not other.watcher.ready.is_set()
            why = other.watcher.held
            assert "z-first" in why
            assert "--cluster" in why
            assert all(status.error for status in other.watcher.status())
            assert world.watcher.held == ""
            assert not [call for call in other.cluster.calls if "batchsandboxes" in call[1]]


@virtual
async def test_it_goes_on_once_the_first_is_gone_for_good() -> None:
    groups = MemoryGroups()
    first, second = presence(groups, "first"), presence(groups, "second")
    world = World(presence=first)
    async with world:
        await world.ready()
        other = World(other_cluster(), world.stream, presence=second)
        await other.__aenter__()
        await asyncio.sleep(100)
    await first.leave()
    await asyncio.wait_for(other.ready(), 600)
    assert [epoch.epoch for epoch in other.epochs()] == [1, 2]
    assert other.watcher.held == ""
    await other.__aexit__()


@virtual
async def test_both_at_once_end_with_one_that_goes_on() -> None:
    groups = MemoryGroups()
    async with World(presence=presence(groups, "a")) as world:
        async with World(other_cluster(), world.stream, presence=presence(groups, "b")) as other:
            await asyncio.sleep(600)
            assert len(world.epochs()) <= 2
            assert sorted(bool(w.watcher.held) for w in (world, other)) == [False, True]


@virtual
async def test_a_replaced_cluster_with_no_other_live_bridge_raises_at_once() -> None:
    groups = MemoryGroups()
    first = presence(groups, "first")
    async with World(presence=first) as world:
        await world.ready()
    await first.leave()
    began = asyncio.get_running_loop().time()
    async with World(other_cluster(), world.stream, presence=presence(groups, "second")) as other:
        await other.ready()
        assert asyncio.get_running_loop().time() - began < 5
        assert [epoch.epoch for epoch in other.epochs()] == [1, 2]


@virtual
async def test_without_knowing_each_other_they_raise_a_few_times_a_minute_at_most() -> None:
    """Whatever happens: members may be unknown, or kube-system unreadable."""
    async with World() as world:
        await world.ready()
        async with World(other_cluster(), world.stream) as other:
            await asyncio.sleep(600)
            assert 2 <= len(world.epochs()) <= 1 + 2 * (2 + 600 / RAISE_APART)
            assert len(other.epochs()) == len(world.epochs())


def test_a_held_epoch_says_how_long() -> None:
    assert Held(3.0, "because").wait == 3.0
