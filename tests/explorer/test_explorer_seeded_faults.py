"""Faults put in on purpose: an explorer that finds none of them would prove nothing. Each is found by a rule that knows nothing of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from explorer_cluster import RoleClient
from explorer_runs import Course, Disturbance, disturbed, explore, scenario_named, undisturbed
from explorer_world import Point

from bridge.cluster import Response
from bridge.outcomes import Outcomes
from bridge.outlet import Outlet
from bus import subjects
from bus.log import Record
from bus.log_memory import MemoryAppender, MemoryLog
from bus.viewstore_memory import MemoryViewStore
from reconciler.plan import Plan

SEED = 1


@functools.cache
def sound(instances: int = 1) -> Course:
    """The course of the code as it is; to be had before a fault is put in."""
    return undisturbed(scenario_named("basic"), SEED, instances)


def found(what: str, role: str = "", *, instances: int = 1, every: int = 1, after: float = 0.0) -> str:
    """What the explorer says first; only points after this part of the course are tried."""
    first = after * len(sound(instances).points)

    def at(point: Point) -> list[Disturbance]:
        wanted = point.number % every == 0 and point.number >= first
        return [Disturbance(what, point.number, role)] if wanted else []

    failed, _ = explore(scenario_named("basic"), SEED, sound(instances), at, instances, stop_after=1)
    return failed[0].trouble if failed else ""


def found_at_once(instances: int = 1) -> str:
    """What is wrong already where nothing is disturbed."""
    return disturbed(scenario_named("basic"), SEED, sound(instances), None, instances).trouble


@pytest.fixture(autouse=True)
def _courses() -> None:
    sound(1)
    sound(2)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert found_at_once(1) == ""
    assert found_at_once(2) == ""


def on_the_wire(monkeypatch: pytest.MonkeyPatch, alter: Callable[[RoleClient, str, str, Any], Any]) -> None:
    """Every role's requests with another body."""
    request = RoleClient.request

    async def altered(self: RoleClient, method: str, path: str, **more: Any) -> Response:
        if more.get("body"):
            more["body"] = json.dumps(alter(self, method, path, json.loads(more["body"]))).encode()
        return await request(self, method, path, **more)

    monkeypatch.setattr(RoleClient, "request", altered)


def test_an_executor_that_sends_no_precondition(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(client: RoleClient, method: str, path: str, body: Any) -> Any:
        if method == "PATCH":
            body["metadata"].pop("resourceVersion", None)
        return body

    on_the_wire(monkeypatch, without)
    assert "without the uid and resourceVersion" in found_at_once()


def test_an_executor_that_deletes_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_wire(monkeypatch, lambda client, method, path, body: {} if method == "DELETE" else body)
    assert "by its bare name" in found_at_once()


def test_an_executor_that_brings_its_precondition_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each patch names a resourceVersion, but the live one: what was decided long ago is written over what is.

    That what was told done is not done again would hide most of it.
    """

    async def never_told(self: Outcomes, record: Record) -> bool:
        return False

    monkeypatch.setattr(Outcomes, "is_told", never_told)

    def brought_up_to_date(client: RoleClient, method: str, path: str, body: Any) -> Any:
        sandbox = client.cluster.sandbox(path.split("/")[-2 if path.endswith("/status") else -1])
        if method == "PATCH" and sandbox is not None:
            body["metadata"]["resourceVersion"] = sandbox["metadata"]["resourceVersion"]
        return body

    on_the_wire(monkeypatch, brought_up_to_date)
    assert "observedGeneration" in found("stop", "executor", instances=2, after=0.35)


def test_a_projector_that_commits_without_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MemoryViewStore.commit

    async def unfenced(
        self: MemoryViewStore, partition: int, changes: Mapping[str, bytes | None], expected: int
    ) -> int:
        return await commit(self, partition, changes, self.bucket.revision_of(f"{partition}._"))

    monkeypatch.setattr(MemoryViewStore, "commit", unfenced)
    assert "the fence should have refused" in found("stop", "projector", instances=2, every=5)


def test_a_reconciler_that_expects_no_last_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    append = MemoryLog.append

    async def unexpecting(self: MemoryLog, subject: str, data: bytes, headers: Any = None, **more: Any) -> int:
        if subjects.parse(subject).message == subjects.COMMAND:
            more["expected_last_subject_sequence"] = None
        return await append(self, subject, data, headers, **more)

    monkeypatch.setattr(MemoryLog, "append", unexpecting)
    assert "which does not know command" in found("stop", "reconciler", instances=2)


def test_an_appender_that_loses_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    land = MemoryAppender._land
    count = 0

    def losing(self: MemoryAppender) -> None:
        nonlocal count
        for _ in range(len(self._queue)):
            message = self._queue.popleft()
            count += 1
            if count % 7:
                self._queue.append(message)
        land(self)

    monkeypatch.setattr(MemoryAppender, "_land", losing)
    assert "the log does not know" in found_at_once()


def test_a_bridge_that_lists_without_saying_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """What went while no bridge looked is told by the list message alone."""
    add = Outlet.add
    told: set[str] = set()

    async def first_only(self: Outlet, subject: str, data: bytes) -> None:
        if subjects.parse(subject).message == subjects.LIST:
            if subject in told:
                return
            told.add(subject)
        await add(self, subject, data)

    monkeypatch.setattr(Outlet, "add", first_only)
    assert "the log does not know that it is gone" in found("kill", "bridge", after=0.55)


def test_a_reconciler_that_writes_succeed_before_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Plan.add

    def status_first(self: Plan, op: Any) -> None:
        add(self, op)
        if type(op).__name__ == "PatchSandboxStatus" and len(self.ops) > 1:
            self.ops[-2:] = reversed(self.ops[-2:])

    monkeypatch.setattr(Plan, "add", status_first)
    assert "Succeed before endpoints" in found_at_once()
