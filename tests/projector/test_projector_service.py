"""DESIGN §5: what the projector stores, whatever happens to it, to the log and to the store. Virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from projector_stage import Stage, virtually
from projector_world import NAMESPACE, Story, pod, sandbox

from bus import scopes, subjects
from bus.log_memory import MemoryLog
from bus.viewstore_memory import MemoryViewStore
from projector.keeper import Keeper

PODS = scopes.SANDBOX_PODS.word


def many(count: int, first: int = 0, story: Story | None = None) -> Story:
    story = story or Story()
    for n in range(first, first + count):
        story.seen("batchsandbox", sandbox(100 + 2 * n, f"s{n}"))
        story.seen("pod", pod(101 + 2 * n, f"s{n}-0", of=f"s{n}", ready=True))
    return story


async def settle(seconds: float = 60.0) -> None:
    await asyncio.sleep(seconds)


def test_a_restart_resumes_from_the_cursor() -> None:
    async def scenario() -> None:
        stage = Stage()
        story = many(10)
        stage.say(story)
        first = stage.start("a")
        await stage.caught_up()
        await stage.stop("a", first)
        assert stage.cursor() == 20
        said = len(story.records)
        many(5, 10, story)
        stage.say(story, said)
        second = stage.start("a")
        await stage.caught_up()
        assert stage.metrics.counts["projector_records"] == 30, "nothing is folded twice"
        assert second.status()["ready"]
        await stage.close()

    virtually(scenario)


def test_two_projectors_on_one_partition() -> None:
    """Neither knows of the other: one is fenced whole, drops its state and loads again; the views are right."""

    async def scenario() -> None:
        stage = Stage()
        other = Stage()
        stage.start("a")
        other.stream, other.bucket, other.metrics = stage.stream, stage.bucket, stage.metrics
        other.start("b")
        story = Story()
        for n in range(30):
            said = len(story.records)
            many(1, n, story)
            stage.say(story, said)
            await asyncio.sleep(1.0)
        await stage.caught_up()
        assert stage.metrics.counts["projector_restarts/Fenced"] >= 1
        await stage.close()
        await other.close()

    virtually(scenario)


def test_a_projector_that_was_stopped_wakes_up_late() -> None:
    """SIGSTOP in the middle of a commit, another takes over, the sleeper goes on: refused, and nothing is lost."""

    async def scenario() -> None:
        stage = Stage()
        asleep = asyncio.Event()
        wake = asyncio.Event()

        async def sleep(kind: str, detail: str) -> None:
            if kind == "commit.before" and stage.cursor_or_none() == 20 and not wake.is_set():
                asleep.set()
                await wake.wait()

        story = many(10)
        stage.say(story)
        stage.start("a", on_commit=sleep)
        await stage.caught_up()
        many(5, 10, story)
        stage.say(story, 20)
        await asleep.wait()
        other = Stage()
        other.stream, other.bucket, other.metrics = stage.stream, stage.bucket, stage.metrics
        other.start("b")
        await other.caught_up()
        wake.set()
        await settle()
        assert stage.metrics.counts["projector_restarts/Fenced"] == 1
        await stage.caught_up()
        await stage.close()
        await other.close()

    virtually(scenario)


def test_views_wiped_are_folded_anew_and_lists_asked_for() -> None:
    async def scenario() -> None:
        stage = Stage()
        story = many(10)
        stage.say(story)
        stage.start("a")
        await stage.caught_up()
        stage.bucket.wipe()
        many(1, 10, story)
        stage.say(story, 20)
        await stage.caught_up()
        await settle(2)
        assert stage.count(subjects.ASK) >= 1
        await stage.close()

    virtually(scenario)


def test_views_wiped_while_the_log_is_quiet_come_back() -> None:
    """A bucket in memory is lost with its server; no message comes that would have shown it."""

    async def scenario() -> None:
        stage = Stage()
        stage.say(many(10))
        stage.start("a")
        await stage.caught_up()
        stage.bucket.wipe()
        await stage.caught_up(30)
        await stage.close()

    virtually(scenario)


def test_a_log_that_is_another_one_is_folded_anew() -> None:
    """Stale keys go, lists are asked for, and views of the lost log never pass for the new one's."""

    async def scenario() -> None:
        stage = Stage()
        story = many(10)
        stage.say(story)
        stage.start("a")
        await stage.caught_up()
        stage.stream.wipe()
        new = many(3, 50)
        stage.say(new)
        await stage.caught_up()
        assert len(stage.held()) == 3
        await settle(40)
        assert stage.count(subjects.ASK) >= 1
        await stage.close()

    virtually(scenario)


