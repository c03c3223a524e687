"""Ops in words: each has some, and what a user asks of a pause, a resume or a snapshot stands in them."""

from __future__ import annotations

import typing

import pytest

from bus import ops
from bus.ops import Target
from bus.resources import SandboxStatus, SnapshotStatus
from history.wording import op_text

SANDBOX = Target("batchsandbox", "s", "u1")
SNAPSHOT = Target("sandboxsnapshot", "s-pause", "sn1")
POD = Target("pod", "s-0", "12345678-90")

SAID: list[tuple[ops.Op, str]] = [
    (ops.CreatePods("1", SANDBOX, 1, "d", {"s-0": 0}), "create pod s-0"),
    (ops.DeletePod("1", POD), "delete pod/s-0 (uid 12345678)"),
    (ops.PatchMetadata("1", SANDBOX, 1, {"a/endpoints": "x"}), "write annotations endpoints"),
    (ops.PatchSandboxStatus("1", SANDBOX, 1, SandboxStatus()), "write status: phase -, ready 0/0"),
    (ops.DeleteExpired("1", SANDBOX, 1, 0), "delete batchsandbox/s, expired at 1970-01-01T00:00:00Z"),
    (
        ops.CreateSnapshot("1", SANDBOX, "s-pause", "2", POD),
        "create sandboxsnapshot s-pause of pod/s-0 (uid 12345678) for generation 2",
    ),
    (
        ops.CreateJob("1", SNAPSHOT, "s-pause-commit", "commit", POD, "n1", {"main": "i", "side": "j"}),
        "create job s-pause-commit to commit main, side of pod/s-0 on node n1",
    ),
    (
        ops.PatchSnapshotStatus("1", SNAPSHOT, 1, SnapshotStatus("Committing")),
        "write status of sandboxsnapshot/s-pause: phase Committing",
    ),
    (ops.DeleteObject("1", SNAPSHOT), "delete sandboxsnapshot/s-pause (uid sn1)"),
    (
        ops.RewriteTemplate("1", SANDBOX, 1, {"main": "r/s-main:snap"}, detach=True),
        "write template: main=r/s-main:snap, and detach from the pool",
    ),
    (ops.RewriteTemplate("1", SANDBOX, 1, {}), "write template: no images"),
    (ops.DetachFromPool("1", SANDBOX, 1, POD), "detach batchsandbox/s from its pool, with the template of pod/s-0"),
    (ops.RecordEvent("1", SANDBOX, "c", "Normal", "R", "m", 0), "record event Normal/R: m"),
]


@pytest.mark.parametrize(("op", "text"), SAID, ids=lambda value: type(value).__name__)
def test_an_op_in_words(op: ops.Op, text: str) -> None:
    assert op_text(op) == text


def test_every_op_has_words() -> None:
    assert {type(op) for op, _ in SAID} == set(typing.get_args(ops.Op))
