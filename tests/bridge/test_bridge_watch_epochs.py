"""The cluster's epoch: (epoch, resourceVersion) only grows, whatever happens to etcd (DESIGN §4)."""

from __future__ import annotations

import asyncio

from watch_world import CLUSTER, SANDBOXES, FakeCluster, World, eventually, virtual

from bus import messages, scopes, subjects
from bus.log_memory import MemoryStream


@virtual
async def test_the_first_bridge_of_a_cluster_writes_epoch_1() -> None:
    async with World() as world:
        await world.ready()
        (first,) = world.epochs()
        assert first.epoch == 1
        uid = world.cluster.direct.get(world.cluster.store.kind("v1", "Namespace"), "", "kube-system")["metadata"][
            "uid"
        ]
        assert first.cluster_uid == uid
        kinds = [type(body).__name__ for body in world.bodies()]
        assert kinds[0] == "Epoch"


@virtual
async def test_a_second_bridge_follows_and_writes_none() -> None:
    async with World() as world:
        await world.ready()
        async with World(world.cluster, world.stream) as second:
            await second.ready()
            assert len(world.epochs()) == 1


@virtual
async def test_a_restored_etcd_raises_the_epoch_and_everything_is_listed_anew() -> None:
    cluster = FakeCluster()
    for _ in range(20):
        cluster.sandbox("s1")
        cluster.delete(f"{SANDBOXES}/s1")
    cluster.sandbox("s1")
    async with World(cluster) as world, World(cluster, world.stream) as second:
        await world.ready()
        await second.ready()
        position = len(world.records())
        cluster.restore()
        cluster.sandbox("s1")
        cluster.drop()
        await eventually(lambda: len(world.epochs()) == 2)
        assert world.epochs()[1].epoch == 2
        assert "restored etcd" in world.epochs()[1].reason
        await eventually(
            lambda: (
                {
                    b.scope
                    for b in world.bodies(after=position)
                    if getattr(b, "objects", None) is not None and b.epoch == 2
                }
                == set(scopes.BY_WORD)
            )
        )
        await eventually(lambda: all(s.epoch == 2 for w in (world, second) for s in w.watcher.status()))
        last = world.seen("s1")[-1]
        assert last.epoch == 2
        assert last.resource_version < world.seen("s1")[0].resource_version
        # What comes through the watches from now on is of the new epoch too.
        cluster.patch(f"{SANDBOXES}/s1", {"spec": {"replicas": 3}})
        await eventually(lambda: not world.seen("s1")[-1].listed)
        assert world.seen("s1")[-1].epoch == 2
        await asyncio.sleep(600)
        assert len(world.epochs()) == 2


@virtual
async def test_a_bridge_that_was_not_there_finds_the_restored_etcd_by_the_log() -> None:
    cluster = FakeCluster()
    for _ in range(20):
        cluster.sandbox("s1")
        cluster.delete(f"{SANDBOXES}/s1")
    async with World(cluster) as world:
        await world.ready()
    cluster.restore()
    async with World(cluster, world.stream) as second:
        await second.ready()
        assert [epoch.epoch for epoch in second.epochs()] == [1, 2]


@virtual
async def test_another_cluster_of_the_same_name_raises_the_epoch() -> None:
    async with World() as world:
        await world.ready()
    other = FakeCluster(seed=99)
    for _ in range(100):
        other.sandbox("x")
        other.delete(f"{SANDBOXES}/x")
    async with World(other, world.stream) as second:
        await second.ready()
        told = second.epochs()
        assert [epoch.epoch for epoch in told] == [1, 2]
        assert "another" in told[1].reason
        assert told[0].cluster_uid != told[1].cluster_uid


@virtual
async def test_where_kube_system_cannot_be_read_the_epoch_stays() -> None:
    async with World() as world:
        await world.ready()
    world.cluster.refused["kube-system"] = 403
    async with World(world.cluster, world.stream) as second:
        await second.ready()
        assert len(second.epochs()) == 1


