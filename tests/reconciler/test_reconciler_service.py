"""The reconciler's shell: one command per view, the log arbitrates, wake-ups, shares, losses (DESIGN §6, §8.7, §9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from reconciler_model import sandbox, view
from reconciler_shell import Stage, virtually

from bus import messages
from bus.log_memory import MemoryLog
from bus.messages import CAUSE_HEADER
from bus.ops import CreatePods
from bus.times import SECOND
from bus.views import InFlight, SandboxView
from reconciler import service
from reconciler.settings import DEFAULT


def fresh(stage: Stage, name: str = "a", **fields: Any) -> SandboxView:
    """A new sandbox's view, just folded."""
    position = stage.note()
    made = {"sequence": position, "now": stage.now(), "last_command": 0, "unshown_since": stage.now()}
    return replace(view(sandbox(created=stage.now())), name=name, **(made | fields))


def test_a_view_becomes_one_command() -> None:
    async def scenario() -> None:
        stage = Stage()
        made = fresh(stage)
        stage.put(made)
        reconciler = await stage.start(stage.reconciler())
        (command,) = stage.commands()
        assert (command.view, command.uid) == (made.sequence, "uid-a")
        assert isinstance(command.ops[0], CreatePods)
        assert command.expires - stage.now() == pytest.approx(DEFAULT.command_ttl, abs=SECOND)
        assert stage.records("cmd")[0].headers[CAUSE_HEADER] == str(made.sequence)
        assert reconciler.status()["ready"]
        await stage.stop(reconciler)

    virtually(scenario)


def test_a_view_that_does_not_know_our_command_is_passed_over() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.put(fresh(stage))
        reconciler = await stage.start(stage.reconciler())
        stage.note()
        stage.fold("a", last_command=0)
        await stage.turns()
        assert len(stage.commands()) == 1
        assert "reconciler_refused_commands" not in stage.metrics.counts
        stage.fold("a", in_flight=None)
        await stage.turns()
        assert len(stage.commands()) == 2
        await stage.stop(reconciler)

    virtually(scenario)


def test_a_burst_of_one_view_is_decided_once() -> None:
    async def scenario() -> None:
        stage = Stage()
        reconciler = await stage.start(stage.reconciler())
        for _ in range(20):
            stage.put(fresh(stage))
        await stage.turns()
        assert [command.view for command in stage.commands()] == [stage.stream.last - 1]
        assert reconciler.status()["decisions"] == 1
        await stage.stop(reconciler)

    virtually(scenario)


def test_of_two_that_own_a_view_one_is_refused_and_waits() -> None:
    async def scenario() -> None:
        stage, both = Stage(), []
        for name in ("r1", "r2"):
            each = stage.reconciler(name)
            each._share.update = lambda members, share=each._share: setattr(share, "_all", True)  # type: ignore[method-assign]
            both.append(await stage.start(each))
        stage.put(fresh(stage))
        await stage.turns()
        assert len(stage.commands()) == 1
        assert stage.metrics.counts["reconciler_refused_commands"] == 1
        stage.fold("a", in_flight=InFlight(stage.last_command("a"), stage.now() + SECOND))
        await stage.turns()
        assert len(stage.commands()) == 1
        await stage.stop(*both)

    virtually(scenario)


@pytest.mark.parametrize("trimmed", [True, False])
def test_a_log_that_was_trimmed_or_a_name_used_before_is_no_refusal(trimmed: bool) -> None:
    """DESIGN §6: the subject's real last command lies at or before the view's position."""

    async def scenario() -> None:
        stage = Stage()
        used = stage.stream.store("log.5.c1.default.cmd.sandbox.a", b"{}", {}, expected=None, message_id=None)
        stage.put(fresh(stage, last_command=used if trimmed else 0))
        if trimmed:
            stage.stream.trim(used)
        reconciler = await stage.start(stage.reconciler())
        assert stage.records("cmd")[-1].sequence > used
        assert "reconciler_refused_commands" not in stage.metrics.counts
        await stage.stop(reconciler)

    virtually(scenario)


def test_a_command_newer_than_the_view_is_waited_for() -> None:
    async def scenario() -> None:
        stage = Stage()
        made = fresh(stage)
        stage.stream.store("log.5.c1.default.cmd.sandbox.a", b"{}", {}, expected=None, message_id=None)
        stage.put(made)
        reconciler = await stage.start(stage.reconciler())
        assert len(stage.records("cmd")) == 1
        assert stage.metrics.counts["reconciler_refused_commands"] == 1
        await asyncio.sleep(3 * service.SWEEP)
        assert stage.metrics.counts["reconciler_refused_commands"] <= 4, "no tight loop"
        await stage.stop(reconciler)

    virtually(scenario)


def test_a_wake_up_becomes_a_tick_when_due_and_once() -> None:
    async def scenario() -> None:
        stage = Stage()
        due = stage.now() + 90 * SECOND
        quiet = fresh(stage, in_flight=InFlight(1, due))
        reconcilers = [await stage.start(stage.reconciler(name)) for name in ("r1", "r2")]
        stage.put(quiet)
        await stage.turns()
        await asyncio.sleep(89)
        assert stage.ticks() == []
        await asyncio.sleep(1.5)
        (tick,) = stage.ticks()
        assert (tick.due, tick.view) == (due, quiet.sequence)
        assert stage.records("tick")[0].time >= due, "a tick is never early"
        await asyncio.sleep(service.SWEEP * 1.5)
        assert len(stage.ticks()) == 1
        await stage.stop(*reconcilers)

    virtually(scenario)


