"""export, import and replay by the command line, on a real local NATS: what comes out of one log is what another shows (DESIGN §10)."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from sandlog_helpers import Cli, Nats
from support.programs import python

from bus import messages, subjects, viewcodec
from bus.log import Record
from bus.log_nats import NatsLog
from bus.messages import Command, Outcome
from bus.natsserver import LocalNats
from bus.stored import rfc3339
from bus.subjects import Aggregate
from bus.views import View
from bus.viewstore_nats import NatsViewStore
from history.archive import INCOMPLETE, Archive
from history.slice import Folder
from sandlog.transport import SERVER_FILE, Running

HISTORIES = Path(__file__).resolve().parent.parent / "fixtures" / "histories"
PAUSE = HISTORIES / "pause_resume.zip"
AN_INSTANT = re.compile(r"ops/\d+/at: (\d+), now (\d+)")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Nats]:
    """A second local server."""
    server = LocalNats(tmp_path / "other")
    asyncio.run(server.start())
    (server.directory / SERVER_FILE).write_bytes(msgspec.json.encode(Running(server.url)))
    yield Nats(server.url, server.directory)
    asyncio.run(server.stop())


def at(nats: Nats) -> tuple[str, str]:
    return "--data-dir", str(nats.directory)


def records_in(nats: Nats) -> list[Record]:
    found: list[Record] = []

    async def work(log: NatsLog, _: NatsViewStore) -> None:
        found.extend(await log.read(("log.>",)))

    nats.do(work)
    return found


def views_in(nats: Nats) -> dict[Aggregate, View]:
    found: dict[Aggregate, View] = {}

    async def work(_: NatsLog, store: NatsViewStore) -> None:
        stored = {entry.key: entry.data for entry in await store.list("") if entry.data is not None}
        found.update(viewcodec.assemble(stored))

    nats.do(work)
    return found


def folded(path: Path, change: Callable[[Record], Record] = lambda record: record) -> dict[Aggregate, View]:
    """The views that a whole file's records make, by hand."""
    with Archive(path) as archive:
        folder = Folder(archive.manifest.partitions)
        for record in archive.records():
            for _ in folder.fold(change(record)):
                pass
    return folder.views()


def imported_time(time: int) -> int:
    """As readers of the time header know it: to the microsecond at least."""
    return messages.time_of(0, {messages.TIME_HEADER: rfc3339(time)})


def at_imported_time(record: Record) -> Record:
    return msgspec.structs.replace(record, time=imported_time(record.time))


def test_an_imported_log_has_the_same_messages_times_causes_and_views(cli: Cli, nats: Nats) -> None:
    ran = cli("import", str(PAUSE), *at(nats))

    assert (ran.code, ran.err) == (0, "")
    with Archive(PAUSE) as archive:
        before = list(archive.records())
    after = records_in(nats)
    assert [(r.sequence, r.data) for r in after] == [(r.sequence, r.data) for r in before]
    for old, new in zip(before, after, strict=True):
        assert new.headers.get(messages.CAUSE_HEADER) == old.headers.get(messages.CAUSE_HEADER)
        assert messages.time_of(new.time, new.headers) == imported_time(old.time)
    assert views_in(nats) == folded(PAUSE, at_imported_time)


def test_what_is_exported_again_is_the_same_history(cli: Cli, nats: Nats, other: Nats, tmp_path: Path) -> None:
    """export → import → export → import: nothing differs when it is decided again, and both logs show the same views."""
    again = tmp_path / "again.zip"
    assert cli("import", str(PAUSE), *at(nats)).code == 0
    assert cli("export", "-f", str(again), *at(nats)).code == 0
    assert cli("import", str(again), *at(other)).code == 0

    report = json.loads(cli("replay", str(again), "-o", "json").out)["report"]
    for line in [line for each in report["differences"] for line in each["details"]]:
        moments = AN_INSTANT.fullmatch(line)  # what a time header cannot say
        assert moments is not None, line
        assert abs(int(moments[1]) - int(moments[2])) < 1000
    assert (report["commands"], report["views"]) == (20, 2)
    assert report["unchecked"] == []
    assert views_in(nats) == views_in(other)


