"""A slice of the log as one file: a zip of a manifest, the views it starts from, its records, and the views that were stored at its end.

Members hold one JSON document a line and some MiB each, so that neither side keeps more than one of them in memory. The manifest has the
SHA-256 of each. Times inside the zip are fixed: the same slice gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from bus import subjects
from bus.log import Record
from history.slice import are_own, is_plain
from reconciler.settings import Settings

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
START: Final = "start"
RECORDS: Final = "records"
STORED: Final = "stored"
PART_BYTES: Final = 4 * 1024 * 1024
"""A member is closed once it is this long."""
MEMBER_LIMIT: Final = 32 * 1024 * 1024
"""Most bytes of a member: what a reader holds at a time. The largest message takes 11 MiB of it."""

BEGINNING: Final = "beginning"
FOLDED: Final = "folded"
INCOMPLETE: Final = "incomplete"
BEGUN_HEADER: Final = "Sandlog-Begun"
"""On the first message that was imported with views to start from: the log alone does not lead to its views."""


class Unusable(Exception):
    """The file is no export, is damaged, or is of a newer format; the text says which member, and what to do."""


class Member(msgspec.Struct, frozen=True):
    sha256: str
    size: int
    lines: int


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the export was asked for. `since`, `until`: as they were given."""

    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    cluster: str = ""
    since: str = ""
    until: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """`start` says what the views it starts from are: empty, because it begins with the log (`beginning`); folded from the whole log
    before it (`folded`); or folded from what the log still held, so that some may lack what was trimmed (`incomplete`).

    `cursors`: per partition, the position that the stored views at the end are of. Times in nanoseconds of log time.
    """

    format: int
    code_version: str
    schema: int
    clusters: dict[str, list[str]]
    """cluster → namespaces that occur"""
    partitions: int
    start: str
    narrowed: bool
    first_sequence: int
    last_sequence: int
    first_time: int
    last_time: int
    messages: dict[str, int]
    """count by kind of message"""
    asked: Asked
    settings: Settings
    """what decisions depended on besides the views"""
    cursors: dict[int, int]
    members: dict[str, Member]


class _Format(msgspec.Struct):
    format: int
    code_version: str = "?"


class Line(msgspec.Struct, omit_defaults=True):
    """A record. `data` as it is where it is one line of JSON, else `bytes` in base64."""

    sequence: int
    time: int
    subject: str
    headers: dict[str, str] = {}
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    bytes: str = ""


class Key(msgspec.Struct):
    key: str
    value: msgspec.Raw


_lines = msgspec.json.Decoder(Line)
_keys = msgspec.json.Decoder(Key)


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


class Archive:
    """An export to read. What its methods give is verified member by member; they raise Unusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, OverflowError) as error:
            raise Unusable(f"{path} is no export, or it is cut off: {error}") from error
        try:
            self._sizes = {info.filename: info.file_size for info in self._zip.infolist()}
            self.manifest = self._manifest()
            self._check_names()
        except Unusable:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def verify(self) -> None:
        """Read all of it once, and look at each line."""
        for _ in self.records():
            pass
        self.start()
        self.stored()

    def records(self) -> Iterator[Record]:
        for line in self._documents(RECORDS, _lines):
            raw = b"" if line.data is msgspec.UNSET else bytes(line.data)
            data = base64.b64decode(line.bytes) if line.data is msgspec.UNSET else raw
            yield Record(line.subject, line.sequence, line.time, line.headers, data)

    def _checked(self, name: str, number: int, document: Any) -> Any:
        """Neither NATS nor the store is given what is no subject, key or header of ours."""
        if isinstance(document, Line):
            sound = (
                is_plain(document.subject) and are_own(document.headers) and _parses(subjects.parse, document.subject)
            )
        else:
            sound = is_plain(document.key) and _parses(subjects.parse_view_key, document.key)
        if not sound:
            raise self._damaged(name, f"line {number} is about nothing of the log's")
        return document

    def start(self) -> dict[str, bytes]:
        """The views it starts from, as keys."""
        return {each.key: bytes(each.value) for each in self._documents(START, _keys)}

    def stored(self) -> dict[str, bytes]:
        """The views that were stored at its end, as keys."""
        return {each.key: bytes(each.value) for each in self._documents(STORED, _keys)}

    def _documents(self, group: str, decoder: msgspec.json.Decoder[Any]) -> Iterator[Any]:
        for name in sorted(each for each in self.manifest.members if each.startswith(f"{group}-")):
            for number, line in enumerate(self._member(name).splitlines(), 1):
                try:
                    document = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise self._damaged(name, f"line {number}: {error}") from error
                yield self._checked(name, number, document)

    def _member(self, name: str) -> bytes:
        expected = self.manifest.members[name]
        data = self._read(name, expected.size)
        if hashlib.sha256(data).hexdigest() != expected.sha256:
            raise self._damaged(name, "its SHA-256 is not the manifest's")
        return data

    def _read(self, name: str, size: int) -> bytes:
        if size > MEMBER_LIMIT or self._sizes[name] != size:
            raise self._damaged(name, f"it has {self._sizes[name]} bytes")
        try:
            return self._zip.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            raise self._damaged(name, str(error)) from error

    def _manifest(self) -> Manifest:
        if MANIFEST not in self._sizes:
            raise Unusable(f"{self.path} is a zip without {MANIFEST}: no export of sandlog")
        data = self._read(MANIFEST, self._sizes[MANIFEST])
        try:
            found = msgspec.json.decode(data, type=_Format)
            if found.format > FORMAT:
                raise Unusable(
                    f"{self.path} is of format {found.format}, written by sandlog {found.code_version}; "
                    f"this one reads up to {FORMAT}: use that version or a newer one"
                )
            return msgspec.json.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise self._damaged(MANIFEST, str(error)) from error

    def _check_names(self) -> None:
        for name in self.manifest.members:
            if name not in self._sizes:
                raise self._damaged(name, "it is missing")
        for name in self._sizes:
            if name not in self.manifest.members and name != MANIFEST:
                raise self._damaged(name, f"{MANIFEST} does not know it")

    def _damaged(self, name: str, why: str) -> Unusable:
        return Unusable(f"{self.path}: the member {name} is damaged ({why}); have the file sent or made again")
