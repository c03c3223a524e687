"""`bus.viewstore_shared`: the contract of `bus.viewstore`, whatever this process owns, and its own rules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from bus_worlds import WAIT, MemoryWorld, World, gather

# Every rule of the contract is collected here too, and runs on the `world` below.
from test_bus_viewstore_contract import *  # noqa: F403

from bus import viewstore_shared
from bus.patterns import covers
from bus.subjects import VIEW_KEYS
from bus.viewstore import Entry, Fenced, OwnedViews, ViewStore, ViewStoreUnavailable, ViewWatch
from bus.viewstore_memory import MemoryBucket, MemoryViewStore
from bus.viewstore_shared import SharedViewStore, of_partitions

TOTAL = 64
OWNED = {"none": (), "others": (4, 5), "some": (3, 5), "all": range(TOTAL)}
FENCE, A, B = "3._", "3.c1.default.sandbox.a", "3.c1.default.sandbox.b"


class Counted:
    """A store that tells how many watches were made of it, and of what; commits can be made to fail after they landed."""

    def __init__(self, within: ViewStore) -> None:
        self.within = within
        self.watched: list[tuple[str, ...]] = []
        self.fails: type[BaseException] | None = None

    async def load(self, partition: int) -> tuple[dict[str, bytes], int]:
        return await self.within.load(partition)

    async def commit(self, partition: int, changes: Mapping[str, bytes | None], expected: int) -> int:
        revision = await self.within.commit(partition, changes, expected)
        if self.fails is not None:
            raise self.fails("landed")
        return revision

    async def get(self, key: str) -> Entry | None:
        return await self.within.get(key)

    async def list(self, prefix: str) -> list[Entry]:
        return await self.within.list(prefix)

    async def watch(self, patterns: tuple[str, ...] = (">",)) -> ViewWatch:
        self.watched.append(patterns)
        return await self.within.watch(patterns)


class SharedWorld:
    """A world whose stores are shared ones. A lost bucket is told as the projector does."""

    def __init__(self, world: World, owned: Any) -> None:
        self.world = world
        self.owned = owned
        self.stores: list[SharedViewStore] = []
        self.counted: list[Counted] = []

    async def store(self) -> SharedViewStore:
        counted = Counted(await self.world.store())
        store = SharedViewStore(counted)
        if self.owned:
            store.own(self.owned, TOTAL)
        self.stores.append(store)
        self.counted.append(counted)
        return store

    async def wipe_views(self) -> None:
        await self.world.wipe_views()
        if 3 in self.owned:
            for store in self.stores:
                store.own((), TOTAL)


@pytest.fixture(params=list(OWNED))
def owned(request: pytest.FixtureRequest) -> Any:
    return OWNED[request.param]


@pytest.fixture
def world(world: World, owned: Any) -> SharedWorld:
    return SharedWorld(world, owned)


def view(partition: int, name: str) -> str:
    return f"{partition}.c1.default.sandbox.{name}"


A_OF = "{}.c1.default.sandbox.a".format


async def taken(watch: ViewWatch, count: int) -> list[tuple[str, bytes | None]]:
    return [(entry.key, entry.data) for entry in await gather(watch, count)]


def test_it_is_what_the_projector_looks_for() -> None:
    assert isinstance(SharedViewStore(MemoryViewStore()), OwnedViews)
    assert not isinstance(MemoryViewStore(), OwnedViews)


async def test_what_is_watched_has_the_revisions_of_the_bucket(world: SharedWorld) -> None:
    store = await world.store()
    watch = await store.watch()
    revision = 0
    for number in range(5):
        changes = {B: b"%d" % number, FENCE: b"f", view(3, f"n{number}"): None, A: b"a"}
        revision = await store.commit(3, changes, revision)
        for entry in await gather(watch, 4):
            stored = await store.get(entry.key)
            assert stored == entry
    await watch.close()


@pytest.mark.parametrize("owned", [range(TOTAL)], ids=["all"])
async def test_who_owns_all_watches_nothing_outside(world: SharedWorld) -> None:
    store = await world.store()
    await store.commit(3, {FENCE: b"1", A: b"a"}, 0)
    watch = await store.watch(VIEW_KEYS)
    await store.commit(9, {"9._": b"1", view(9, "x"): b"x"}, 0)
    assert watch.initial == 1
    assert await taken(watch, 2) == [(A, b"a"), (view(9, "x"), b"x")]
    assert world.counted[0].watched == []
    await watch.close()


@pytest.mark.parametrize("owned", [(3, 5)], ids=["some"])
async def test_who_owns_some_watches_only_the_others_outside(world: SharedWorld) -> None:
    store = await world.store()
    watch = await store.watch(("*._", "3.>", "4.c1.>"))
    assert world.counted[0].watched == [(*(f"{n}._" for n in range(TOTAL) if n not in (3, 5)), "4.c1.>")]
    await watch.close()


def test_patterns_of_partitions_match_what_the_pattern_matches_there() -> None:
    keys = ["3._", "4._", "5._", A, view(4, "a"), view(5, "a"), view(4, "a") + ".0", "4", "x.y"]
    for patterns in [(">",), VIEW_KEYS, ("*._",), ("4.>",), ("3.c1.>", "*.c1.>"), ("*",), ("*.>",)]:
        narrow = of_partitions(patterns, (4, 5))
        for key in keys:
            wanted = key.startswith(("4.", "5.")) and any(covers(pattern, key) for pattern in patterns)
            assert any(covers(pattern, key) for pattern in narrow) == wanted, (patterns, key)


@pytest.mark.parametrize("owned", [(), (3, 5), range(TOTAL)], ids=["none", "some", "all"])
async def test_a_change_of_what_is_owned_ends_watches_and_the_next_misses_nothing(world: SharedWorld) -> None:
    store, other = await world.store(), SharedViewStore(await world.world.store())
    revision = await store.commit(3, {FENCE: b"1", A: b"1"}, 0)
    watch = await store.watch(VIEW_KEYS)
    revision = await store.commit(3, {FENCE: b"2", A: b"2"}, revision)
    store.own((7,), TOTAL)
    with pytest.raises(ViewStoreUnavailable):
        await watch.batch(10, WAIT)
    await watch.close()
    # Another takes the partition over.
    revision = await other.commit(3, {FENCE: b"3", A: b"3", B: b"3"}, revision)
    watch = await store.watch(VIEW_KEYS)
    assert watch.initial == 2
    revision = await other.commit(3, {FENCE: b"4", A: b"4"}, revision)
    assert await taken(watch, 3) == [(A, b"3"), (B, b"3"), (A, b"4")]
    assert await watch.batch(10, 0.02) == []
    await watch.close()


async def test_the_same_said_again_ends_nothing(world: SharedWorld) -> None:
    store = await world.store()
    watch = await store.watch()
    store.own(world.owned, TOTAL)
    await store.commit(3, {FENCE: b"1"}, 0)
    assert await taken(watch, 1) == [(FENCE, b"1")]
    await watch.close()


@pytest.mark.parametrize("owned", [(3, 5), range(TOTAL)], ids=["some", "all"])
async def test_a_fenced_commit_tells_nothing_and_ends_the_watch(world: SharedWorld) -> None:
    store, other = await world.store(), SharedViewStore(await world.world.store())
    revision = await store.commit(3, {FENCE: b"1", A: b"1"}, 0)
    watch = await store.watch()
    await gather(watch, 2)
    await other.commit(3, {FENCE: b"2", A: b"2"}, revision)
    with pytest.raises(Fenced):
        await store.commit(3, {FENCE: b"z", A: b"z"}, revision)
    with pytest.raises(ViewStoreUnavailable):
        await watch.batch(10, WAIT)
    await watch.close()
    watch = await store.watch()
    assert await taken(watch, 2) == [(FENCE, b"2"), (A, b"2")]
    await watch.close()


@pytest.mark.parametrize("owned", [(3, 5), range(TOTAL)], ids=["some", "all"])
@pytest.mark.parametrize("fails", [ViewStoreUnavailable, asyncio.CancelledError])
async def test_a_commit_of_unknown_outcome_is_learned_from_the_store(
    world: SharedWorld, fails: type[BaseException]
) -> None:
    store = await world.store()
    revision = await store.commit(3, {FENCE: b"1", A: b"1"}, 0)
    watch = await store.watch()
    await gather(watch, 2)
    world.counted[0].fails = fails
    with pytest.raises(fails):
        await store.commit(3, {FENCE: b"2", A: b"2"}, revision)
    world.counted[0].fails = None
    with pytest.raises(ViewStoreUnavailable):
        await watch.batch(10, WAIT)
    await watch.close()
    watch = await store.watch()
    assert await taken(watch, 2) == [(FENCE, b"2"), (A, b"2")]
    # Until it is owned again, also what lands later comes from the store.
    _, revision = await store.load(3)
    await (await world.world.store()).commit(3, {FENCE: b"3"}, revision)
    assert await taken(watch, 1) == [(FENCE, b"3")]
    await watch.close()


async def test_two_processes_that_share_the_partitions_see_all_in_order(world: SharedWorld) -> None:
    """Each commits to its own; both see each partition's commits, never an older one after a newer, and end with the last of each key."""
    stores = [await world.store(), await world.store()]
    shares = (range(0, 8, 2), range(1, 8, 2))
    for store, share in zip(stores, shares, strict=True):
        store.own(share, 8)
    watches = [await store.watch() for store in stores]
    rounds = 30

    async def commit(store: SharedViewStore, partition: int) -> None:
        revision = 0
        for number in range(rounds):
            data = b"%d" % number
            changes = {f"{partition}._": data, view(partition, f"s{number % 3}"): data, A_OF(partition): data}
            revision = await store.commit(partition, changes, revision)

    async def follow(watch: ViewWatch) -> list[Entry]:
        seen: dict[int, list[Entry]] = {partition: [] for partition in range(8)}
        last: dict[str, bytes | None] = {}
        while any(last.get(key(p)) != b"%d" % (rounds - 1) for p in range(8) for key in ("{}._".format, A_OF)):
            entries = await watch.batch(11, WAIT)
            assert entries
            for entry in entries:
                seen[int(entry.key.split(".")[0])].append(entry)
                last[entry.key] = entry.data
        for of_partition in seen.values():
            revisions = [entry.revision for entry in of_partition]
            assert revisions == sorted(set(revisions))
        return list({entry.key: entry for entries in seen.values() for entry in entries}.values())

    commits = [commit(store, partition) for store, share in zip(stores, shares, strict=True) for partition in share]
    found = await asyncio.gather(*(follow(watch) for watch in watches), *commits)
    stored = await stores[0].list("")
    assert len(stored) == 8 * 5
    for seen in found[:2]:
        assert sorted(seen, key=lambda entry: entry.key) == stored
    for watch in watches:
        await watch.close()


