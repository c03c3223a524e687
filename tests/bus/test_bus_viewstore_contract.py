"""What `bus.viewstore` promises, on every implementation (DESIGN §5)."""

from __future__ import annotations

import asyncio

import pytest
from bus_worlds import WAIT, World, gather

from bus.viewstore import COMMIT_LIMIT, Fenced, ViewStoreUnavailable

FENCE, A, B = "3._", "3.c1.default.sandbox.a", "3.c1.default.sandbox.b"


async def test_a_partition_never_written_loads_empty_with_revision_zero(world: World) -> None:
    store = await world.store()
    assert await store.load(3) == ({}, 0)
    assert await store.list("") == []
    assert await store.get(FENCE) is None


async def test_a_commit_writes_all_its_keys_and_gives_the_fences_revision(world: World) -> None:
    store = await world.store()
    revision = await store.commit(3, {A: b"a", FENCE: b"cursor", B: b"\x00"}, 0)
    assert await store.load(3) == ({FENCE: b"cursor", A: b"a", B: b"\x00"}, revision)
    stored = await store.get(FENCE)
    assert stored is not None
    assert stored.revision == revision
    later = await store.commit(3, {FENCE: b"cursor 2"}, revision)
    assert later > revision
    assert await store.load(3) == ({FENCE: b"cursor 2", A: b"a", B: b"\x00"}, later)


async def test_a_fenced_commit_is_refused_whole(world: World) -> None:
    """DESIGN §5: a second projector on the partition, or a zombie that wakes up, is refused whole."""
    store, zombie = await world.store(), await world.store()
    first = await store.commit(3, {FENCE: b"1", A: b"a1", B: b"b1"}, 0)
    second = await store.commit(3, {FENCE: b"2", A: b"a2"}, first)
    with pytest.raises(Fenced):
        await zombie.commit(3, {FENCE: b"z", A: b"z", B: None, "3.c1.default.sandbox.new": b"z"}, first)
    with pytest.raises(Fenced):
        await zombie.commit(3, {FENCE: b"z"}, 0)
    assert await store.load(3) == ({FENCE: b"2", A: b"a2", B: b"b1"}, second)
    assert await store.get("3.c1.default.sandbox.new") is None


async def test_of_two_stores_that_race_one_wins_each_round(world: World) -> None:
    stores = [await world.store(), await world.store()]
    revision = 0
    for turn in range(20):
        results = await asyncio.gather(
            *(store.commit(3, {FENCE: b"%d" % i, A: b"%d" % i}, revision) for i, store in enumerate(stores)),
            return_exceptions=True,
        )
        won = [result for result in results if isinstance(result, int)]
        assert len(won) == 1, results
        assert sum(isinstance(result, Fenced) for result in results) == 1
        loaded, revision = await stores[turn % 2].load(3)
        assert revision == won[0]
        assert loaded[FENCE] == loaded[A]


async def test_partitions_do_not_fence_each_other(world: World) -> None:
    store = await world.store()
    three = await store.commit(3, {FENCE: b"1"}, 0)
    await store.commit(33, {"33._": b"1", "33.c1.x.pool.p": b"p"}, 0)
    await store.commit(3, {FENCE: b"2", A: b"a"}, three)
    assert set((await store.load(3))[0]) == {FENCE, A}
    assert set((await store.load(33))[0]) == {"33._", "33.c1.x.pool.p"}


async def test_a_commit_holds_its_fence_and_at_most_the_limit(world: World) -> None:
    store = await world.store()
    keys = {f"3.c1.default.sandbox.s{n}": b"x" for n in range(COMMIT_LIMIT)}
    with pytest.raises(ValueError, match="limit"):
        await store.commit(3, {FENCE: b"1", **keys}, 0)
    with pytest.raises(ValueError, match="fence"):
        await store.commit(3, {A: b"x"}, 0)
    assert await store.load(3) == ({}, 0)
    keys.popitem()
    revision = await store.commit(3, {FENCE: b"1", **keys}, 0)
    loaded, fence = await store.load(3)
    assert (len(loaded), fence) == (COMMIT_LIMIT, revision)