def test_get_and_history_show_an_imported_sandbox(cli: Cli, nats: Nats) -> None:
    renewed = HISTORIES / "delete_while_pausing.zip"
    cli("import", str(renewed), "--as", "customer", *at(nats))

    told = cli("history", "default/a", "-o", "json", *at(nats))
    entries = json.loads(told.out)["entries"]
    decided = [entry for entry in entries if entry["what"] == "decided"]
    assert json.loads(told.out)["aggregate"]["cluster"] == "customer"
    assert any("create pod a-0" in entry["text"] for entry in decided)
    assert all(0 < entry["cause"] < entry["sequence"] for entry in decided)
    assert cli("get", *at(nats)).code == 0


def test_a_part_from_the_middle_continues_from_its_views_under_new_positions(
    cli: Cli, nats: Nats, other: Nats, tmp_path: Path
) -> None:
    """Positions, ids and causes are the new log's; its views are the old ones with those positions."""
    part, again = tmp_path / "part.zip", tmp_path / "again.zip"
    cli("import", str(PAUSE), *at(nats))
    assert cli("export", "default/a", "--since", "60", "-f", str(part), *at(nats)).code == 0
    with Archive(part) as archive:
        assert archive.manifest.first_sequence == 60
        assert archive.start()
    assert cli("import", str(part), "--as", "lab", *at(other)).code == 0

    after = records_in(other)
    assert [r.sequence for r in after] == list(range(1, len(after) + 1))
    assert {subjects.parse(r.subject).cluster for r in after} == {"lab"}
    for record in after:
        subject = subjects.parse(record.subject)
        if subject.partition is not None:
            assert subject.partition == subjects.partition_of("lab", subject.namespace, 4)
        if subject.message == subjects.OUTCOME:
            outcome: Outcome = messages.decode(record.data, record.headers, Outcome)
            asked = next((r for r in after if r.sequence == outcome.command), None)
            if asked is not None:
                command: Command = messages.decode(asked.data, asked.headers, Command)
                assert {op.id for op in command.ops} >= {result.id for result in outcome.results}
    mine, theirs = views_in(nats), views_in(other)
    assert {(a.kind, a.name) for a in mine} == {(a.kind, a.name) for a in theirs}
    for aggregate, view in theirs.items():
        before = mine[msgspec.structs.replace(aggregate, cluster="c1")]
        assert (view.object, view.pods, view.known, view.tries, view.settled, view.now) == (
            before.object,
            before.pods,
            before.known,
            before.tries,
            before.settled,
            before.now,
        )
    # The views that it started from are in the store and not in the log, so whoever exports that log is told.
    assert cli("export", "-f", str(again), *at(other)).code == 0
    with Archive(again) as archive:
        assert archive.manifest.start == INCOMPLETE


def test_a_log_that_holds_something_and_a_cluster_that_is_known_are_refused(cli: Cli, nats: Nats) -> None:
    assert cli("import", str(PAUSE), *at(nats)).code == 0
    count = len(records_in(nats))

    full = cli("import", str(PAUSE), *at(nats))
    known = cli("import", str(PAUSE), "--append", *at(nats))
    assert (full.code, known.code) == (1, 1)
    assert "--append" in full.err
    assert "--as" in known.err
    assert len(records_in(nats)) == count

    beside = cli("import", str(PAUSE), "--append", "--as", "c2", "-o", "json", *at(nats))
    assert beside.code == 0
    assert json.loads(beside.out)["first_sequence"] == count + 1
    views = views_in(nats)
    first = {(a.kind, a.name): v for a, v in views.items() if a.cluster == "c1"}
    second = {(a.kind, a.name): v for a, v in views.items() if a.cluster == "c2"}
    assert first.keys() == second.keys() != set()
    for name, view in second.items():
        assert view.sequence == first[name].sequence + count
        assert view.now == first[name].now


