"""The in-memory transport as the crash explorer uses it: steps, death, virtual time, loss (issue 3, Seams)."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any

import pytest

from bus.log import LogReset, LogUnavailable
from bus.log_memory import EPOCH, SECOND, MemoryLog, MemoryStream
from bus.membership_memory import MemoryGroups, MemoryMemberships
from bus.viewstore import ViewStoreUnavailable
from bus.viewstore_memory import MemoryBucket, MemoryViewStore

A = "log.1.c1.default.obs.pod.a"


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if timers and not self._ready:  # type: ignore[attr-defined]
            self._now = max(self._now, timers[0].when())
        super()._run_once()  # type: ignore[misc]


def run_virtually(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(coroutine)


def test_redelivery_and_expiry_follow_virtual_time() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        log = MemoryLog()
        await log.append(A, b"1")
        queue = await log.work("executor", ["log.>"], ack_wait=3600, max_in_flight=1)
        await queue.batch(1)
        (again,) = await queue.batch(1)
        assert (loop.time(), again.delivered) == (3600.0, 2)
        await again.ack()
        assert await queue.batch(1, 7200) == []
        assert loop.time() == 10800.0
        assert await log.append(A, b"2") == 2
        record = await log.get(2)
        assert record is not None
        assert record.time == EPOCH + 10800 * SECOND

    run_virtually(scenario())


def test_a_message_id_is_forgotten_after_the_duplicate_window() -> None:
    async def scenario() -> None:
        log = MemoryLog(MemoryStream(duplicate_window=120))
        assert await log.append(A, b"1", message_id="m") == 1
        await asyncio.sleep(119)
        assert await log.append(A, b"1", message_id="m") == 1
        await asyncio.sleep(2)
        assert await log.append(A, b"1", message_id="m") == 2

    run_virtually(scenario())


def test_members_that_cannot_refresh_keep_each_other_under_virtual_time() -> None:
    async def scenario() -> None:
        groups = MemoryGroups(ttl=3)
        memberships = MemoryMemberships(groups)
        a, b = await memberships.join("projector", "a"), await memberships.join("projector", "b")
        assert len(a.members()) == 2
        groups.available = False
        await asyncio.sleep(60)
        assert len(a.members()) == 2
        groups.available = True
        b.kill()
        await asyncio.sleep(1)
        assert len(a.members()) == 2
        await asyncio.sleep(3)
        assert [m.name for m in a.members()] == ["a"]

    run_virtually(scenario())


async def test_each_step_is_told_before_and_after() -> None:
    steps: list[str] = []

    def on_step(kind: str, detail: str) -> None:
        steps.append(f"{kind} {detail}")

    log = MemoryLog(on_step=on_step)
    await log.append(A, b"1")
    appender = log.appender("watch")
    await appender.add(A, b"2")
    await appender.flush()
    queue = await log.work("executor", [A], ack_wait=9, max_in_flight=9)
    await (await queue.batch(1))[0].ack()
    await MemoryViewStore(on_step=on_step).commit(3, {"3._": b"c"}, 0)
    assert steps == [
        f"append.before {A}",
        f"append.after {A}",
        f"add.before {A}",
        f"add.after {A}",
        "flush.before watch",
        "flush.after watch",
        f"ack.before {A}",
        f"ack.after {A}",
        "commit.before 3._",
        "commit.after 3._",
    ]


@pytest.mark.parametrize(("when", "stored"), [("append.before", 0), ("append.after", 1)])
async def test_death_at_a_step_leaves_what_was_stored_and_the_call_never_returns(when: str, stored: int) -> None:
    stream = MemoryStream()

    def on_step(kind: str, _: str) -> None:
        if kind == when:
            log.kill()

    log = MemoryLog(stream, on_step=on_step)
    call = asyncio.create_task(log.append(A, b"1"))
    done, _ = await asyncio.wait([call], timeout=0.05)
    assert not done
    assert stream.last == stored
    call.cancel()


async def test_what_was_added_and_not_flushed_dies_with_the_process() -> None:
    stream = MemoryStream()
    log = MemoryLog(stream)
    appender = log.appender("watch")
    await appender.add(A, b"1")
    log.kill()
    await asyncio.sleep(0)
    assert stream.last == 0


async def test_a_lost_tail_resets_readers_behind_it_only() -> None:
    log = MemoryLog()
    for number in range(4):
        await log.append(A, b"%d" % number)
    ahead, behind = await log.follow([A], after=0), await log.follow([A], after=0)
    await ahead.batch(10)
    await behind.batch(1)
    log.stream.lose_tail(2)
    with pytest.raises(LogReset):
        await ahead.batch(10, 0.01)
    assert [record.data for record in await behind.batch(10)] == [b"1"]
    assert await log.append(A, b"new") == 3


async def test_an_unavailable_log_and_bucket_fail_everything_and_come_back() -> None:
    log, store = MemoryLog(), MemoryViewStore(MemoryBucket())
    appender = log.appender("watch")
    log.stream.available = False
    store.bucket.available = False
    with pytest.raises(LogUnavailable):
        await log.append(A, b"1")
    await appender.add(A, b"1")
    with pytest.raises(LogUnavailable):
        await appender.flush()
    with pytest.raises(ViewStoreUnavailable):
        await store.commit(3, {"3._": b"c"}, 0)
    log.stream.available = True
    store.bucket.available = True
    assert await log.append(A, b"1") == 1
    assert await store.commit(3, {"3._": b"c"}, 0) == 1
