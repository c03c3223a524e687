"""The file of a slice: byte for byte what was in the log, and every way of being broken is told by the member's name (DESIGN §10)."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from history_files import HISTORIES, log_of, no_views, records_of
from support.virtual_time import virtual

from bus.log import Record
from history import archive
from history.archive import BEGINNING, MANIFEST, Archive, Asked, Unusable
from history.archive_writer import Writer
from reconciler.settings import DEFAULT
from sandlog.exits import Stop
from sandlog.export import Moment, Wanted, export, moment

ODD = (
    b"",
    b"{",
    b'{"a": 1}',
    b' {"a":1}',
    b'{"a":\n1}',
    b"\xff\x00",
    b'"\xff"',
    b"null",
    b'{"a":"\xe2\x80\xa8"}',
    b"{} {}",
)
HEADERS = {"Sandlog-Schema": "1"}


def record(sequence: int, data: bytes) -> Record:
    return Record("log.1.c1.team.obs.pod.a-0", sequence, 1_700_000_000_123_456_789 + sequence, HEADERS, data)


def write(path: Path, records: Iterator[Record] | list[Record], start: dict[str, bytes] | None = None) -> None:
    writer = Writer(path)
    for key, data in (start or {}).items():
        writer.key(archive.START, key, data)
    for each in records:
        writer.record(each)
    writer.close(partitions=2, start=BEGINNING, narrowed=False, asked=Asked(), settings=DEFAULT, cursors={})


def changed(path: Path, change: dict[str, bytes | None], to: Path) -> Path:
    """A copy with members replaced, added or (None) left out; sound as a zip."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as new:
        for name in [*old.namelist(), *(name for name in change if name not in old.namelist())]:
            data = change[name] if name in change else old.read(name)
            if data is not None:
                new.writestr(name, data)
    return to


def test_records_come_back_byte_for_byte(tmp_path: Path) -> None:
    records = [record(n, data) for n, data in enumerate(ODD, 1)]
    write(tmp_path / "x.zip", records, {"1._": b'{"cursor":7}'})

    with Archive(tmp_path / "x.zip") as found:
        assert list(found.records()) == records
        assert found.start() == {"1._": b'{"cursor":7}'}
        manifest = found.manifest
    assert (manifest.first_sequence, manifest.last_sequence, manifest.messages) == (1, len(ODD), {"obs": len(ODD)})
    assert manifest.first_time == records[0].time
    assert manifest.clusters == {"c1": ["team"]}


def test_the_same_slice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("x.zip", "y.zip"):
        write(tmp_path / name, [record(1, b"{}")])

    assert (tmp_path / "x.zip").read_bytes() == (tmp_path / "y.zip").read_bytes()


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    source = HISTORIES / "pause_resume.zip"
    with zipfile.ZipFile(source) as sound:
        name = "records-00000.jsonl"
        data = sound.read(name)
    swapped = changed(source, {name: data.replace(b"Succeed", b"Succeet", 1)}, tmp_path / "swapped.zip")
    longer = changed(source, {name: data + b"\n"}, tmp_path / "longer.zip")
    missing = changed(source, {name: None}, tmp_path / "missing.zip")
    for path, why in ((swapped, "SHA-256"), (longer, "bytes"), (missing, "missing")):
        with pytest.raises(Unusable, match=f"{name} is damaged .*{why}"):
            Archive(path).verify()
    extra = changed(source, {"evil.jsonl": b"{}"}, tmp_path / "extra.zip")
    with pytest.raises(Unusable, match=r"evil\.jsonl"):
        Archive(extra)


def test_every_flipped_byte_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """Whatever the transfer did to it: an error of ours, or the same records (some bytes of a zip mean nothing)."""
    source = HISTORIES / "pause_refused_replicas.zip"
    sound, records = source.read_bytes(), records_of("pause_refused_replicas")
    path, found = tmp_path / "flipped.zip", 0
    # Every byte of the zip's own directory, some of the rest.
    places = [*range(0, len(sound) - 400, 61), *range(len(sound) - 400, len(sound), 2)]
    for at in places:
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x80]) + sound[at + 1 :])
        try:
            with Archive(path) as opened:
                opened.verify()
                assert list(opened.records()) == records
        except Unusable:
            found += 1
    assert found > len(places) * 0.5


