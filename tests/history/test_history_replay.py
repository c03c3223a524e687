"""What a replay finds: it must see each kind of difference, and none from wherever a history is begun (DESIGN §10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from history_files import HISTORIES, history_of, log_of, no_views, records_of, replayed
from support.virtual_time import virtual

from bus import messages, subjects
from bus.log import Record
from bus.messages import Command
from bus.times import SECOND
from bus.views import Decision, SandboxView, View
from history.archive import BEGINNING, FOLDED, INCOMPLETE, Archive, Asked
from history.replay import Report, replay
from history.slice import Folder
from reconciler.decide import decide
from reconciler.settings import Settings
from sandlog.export import Moment, Wanted, export

NAME = "pause_resume"
SETTINGS = Settings(snapshot_registry="registry.test/snap", resume_pull_secret="pull")


def first_command(records: list[Record]) -> Record:
    return next(record for record in records if f".{subjects.COMMAND}." in record.subject)


def with_data(records: list[Record], at: int, data: bytes) -> list[Record]:
    return [msgspec.structs.replace(r, data=data) if r.sequence == at else r for r in records]


def replayed_with(name: str, given: frozenset[str] = frozenset(), **changed: Any) -> Report:
    with Archive(HISTORIES / f"{name}.zip") as archive:
        history = history_of(archive)
        settings = msgspec.structs.replace(history.settings, **changed)
        return replay(msgspec.structs.replace(history, settings=settings, given=given), archive.records())


def test_other_settings_that_were_asked_for_decide_otherwise() -> None:
    changed = {"snapshot_registry": "", "resume_pull_secret": ""}
    report = replayed_with(NAME, frozenset(changed), **changed)

    details = [line for each in report.differences if each.what == "decision" for line in each.details]
    assert any("pull_secret: 'pull', now nothing" in line for line in details)
    assert report.explained == []


@pytest.mark.parametrize(
    ("name", "flag", "changed"),
    [
        (NAME, "--resume-pull-secret", {"resume_pull_secret": ""}),
        (NAME, "--resume-pull-secret", {"resume_pull_secret": "other"}),
        (NAME, "--snapshot-registry", {"snapshot_registry": ""}),
        (NAME, "--snapshot-registry", {"snapshot_registry": "other.test"}),
        ("resumed_pod_cannot_start", "--pod-failure-grace", {"pod_failure_grace": 3600 * SECOND}),
    ],
)
def test_what_a_flag_of_that_time_explains_is_told_and_is_no_difference(
    name: str, flag: str, changed: dict[str, Any]
) -> None:
    """A file has one value of each flag; a restart in the middle of the log may have changed it."""
    report = replayed_with(name, **changed)

    assert [each for each in report.differences if each.what == "decision"] == []
    assert {each.explained for each in report.explained} == {flag}
    assert all(each.details for each in report.explained)


def test_a_registry_that_was_not_configured_at_the_time_is_told_by_its_refusal() -> None:
    """The other way round: then there was none, and the file's has a name."""
    records = records_of(NAME)
    begun = next(r for r in records if b'"Committing"' in r.data and ".cmd.snapshot." in r.subject)
    folder = Folder(2, {}, 0)
    for record in records[: begun.sequence - 1]:
        list(folder.fold(record))
    view = folder.views()[subjects.parse(begun.subject).aggregate]
    body: Command = messages.decode(begun.data, begun.headers, Command)
    made = decide(view, Settings())
    refused = messages.encode(msgspec.structs.replace(body, ops=made.ops, reason=made.reason))
    with Archive(HISTORIES / f"{NAME}.zip") as archive:
        report = replay(history_of(archive), with_data(records, begun.sequence, refused))

    assert b"RegistryNotConfigured" in refused
    assert [(each.position, each.explained) for each in report.explained] == [(begun.sequence, "--snapshot-registry")]


def test_a_changed_rule_is_told_with_what_was_and_is_decided() -> None:
    def hasty(view: View, settings: Settings) -> Decision:
        made = decide(view, settings)
        return msgspec.structs.replace(made, ops=made.ops[:-1]) if isinstance(view, SandboxView) else made

    with Archive(HISTORIES / f"{NAME}.zip") as archive:
        report = replay(history_of(archive), archive.records(), decide=hasty)

    first = report.differences[0]
    assert len(first.recorded) == len(first.decided) + 1
    assert first.aggregate == "c1/default/sandbox/a"


def test_ids_and_reasons_count() -> None:
    records = records_of(NAME)
    command = first_command(records)
    for old, new in ((b":0", b":7"), (b'"reason":"', b'"reason":"not ')):
        changed = with_data(records, command.sequence, command.data.replace(old, new))
        with Archive(HISTORIES / f"{NAME}.zip") as archive:
            found = [
                each.position for each in replay(history_of(archive), changed).differences if each.what == "decision"
            ]
        assert found[0] == command.sequence


def test_a_stored_view_that_does_not_follow_from_the_records_is_told() -> None:
    records = records_of(NAME)
    last = max(record.sequence for record in records if ".obs.batchsandbox." in record.subject)
    with Archive(HISTORIES / f"{NAME}.zip") as archive:
        report = replay(history_of(archive), [record for record in records if record.sequence != last])

    assert "view" in {each.what for each in report.differences}


def test_a_command_that_names_a_position_where_no_view_is() -> None:
    records = records_of(NAME)
    command = first_command(records)
    body: Command = messages.decode(command.data, command.headers, Command)
    data = messages.encode(msgspec.structs.replace(body, view=command.sequence - 1))
    assert body.view != command.sequence - 1
    with Archive(HISTORIES / f"{NAME}.zip") as archive:
        report = replay(history_of(archive), with_data(records, command.sequence, data))

    assert ("position", command.sequence) in {(each.what, each.position) for each in report.differences}


