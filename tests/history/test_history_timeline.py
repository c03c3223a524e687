"""The timeline of one sandbox, from messages made by hand (DESIGN §4 Cause, §10)."""

from __future__ import annotations

from typing import Any

import msgspec

from bus import messages, ops, subjects
from bus.log import Record
from bus.names import ENDPOINTS
from bus.resources import SandboxStatus
from bus.subjects import Aggregate
from bus.times import SECOND
from history.timeline import Entry, own_subjects, pod_subjects, pods_named, timeline

SANDBOX = Aggregate("c1", "team", "sandbox", "a.b")
UID = "11111111-aaaa"
POD_UID = "22222222-bbbb"
T0 = 1_800_000_000 * SECOND


def record(sequence: int, subject: str, body: messages.Body, *, cause: int | None = None) -> Record:
    headers = messages.headers("test", cause=cause)
    return Record(subject, sequence, T0 + sequence * SECOND, headers, messages.encode(body))


def seen(
    sequence: int, version: int, *, kind: str = "batchsandbox", name: str = "a.b", uid: str = UID, **parts: Any
) -> Record:
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": uid,
        "resourceVersion": str(version),
        **parts.pop("metadata", {}),
    }
    body = messages.Seen(
        epoch=1,
        resource_version=version,
        uid=uid,
        scope=kind,
        object=msgspec.Raw(msgspec.json.encode({"metadata": metadata, **parts})),
    )
    return record(sequence, subjects.observation(3, "c1", "team", kind, name), body)


CREATE = ops.CreatePods(
    id="a.1.0",
    sandbox=ops.Target("batchsandbox", "a.b", UID),
    generation=1,
    template="0123",
    names={"a.b-0": 0},
)


def command(sequence: int, *asked: ops.Op, view: int = 1, reason: str = "index 0 is missing") -> Record:
    body = messages.Command(view=view, expires=T0, reason=reason, ops=asked, uid=UID)
    return record(sequence, subjects.of_aggregate(subjects.COMMAND, 3, SANDBOX), body, cause=view)


def outcome(sequence: int, of: int, *results: messages.Result) -> Record:
    body = messages.Outcome(command=of, results=results, by="executor-1")
    return record(sequence, subjects.of_aggregate(subjects.OUTCOME, 3, SANDBOX), body, cause=of)


def created(version: int) -> messages.Result:
    made = messages.Created(messages.DONE, POD_UID, version)
    return messages.Result("a.1.0", messages.DONE, names={"a.b-0": made})


def texts(entries: list[Entry]) -> list[tuple[str, str, str]]:
    return [(entry.what, entry.about, entry.text) for entry in entries]


