"""The supervisor: failed roles start again, all of them stop in order, and an error that no restart mends ends the process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bus.membership import Member
from bus.membership_memory import MemoryMemberships
from sandlog import runtime
from sandlog.adapter import Adapted
from sandlog.exits import REFUSED, Stop
from sandlog.metrics import PrometheusMetrics
from sandlog.runtime import Supervisor


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(runtime, "STOP_BOUND", 0.2)


class Role:
    """Runs until stopped; `fails` ends it with an error at once."""

    def __init__(self, fails: Exception | None = None, stuck: bool = False) -> None:
        self.fails = fails
        self.stuck = stuck
        self.running = asyncio.Event()
        self.stopped = asyncio.Event()
        self.cancelled = False

    async def run(self) -> None:
        self.running.set()
        if self.fails is not None:
            raise self.fails
        try:
            await (asyncio.Event() if self.stuck else self.stopped).wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def stop(self) -> None:
        self.stopped.set()

    def status(self) -> Mapping[str, Any]:
        return {"ready": self.running.is_set(), "why": "catching up"}


def supervisor(fatal: Callable[[BaseException], Stop | None] = lambda error: None) -> Supervisor:
    return Supervisor(PrometheusMetrics(process=False), random.Random(1), fatal)


async def test_a_role_that_fails_is_made_anew_and_the_others_go_on() -> None:
    made: list[Role] = []
    steady = Role()

    def make() -> Role:
        made.append(Role(RuntimeError("lost") if len(made) < 2 else None))
        return made[-1]

    watched = supervisor()
    watched.add("bridge", make)
    watched.add("steady", lambda: steady)
    task = asyncio.create_task(watched.run())
    async with asyncio.timeout(5):
        await steady.running.wait()
        while len(made) < 3 or not made[2].running.is_set():
            await asyncio.sleep(0.001)

    assert watched.not_ready() == {}
    assert made[0].stopped.is_set(), "a failed role leaves its group"
    assert not steady.cancelled
    watched.stop()
    await task


async def test_what_is_not_ready_is_said_with_its_reason() -> None:
    role = Role()
    watched = supervisor()
    watched.add("projector", lambda: role)
    assert watched.not_ready() == {"projector": "not started"}

    task = asyncio.create_task(watched.run())
    await role.running.wait()
    assert watched.not_ready() == {}
    role.running.clear()
    assert watched.not_ready() == {"projector": "catching up"}
    watched.stop()
    await task


async def test_stopping_lets_roles_finish_and_cuts_off_only_those_that_do_not() -> None:
    orderly, stuck = Role(), Role(stuck=True)
    watched = supervisor()
    watched.add("orderly", lambda: orderly)
    watched.add("stuck", lambda: stuck)
    task = asyncio.create_task(watched.run())
    await orderly.running.wait()
    await stuck.running.wait()

    watched.stop()
    async with asyncio.timeout(5):
        await task

    assert not orderly.cancelled
    assert stuck.cancelled


async def test_an_error_that_no_restart_mends_ends_all_with_its_code() -> None:
    other = Role()
    refusal = Stop(REFUSED, "the stock controller holds its lease")
    watched = supervisor(lambda error: refusal if isinstance(error, PermissionError) else None)
    watched.add("executor", lambda: Role(PermissionError()))
    watched.add("other", lambda: other)

    with pytest.raises(Stop) as ended:
        async with asyncio.timeout(5):
            await watched.run()

    assert ended.value.code == REFUSED
    assert other.stopped.is_set()


async def test_an_adapted_role_is_announced_while_it_runs_and_leaves() -> None:
    memberships = MemoryMemberships()
    inner = Role(stuck=True)
    role = Adapted(inner, drains=False, announce=(memberships, "bridge.c1", "me"))
    task = asyncio.create_task(role.run())
    await inner.running.wait()
    assert [(m.group, m.name) for m in await memberships.all()] == [("bridge.c1", "me")]
    assert isinstance((await memberships.all())[0], Member)

    await role.stop()
    await task

    assert await memberships.all() == []
    assert inner.cancelled


async def test_an_adapted_role_that_drains_is_not_cut_off() -> None:
    inner = Role()
    role = Adapted(inner, drains=True)
    task = asyncio.create_task(role.run())
    await inner.running.wait()

    await role.stop()
    await task

    assert not inner.cancelled


async def test_cancelling_an_adapted_role_cancels_what_it_runs() -> None:
    inner = Role(stuck=True)
    task = asyncio.create_task(Adapted(inner, drains=True).run())
    await inner.running.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert inner.cancelled