@virtual
async def test_an_event_with_a_lower_version_than_the_one_before_leads_to_a_list() -> None:
    cluster = FakeCluster()
    for _ in range(20):
        cluster.sandbox("s1")
        cluster.delete(f"{SANDBOXES}/s1")
    line = b'{"type":"ADDED","object":{"metadata":{"name":"p","namespace":"default","uid":"u","resourceVersion":"3"}}}'
    cluster.injected["/pools"] = [line]
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: len(world.lists("pool")) == 2)
        assert not world.seen("p")


@virtual
async def test_an_event_on_its_way_to_the_log_when_the_epoch_rises_does_not_move_the_new_position() -> None:
    cluster = FakeCluster()
    cluster.sandbox("s1")
    gate, waiting = asyncio.Event(), asyncio.Event()

    async def hold(kind: str, detail: str) -> None:
        if kind == "add.before" and detail.endswith("obs.batchsandbox.s1") and armed:
            waiting.set()
            await gate.wait()

    armed = False
    async with World(cluster, on_step=hold) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        armed = True
        cluster.patch(f"{SANDBOXES}/s1", {"spec": {"replicas": 2}})
        await waiting.wait()
        armed = False
        gate.set()
        world.watcher._another_epoch()
        await eventually(lambda: len(world.lists("batchsandbox")) == 2)
        cluster.patch(f"{SANDBOXES}/s1", {"spec": {"replicas": 3}})
        await eventually(lambda: b'"replicas":3' in bytes(world.seen("s1")[-1].object), seconds=60)
        assert not world.seen("s1")[-1].listed


@virtual
async def test_an_epoch_that_the_log_has_trimmed_is_written_again_not_a_lower_one() -> None:
    cluster = FakeCluster()
    for _ in range(20):
        cluster.sandbox("s1")
        cluster.delete(f"{SANDBOXES}/s1")
    async with World(cluster) as world:
        await world.ready()
    cluster.restore()
    async with World(cluster, world.stream) as second:
        await second.ready()
        position = [record.sequence for record in world.records() if record.subject.endswith(".epoch")][-1]
        await asyncio.sleep(400)  # the periodic lists of epoch 2 come after its record
    world.stream.trim(position)
    assert not second.epochs()
    async with World(cluster, world.stream) as third:
        await third.ready()
        assert [epoch.epoch for epoch in third.epochs()] == [2]


@virtual
async def test_a_cluster_that_can_be_identified_later_keeps_its_epoch() -> None:
    cluster = FakeCluster()
    cluster.refused["kube-system"] = 403
    async with World(cluster) as world:
        await world.ready()
        assert [epoch.cluster_uid for epoch in world.epochs()] == [""]
        cluster.refused.clear()
        await eventually(lambda: len(world.epochs()) == 2)
        assert world.epochs()[1].epoch == 1
        assert world.epochs()[1].cluster_uid


@virtual
async def test_an_epoch_of_a_newer_version_stops_the_lists_not_the_process() -> None:
    stream = MemoryStream()
    async with World(stream=stream) as world:
        await world.ready()
    newer = {**messages.headers("9.9.9"), messages.SCHEMA_HEADER: "99"}
    await world.log.append(subjects.epoch_of(CLUSTER), b"{}", newer)
    position = len(world.records())
    async with World(world.cluster, stream) as second:
        await asyncio.sleep(200)
        assert not second.watcher.ready.is_set()
        assert len(world.records()) == position
        assert all("schema version" in status.error for status in second.watcher.status())


@virtual
async def test_garbage_as_the_last_epoch_is_written_over() -> None:
    """Lists need the epoch: one garbled message must not end them for all bridges (DESIGN §8.7)."""
    async with World() as world:
        await world.ready()
        await world.log.append(subjects.epoch_of(CLUSTER), b"\x00 garbage", messages.headers("0"))
        async with World(world.cluster, world.stream) as second:
            await second.ready()
        last = [record for record in world.records() if record.subject == subjects.epoch_of(CLUSTER)][-1]
        assert messages.decode(last.data, last.headers, messages.Epoch).epoch == 1
        pools = subjects.list_of(CLUSTER, "pool")
        before = [record.subject for record in world.records()].count(pools)
        world.watcher._restart("a test asks", fresh=False)
        await eventually(lambda: [record.subject for record in world.records()].count(pools) > before)
