"""Faults of pause and resume put in on purpose: each is found by a rule that knows nothing of it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from explorer_cluster import RoleClient
from explorer_pause_checker import PauseChecker
from explorer_runs import Course, Disturbance, disturbed, explore, scenario_named, undisturbed
from explorer_world import Point
from test_explorer_seeded_faults import on_the_wire

from bridge import perform
from bridge.outcomes import Outcomes
from bus.log import Record
from bus.names import pause_snapshot_name
from bus.ops import DeleteObject, DeletePod, PatchMetadata, PatchSandboxStatus, Target
from reconciler import resuming, running
from reconciler.plan import Plan
from reconciler.restored import Taken

SEED = 1


@functools.cache
def sound(name: str) -> Course:
    """The course of the code as it is; to be had before a fault is put in."""
    return undisturbed(scenario_named(name), SEED)


@pytest.fixture(autouse=True)
def _courses() -> None:
    sound("pause")
    sound("retry")
    sound("put-back")


def found_at_once(name: str = "pause") -> str:
    return disturbed(scenario_named(name), SEED, sound(name), None).trouble


def found_by_kill(role: str, first: int, every: int = 1) -> str:
    """What killing it finds first; points from `first` on are tried."""

    def at(point: Point) -> list[Disturbance]:
        wanted = point.number >= first and point.number % every == 0
        return [Disturbance("kill", point.number, role)] if wanted else []

    failed, _ = explore(scenario_named("pause"), SEED, sound("pause"), at, stop_after=1)
    return failed[0].trouble if failed else ""


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert found_at_once() == ""
    assert found_at_once("retry") == ""
    assert found_at_once("put-back") == ""


def test_an_executor_that_writes_the_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_intent(client: RoleClient, method: str, path: str, body: Any) -> Any:
        if method == "PATCH" and "template" in body.get("spec", {}):
            body["spec"]["pause"] = None
        return body

    on_the_wire(monkeypatch, without_intent)
    assert "spec.pause was written (§8.5)" in found_at_once()


def test_an_executor_that_says_committed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(client: RoleClient, method: str, path: str, body: Any) -> Any:
        if body.get("status", {}).get("phase") == "Committing":
            body["status"]["phase"] = "Succeed"
        return body

    on_the_wire(monkeypatch, early)
    assert "no commit of it has ended well" in found_at_once()


def test_an_executor_that_keeps_a_failure_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(client: RoleClient, method: str, path: str, body: Any) -> Any:
        said = body.get("status", {}).get("conditions") or []
        if said and path.endswith("/batchsandboxes/a/status"):
            body["status"]["conditions"] = [each for each in said if each["type"] != "PauseFailed"]
        return body

    on_the_wire(monkeypatch, silent)
    assert "Pausing → Succeed without PauseFailed (§8.5)" in found_at_once("retry")


def test_a_reconciler_that_deletes_pods_before_it_empties_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Plan.add

    def pods_first(self: Plan, op: Any) -> None:
        add(self, op)
        if isinstance(op, DeletePod) and len(self.ops) > 1 and isinstance(self.ops[-2], PatchMetadata):
            self.ops[-2:] = reversed(self.ops[-2:])

    monkeypatch.setattr(Plan, "add", pods_first)
    assert "deleted before endpoints were emptied (§8.3)" in found_at_once()


def test_a_reconciler_that_uses_up_the_snapshot_before_a_pod_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Plan.add

    def hasty(self: Plan, op: Any) -> None:
        add(self, op)
        snapshot = self.view.snapshot
        if isinstance(op, PatchSandboxStatus) and op.status.phase == "Resuming" and snapshot is not None:
            name = pause_snapshot_name(self.view.name)
            add(self, DeleteObject(self.next_id(), Target("sandboxsnapshot", name, snapshot.uid)))

    monkeypatch.setattr(Plan, "add", hasty)
    assert "a good snapshot deleted" in found_at_once()


def test_a_reconciler_that_takes_the_present_template_for_the_rewritten_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It deleted the restored pod of a sandbox whose template was put back, then the snapshot."""
    monkeypatch.setattr(resuming, "is_restored", lambda *_: False)
    monkeypatch.setattr(resuming, "template_holds", lambda *_: True)
    monkeypatch.setattr(resuming, "counts", lambda view, object, pod: pod.template == object.template)
    assert "although it was made of the snapshot (§8.2)" in found_at_once("put-back")


def test_a_reconciler_that_deletes_a_snapshot_beside_any_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "is_restored", lambda *_: False)
    monkeypatch.setattr(resuming, "template_holds", lambda *_: True)
    monkeypatch.setattr(resuming, "counts", lambda view, object, pod: pod.template == object.template)
    monkeypatch.setattr(running, "used_up", lambda *_: Taken.ALL)
    monkeypatch.setattr(PauseChecker, "_pod", lambda *_: None)
    assert "(§8.2)" in found_at_once("put-back")


def test_an_executor_that_does_again_what_was_told_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its predecessor died between outcome and ack: `Resuming` was written over `Succeed`, a pod made for a paused sandbox."""

    async def never_told(self: Outcomes, record: Record) -> bool:
        return False

    monkeypatch.setattr(Outcomes, "is_told", never_told)
    monkeypatch.setattr(perform, "STANDS", "nothing stands")
    assert found_by_kill("executor", len(sound("pause").points) * 3 // 4) != ""
