"""The order of API calls (DESIGN §7: what makes a sandbox ready before what creates one, Events when nothing else waits)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from execute_world import run_virtually

from bridge.lanes import Lanes, LanesSettings, Priority

READY, DELETE, CREATE, EVENT = Priority


class Course:
    """Calls of one second each, and the order in which they began."""

    def __init__(self, settings: LanesSettings) -> None:
        self.lanes = Lanes(settings)
        self.began: list[str] = []
        self.at: dict[str, float] = {}
        self.most = 0

    async def call(self, name: str, priority: Priority, lasts: float = 1.0, since: float | None = None) -> None:
        async with self.lanes.place(priority, since):
            self.began.append(name)
            self.at[name] = asyncio.get_running_loop().time()
            self.most = max(self.most, self.lanes.running)
            await asyncio.sleep(lasts)

    def start(
        self, name: str, priority: Priority, lasts: float = 1.0, since: float | None = None
    ) -> asyncio.Task[None]:
        return asyncio.create_task(self.call(name, priority, lasts, since))


def test_ready_before_deletes_before_creates_before_events() -> None:
    async def scenario() -> None:
        course = Course(LanesSettings(limit=1, aging=100, event_delay_limit=100))
        tasks = [course.start("first", CREATE)]
        await asyncio.sleep(0)
        tasks += [
            course.start(name, priority)
            for name, priority in (("e", EVENT), ("c", CREATE), ("d", DELETE), ("r", READY))
        ]
        await asyncio.gather(*tasks)
        assert course.began == ["first", "r", "d", "c", "e"]

    run_virtually(scenario)


def test_the_bounds_hold() -> None:
    async def scenario() -> None:
        course = Course(LanesSettings(limit=12, creates=5))
        await asyncio.gather(*(course.start(str(i), Priority(i % 4)) for i in range(100)))
        assert len(course.began) == 100
        assert course.most == 12
        assert course.lanes.running == 0

    run_virtually(scenario)


def test_creates_leave_places_to_what_is_waited_for() -> None:
    async def scenario() -> None:
        course = Course(LanesSettings(limit=6, creates=3))
        tasks = [course.start(f"c{i}", CREATE) for i in range(9)]
        await asyncio.sleep(0.5)
        assert course.lanes.running == 3
        tasks += [course.start(f"r{i}", READY) for i in range(2)] + [course.start("d", DELETE)]
        await asyncio.gather(*tasks)
        assert [course.at[f"c{i}"] for i in range(9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert (course.at["r0"], course.at["r1"], course.at["d"]) == (0.5, 0.5, 0.5)
        assert course.most == 6

    run_virtually(scenario)


def test_more_creates_go_where_each_is_slow_by_itself() -> None:
    """All take one second, however many run: the next round is one more, up to the most."""

    async def scenario() -> None:
        lanes = Lanes(LanesSettings(limit=6, creates=2, most_creates=4))
        at: list[float] = []

        async def create() -> None:
            async with lanes.place(CREATE):
                at.append(asyncio.get_running_loop().time())
                await asyncio.sleep(1)
                lanes.created(1.0)

        await asyncio.gather(*(create() for _ in range(9)))
        assert at == [0, 0, 1, 1, 1, 2, 2, 2, 2]
        assert lanes.creates == 4

    run_virtually(scenario)


def test_who_began_first_goes_first() -> None:
    """The second write of a sandbox goes before the first of one that came later, though that one waits already."""

    async def scenario() -> None:
        course = Course(LanesSettings(limit=1))
        await asyncio.sleep(1)
        tasks = [course.start("old", READY, since=0.0)]
        await asyncio.sleep(0)
        tasks += [course.start(f"young{i}", READY) for i in range(2)]
        await asyncio.sleep(0.5)
        tasks.append(course.start("old again", READY, since=0.0))
        await asyncio.gather(*tasks)
        assert course.began == ["old", "old again", "young0", "young1"]

    run_virtually(scenario)


def test_events_wait_while_others_run_and_then_go() -> None:
    async def scenario() -> None:
        course = Course(LanesSettings(limit=12, quiet=3, idle=0, event_delay_limit=100))
        tasks = [course.start(f"c{i}", CREATE, 1.0 + i) for i in range(4)]
        await asyncio.sleep(0)
        tasks.append(course.start("e", EVENT))
        await asyncio.gather(*tasks)
        # At 1 s three still run, at 2 s two: fewer than `quiet`.
        assert course.at["e"] == 2.0

    run_virtually(scenario)


def test_events_do_not_use_the_pauses_of_a_burst() -> None:
    """Calls with pauses of 0.5 s between them, `idle` of 0.75 s: the Event goes that long after the last of them has ended."""

    async def scenario() -> None:
        course = Course(LanesSettings(limit=12, quiet=1, idle=0.75, event_delay_limit=100))
        tasks = [course.start("c0", CREATE)]
        await asyncio.sleep(1.25)
        tasks.append(course.start("e", EVENT))
        await asyncio.sleep(0.25)
        for i in range(1, 4):
            tasks.append(course.start(f"c{i}", CREATE))
            await asyncio.sleep(1.5)
        await asyncio.gather(*tasks)
        # The last begins at 4.5 s and ends at 5.5 s.
        assert course.at["e"] == 6.25

    run_virtually(scenario)


def test_events_after_events_need_not_wait() -> None:
    """Only other calls count as a burst."""

    async def scenario() -> None:
        course = Course(LanesSettings(limit=12, quiet=1, idle=0.75))
        await asyncio.gather(*(course.start(f"e{i}", EVENT) for i in range(3)))
        assert [course.at[f"e{i}"] for i in range(3)] == [0.0, 1.0, 2.0]

    run_virtually(scenario)


def test_an_event_is_not_held_back_for_ever() -> None:
    async def scenario() -> None:
        course = Course(LanesSettings(limit=4, quiet=1, event_delay_limit=5))
        tasks = [course.start(f"c{i}", CREATE) for i in range(100)]
        slow = course.start("slow", CREATE, 60.0)
        await asyncio.sleep(0)
        tasks.append(course.start("e", EVENT))
        await asyncio.gather(slow, *tasks)
        assert course.at["e"] <= 6.0

    run_virtually(scenario)


def test_an_event_behind_slow_calls_goes_when_its_time_is_over() -> None:
    async def scenario() -> None:
        course = Course(LanesSettings(limit=4, quiet=1, event_delay_limit=5))
        tasks = [course.start("slow", CREATE, 60.0)]
        await asyncio.sleep(0)
        tasks.append(course.start("e", EVENT))
        await asyncio.gather(*tasks)
        assert course.at["e"] == 5.0

    run_virtually(scenario)


def test_nobody_starves_and_the_order_still_counts() -> None:
    """A create behind an endless stream of ready writes; and with both queues old, three of four places go by priority."""

    async def scenario() -> None:
        course = Course(LanesSettings(limit=1, aging=2))
        tasks = [course.start("first", READY)]
        await asyncio.sleep(0)
        tasks += [course.start(f"c{i}", CREATE) for i in range(5)]
        await asyncio.sleep(0)
        tasks += [course.start(f"r{i}", READY) for i in range(40)]
        await asyncio.gather(*tasks)
        creates = [course.began.index(f"c{i}") for i in range(5)]
        assert creates[0] <= 6
        assert [later - earlier for earlier, later in pairwise(creates)] == [4, 4, 4, 4]

    run_virtually(scenario)


def test_hurry_lets_events_go() -> None:
    async def scenario() -> None:
        course = Course(LanesSettings(limit=4, quiet=1, event_delay_limit=100))
        tasks = [course.start("c", CREATE, 10.0)]
        await asyncio.sleep(0)
        tasks.append(course.start("e", EVENT))
        await asyncio.sleep(1)
        course.lanes.hurry()
        await asyncio.gather(*tasks)
        assert course.at["e"] == 1.0

    run_virtually(scenario)


@pytest.mark.parametrize("when", ["waiting", "granted", "running"])
def test_a_cancelled_call_gives_its_place_back(when: str) -> None:
    async def scenario() -> None:
        course = Course(LanesSettings(limit=1))
        first = course.start("first", CREATE)
        await asyncio.sleep(0)
        second = course.start("second", CREATE)
        third = course.start("third", CREATE)
        await asyncio.sleep(0)
        if when == "waiting":
            second.cancel()
        elif when == "running":
            first.cancel()
        else:
            first.cancel()
            await asyncio.sleep(0)
            second.cancel()
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert course.began[-1] == "third"
        assert course.lanes.running == 0
        assert course.lanes.waiting(CREATE) == 0

    run_virtually(scenario)


def test_a_waiter_that_was_cancelled_and_has_not_run_yet_takes_no_place() -> None:
    """A cancelled future still stands in its queue until its task has its turn; granting it failed and leaked the place."""

    async def scenario() -> None:
        lanes = Lanes(LanesSettings(limit=1, creates=1))
        async with lanes.place(Priority.CREATE):
            waiting = [asyncio.create_task(_hold(lanes)) for _ in range(2)]
            await asyncio.sleep(0)
            waiting[0].cancel()
        await waiting[1]
        assert waiting[0].cancelled() or waiting[0].cancelling()
        assert lanes.running == 0

    asyncio.run(scenario())


async def _hold(lanes: Lanes) -> None:
    async with lanes.place(Priority.CREATE):
        pass