def test_a_command_of_a_newer_version_is_not_checked() -> None:
    records = records_of(NAME)
    command = first_command(records)
    newer = {**command.headers, messages.SCHEMA_HEADER: "99"}
    changed = [msgspec.structs.replace(r, headers=newer) if r is command else r for r in records]
    with Archive(HISTORIES / f"{NAME}.zip") as archive:
        report = replay(history_of(archive), changed)

    assert next(each.position for each in report.unchecked) == command.sequence
    assert report.not_folded == 1


@pytest.mark.parametrize("name", ["pause_resume", "commit_fails_then_retry", "pooled"])
@virtual
async def test_wherever_a_history_is_begun_and_ended_nothing_differs(tmp_path: Path, name: str) -> None:
    """The views that it starts from are whole: what is decided after them is decided from them alone."""
    records = records_of(name)
    log = log_of(records)
    commands = [r for r in records if f".{subjects.COMMAND}." in r.subject]
    for since in range(1, len(records) + 1, 11):
        until = min(len(records), since + 60)
        wanted = Wanted(since=Moment(since), until=Moment(until))
        manifest = await export(log, no_views(), tmp_path / "part.zip", wanted, SETTINGS)
        report = replayed(tmp_path / "part.zip")

        assert (manifest.first_sequence, manifest.last_sequence) == (since, until)
        assert manifest.start == (FOLDED if since > 1 else BEGINNING)
        assert report.differences == []
        views = [messages.decode(r.data, r.headers, Command).view for r in commands if since <= r.sequence <= until]
        # One decided before the slice may still be checked, where nothing changed its view in between.
        assert len(views) >= report.commands >= len([view for view in views if view >= since])
        assert len(report.unchecked) == len(views) - report.commands


def twins() -> list[Record]:
    """Two histories in one log, the second as another namespace's, both with their lists."""
    first, second = records_of("pause_resume"), records_of("pooled")
    moved = []
    for record in second:
        subject = subjects.parse(record.subject)
        if subject.partition is None:
            continue
        tokens = record.subject.split(".")
        tokens[1], tokens[3] = str(subjects.partition_of("c1", "other", 2)), "other"
        moved.append(msgspec.structs.replace(record, subject=".".join(tokens)))
    return first + moved


@virtual
async def test_a_namespace_alone_settles_and_decides_as_it_did(tmp_path: Path) -> None:
    """Lists name only what is in the slice; else it would wait for ever for what is not."""
    log = log_of(twins())
    path = tmp_path / "one.zip"
    await export(log, no_views(), path, Wanted(Asked(namespaces=("default",))), SETTINGS)

    report = replayed(path)
    with Archive(path) as archive:
        assert archive.manifest.clusters == {"c1": ["default"]}
        assert {r.subject.split(".")[3] for r in archive.records()} == {"default", "list", "epoch"}
    assert report.differences == []
    assert report.commands == len([r for r in records_of("pause_resume") if f".{subjects.COMMAND}." in r.subject])


@virtual
async def test_one_sandbox_comes_with_its_pods_snapshots_jobs_and_their_pods(tmp_path: Path) -> None:
    records = records_of("public_snapshot")
    extra = log_of(records)
    await extra.append(
        subjects.observation(1, "c1", "default", "batchsandbox", "stranger"), b"{}", messages.headers("test")
    )
    path = tmp_path / "a.zip"
    sandbox = frozenset({subjects.Aggregate("c1", "default", subjects.SANDBOX, "a")})
    await export(extra, no_views(), path, Wanted(aggregates=sandbox), SETTINGS)

    report = replayed(path)
    with Archive(path) as archive:
        kept = list(archive.records())
    kinds = {(s.kind, s.name.partition("-commit-")[0]) for r in kept if (s := subjects.parse(r.subject)).name}
    assert kinds >= {
        ("batchsandbox", "a"),
        ("sandbox", "a"),
        ("pod", "a-0"),
        ("sandboxsnapshot", "a-pause"),
        ("snapshot", "a-pause"),
        ("job", "a-pause-commit"),
        ("pod", "a-pause"),
        ("sandboxsnapshot", "s"),
        ("snapshot", "s"),
        ("job", "s-commit"),
    }
    assert not kinds & {("batchsandbox", "stranger"), ("sandboxsnapshot", "x"), ("snapshot", "x")}
    assert report.differences == []
    assert report.commands > 8


@virtual
async def test_a_trimmed_log_says_that_its_views_may_lack_something(tmp_path: Path) -> None:
    log = log_of(records_of(NAME))
    log.stream.trim(40)
    manifest = await export(log, no_views(), tmp_path / "trimmed.zip", Wanted(), SETTINGS)

    assert manifest.start == INCOMPLETE
    assert manifest.first_sequence == 41
    report = replayed(tmp_path / "trimmed.zip")
    assert report.records == manifest.last_sequence - 40
    # Without a list since, nothing is known to be settled: nothing can be said, and nothing is.
    assert report.differences == []
    assert report.commands == 0
    assert len(report.unchecked) == manifest.messages["cmd"]


@virtual
async def test_settings_that_were_not_given_are_read_off_the_commands(tmp_path: Path) -> None:
    manifest = await export(log_of(records_of(NAME)), no_views(), tmp_path / "x.zip", Wanted(), Settings())

    assert manifest.settings == SETTINGS