@pytest.mark.parametrize(
    "line",
    [
        b'{"sequence":1,"time":1,"subject":"log.1.c1.team.obs.pod.a\\r\\nPUB x 0","data":{}}',
        b'{"sequence":1,"time":1,"subject":"log.*.c1.team.obs.pod.a","data":{}}',
        b'{"sequence":1,"time":1,"subject":"other.subject","data":{}}',
        b'{"sequence":1,"time":1,"subject":"log.1.c1.team.obs.pod.a","headers":{"Nats-Rollup":"all"},"data":{}}',
        b'{"sequence":1,"time":1,"subject":"log.1.c1.team.obs.pod.a","headers":{"Sandlog-Code":"a\\r\\nb"},"data":{}}',
        b'{"sequence":"one"}',
    ],
)
def test_a_file_from_elsewhere_can_say_nothing_but_messages_of_the_log(tmp_path: Path, line: bytes) -> None:
    """Checksums are right, and still neither another subject nor a header of NATS's gets in."""
    source, name = tmp_path / "sound.zip", "records-00000.jsonl"
    write(source, [record(1, b"{}")])
    with Archive(source) as sound:
        manifest = sound.manifest
    member = msgspec.structs.replace(
        manifest.members[name], sha256=hashlib.sha256(line + b"\n").hexdigest(), size=len(line) + 1
    )
    forged = msgspec.structs.replace(manifest, members={name: member})
    path = changed(source, {name: line + b"\n", MANIFEST: msgspec.json.encode(forged)}, tmp_path / "forged.zip")

    with pytest.raises(Unusable, match=f"{name} is damaged .line 1"):
        Archive(path).verify()


def test_a_truncated_file_is_told_as_one(tmp_path: Path) -> None:
    sound = (HISTORIES / "pause_resume.zip").read_bytes()
    for length in (0, 10, len(sound) // 2, len(sound) - 1):
        (tmp_path / "cut.zip").write_bytes(sound[:length])
        with pytest.raises(Unusable, match="cut off"):
            Archive(tmp_path / "cut.zip")


def test_a_newer_format_names_the_version_to_use(tmp_path: Path) -> None:
    source = HISTORIES / "pause_resume.zip"
    manifest = b'{"format": 2, "code_version": "9.9", "all else": "is otherwise"}'
    newer = changed(source, {MANIFEST: manifest}, tmp_path / "newer.zip")

    with pytest.raises(Unusable, match=r"format 2, written by sandlog 9\.9"):
        Archive(newer)


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("hello", "world")
    with pytest.raises(Unusable, match="no export"):
        Archive(tmp_path / "other.zip")


def test_a_member_that_claims_to_be_huge_is_not_unpacked(tmp_path: Path) -> None:
    source = HISTORIES / "pause_resume.zip"
    bomb = changed(source, {MANIFEST: b" " * (archive.MEMBER_LIMIT + 1)}, tmp_path / "bomb.zip")
    assert bomb.stat().st_size < 200_000

    with pytest.raises(Unusable, match=MANIFEST):
        Archive(bomb)


def test_a_huge_slice_is_written_and_read_in_bounded_memory(tmp_path: Path) -> None:
    """100 MiB of records; a member of 4 MiB and its copies are all that is held."""
    body = b'{"a":"' + b"x" * 100_000 + b'"}'
    count = 1000

    tracemalloc.start()
    write(tmp_path / "huge.zip", (record(n, body) for n in range(1, count + 1)))
    with Archive(tmp_path / "huge.zip") as found:
        assert sum(len(each.data) == len(body) for each in found.records()) == count
        assert len(found.manifest.members) > 20
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 40 * 1024**2


@virtual
async def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(Stop) as stop:
        await export(log_of(records_of("pooled")), no_views(), tmp_path / "x.zip", Wanted(since=Moment(9999)), DEFAULT)

    assert stop.value.code == 5
    assert list(tmp_path.iterdir()) == []


def test_a_moment_is_a_position_a_time_or_how_long_ago() -> None:
    second = 1_000_000_000
    assert moment("4711", 0) == Moment(4711)
    assert moment("1970-01-01T00:01:00Z", 0) == Moment(None, 60 * second)
    assert moment("10m", 3600 * second) == Moment(None, 3000 * second)
    with pytest.raises(Stop, match="no moment"):
        moment("yesterday", 0)


def test_manifest_is_for_people_too() -> None:
    with zipfile.ZipFile(io.BytesIO((HISTORIES / "pooled.zip").read_bytes())) as found:
        manifest = msgspec.json.decode(found.read(MANIFEST))
    assert manifest["settings"]["snapshot_registry"] == "registry.test/snap"
    assert manifest["partitions"] == 2
