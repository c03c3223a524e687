"""The stored histories, and logs made of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bus.log import Record
from bus.log_memory import MemoryLog, MemoryStream
from bus.viewstore_memory import MemoryBucket, MemoryViewStore
from history.archive import INCOMPLETE, Archive
from history.replay import History, Report, replay

HISTORIES = Path(__file__).resolve().parent.parent / "fixtures" / "histories"


def history_of(archive: Archive) -> History:
    manifest = archive.manifest
    return History(
        manifest.partitions,
        manifest.first_sequence,
        manifest.last_sequence,
        manifest.settings,
        archive.start(),
        archive.stored(),
        manifest.cursors,
        manifest.narrowed,
        manifest.start == INCOMPLETE,
    )


def replayed(path: Path) -> Report:
    with Archive(path) as archive:
        return replay(history_of(archive), archive.records())


def records_of(name: str) -> list[Record]:
    with Archive(HISTORIES / f"{name}.zip") as archive:
        return list(archive.records())


class Clock:
    time = 0

    def __call__(self) -> int:
        return self.time


def log_of(records: Iterable[Record], partitions: int = 2) -> MemoryLog:
    """A log that holds these records, as they were: positions from 1 on, and times."""
    clock = Clock()
    stream = MemoryStream(partitions=partitions, time=clock)
    for record in records:
        clock.time = record.time
        stream.store(record.subject, record.data, record.headers, expected=None, message_id=None)
    return MemoryLog(stream)


def no_views() -> MemoryViewStore:
    return MemoryViewStore(MemoryBucket())