def test_a_sandbox_becoming_ready_is_told_in_order_with_causes() -> None:
    records = [
        seen(1, 10, metadata={"generation": 1}, spec={"replicas": 1}),
        command(2, CREATE),
        outcome(3, 2, created(11)),
        seen(4, 11, kind="pod", name="a.b-0", uid=POD_UID, status={"phase": "Pending"}),
        seen(
            5,
            12,
            kind="pod",
            name="a.b-0",
            uid=POD_UID,
            status={"phase": "Running", "podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]},
        ),
    ]

    entries = timeline(records[::-1])

    assert texts(entries) == [
        (
            "seen",
            "batchsandbox/a.b",
            "generation 1, replicas 1",
        ),
        ("decided", "sandbox/a.b", "create pod a.b-0"),
        ("done", "sandbox/a.b", "create pod a.b-0: done"),
        ("seen", "pod/a.b-0", "phase Pending"),
        ("seen", "pod/a.b-0", "phase Pending → Running, ip 10.0.0.7, ready True"),
    ]
    assert [entry.cause for entry in entries] == [None, 1, 2, 3, None]
    assert entries[1].why == "index 0 is missing"
    assert entries[2].by == "executor-1"
    assert [entry.time for entry in entries] == [T0 + n * SECOND for n in (1, 2, 3, 4, 5)]


def test_an_observation_that_came_before_the_outcome_that_caused_it_still_has_its_cause() -> None:
    """A watch is often faster than the answer to the write (DESIGN §4, Cause: joined by uid and resourceVersion)."""
    records = [
        command(2, CREATE),
        seen(3, 11, kind="pod", name="a.b-0", uid=POD_UID),
        outcome(4, 2, created(11)),
    ]

    assert [entry.cause for entry in timeline(records)] == [1, 4, 2]


def test_repeats_and_stragglers_are_marked_and_change_nothing() -> None:
    """Order is by (epoch, resourceVersion): DESIGN §4."""
    records = [
        seen(1, 10, status={"phase": "Pending"}),
        seen(2, 12, status={"phase": "Succeed"}),
        seen(3, 12, status={"phase": "Succeed"}),
        seen(4, 10, status={"phase": "Pending"}),
        seen(5, 13, status={"phase": "Succeed", "ready": 1}),
    ]

    entries = timeline(records)

    assert [entry.repeat for entry in entries] == [False, False, True, True, False]
    assert entries[1].text == "phase Pending → Succeed"
    assert entries[4].text == "ready 0 → 1"


def test_another_object_of_the_same_name_is_said_to_be_one() -> None:
    """Identity is uid, never a bare name (DESIGN §8.9)."""
    entries = timeline([seen(1, 10), seen(2, 20, uid="other")])

    assert entries[1].text.startswith("another object of that name: ")


def test_a_deletion_is_caused_by_the_outcome_of_the_order() -> None:
    delete = ops.DeletePod(id="a.9.0", target=ops.Target("pod", "a.b-0", POD_UID))
    gone = messages.Gone(epoch=1, resource_version=21, uid=POD_UID, scope="pod-sandbox")
    records = [
        seen(8, 11, kind="pod", name="a.b-0", uid=POD_UID),
        command(9, delete, view=8, reason="scale in to 0"),
        outcome(10, 9, messages.Result("a.9.0", messages.DONE)),
        record(11, subjects.observation(3, "c1", "team", "pod", "a.b-0"), gone),
    ]

    entries = timeline(records)

    assert texts(entries)[1:] == [
        ("decided", "sandbox/a.b", "delete pod/a.b-0 (uid 22222222)"),
        ("done", "sandbox/a.b", "delete pod/a.b-0 (uid 22222222): done"),
        ("gone", "pod/a.b-0", "gone"),
    ]
    assert entries[3].cause == 10


def test_a_refused_create_is_told_with_code_and_reason_of_the_single_pod() -> None:
    refused = messages.Created(messages.FAILED, code=403, reason="Forbidden", message="exceeded quota")
    result = messages.Result("a.1.0", messages.FAILED, names={"a.b-0": refused})

    entries = timeline([command(2, CREATE), outcome(3, 2, result)])

    assert entries[1].text == "create pod a.b-0: failed; a.b-0: failed (403 Forbidden): exceeded quota"


def test_what_cannot_be_read_is_one_line_and_stops_nothing() -> None:
    """DESIGN §8.7: a malformed message harms only itself."""
    subject = subjects.of_aggregate(subjects.COMMAND, 3, SANDBOX)
    newer = Record(subject, 2, T0, {messages.SCHEMA_HEADER: "99"}, b"{}")
    broken = seen(3, 11, metadata={"generation": "not a number"})

    entries = timeline([seen(1, 10), newer, broken, seen(4, 12, status={"phase": "Succeed"})])

    assert [entry.what for entry in entries] == ["seen", "unreadable", "unreadable", "seen"]
    assert "schema version" in entries[1].why


def test_dead_letters_ticks_and_statuses_are_told() -> None:
    status = SandboxStatus(observed_generation=1, replicas=1, ready=1, phase="Succeed")
    write = ops.PatchSandboxStatus("a.5.0", ops.Target("batchsandbox", "a.b", UID), 12, status)
    letter = messages.Dead(subjects.of_aggregate(subjects.COMMAND, 3, SANDBOX), 6, "executor-1", "unknown op")
    records = [
        record(5, subjects.of_aggregate(subjects.TICK, 3, SANDBOX), messages.Tick(due=T0, view=4)),
        command(6, write, view=5, reason=""),
        record(7, subjects.of_aggregate(subjects.DEAD, 3, SANDBOX), letter),
    ]

    assert [(e.what, e.text, e.why, e.cause) for e in timeline(records)] == [
        ("tick", "time to look again", "", 4),
        ("decided", "write status: phase Succeed, ready 1/1", "", 5),
        ("dead", "message 6 was given up", "unknown op", 6),
    ]


def test_an_imported_message_keeps_its_own_time() -> None:
    """DESIGN §4: a message's time is the server's timestamp, or the time header where it was imported."""
    original = seen(1, 10)
    headers = {**original.headers, messages.TIME_HEADER: "2026-01-02T03:04:05Z"}

    entry = timeline([msgspec.structs.replace(original, headers=headers)])[0]

    assert entry.time == 1_767_323_045 * SECOND


def test_env_values_and_templates_are_never_told() -> None:
    """DESIGN §4: the log can show that a value changed, never the value; nor do we repeat what a bridge forgot to digest."""
    template = {"spec": {"containers": [{"name": "x", "env": [{"name": "A", "value": "s3cret"}]}]}}

    entries = timeline([seen(1, 10, spec={"template": template, "replicas": 2})])

    assert "s3cret" not in repr(entries)


def test_its_subjects_are_those_of_the_object_its_messages_and_its_pause_snapshot() -> None:
    assert own_subjects(SANDBOX) == (
        "log.*.c1.team.obs.batchsandbox.a_b",
        "log.*.c1.team.cmd.sandbox.a_b",
        "log.*.c1.team.out.sandbox.a_b",
        "log.*.c1.team.tick.sandbox.a_b",
        "log.*.c1.team.dead.sandbox.a_b",
        "log.*.c1.team.obs.sandboxsnapshot.a_b-pause",
    )
    assert pod_subjects(SANDBOX, ["a.b-1", "a.b-0"]) == (
        "log.*.c1.team.obs.pod.a_b-0",
        "log.*.c1.team.obs.pod.a_b-1",
    )


def test_its_pods_are_those_created_deleted_and_allocated() -> None:
    delete = ops.DeletePod(id="x", target=ops.Target("pod", "stray", POD_UID))
    allocation = {"sandbox.opensandbox.io/alloc-status": '{"pods":["pool-7"]}', ENDPOINTS: "[]"}
    records = [
        seen(1, 10, metadata={"annotations": allocation}),
        seen(2, 11, metadata={"annotations": {"sandbox.opensandbox.io/alloc-status": "no json"}}),
        command(3, CREATE, delete),
    ]

    assert pods_named(records) == {"a.b-0", "stray", "pool-7"}