def test_views_are_shared_among_members_and_taken_over() -> None:
    async def scenario() -> None:
        stage = Stage()
        first, second = [await stage.start(stage.reconciler(name)) for name in ("r1", "r2")]
        await asyncio.sleep(1)
        names = [f"s{i}" for i in range(64)]
        stage.put(*(fresh(stage, name) for name in names))
        await stage.turns(200)
        assert len(stage.commands()) == 64
        assert first.status()["slots"] == second.status()["slots"] == 128
        assert 0 < first.status()["decisions"] < 64
        assert first.status()["decisions"] + second.status()["decisions"] == 64
        await second.stop()
        for name in names:
            stage.fold(name, in_flight=None)
        await asyncio.sleep(1)
        assert first.status()["slots"] == 256
        assert len(stage.commands()) == 128
        await stage.stop(first)

    virtually(scenario)


def test_nothing_is_lost_while_the_log_is_away() -> None:
    async def scenario() -> None:
        stage = Stage()
        reconciler = await stage.start(stage.reconciler())
        made = [fresh(stage, f"s{i}") for i in range(100)]
        stage.stream.available = False
        stage.put(*made)
        await asyncio.sleep(5)
        assert stage.commands() == []
        stage.stream.available = True
        await asyncio.sleep(2 * service.RETRY_LIMIT)
        assert len(stage.commands()) == 100
        await stage.stop(reconciler)

    virtually(scenario)


def test_the_view_store_lost_and_filled_again() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.put(fresh(stage, "gone"), fresh(stage, "stays"))
        reconciler = await stage.start(stage.reconciler())
        assert reconciler.status()["views"] == 2
        stage.bucket.wipe()
        stage._stored.clear()
        stage.put(fresh(stage, "stays", last_command=stage.last_command("stays")))
        await asyncio.sleep(1)
        assert reconciler.status()["views"] == 1
        assert len(stage.commands("stays")) == 2
        await stage.stop(reconciler)

    virtually(scenario)


def test_an_unreadable_view_harms_only_itself_and_is_told_once() -> None:
    async def scenario() -> None:
        stage = Stage()
        reconciler = await stage.start(stage.reconciler())
        stage.bucket.put("5.c1.default.sandbox.bad", b'{"view": 1}')
        stage.bucket.put("not.a.key.of.ours", b"{}")
        stage.put(fresh(stage, "good"))
        await stage.turns()
        assert len(stage.commands("good")) == 1
        (dead,) = stage.dead()
        assert (dead.by, dead.subject) == ("reconciler", "5.c1.default.sandbox.bad")
        assert stage.metrics.counts["reconciler_unreadable_views"] == 2
        await stage.stop(reconciler)

    virtually(scenario)


def test_a_fault_in_a_decision_harms_only_its_view(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = service.decide

    def faulty(made: Any, settings: Any) -> Any:
        if made.name == "bad":
            raise ZeroDivisionError
        return honest(made, settings)

    monkeypatch.setattr(service, "decide", faulty)

    async def scenario() -> None:
        stage = Stage()
        reconciler = await stage.start(stage.reconciler())
        stage.put(fresh(stage, "bad"), fresh(stage, "good"))
        await stage.turns()
        await asyncio.sleep(2 * service.SWEEP)
        assert len(stage.commands("good")) >= 1
        assert [dead.error for dead in stage.dead()] == ["ZeroDivisionError in decide"]
        await stage.stop(reconciler)

    virtually(scenario)


def test_killed_at_any_append_the_next_one_finishes_the_work() -> None:
    """A kill runs none of its code: its calls never return. Another takes the work up from the views alone."""

    async def scenario(step: int, when: str) -> None:
        stage = Stage()
        seen = 0

        def die(kind: str, detail: str) -> None:
            nonlocal seen
            if kind == f"append.{when}":
                seen += 1
                if seen == step:
                    dying.kill()

        dying = MemoryLog(stage.stream, on_step=die)
        stage.put(*(fresh(stage, f"s{i}") for i in range(5)))
        await stage.start(stage.reconciler("r1", dying))
        corpse = stage.running.pop()
        await asyncio.sleep(10)
        heir = await stage.start(stage.reconciler("r2"))
        heir._share.update(["r2"])
        heir._share.update = lambda members: None  # type: ignore[method-assign]
        await asyncio.sleep(2 * service.SWEEP)
        for i in range(5):
            assert len(stage.commands(f"s{i}")) == 1
        await stage.stop(heir)
        corpse.cancel()
        await asyncio.gather(corpse, return_exceptions=True)

    for when in ("before", "after"):
        for step in range(1, 6):

            async def run(step: int = step, when: str = when) -> None:
                await scenario(step, when)

            virtually(run)


def test_every_minute_all_views_are_decided_on_afresh() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.put(fresh(stage, settled=False))
        reconciler = await stage.start(stage.reconciler())
        before = reconciler.status()["decisions"]
        await asyncio.sleep(service.SWEEP * 2.5)
        assert reconciler.status()["decisions"] == before + 2
        await stage.stop(reconciler)

    virtually(scenario)


def test_a_deleted_view_is_forgotten() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.put(fresh(stage, in_flight=InFlight(1, stage.now() + SECOND)))
        reconciler = await stage.start(stage.reconciler())
        stage.bucket.put("5.c1.default.sandbox.a", None)
        stage.bucket.bell.ring()
        await asyncio.sleep(5)
        assert (reconciler.status()["views"], stage.ticks()) == (0, [])
        await stage.stop(reconciler)

    virtually(scenario)


def test_what_is_appended_can_be_read_back() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.put(fresh(stage))
        reconciler = await stage.start(stage.reconciler())
        (record,) = stage.records("cmd")
        assert messages.decode(record.data, record.headers, messages.Command).ops
        await stage.stop(reconciler)

    virtually(scenario)
