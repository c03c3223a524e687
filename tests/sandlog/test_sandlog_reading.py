"""get, history and dead on a real local NATS, with views and messages made by hand; exit codes; JSON that parses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sandlog_helpers import Cli, Nats

from bus import messages, names, ops, subjects, viewcodec
from bus.log_nats import NatsLog
from bus.resources import SandboxStatus
from bus.subjects import Aggregate
from bus.times import SECOND
from bus.views import Failure, PartitionState, Pod, PoolView, SandboxObject, SandboxView, View
from bus.viewstore_nats import NatsViewStore

READY = SandboxView(
    "c1",
    "team",
    "box.one",
    sequence=7,
    now=1_800_000_000 * SECOND,
    settled=True,
    object=SandboxObject(
        version=(1, 9),
        uid="u1",
        generation=2,
        created=1_700_000_000 * SECOND,
        replicas=2,
        annotations={names.ENDPOINTS: '["10.0.0.1","10.0.0.2"]'},
        status=SandboxStatus(observed_generation=2, replicas=2, ready=2, phase="Succeed"),
    ),
    pods={f"box.one-{n}": Pod((1, 8), uid=f"p{n}", phase="Running", ready=True, ip=f"10.0.0.{n + 1}") for n in (0, 1)},
)
REFUSED = SandboxView(
    "c1",
    "default",
    "quota",
    settled=True,
    tries=3,
    object=SandboxObject(version=(1, 5), uid="u2", generation=1, created=1_700_000_000 * SECOND),
    failure=Failure("x", "pod/quota-0", 403, "Forbidden", "exceeded quota", 0),
)
TWIN = msgspec.structs.replace(READY, cluster="c2")


def store(nats: Nats, *views: View) -> None:
    async def work(_: NatsLog, store: NatsViewStore) -> None:
        for view in views:
            partition = subjects.partition_of(view.cluster, view.namespace, 4)
            _, revision = await store.load(partition)
            fence = {subjects.fence_key(partition): viewcodec.encode_fence(PartitionState())}
            await store.commit(partition, {**fence, **viewcodec.encode(partition, view, None)}, revision)

    nats.do(work)


def append(nats: Nats, *appended: tuple[str, messages.Body | bytes]) -> list[int]:
    """The sequences."""
    made: list[int] = []

    async def work(log: NatsLog, _: NatsViewStore) -> None:
        for subject, body in appended:
            data = body if isinstance(body, bytes) else messages.encode(body)
            made.append(await log.append(subject, data, messages.headers("test")))

    nats.do(work)
    return made


def at(nats: Nats) -> tuple[str, str]:
    return "--nats", nats.url


def test_get_is_an_aligned_table_by_namespace_and_name(cli: Cli, nats: Nats) -> None:
    store(nats, READY, REFUSED)

    ran = cli("get", *at(nats))

    lines = ran.out.splitlines()
    assert ran.code == 0
    headings = ["NAMESPACE", "NAME", "PHASE", "READY", "ENDPOINT", "AGE", "OPEN", "TRIES", "FAILURE"]
    assert lines[0].split() == [*headings, "LAST", "SEEN"]
    assert [line.split()[:5] for line in lines[1:]] == [
        ["default", "quota", "-", "0/1", "-"],
        ["team", "box.one", "Succeed", "2/2", "10.0.0.1"],
    ]
    assert "Forbidden: exceeded quota" in lines[1]
    assert "+1" in lines[2]
    assert lines[1].index("quota") == lines[2].index("box.one")


def test_get_narrows_by_namespace_cluster_and_kind(cli: Cli, nats: Nats) -> None:
    store(nats, READY, REFUSED, TWIN, PoolView("c1", "team", "warm"))

    assert "quota" not in cli("get", "-n", "team", *at(nats)).out
    both = cli("get", *at(nats)).out
    assert both.splitlines()[0].startswith("CLUSTER")
    assert "c2" not in cli("get", "--cluster", "c1", *at(nats)).out
    assert "warm" in cli("get", "--kind", "pool", *at(nats)).out
    assert "no snapshot found" in cli("get", "--kind", "snapshot", *at(nats)).out


def test_get_of_one_says_everything_a_person_asks(cli: Cli, nats: Nats) -> None:
    store(nats, READY, REFUSED)

    ran = cli("get", "team/box.one", *at(nats))
    refused = cli("get", "quota", *at(nats))

    for text in ("generation 2, observed 2", "10.0.0.1, 10.0.0.2", "pod box.one-0", "Running ready 10.0.0.1"):
        assert " ".join(text.split()) in " ".join(ran.out.split())
    assert "403 Forbidden exceeded quota" in refused.out
    assert "3, next not before" in refused.out


def test_get_as_json_is_the_raw_view(cli: Cli, nats: Nats) -> None:
    store(nats, READY, REFUSED)

    all_of_them = json.loads(cli("get", "-o", "json", *at(nats)).out)
    one = cli("get", "team/box.one", "-o", "json", *at(nats)).out

    assert [view["name"] for view in all_of_them] == ["quota", "box.one"]
    assert msgspec.json.decode(one, type=View) == READY


def test_a_name_that_is_not_there_or_in_two_clusters_is_an_error_of_its_own(cli: Cli, nats: Nats) -> None:
    store(nats, READY, TWIN)

    missing = cli("get", "team/nobody", *at(nats))
    twice = cli("get", "team/box.one", *at(nats))

    assert missing.code == 5
    assert "team/nobody is not known" in missing.err
    assert twice.code == 1
    assert "c1, c2" in twice.err
    assert "--cluster" in twice.err
    assert cli("get", "team/box.one", "--cluster", "c2", *at(nats)).code == 0
    for command in ("get", "history"):
        assert cli(command, "a/b/c", *at(nats)).code == 2
        assert cli(command, "a/", *at(nats)).code == 2


def test_the_local_server_is_found_by_its_data_directory(cli: Cli, nats: Nats) -> None:
    store(nats, READY)

    assert "box.one" in cli("get", "--data-dir", str(nats.directory)).out


@pytest.mark.parametrize("command", [("get",), ("status",), ("history", "a/b"), ("dead",)])
def test_without_nats_each_command_says_where_it_looked_and_exits_3(
    cli: Cli, tmp_path: Path, command: tuple[str, ...]
) -> None:
    none = cli(*command, "--data-dir", str(tmp_path))
    refused = cli(*command, "--nats", "nats://127.0.0.1:1", "--timeout", "500ms")

    assert none.code == 3
    assert str(tmp_path) in none.err
    assert "--nats URL" in none.err
    assert refused.code == 3
    assert "nats://127.0.0.1:1" in refused.err


def test_a_nats_without_a_log_is_told_apart_and_none_is_made(cli: Cli, nats: Nats) -> None:
    """Commands that look make no stream: its limits are those of the roles."""
    for _ in range(2):
        ran = cli("get", *at(nats))
        assert ran.code == 3
        assert "has no log that can be read" in ran.err


BOX = Aggregate("c1", "team", "sandbox", "box.one")
CREATE = ops.CreatePods("x", ops.Target("batchsandbox", "box.one", "u1"), 1, "0", {"box.one-0": 0})


def seen(kind: str, name: str, uid: str, version: int, **parts: Any) -> tuple[str, messages.Body]:
    thing = {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version)}, **parts}
    raw = msgspec.Raw(msgspec.json.encode(thing))
    return subjects.observation(1, "c1", "team", kind, name), messages.Seen(1, version, uid, kind, raw)


def story(nats: Nats) -> None:
    command, outcome = (subjects.of_aggregate(word, 1, BOX) for word in (subjects.COMMAND, subjects.OUTCOME))
    made = {"box.one-0": messages.Created(messages.DONE, "p0", 11)}
    append(
        nats,
        seen("batchsandbox", "box.one", "u1", 10, spec={"replicas": 1}),
        seen("batchsandbox", "other", "u9", 3),
        (command, messages.Command(1, 0, "index 0 is missing", (CREATE,), "u1")),
        (outcome, messages.Outcome(3, (messages.Result("x", messages.DONE, names=made),), "executor")),
        seen("pod", "box.one-0", "p0", 11, status={"phase": "Pending"}),
        seen("pod", "box.one-0", "p0", 11, status={"phase": "Pending"}),
    )


def test_history_is_the_sandboxs_own_story_with_its_pods(cli: Cli, nats: Nats) -> None:
    story(nats)

    ran = cli("history", "team/box.one", *at(nats))

    lines = [line.split() for line in ran.out.splitlines()]
    assert ran.code == 0
    assert [line[1:3] for line in lines[1:5]] == [["1", "seen"], ["3", "decided"], ["4", "done"], ["5", "seen"]]
    assert "because index 0 is missing" in ran.out
    assert "other" not in ran.out
    assert "1 repeats not shown" in ran.out
    assert len(cli("history", "team/box.one", "--all", *at(nats)).out.splitlines()) == 6


def test_history_as_json(cli: Cli, nats: Nats) -> None:
    story(nats)

    told = json.loads(cli("history", "box.one", "-n", "team", "-o", "json", *at(nats)).out)

    assert told["aggregate"] == {"cluster": "c1", "namespace": "team", "kind": "sandbox", "name": "box.one"}
    assert [(entry["sequence"], entry["what"]) for entry in told["entries"]] == [
        (1, "seen"),
        (3, "decided"),
        (4, "done"),
        (5, "seen"),
    ]
    assert told["entries"][3]["cause"] == 4


def test_history_of_what_the_log_does_not_know_is_exit_code_5(cli: Cli, nats: Nats) -> None:
    story(nats)

    assert cli("history", "team/nobody", *at(nats)).code == 5


def letter(nats: Nats) -> tuple[int, int]:
    """(sequence of a command that nobody understood, sequence of its dead letter)"""
    subject = subjects.of_aggregate(subjects.COMMAND, 1, BOX)
    (died,) = append(nats, (subject, b'{"type":"command","ops":"nonsense"}'))
    body = messages.Dead(subject, died, "executor-1", "ops: expected an array")
    (sequence,) = append(nats, (subjects.of_aggregate(subjects.DEAD, 1, BOX), body))
    return died, sequence


def test_dead_letters_are_listed_with_who_gave_up_and_why(cli: Cli, nats: Nats) -> None:
    died, sequence = letter(nats)

    text = cli("dead", *at(nats)).out
    told = json.loads(cli("dead", "-o", "json", *at(nats)).out)

    assert "ops: expected an array" in text
    assert [(d["sequence"], d["of"], d["by"], d["retried"]) for d in told] == [(sequence, died, "executor-1", None)]
    assert json.loads(cli("dead", "--cluster", "c9", "-o", "json", *at(nats)).out) == []


def test_retry_appends_the_message_once_more_with_the_letter_as_its_cause(cli: Cli, nats: Nats) -> None:
    died, sequence = letter(nats)

    ran = cli("dead", "retry", str(sequence), *at(nats))
    again = cli("dead", "retry", str(sequence), *at(nats))
    rest = cli("dead", "retry", "--all", *at(nats))

    assert ran.code == 0
    assert f"{sequence}: appended again as {sequence + 1}" in ran.out
    assert again.code == 1
    assert f"already tried again as {sequence + 1}" in again.out
    assert rest.code == 0
    assert "nothing to try again" in rest.out

    async def check(log: NatsLog, _: NatsViewStore) -> None:
        original, repeat = await log.get(died), await log.get(sequence + 1)
        assert original is not None
        assert repeat is not None
        assert (repeat.subject, repeat.data) == (original.subject, original.data)
        assert repeat.headers[messages.CAUSE_HEADER] == str(sequence)
        assert repeat.headers[messages.SCHEMA_HEADER] == original.headers[messages.SCHEMA_HEADER]
        assert (await log.bounds()).last_sequence == sequence + 1

    nats.do(check)


def test_retry_of_what_is_no_letter_or_was_trimmed(cli: Cli, nats: Nats) -> None:
    subject = subjects.of_aggregate(subjects.COMMAND, 1, BOX)
    body = messages.Dead(subject, 999, "executor-1", "gone long ago")
    (sequence,) = append(nats, (subjects.of_aggregate(subjects.DEAD, 1, BOX), body))

    assert cli("dead", "retry", "12345", *at(nats)).code == 5
    trimmed = cli("dead", "retry", "--all", *at(nats))
    assert trimmed.code == 1
    assert f"{sequence}: not tried: the log no longer holds message 999" in trimmed.out
    assert cli("dead", "retry", *at(nats)).code == 1


def test_status_of_an_empty_log_says_what_to_start(cli: Cli, nats: Nats) -> None:
    story(nats)

    ran = cli("status", *at(nats))
    told = json.loads(cli("status", "-o", "json", *at(nats)).out)

    assert ran.code == 1
    for advice in ("sandlog run projector", "sandlog run reconciler", "sandlog run bridge"):
        assert advice in ran.out
    assert told["ok"] is False
    assert told["survey"]["messages"] == 6
    assert [lag["last"] for lag in told["survey"]["lags"]] == [6]


def test_crds_are_printed_as_yaml(cli: Cli) -> None:
    import yaml

    documents = list(yaml.safe_load_all(cli("crds").out))

    assert sorted(document["spec"]["names"]["kind"] for document in documents) == [
        "BatchSandbox",
        "Pool",
        "SandboxSnapshot",
    ]
