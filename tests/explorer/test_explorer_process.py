"""What a kill and a stop mean: SIGKILL runs none of the process's code, SIGSTOP delays it. Without that the explorer would prove less than it says."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from explorer_process import CURRENT, Process, ProcessLoop

from bus.log_memory import MemoryLog, MemoryStream


def on_loop(scenario: Callable[[ProcessLoop], Coroutine[Any, Any, None]]) -> None:
    loop = ProcessLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(scenario(loop), 100_000))
    finally:
        loop.bury()


def process(loop: ProcessLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> Process:
    made = Process("role", len(loop.processes) + 1)
    loop.processes.append(made)
    made.start(loop, work)
    return made


def test_a_kill_runs_no_finally_and_no_handler_not_even_when_garbage_is_collected() -> None:
    said: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(3600)
        except BaseException as error:
            said.append(type(error).__name__)
            raise
        finally:
            said.append("finally")

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(child())

    async def scenario(loop: ProcessLoop) -> None:
        victim = process(loop, work)
        await asyncio.sleep(1)
        victim.kill()
        gc.collect()
        await asyncio.sleep(7200)
        assert said == []

    on_loop(scenario)


def test_a_kill_drops_timers_and_what_was_just_due() -> None:
    said: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1, said.append, "before")
        loop.call_later(3, said.append, "after")
        while True:
            await asyncio.sleep(0)
            said.append("turn")
            await asyncio.sleep(2)

    async def scenario(loop: ProcessLoop) -> None:
        victim = process(loop, work)
        await asyncio.sleep(1.5)
        assert said == ["turn", "before"]
        victim.kill()
        await asyncio.sleep(100)
        assert said == ["turn", "before"]

    on_loop(scenario)


def test_what_a_killed_process_added_and_not_yet_sent_is_lost() -> None:
    stream = MemoryStream()

    async def scenario(loop: ProcessLoop) -> None:
        def hook(kind: str, detail: str) -> Awaitable[None] | None:
            current = CURRENT.get()
            if kind == "add.after" and detail.endswith("second") and current is not None:
                current.kill()
                return loop.create_future()
            return None

        log = MemoryLog(stream, on_step=hook)

        async def work() -> None:
            appender = log.appender("a")
            await appender.add("log.0.c1.default.obs.pod.first", b"")
            await appender.flush()
            await appender.add("log.0.c1.default.obs.pod.second", b"")
            raise AssertionError("it goes on after its death")

        victim = process(loop, work)
        victim.log = log
        await asyncio.sleep(10)
        assert victim.dead
        assert [record.subject for record in stream.after(0)] == ["log.0.c1.default.obs.pod.first"]

    on_loop(scenario)


def test_a_stopped_process_takes_up_what_came_due_in_its_order() -> None:
    said: list[tuple[str, float]] = []

    async def scenario(loop: ProcessLoop) -> None:
        def say(text: str) -> None:
            said.append((text, loop.time()))

        async def work() -> None:
            loop.call_later(5, say, "five")
            loop.call_later(3, say, "three")
            loop.call_later(100, say, "hundred")

        victim = process(loop, work)
        await asyncio.sleep(1)
        victim.stop()
        loop.call_later(60, victim.wake, loop)
        await asyncio.sleep(200)
        assert said == [("three", 61.0), ("five", 61.0), ("hundred", 100.0)]

    on_loop(scenario)


def test_a_dead_or_stopped_puller_keeps_no_work_from_others_and_what_it_had_comes_again() -> None:
    """JetStream redelivers after ack_wait whatever became of the consumer, and a dead one's pull takes no turn."""
    stream = MemoryStream()
    taken: list[tuple[str, int, float]] = []

    async def scenario(loop: ProcessLoop) -> None:
        async def pull(name: str, log: MemoryLog) -> None:
            queue = await log.work("w", ["log.*.c1.*.cmd.>"], ack_wait=30.0, max_in_flight=8)
            while True:
                for delivery in await queue.batch(8):
                    taken.append((name, delivery.record.sequence, loop.time()))

        def puller(name: str) -> Process:
            log = MemoryLog(stream)
            made = process(loop, lambda: pull(name, log))
            made.log = log
            return made

        first = puller("first")
        await asyncio.sleep(1)
        author = MemoryLog(stream)
        await author.append("log.0.c1.default.cmd.sandbox.a", b"")
        await asyncio.sleep(1)
        assert taken == [("first", 1, 1.0)]
        first.kill()
        stopped = puller("stopped")
        await asyncio.sleep(1)
        stopped.stop()
        puller("third")
        await author.append("log.0.c1.default.cmd.sandbox.b", b"")
        await asyncio.sleep(40)
        assert taken[1:] == [("third", 2, 3.0), ("third", 1, 31.0), ("third", 2, 33.0)]

    on_loop(scenario)
