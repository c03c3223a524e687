"""What `bus.log` promises, on every implementation (DESIGN §4, §6)."""

from __future__ import annotations

import asyncio

import pytest
from bus_worlds import WAIT, World, gather, numbers

from bus.log import MAX_MESSAGE_BYTES, LogReset, LogUnavailable, MessageTooLarge, WrongLastSequence

A, B = "log.3.c1.default.obs.pod.a", "log.4.c1.other.obs.pod.b"
COMMAND = "log.3.c1.default.cmd.sandbox.a"


async def test_append_gives_consecutive_sequences_and_keeps_subject_headers_and_body(world: World) -> None:
    log = await world.log()
    assert await log.append(A, b"one", {"Sandlog-Schema": "1", "Sandlog-Cause": "ü"}) == 1
    assert await log.append(B, b"\x00\xff") == 2
    for record in (await log.get(1), await log.last(A), (await log.read([A]))[0]):
        assert record is not None
        assert (record.subject, record.sequence, record.data) == (A, 1, b"one")
        assert record.headers["Sandlog-Schema"] == "1"
        assert record.headers["Sandlog-Cause"] == "ü"
    second = await log.get(2)
    assert second is not None
    assert second.data == b"\x00\xff"


async def test_a_record_has_the_same_time_however_it_is_read(world: World) -> None:
    log = await world.log()
    await log.append(A, b"x")
    (read,) = await log.read([A])
    got = await log.get(1)
    assert got is not None
    assert read.time == got.time
    assert read.time <= (await log.bounds()).now


async def test_bounds_of_an_empty_a_filled_and_a_trimmed_log(world: World) -> None:
    log = await world.log()
    bounds = await log.bounds()
    assert (bounds.first_sequence, bounds.last_sequence, bounds.partitions) == (1, 0, 64)
    for number in range(4):
        await log.append(A, b"%d" % number)
    await world.trim(2)
    bounds = await log.bounds()
    assert (bounds.first_sequence, bounds.last_sequence) == (3, 4)
    await world.trim(4)
    bounds = await log.bounds()
    assert (bounds.first_sequence, bounds.last_sequence) == (5, 4)


async def test_a_repeated_message_id_lands_once_and_gives_the_first_sequence(world: World) -> None:
    log = await world.log()
    assert await log.append(A, b"tick", message_id="a@7") == 1
    assert await log.append(A, b"tick", message_id="a@7") == 1
    assert await log.append(A, b"tick", message_id="a@8") == 2
    assert (await log.bounds()).last_sequence == 2


async def test_expected_last_sequence_zero_means_none_yet(world: World) -> None:
    log = await world.log()
    assert await log.append(COMMAND, b"1", expected_last_subject_sequence=0) == 1
    with pytest.raises(WrongLastSequence) as refused:
        await log.append(COMMAND, b"2", expected_last_subject_sequence=0)
    assert refused.value.last == 1


async def test_of_two_appends_with_one_expected_sequence_exactly_one_lands(world: World) -> None:
    """DESIGN §6: no decision is ever made twice from one state."""
    log, other = await world.log(), await world.log()
    await log.append(COMMAND, b"0")
    results = await asyncio.gather(
        *(which.append(COMMAND, b"1", expected_last_subject_sequence=1) for which in (log, other)),
        return_exceptions=True,
    )
    assert sorted(type(result).__name__ for result in results) == ["WrongLastSequence", "int"]
    assert len(await log.read([COMMAND])) == 2


async def test_expected_sequence_of_a_trimmed_subject_is_zero(world: World) -> None:
    """DESIGN §6: the log was trimmed, so the subject's real last command is none = 0."""
    log = await world.log()
    await log.append(COMMAND, b"1")
    await log.append(A, b"2")
    await world.trim(1)
    with pytest.raises(WrongLastSequence) as refused:
        await log.append(COMMAND, b"3", expected_last_subject_sequence=1)
    assert refused.value.last == 0
    assert await log.append(COMMAND, b"3", expected_last_subject_sequence=0) == 3


async def test_last_of_a_wildcard_is_the_newest_of_all_its_subjects(world: World) -> None:
    log = await world.log()
    await log.append(A, b"1")
    await log.append(B, b"2")
    newest = await log.last("log.*.c1.>")
    assert newest is not None
    assert newest.sequence == 2
    assert await log.last("log.9.>") is None
    assert await log.get(99) is None


