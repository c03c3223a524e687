"""What the explorer found, each as a case of its own that stays found when points move."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from bus import messages
from bus.log import Record
from bus.messages import Body, Command, Outcome, Result, Seen
from bus.ops import PatchSandboxStatus, Target
from bus.resources import SandboxStatus
from bus.subjects import Aggregate, observation, of_aggregate
from bus.views import PartitionState
from projector.fold import Partition

AGGREGATE = Aggregate("c1", "default", "sandbox", "b")


def seen(version: int) -> Seen:
    obj: dict[str, Any] = {
        "metadata": {"name": "b", "namespace": "default", "uid": "u", "resourceVersion": str(version), "generation": 1},
        "spec": {"replicas": 1, "template": {}},
    }
    return Seen(1, version, "u", "batchsandbox", msgspec.Raw(json.dumps(obj).encode()))


def test_an_op_decided_from_a_view_of_a_lost_log_is_over_when_it_is_seen_done() -> None:
    """wipe-log, two of each, point 220: the log was wiped between a decision and its append, which then tries again with "no last command".

    The new log's positions are lower than that of the deciding view, so no observation passed for newer, and the op stayed open for good.
    """
    op = PatchSandboxStatus("b:37:1", Target("batchsandbox", "b", "u"), 118, SandboxStatus(phase="Succeed"))
    place = observation(0, "c1", "default", "batchsandbox", "b")
    told: list[tuple[str, Body]] = [
        (of_aggregate("cmd", 0, AGGREGATE), Command(37, 10**18, "status", (op,), "u")),
        (place, seen(118)),
        (of_aggregate("out", 0, AGGREGATE), Outcome(1, (Result(op.id, "done", "u", 120),))),
        (place, seen(120)),
    ]
    partition = Partition(0, 1, PartitionState(log="the new one"))
    for sequence, (subject, body) in enumerate(told, 1):
        folded = partition.fold(Record(subject, sequence, sequence, messages.headers("test"), messages.encode(body)))
        assert folded.error is None
    view = partition.views[AGGREGATE]
    assert view.in_flight is None
    assert view.open == ()
