"""What happens to appends, readers, views and members when the server dies, hangs, or comes back as another (nats.md §1.4, §7)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from bus_worlds import WAIT, gather, numbers

from bus.connection import Connection, ConnectionSettings, Unreachable
from bus.fastingest import FastIngestAppender
from bus.log import LogReset, LogUnavailable
from bus.log_nats import LogSettings, NatsLog
from bus.membership_nats import MembershipSettings, NatsMemberships
from bus.natsserver import LocalNats
from bus.pull import OrderedPull
from bus.streams import StreamRefused, ensure_stream
from bus.viewstore import ViewStoreUnavailable
from bus.viewstore_nats import NatsViewStore, ViewStoreSettings

A = "log.3.c1.default.obs.pod.a"
SMALL = LogSettings(max_bytes=256 * 1024 * 1024)


async def crash(server: LocalNats) -> None:
    await server.kill()
    await server.start()


async def stop_hearing(connection: Connection, reader: OrderedPull[Any]) -> None:
    """Take the reader's interest away behind its back: from then on the server is silent to it."""
    assert reader._subscription is not None
    await connection.nc._send_unsubscribe(reader._subscription._id)


async def test_kill_9_amid_appends_loses_nothing_doubles_nothing_and_keeps_the_order(
    server: LocalNats, connection: Connection
) -> None:
    log = await NatsLog.open(connection, SMALL)
    reader = await log.follow([A], after=0)
    appender = log.appender("watch")
    for number in range(30_000):
        await appender.add(A, b"%d" % number)
        if number in (9_000, 21_000):
            crashing = asyncio.create_task(crash(server))
        if number in (12_000, 24_000):
            await crashing
    await appender.flush()
    assert appender.recoveries >= 2
    assert numbers(await log.read([A])) == list(range(30_000))
    assert numbers(await gather(reader, 30_000)) == list(range(30_000))
    await appender.close()
    await reader.close()


async def test_what_was_flushed_before_a_crash_is_there_after_it(server: LocalNats, connection: Connection) -> None:
    log = await NatsLog.open(connection, SMALL)
    appender = log.appender("watch")
    for number in range(50):
        await appender.add(A, b"%d" % number)
        await appender.flush()
        if number % 20 == 19:
            await crash(server)
    assert numbers(await log.read([A])) == list(range(50))
    await appender.close()