def test_a_damaged_file_writes_nothing(cli: Cli, nats: Nats, tmp_path: Path) -> None:
    data = bytearray(PAUSE.read_bytes())
    data[len(data) // 3] ^= 0xFF
    (tmp_path / "broken.zip").write_bytes(data)

    ran = cli("import", str(tmp_path / "broken.zip"), *at(nats))

    assert ran.code == 1
    assert "records-00000.jsonl is damaged" in ran.err
    assert cli("replay", str(tmp_path / "broken.zip")).code == 1
    nats.do(lambda log, _: log.ensure())
    assert records_in(nats) == []


def test_names_that_cannot_be(cli: Cli, nats: Nats, tmp_path: Path) -> None:
    assert cli("import", str(tmp_path / "none.zip"), *at(nats)).code == 5
    assert cli("import", str(PAUSE), "--as", "x=y", *at(nats)).code == 1
    assert "lower-case" in cli("import", str(PAUSE), "--as", "Not_A_Name", *at(nats)).err
    nats.do(lambda log, _: log.ensure())
    nobody = cli("export", "default/nobody", "-f", str(tmp_path / "x.zip"), *at(nats))
    assert nobody.code == 5
    assert not (tmp_path / "x.zip").exists()


def made_today(path: Path) -> Path:
    """A pause and its resume as today's code runs them: nothing of it differs."""
    runpy.run_path(str(HISTORIES.parent / "make_histories.py"))["make"]("pause_resume", path)
    return path


def with_setting(path: Path, to: Path, old: bytes, new: bytes) -> Path:
    """The file with another manifest, as an export says whose reconciler was given another flag by then."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(to, "w") as made:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("manifest.json"):
                assert old in data
                data = data.replace(old, new)
            made.writestr(name, data)
    return to


def test_replay_check_does_not_fail_where_a_flag_of_the_time_explains_it(cli: Cli, tmp_path: Path) -> None:
    """A restart without `--resume-pull-secret` in the middle of the log: the file has one value of it."""
    whole = made_today(tmp_path / "whole.zip")
    path = with_setting(
        whole, tmp_path / "later.zip", b'"resume_pull_secret": "pull"', b'"resume_pull_secret": "later"'
    )
    ran = cli("replay", str(path), "--check")

    assert ran.code == 0
    assert "explained by --resume-pull-secret" in " ".join(ran.out.split())
    assert "0 differences, 2 explained" in " ".join(ran.out.split())


def test_replay_check_fails_where_something_differs(cli: Cli, tmp_path: Path) -> None:
    path = str(made_today(tmp_path / "made.zip"))
    same = cli("replay", path, "--check")
    other = cli("replay", path, "--check", "--resume-pull-secret", "another")
    looked = cli("replay", path, "--resume-pull-secret", "another")

    assert same.code == 0
    assert "20 commands decided again" in same.out
    assert other.code == 1
    assert "pull_secret: 'pull', now 'another'" in other.out
    assert looked.code == 0


def test_an_import_that_is_kept_can_be_looked_at_until_ctrl_c(cli: Cli, tmp_path: Path) -> None:
    directory = tmp_path / "report"
    arguments = ["import", str(HISTORIES / "resume_fails.zip"), "--keep", "--data-dir", str(directory)]
    program = python("import", "sandlog", arguments, tmp_path)
    end = time.monotonic() + 30
    while "until Ctrl-C" not in program.tail():
        assert program.trouble() is None, program.trouble()
        assert time.monotonic() < end, program.tail()
        time.sleep(0.05)

    told = cli("history", "default/a", "--data-dir", str(directory))
    program.signal(signal.SIGINT)

    assert told.code == 0
    assert "SnapshotNotFound" in told.out
    assert program.ended() == 0
    assert cli("get", "--data-dir", str(directory)).code == 3