async def test_a_message_that_the_server_never_takes_is_refused_at_once(world: World) -> None:
    log = await world.log()
    appender = log.appender("watch")
    huge = bytes(MAX_MESSAGE_BYTES + 1)
    with pytest.raises(MessageTooLarge):
        await log.append(A, huge)
    with pytest.raises(MessageTooLarge):
        await appender.add(A, huge)
    await appender.add(A, b"1")
    await appender.close()
    assert numbers(await log.read([A])) == [1]


async def test_an_appender_keeps_the_order_of_its_adds(world: World) -> None:
    log = await world.log()
    appender = log.appender("watch")
    for number in range(3000):
        await appender.add(A if number % 3 else B, b"%d" % number)
    await appender.flush()
    assert numbers(await log.read([A, B])) == list(range(3000))
    await appender.close()


async def test_adds_of_many_tasks_all_land_and_each_task_in_its_order(world: World) -> None:
    log = await world.log()
    appender = log.appender("watch")

    async def add(task: int) -> None:
        for number in range(200):
            await appender.add(f"log.1.c1.default.obs.pod.p{task}", b"%d" % number)
            if number % 50 == task:
                await appender.flush()

    await asyncio.gather(*(add(task) for task in range(10)))
    await appender.flush()
    for task in range(10):
        assert numbers(await log.read([f"log.1.c1.default.obs.pod.p{task}"])) == list(range(200))
    await appender.close()


async def test_an_added_message_is_read_without_a_flush(world: World) -> None:
    log = await world.log()
    reader = await log.follow([A], after=0)
    appender = log.appender("watch")
    for number in range(5):
        await appender.add(A, b"%d" % number)
        assert numbers(await reader.batch(10, WAIT)) == [number]
    await appender.close()
    await reader.close()


async def test_closing_an_appender_stores_what_was_added(world: World) -> None:
    log = await world.log()
    appender = log.appender("watch")
    await appender.add(A, b"1")
    await appender.close()
    assert numbers(await log.read([A])) == [1]
    with pytest.raises(LogUnavailable):
        await appender.add(A, b"2")


async def test_follow_gives_what_comes_after_the_position_of_its_subjects_only(world: World) -> None:
    log = await world.log()
    for number in range(1, 11):
        await log.append(A if number % 2 else B, b"%d" % number)
    reader = await log.follow([A], after=4)
    assert numbers(await gather(reader, 3)) == [5, 7, 9]
    await log.append(B, b"11")
    await log.append(A, b"12")
    assert numbers(await reader.batch(10, WAIT)) == [12]
    await reader.close()


async def test_batch_gives_at_most_the_limit_and_nothing_after_its_timeout(world: World) -> None:
    log = await world.log()
    for number in range(5):
        await log.append(A, b"%d" % number)
    reader = await log.follow([A], after=0)
    first = await reader.batch(2, WAIT)
    assert 1 <= len(first) <= 2
    rest = await gather(reader, 5 - len(first), limit=2)
    assert numbers(first + rest) == [0, 1, 2, 3, 4]
    assert await reader.batch(2, 0.02) == []
    await reader.close()


async def test_follow_takes_subjects_of_which_one_covers_another(world: World) -> None:
    log = await world.log()
    reader = await log.follow(["log.*.c1.>", A, A], after=0)
    await log.append(A, b"1")
    assert numbers(await reader.batch(10, WAIT)) == [1]
    assert await reader.batch(10, 0.02) == []
    await reader.close()


async def test_follow_refuses_a_position_past_the_end_or_before_the_beginning(world: World) -> None:
    log = await world.log()
    for number in range(4):
        await log.append(A, b"%d" % number)
    with pytest.raises(LogReset):
        await log.follow([A], after=5)
    await world.trim(2)
    with pytest.raises(LogReset):
        await log.follow([A], after=1)
    reader = await log.follow([A], after=2)
    assert numbers(await gather(reader, 2)) == [2, 3]
    await reader.close()


async def test_read_by_position_by_time_and_by_limit(world: World) -> None:
    log = await world.log()
    for number in range(1, 7):
        await log.append(A if number != 3 else B, b"%d" % number)
    fourth = await log.get(4)
    assert fourth is not None
    assert numbers(await log.read([A], after=1)) == [2, 4, 5, 6]
    assert numbers(await log.read([A], since=fourth.time)) == [4, 5, 6]
    assert numbers(await log.read([A], limit=2)) == [1, 2]
    assert numbers(await log.read(["log.>"], after=2, limit=2)) == [3, 4]
    assert await log.read([A], after=6) == []
    assert await log.read(["log.9.>"]) == []
    assert await log.read([A], since=fourth.time + 3_600_000_000_000) == []
    await world.trim(4)
    assert numbers(await log.read([A])) == [5, 6]