def test_a_lost_tail_is_folded_anew_even_if_the_log_has_grown_again() -> None:
    async def scenario() -> None:
        stage = Stage()
        story = many(10)
        stage.say(story)
        first = stage.start("a")
        await stage.caught_up()
        await stage.stop("a", first)
        stage.stream.lose_tail(12)
        await asyncio.sleep(5)
        stage.say(many(10, 50))
        stage.start("a")
        await stage.caught_up()
        await stage.close()

    virtually(scenario)


def test_a_quiet_partitions_cursor_can_be_compared_after_a_lost_tail() -> None:
    """It stands on a message that was none of the projector's: its time is stored with it all the same."""

    async def scenario() -> None:
        stage = Stage()
        stage.say(many(2))
        for _ in range(6):
            stage.stream.store("log.all.c1.ask.all", b"", {}, expected=None, message_id=None)
        first = stage.start("a")
        await settle()
        assert stage.cursor() >= 10
        await stage.stop("a", first)
        stage.stream.lose_tail(4)
        await asyncio.sleep(5)
        stage.say(many(10, 50))
        stage.start("a")
        await stage.caught_up()
        await stage.close()

    virtually(scenario)


def test_a_trimmed_head_is_folded_anew() -> None:
    async def scenario() -> None:
        stage = Stage()
        story = many(10)
        stage.say(story)
        first = stage.start("a")
        await stage.caught_up()
        await stage.stop("a", first)
        many(10, 10, story)
        stage.say(story, 20)
        stage.stream.trim(30)
        stage.start("a")
        await stage.caught_up()
        assert stage.cursor() >= 40
        await stage.close()

    virtually(scenario)


def test_idle_partitions_cursors_advance() -> None:
    async def scenario() -> None:
        stage = Stage(partitions=4)
        story = Story(partitions=4)
        mine = story.part(NAMESPACE)
        many(10, story=story)
        stage.say(story)
        stage.start("a")
        await settle()
        assert {stage.cursor(n) for n in range(4)} == {20}, mine
        await stage.close()

    virtually(scenario)


def test_partitions_are_handed_over_when_members_change() -> None:
    async def scenario() -> None:
        stage = Stage(partitions=8)
        first = stage.start("a")
        await settle(5)
        assert first.status()["partitions"] == 8
        second = stage.start("b")
        story = Story(partitions=8)
        for n in range(20):
            said = len(story.records)
            many(1, n, story)
            stage.say(story, said)
            await asyncio.sleep(0.7)
        await stage.caught_up()
        assert (first.status()["partitions"], second.status()["partitions"]) == (4, 4)
        await stage.stop("a", first)
        said = len(story.records)
        many(5, 20, story)
        stage.say(story, said)
        await stage.caught_up()
        assert second.status()["partitions"] == 8
        await stage.close()

    virtually(scenario)


def test_a_takeover_while_the_former_owner_folds_on_is_no_reason_to_fold_anew() -> None:
    """The bounds were read before the former owner's last commit: its cursor lies past them, and is right all the same."""

    async def scenario() -> None:
        stage = Stage()
        story = many(10)
        stage.say(story)
        old = MemoryLog(stage.stream)
        bounds = await old.bounds()
        many(5, 10, story)
        stage.say(story, 20)
        first = stage.start("a")
        await stage.caught_up()
        await stage.stop("a", first)
        keeper = await Keeper.load(0, bounds, old, MemoryViewStore(stage.bucket))
        assert keeper.partition.state.cursor == 30
        assert len(keeper.partition.views) == 15

    virtually(scenario)