async def test_deleted_keys_are_seen_as_deletions_and_loaded_no_more(world: World) -> None:
    store = await world.store()
    revision = await store.commit(3, {FENCE: b"1", A: b"a", B: b"b"}, 0)
    await store.commit(3, {FENCE: b"2", A: None}, revision)
    assert set((await store.load(3))[0]) == {FENCE, B}
    assert [entry.key for entry in await store.list("")] == [FENCE, B]
    marker = await store.get(A)
    assert marker is not None
    assert marker.data is None


async def test_a_partition_whose_last_change_is_a_deletion_loads_whole(world: World) -> None:
    store = await world.store()
    first = await store.commit(3, {FENCE: b"1", A: b"a", B: b"b"}, 0)
    second = await store.commit(3, {FENCE: b"2", B: None, A: None}, first)
    assert await store.load(3) == ({FENCE: b"2"}, second)
    await store.commit(3, {FENCE: b"3", A: b"again"}, second)
    assert (await store.load(3))[0] == {FENCE: b"3", A: b"again"}


async def test_list_takes_a_prefix_of_whole_tokens(world: World) -> None:
    store = await world.store()
    await store.commit(3, {FENCE: b"1", A: b"a", "3.c1.default.pool.p": b"p", "3.c2.default.sandbox.a": b"c2"}, 0)
    assert [entry.key for entry in await store.list("3.c1.default.sandbox.")] == [A]
    assert [entry.key for entry in await store.list("3.c1.")] == ["3.c1.default.pool.p", A]
    assert len(await store.list("")) == 4


async def test_a_watch_begins_with_the_present_and_goes_on_with_the_fence_first(world: World) -> None:
    """The fence key is written before the others, so that nobody sees a view before the state it was folded under."""
    store = await world.store()
    revision = await store.commit(3, {A: b"a", FENCE: b"1"}, 0)
    watch = await store.watch()
    assert watch.initial == 2
    assert [(e.key, e.data) for e in await gather(watch, 2)] == [(FENCE, b"1"), (A, b"a")]
    revision = await store.commit(3, {B: b"b", A: None, FENCE: b"2"}, revision)
    changes = await gather(watch, 3)
    assert [(e.key, e.data) for e in changes] == [(FENCE, b"2"), (B, b"b"), (A, None)]
    assert changes[0].revision == revision
    assert [e.revision for e in changes] == sorted(e.revision for e in changes)
    assert await watch.batch(10, 0.02) == []
    await watch.close()


async def test_a_watch_of_patterns_sees_only_those(world: World) -> None:
    store = await world.store()
    watch = await store.watch(("3.c1.*.sandbox.>", "*._"))
    assert watch.initial == 0
    await store.commit(3, {FENCE: b"1", A: b"a", "3.c1.default.pool.p": b"p"}, 0)
    assert [e.key for e in await gather(watch, 2)] == [FENCE, A]
    assert await watch.batch(10, 0.02) == []
    await watch.close()


async def test_a_watch_sees_every_commit_in_order_or_a_later_one_of_the_key(world: World) -> None:
    store = await world.store()
    watch = await store.watch()
    revision = 0
    for number in range(100):
        revision = await store.commit(3, {FENCE: b"%d" % number, A: b"%d" % number}, revision)
    fence = view = -1
    while view < 99:
        for entry in await watch.batch(7, WAIT):
            assert entry.data is not None
            number = int(entry.data)
            if entry.key == FENCE:
                assert number > fence
                fence = number
            else:
                assert number > view
                assert fence >= number, "a view was seen before its fence"
                view = number
    await watch.close()


async def test_a_lost_bucket_ends_its_watches_and_is_found_empty(world: World) -> None:
    store = await world.store()
    revision = await store.commit(3, {FENCE: b"1", A: b"a"}, 0)
    watch = await store.watch()
    await gather(watch, 2)
    await world.wipe_views()
    with pytest.raises(ViewStoreUnavailable):
        await watch.batch(10, WAIT)
    with pytest.raises((Fenced, ViewStoreUnavailable)):
        await store.commit(3, {FENCE: b"2"}, revision)
    assert await store.load(3) == ({}, 0)
    assert await store.commit(3, {FENCE: b"1"}, 0) > 0
    await watch.close()
