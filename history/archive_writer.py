"""Writes a slice as one file (`history.archive`), member by member."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from collections import Counter
from pathlib import Path

import msgspec

from bus import messages, subjects
from bus.log import Record
from bus.version import CODE_VERSION
from history.archive import FORMAT, MANIFEST, PART_BYTES, RECORDS, START, STORED, Asked, Key, Line, Manifest, Member
from reconciler.settings import Settings

_WHEN = (1980, 1, 1, 0, 0, 0)


def _is_one_line(data: bytes) -> bool:
    if not data or b"\n" in data or data.strip() != data:
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


class Writer:
    """Writes beside the file and takes its place when it is closed; nothing is left behind by one that is not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f"{path.name}.part")
        self._zip = zipfile.ZipFile(self._partial, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self._members: dict[str, Member] = {}
        self._buffers: dict[str, list[bytes]] = {}
        self._sizes: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()
        self._places: dict[str, set[str]] = {}
        self._counts: Counter[str] = Counter()
        self.numbers: set[int] = set()
        """partitions that records or views are of"""
        self._first: Record | None = None
        self._last: Record | None = None

    @property
    def records(self) -> int:
        return self._counts.total()

    def record(self, record: Record) -> None:
        """Add one record; they come in order."""
        line = Line(record.sequence, record.time, record.subject, dict(record.headers))
        if _is_one_line(record.data):
            line.data = msgspec.Raw(record.data)
        else:
            line.bytes = base64.b64encode(record.data).decode()
        self._first, self._last = self._first or record, record
        subject = subjects.parse(record.subject)
        self._counts[subject.message] += 1
        namespaces = self._places.setdefault(subject.cluster, set())
        if subject.partition is not None:
            namespaces.add(subject.namespace)
            self.numbers.add(subject.partition)
        self._add(RECORDS, line)

    def key(self, group: str, key: str, value: bytes) -> None:
        """Add a key of a view or fence to START or STORED."""
        number, aggregate, _ = subjects.parse_view_key(key)
        if aggregate is not None:
            self.numbers.add(number)
            self._places.setdefault(aggregate.cluster, set()).add(aggregate.namespace)
        self._add(group, Key(key, msgspec.Raw(value)))

    def _add(self, group: str, line: Line | Key) -> None:
        data = msgspec.json.encode(line) + b"\n"
        self._buffers.setdefault(group, []).append(data)
        self._sizes[group] += len(data)
        if self._sizes[group] >= PART_BYTES:
            self._flush(group)

    def _flush(self, group: str) -> None:
        lines = self._buffers.pop(group, [])
        if not lines:
            return
        name = f"{group}-{self._numbers[group]:05}.jsonl"
        self._numbers[group] += 1
        self._sizes[group] = 0
        data = b"".join(lines)
        self._members[name] = Member(hashlib.sha256(data).hexdigest(), len(data), len(lines))
        self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        info = zipfile.ZipInfo(name, _WHEN)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o644 << 16
        self._zip.writestr(info, data)

    def close(
        self, *, partitions: int, start: str, narrowed: bool, asked: Asked, settings: Settings, cursors: dict[int, int]
    ) -> Manifest:
        """Write the manifest, and put the file where it belongs. There must be a record."""
        assert self._first is not None
        assert self._last is not None
        for group in (START, RECORDS, STORED):
            self._flush(group)
        manifest = Manifest(
            format=FORMAT,
            code_version=CODE_VERSION,
            schema=messages.SCHEMA,
            clusters={cluster: sorted(places) for cluster, places in sorted(self._places.items())},
            partitions=partitions,
            start=start,
            narrowed=narrowed,
            first_sequence=self._first.sequence,
            last_sequence=self._last.sequence,
            first_time=messages.time_of(self._first.time, self._first.headers),
            last_time=messages.time_of(self._last.time, self._last.headers),
            messages=dict(sorted(self._counts.items())),
            asked=asked,
            settings=settings,
            cursors=cursors,
            members=self._members,
        )
        self._write(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        self._zip.close()
        os.replace(self._partial, self._path)
        return manifest

    def abandon(self) -> None:
        self._zip.close()
        self._partial.unlink(missing_ok=True)