class Dies(BaseException):
    """A crash: none of the projector's code handles it."""


@pytest.mark.parametrize("commits", [1, 2])
def test_a_list_that_touches_more_keys_than_one_commit_takes(commits: int) -> None:
    """Several commits; after a crash between them the refold ends in the same place."""

    async def scenario() -> None:
        stage = Stage()
        story = many(1200)
        stage.say(story)
        first = stage.start("a")
        await stage.caught_up()
        await stage.stop("a", first)
        story.listed(PODS, 9000)
        stage.say(story, 2400)
        done = 0

        def crash(kind: str, detail: str) -> None:
            nonlocal done
            done += kind == "commit.after"
            if done >= commits:
                raise Dies

        dying = stage.start("a", on_commit=crash)
        with pytest.raises(Dies):
            await stage.tasks.pop("a")
        await stage.crashed(dying)
        assert stage.cursor() == (2400 if commits < 2 else 2401)
        stage.start("b")
        await stage.caught_up()
        assert stage.cursor() == 2401
        await stage.close()

    virtually(scenario)


def test_a_crash_in_the_first_commits_of_another_log_leaves_nothing_of_the_old_one() -> None:
    """Until all stale keys are gone, the fence names no log."""

    async def scenario() -> None:
        stage = Stage()
        stage.say(many(1200))
        first = stage.start("a")
        await stage.caught_up()
        await stage.stop("a", first)
        stage.stream.wipe()
        stage.say(many(3, 5000))
        done = 0

        def crash(kind: str, detail: str) -> None:
            nonlocal done
            done += kind == "commit.after"
            if done >= 1:
                raise Dies

        dying = stage.start("a", on_commit=crash)
        with pytest.raises(Dies):
            await stage.tasks.pop("a")
        await stage.crashed(dying)
        assert len(stage.held()) > 3
        stage.start("b")
        await stage.caught_up()
        assert len(stage.held()) == 3
        await stage.close()

    virtually(scenario)


def test_dead_letters_are_appended_once() -> None:
    """However often the log is folded, and long after the message ids are forgotten."""

    async def scenario() -> None:
        stage = Stage()
        stage.say(many(1))
        bad = "log.0.c1.default.obs.pod.bad"
        stage.stream.store(bad, b"garbage", {}, expected=None, message_id=None)
        first = stage.start("a")
        await settle(5)
        assert stage.count(subjects.DEAD) == 1
        await stage.stop("a", first)
        await settle(3600)
        stage.bucket.wipe()
        stage.start("a")
        await settle(5)
        assert stage.count(subjects.DEAD) == 1
        stage.stream.store(bad, b"garbage", {}, expected=None, message_id=None)
        await settle(5)
        assert stage.count(subjects.DEAD) == 2
        await stage.close()

    virtually(scenario)


@pytest.mark.parametrize(
    "subject", ["log.².c1.default.obs.pod.s", "log.all.c1.list.frog", "log.0.c1.default.obs.frog.s", "log.0.x"]
)
def test_no_message_stops_the_projector(subject: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.stream.store(subject, b"\xff", {}, expected=None, message_id=None)
        stage.say(many(2))
        stage.start("a")
        await settle(5)
        assert len(stage.held()) == 2
        await stage.close()

    virtually(scenario)


def test_keys_that_are_none_of_ours_are_folded_over() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.say(many(2))
        first = stage.start("a")
        await stage.caught_up()
        await stage.stop("a", first)
        stage.bucket.put("0.what.is.this", b"?")
        stage.start("a")
        await stage.caught_up()
        await stage.close()

    virtually(scenario)


@pytest.mark.parametrize("part", ["log", "store"])
def test_an_outage_is_waited_out(part: str) -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.say(many(2))
        stage.start("a")
        await stage.caught_up()
        broken: Any = stage.stream if part == "log" else stage.bucket
        broken.available = False
        stage.say(many(2, 10))
        await settle(30)
        broken.available = True
        await stage.caught_up()
        await stage.close()

    virtually(scenario)