async def test_the_ack_of_an_expected_append_may_be_lost_without_a_false_refusal(
    server: LocalNats, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry meets its own first try. It is ours, by its message id, not somebody else's."""
    log = await NatsLog.open(connection, SMALL)
    lost: list[int] = []
    once = NatsLog._append_once

    async def losing(self: NatsLog, subject: str, data: bytes, headers: dict[str, str]) -> int:
        sequence = await once(self, subject, data, headers)
        if not lost:
            lost.append(sequence)
            raise Unreachable("reply lost", sent=True)
        return sequence

    monkeypatch.setattr(NatsLog, "_append_once", losing)
    assert await log.append(A, b"1", expected_last_subject_sequence=0) == 1
    assert lost == [1]
    lost.clear()
    with pytest.raises(LogUnavailable):
        await log.append(A, b"2")
    lost.clear()
    assert await log.append(A, b"3", message_id="m") == 3
    assert numbers(await log.read([A])) == [1, 2, 3]


async def test_an_appender_gives_up_within_its_bound_and_says_so_to_everyone(
    server: LocalNats, connection: Connection
) -> None:
    log = await NatsLog.open(connection, SMALL)
    appender = FastIngestAppender(connection, "watch", give_up=0.5)
    await appender.add(A, b"1")
    await appender.flush()
    await server.kill()
    await appender.add(A, b"2")
    with pytest.raises(LogUnavailable):
        await asyncio.wait_for(appender.flush(), WAIT)
    with pytest.raises(LogUnavailable):
        await appender.add(A, b"3")
    await appender.close()
    await server.start()
    fresh = log.appender("watch")
    await fresh.add(A, b"4")
    await fresh.close()
    assert numbers(await log.read([A])) == [1, 4]


async def test_an_appender_that_was_idle_past_the_servers_patience_goes_on(
    server: LocalNats, connection: Connection
) -> None:
    """A batch dies after 10 s of silence (nats.md §1.4): ours is ended after a moment, so nothing is left to die."""
    log = await NatsLog.open(connection, SMALL)
    appender = log.appender("watch")
    for number in range(5):
        await appender.add(A, b"%d" % number)
        async with asyncio.timeout(WAIT):
            while appender.unstored:
                await asyncio.sleep(0.005)
    assert appender.recoveries == 0
    assert numbers(await log.read([A])) == [0, 1, 2, 3, 4]
    await appender.close()


async def test_huge_messages_do_not_wait_for_an_ack_that_is_not_due(server: LocalNats, connection: Connection) -> None:
    """The buffer is bounded in bytes too: ten messages of 7 MiB fill it long before the first regular ack."""
    log = await NatsLog.open(connection, LogSettings(max_bytes=512 * 1024 * 1024))
    appender = log.appender("watch")
    for number in range(10):
        await asyncio.wait_for(appender.add(A, b"%d" % number + b" " * 7_000_000), WAIT)
    await asyncio.wait_for(appender.flush(), WAIT)
    reader = await log.follow([A], after=0)
    assert [int(record.data) for record in await gather(reader, 10)] == list(range(10))
    await appender.close()
    await reader.close()


async def test_a_reader_goes_on_over_a_crash_without_gap_or_repeat(server: LocalNats, connection: Connection) -> None:
    log = await NatsLog.open(connection, SMALL)
    reader = await log.follow([A], after=0)
    got: list[int] = []
    for number in range(60):
        await log.append(A, b"%d" % number, message_id=str(number))
        if number % 20 == 10:
            await crash(server)
        got += numbers(await reader.batch(10, 0.001))
    got += numbers(await gather(reader, 60 - len(got)))
    assert got == list(range(60))
    assert reader.rebuilds >= 3
    await reader.close()


async def test_a_gap_in_the_consumers_sequence_is_read_again(server: LocalNats, connection: Connection) -> None:
    log = await NatsLog.open(connection, SMALL)
    reader = await log.follow([A], after=0)
    message = OrderedPull._message
    dropped: list[object] = []

    async def dropping(self: OrderedPull[Any], received: Any) -> None:
        if getattr(received, "data", b"") == b"5" and not dropped:
            dropped.append(received)
            return
        await message(self, received)

    OrderedPull._message = dropping  # type: ignore[method-assign]
    try:
        await reader.close()
        reader = await log.follow([A], after=0)
        for number in range(10):
            await log.append(A, b"%d" % number)
        assert numbers(await gather(reader, 10)) == list(range(10))
        assert (len(dropped), reader.rebuilds) == (1, 1)
    finally:
        OrderedPull._message = message  # type: ignore[method-assign]
        await reader.close()


async def test_a_deleted_consumer_is_made_anew(server: LocalNats, connection: Connection) -> None:
    log = await NatsLog.open(connection, SMALL)
    reader = await log.follow([A], after=0)
    await log.append(A, b"1")
    assert numbers(await reader.batch(10, WAIT)) == [1]
    await connection.api(f"CONSUMER.DELETE.LOG.{reader._consumer}")
    await log.append(A, b"2")
    assert numbers(await reader.batch(10, WAIT)) == [2]
    await reader.close()


async def test_silence_of_the_server_is_noticed(
    server: LocalNats, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing heartbeats are acted on; nats-py's own pull never does (nats.md §7)."""
    monkeypatch.setattr("bus.pull.HEARTBEAT", 0.2)
    monkeypatch.setattr("bus.pull.SILENCE", 0.6)
    log = await NatsLog.open(connection, SMALL)
    reader = await log.follow([A], after=0)
    await stop_hearing(connection, reader)
    await log.append(A, b"1")
    assert numbers(await reader.batch(10, WAIT)) == [1]
    assert reader.rebuilds == 1
    await reader.close()


async def test_a_position_on_a_quiet_subject_survives_the_trimming_of_others(
    server: LocalNats, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of ours was trimmed; a projector of a quiet partition must not fold anew at every reconnect."""
    monkeypatch.setattr("bus.pull.MARGIN", -1_000_000_000)
    log = await NatsLog.open(connection, SMALL)
    await log.append(A, b"1")
    reader = await log.follow([A], after=0)
    assert numbers(await reader.batch(10, WAIT)) == [1]
    for _ in range(5):
        await log.append("log.4.c1.other.obs.pod.b", b"x")
    await connection.api("STREAM.PURGE.LOG", {"seq": 6})
    await crash(server)
    await log.append(A, b"2", message_id="2")
    assert numbers(await reader.batch(10, WAIT)) == [2]
    await reader.close()


async def test_a_reader_whose_position_was_trimmed_while_it_was_away_is_reset(
    server: LocalNats, connection: Connection
) -> None:
    log = await NatsLog.open(connection, SMALL)
    await log.append(A, b"1")
    reader = await log.follow([A], after=0)
    assert numbers(await reader.batch(10, WAIT)) == [1]
    await stop_hearing(connection, reader)
    await log.append(A, b"2")
    await log.append(A, b"3")
    await connection.api("STREAM.PURGE.LOG", {"seq": 3})
    await crash(server)
    with pytest.raises(LogReset):
        await reader.batch(10, WAIT)
    await reader.close()


async def test_a_wiped_server_resets_readers_and_ensure_makes_the_log_again(
    server: LocalNats, connection: Connection
) -> None:
    log = await NatsLog.open(connection, SMALL)
    before = await log.bounds()
    await log.append(A, b"1")
    reader = await log.follow([A], after=0)
    assert numbers(await reader.batch(10, WAIT)) == [1]
    await server.kill()
    shutil.rmtree(server.directory / "jetstream")
    await server.start()
    with pytest.raises(LogReset):
        await reader.batch(10, WAIT)
    assert await connection.wait_connected(WAIT)
    with pytest.raises(LogUnavailable):
        await log.append(A, b"2")
    after = await log.ensure()
    assert after.identity != before.identity
    assert await log.append(A, b"2") == 1
    await reader.close()


async def test_views_in_memory_are_gone_with_the_server_and_start_afresh(
    server: LocalNats, connection: Connection
) -> None:
    store = await NatsViewStore.open(connection)
    revision = await store.commit(3, {"3._": b"1", "3.c1.x.sandbox.a": b"a"}, 0)
    watch = await store.watch()
    await gather(watch, 2)
    await crash(server)
    with pytest.raises(ViewStoreUnavailable):
        await watch.batch(10, WAIT)
    assert await connection.wait_connected(WAIT)
    assert await store.load(3) == ({}, 0)
    assert await store.commit(3, {"3._": b"1"}, 0) > 0
    assert revision
    await watch.close()


async def test_views_on_file_survive_and_their_watch_goes_on_without_repeats(
    server: LocalNats, connection: Connection
) -> None:
    store = await NatsViewStore.open(connection, ViewStoreSettings(storage="file"))
    revision = await store.commit(3, {"3._": b"1", "3.c1.x.sandbox.a": b"a"}, 0)
    watch = await store.watch()
    await gather(watch, 2)
    await crash(server)
    assert await connection.wait_connected(WAIT)
    await store.commit(3, {"3._": b"2"}, revision)
    assert [(e.key, e.data) for e in await gather(watch, 1)] == [("3._", b"2")]
    await watch.close()


async def test_a_store_without_server_is_unavailable_at_once(server: LocalNats, connection: Connection) -> None:
    store = await NatsViewStore.open(connection)
    await server.kill()
    async with asyncio.timeout(2):
        with pytest.raises(ViewStoreUnavailable):
            await store.commit(3, {"3._": b"1"}, 0)
        with pytest.raises(ViewStoreUnavailable):
            await store.load(3)


async def test_members_cut_off_from_nats_keep_each_other_and_find_each_other_again(
    server: LocalNats, connection: Connection
) -> None:
    async with await Connection.open(ConnectionSettings(url=server.url)) as other:
        settings = MembershipSettings(ttl=1.0)
        a = await (await NatsMemberships.open(connection, settings)).join("projector", "a")
        b = await (await NatsMemberships.open(other, settings)).join("projector", "b")
        async with asyncio.timeout(WAIT):
            while len(a.members()) < 2:
                await a.changed(WAIT)
        a_saw = set()
        await server.kill()
        for _ in range(8):  # longer than the TTL
            await a.changed(0.25)
            a_saw.add(len(a.members()))
        await server.start()
        for _ in range(8):
            await a.changed(0.25)
            a_saw.add(len(a.members()))
        assert a_saw == {2}
        await b.leave()
        async with asyncio.timeout(WAIT):
            while len(a.members()) != 1:
                await a.changed(WAIT)
        await a.leave()


async def test_a_frozen_server_fails_requests_within_their_bound(server: LocalNats, connection: Connection) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{server.pid}/stat")
    try:
        async with asyncio.timeout(WAIT):
            while stat.read_text().rpartition(")")[2].split()[0] != "T":
                await asyncio.sleep(0.005)
            with pytest.raises(Unreachable, match="no reply within 0.2 s"):
                await connection.request("$JS.API.INFO", timeout=0.2)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await connection.api("INFO")


async def test_an_existing_log_keeps_its_partitions_and_takes_new_limits(
    server: LocalNats, connection: Connection
) -> None:
    log = await NatsLog.open(connection, LogSettings(partitions=16, max_age=3600, max_bytes=2**28))
    before = await log.bounds()
    await log.append(A, b"1")
    changed = await NatsLog.open(connection, LogSettings(partitions=64, max_age=7200, max_bytes=2**27))
    bounds = await changed.bounds()
    assert (bounds.partitions, bounds.identity, bounds.last_sequence) == (16, before.identity, 1)
    config = (await connection.api("STREAM.INFO.LOG"))["config"]
    assert (config["max_age"], config["max_bytes"]) == (7200 * 10**9, 2**27)


async def test_a_stream_that_cannot_be_brought_to_the_settings_is_refused_with_the_reason(
    server: LocalNats, connection: Connection
) -> None:
    await NatsLog.open(connection, SMALL)
    with pytest.raises(StreamRefused, match="storage is 'file', wanted 'memory'"):
        await NatsLog.open(connection, LogSettings(max_bytes=2**28, storage="memory"))
    with pytest.raises(StreamRefused, match="no other stream has these subjects"):
        await ensure_stream(connection, {"name": "OTHER", "subjects": ["log.>"]})


async def test_the_log_fits_into_the_room_there_is(tmp_path: Path) -> None:
    """8 GiB by default, less where the server has less (DESIGN §4: limits that cannot fill a disk)."""
    small = "max_file_store: 1GB"
    async with LocalNats(tmp_path / "nats", jetstream=small) as server:
        async with await Connection.open(ConnectionSettings(url=server.url)) as connection:
            await NatsLog.open(connection)
            config = (await connection.api("STREAM.INFO.LOG"))["config"]
            assert config["max_bytes"] == 1024**3