class Held(MemoryViewStore):
    """Its lists, and answers to commits, wait to be let go."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(bucket)
        self.before_list, self.after_list, self.after_commit = (asyncio.Event() for _ in range(3))
        for event in (self.before_list, self.after_list, self.after_commit):
            event.set()

    async def list(self, prefix: str) -> Any:
        await self.before_list.wait()
        found = await super().list(prefix)
        await self.after_list.wait()
        return found

    async def commit(self, partition: int, changes: Mapping[str, bytes | None], expected: int) -> int:
        revision = await super().commit(partition, changes, expected)
        await self.after_commit.wait()
        return revision


@pytest.mark.parametrize("when", ["before the list", "after the list", "answered after the watch"])
async def test_a_commit_while_a_watch_begins_is_seen_once(when: str) -> None:
    within = Held(MemoryBucket())
    store = SharedViewStore(within)
    store.own(range(8), 8)
    revision = await store.commit(3, {FENCE: b"1", A: b"1", B: b"1"}, 0)
    gate = {"before the list": within.before_list, "after the list": within.after_list}.get(when)
    if gate is not None:
        gate.clear()
        opening = asyncio.create_task(store.watch())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        revision = await store.commit(3, {FENCE: b"2", A: b"2", B: None}, revision)
        gate.set()
        watch = await opening
    else:
        within.after_commit.clear()
        committing = asyncio.create_task(store.commit(3, {FENCE: b"2", A: b"2", B: None}, revision))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        watch = await store.watch()
        within.after_commit.set()
        revision = await committing
    assert watch.initial == 2
    assert await taken(watch, 2) == [(FENCE, b"2"), (A, b"2")]
    if gate is None:
        assert await taken(watch, 1) == [(B, None)]
    assert await watch.batch(10, 0) == []
    await store.commit(3, {FENCE: b"3", B: b"3"}, revision)
    assert await taken(watch, 2) == [(FENCE, b"3"), (B, b"3")]


async def test_a_change_of_what_is_owned_while_a_watch_begins_refuses_it() -> None:
    within = Held(MemoryBucket())
    store = SharedViewStore(within)
    store.own((1, 2), 8)
    within.before_list.clear()
    opening = asyncio.create_task(store.watch())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.own((1,), 8)
    within.before_list.set()
    with pytest.raises(ViewStoreUnavailable):
        await opening


async def test_commits_told_in_the_wrong_order_end_the_watch() -> None:
    within = Held(MemoryBucket())
    store = SharedViewStore(within)
    store.own((3,), 8)
    watch = await store.watch()
    within.after_commit.clear()
    late = asyncio.create_task(store.commit(3, {FENCE: b"1", A: b"1"}, 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waits, within.after_commit = within.after_commit, asyncio.Event()
    within.after_commit.set()
    await store.commit(3, {FENCE: b"2", A: b"2"}, (await store.load(3))[1])
    assert await taken(watch, 2) == [(FENCE, b"2"), (A, b"2")]
    waits.set()
    await late
    with pytest.raises(ViewStoreUnavailable):
        await watch.batch(10, WAIT)


async def test_a_watch_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewstore_shared, "BACKLOG", 10)
    store = SharedViewStore(MemoryViewStore())
    store.own((3,), 8)
    watch = await store.watch()
    revision = 0
    for number in range(20):
        # The same keys again are no backlog: the last of each is what counts.
        revision = await store.commit(3, {FENCE: b"%d" % number, A: b"%d" % number}, revision)
    assert await taken(watch, 2) == [(FENCE, b"19"), (A, b"19")]
    await store.commit(3, {FENCE: b"f", **{view(3, f"s{n}"): b"" for n in range(10)}}, revision)
    with pytest.raises(ViewStoreUnavailable):
        await watch.batch(10, WAIT)


async def test_a_slow_watch_reads_no_more_from_the_store_than_it_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewstore_shared, "PUMPED", 10)
    monkeypatch.setattr(viewstore_shared, "BATCH", 5)
    monkeypatch.setattr(viewstore_shared, "BACKLOG", 20)
    world = MemoryWorld()
    store, other = SharedViewStore(await world.store()), await world.store()
    watch = await store.watch()
    await other.commit(3, {FENCE: b"f", **{view(3, f"s{n}"): b"" for n in range(99)}}, 0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(watch._changes) == 15, "two batches do not exceed the bound, the third does"
    seen = await gather(watch, 100, limit=7)
    assert [entry.revision for entry in seen] == list(range(1, 101))
    await watch.close()