async def test_a_wiped_log_resets_its_readers(world: World) -> None:
    """DESIGN §5: the log lost its tail or is another: fold anew."""
    log = await world.log()
    before = await log.bounds()
    await log.append(A, b"1")
    reader = await log.follow([A], after=0)
    assert numbers(await reader.batch(10, WAIT)) == [1]
    await world.wipe_log()
    with pytest.raises(LogReset):
        await reader.batch(10, WAIT)
    with pytest.raises(LogUnavailable):
        await log.bounds()
    after = await log.ensure()
    assert after.identity != before.identity
    assert after.last_sequence == 0
    assert await log.append(A, b"1") == 1
    await reader.close()


async def test_work_not_acked_comes_again_and_acked_work_does_not(world: World) -> None:
    log = await world.log()
    await log.append(COMMAND, b"1")
    await log.append(COMMAND, b"2")
    queue = await log.work("executor-c1", [COMMAND], ack_wait=0.3, max_in_flight=10)
    first, second = await gather(queue, 2)
    assert (first.delivered, second.delivered) == (1, 1)
    await second.ack()
    (again,) = await queue.batch(10, WAIT)
    assert (again.record.sequence, again.delivered) == (first.record.sequence, 2)
    await again.ack()
    assert await queue.batch(10, 0.5) == []
    await queue.close()


async def test_working_extends_the_wait_and_again_sets_it(world: World) -> None:
    log = await world.log()
    await log.append(COMMAND, b"1")
    queue = await log.work("executor-c1", [COMMAND], ack_wait=0.5, max_in_flight=10)
    (delivery,) = await queue.batch(10, WAIT)
    for _ in range(4):
        assert await queue.batch(10, 0.25) == [], "it came again although it was worked on"
        await delivery.working()
    await delivery.again(0.05)
    loop = asyncio.get_running_loop()
    started = loop.time()
    (again,) = await queue.batch(10, WAIT)
    assert loop.time() - started < 0.45, "it came after ack_wait, not after the delay asked for"
    assert again.delivered == 2
    await again.ack()
    await queue.close()


async def test_two_consumers_of_a_durable_share_its_work(world: World) -> None:
    log, other = await world.log(), await world.log()
    queues = [
        await which.work("executor-c1", ["log.*.c1.*.cmd.>"], ack_wait=30, max_in_flight=100) for which in (log, other)
    ]
    got: list[list[int]] = [[], []]

    async def consume(index: int) -> None:
        while len(got[0]) + len(got[1]) < 40:
            for delivery in await queues[index].batch(2, 0.2):
                got[index].append(delivery.record.sequence)
                await delivery.ack()

    tasks = [asyncio.create_task(consume(index)) for index in range(2)]
    for number in range(40):
        await log.append(COMMAND, b"%d" % number)
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT)
    assert sorted(got[0] + got[1]) == list(range(1, 41))
    assert min(len(got[0]), len(got[1])) >= 5
    for queue in queues:
        await queue.close()


async def test_max_in_flight_holds_back_work_until_an_ack(world: World) -> None:
    log = await world.log()
    for number in range(3):
        await log.append(COMMAND, b"%d" % number)
    queue = await log.work("executor-c1", [COMMAND], ack_wait=30, max_in_flight=2)
    held = await gather(queue, 2)
    assert await queue.batch(10, 0.1) == []
    await held[0].ack()
    (third,) = await queue.batch(10, WAIT)
    assert third.record.data == b"2"
    await queue.close()


async def test_a_durable_goes_on_after_the_log_was_wiped(world: World) -> None:
    log = await world.log()
    await log.append(COMMAND, b"1")
    queue = await log.work("executor-c1", [COMMAND], ack_wait=30, max_in_flight=10)
    (delivery,) = await queue.batch(10, WAIT)
    await delivery.ack()
    await world.wipe_log()
    await log.ensure()
    await log.append(COMMAND, b"2")
    (delivery,) = await queue.batch(10, WAIT)
    assert delivery.record.data == b"2"
    await queue.close()
