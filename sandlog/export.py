"""`sandlog export`: a slice of the log with the views it starts from, as one file (DESIGN §10).

The log is read from its first message on, and folded up to where the slice begins; only then are records written. One member of
the file, one batch of records and the views are in memory at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from bridge.jobbuild import CommitSettings
from bus import messages, subjects, viewcodec
from bus.log import Bounds, Log, LogReset, Record
from bus.subjects import Aggregate
from bus.times import SECOND, parse_time
from bus.views import View
from bus.viewstore import ViewStore
from history import archive
from history.archive_writer import Writer
from history.slice import Folder, Related, Selection, settings_shown
from reconciler.settings import Settings
from sandlog import output, selection
from sandlog.exits import failed, not_found
from sandlog.options import DURATION
from sandlog.roles import decide_settings
from sandlog.run_options import RunSettings, commit_timeout
from sandlog.timelines import find
from sandlog.transport import Transport

BATCH = 512
SILENCE = 2.0


class Moment(msgspec.Struct, frozen=True):
    """A place in the log: a position, or else a time in nanoseconds."""

    sequence: int | None = None
    time: int = 0

    def reached(self, record: Record) -> bool:
        """Whether the record is at or after it."""
        if self.sequence is not None:
            return record.sequence >= self.sequence
        return messages.time_of(record.time, record.headers) >= self.time

    def passed(self, record: Record) -> bool:
        """Whether the record is after it."""
        if self.sequence is not None:
            return record.sequence > self.sequence
        return messages.time_of(record.time, record.headers) > self.time


def moment(text: str, now: int) -> Moment:
    """A position, an RFC 3339 time, or how long ago (`10m`); `now` is log time. Raises Stop."""
    if text.isascii() and text.isdigit():
        return Moment(int(text))
    time = parse_time(text)
    if time is not None:
        return Moment(None, time)
    try:
        ago = DURATION.convert(text, None, None)
    except click.UsageError as error:
        hint = "write a position (4711), a time (2026-01-02T03:04:05Z), or how long ago (10m)"
        raise failed(f"{text!r} is no moment: {hint}") from error
    return Moment(None, now - int(ago * SECOND))


class Wanted(msgspec.Struct, frozen=True):
    """What to export. `aggregates` None: all of it."""

    asked: archive.Asked = archive.Asked()
    aggregates: frozenset[Aggregate] | None = None
    since: Moment | None = None
    until: Moment | None = None


async def _records(log: Log, bounds: Bounds, wanted: Wanted, selected: Selection) -> AsyncIterator[Record]:
    """All that is selected, from the log's first message to the last one when it began, or to `until`. Raises Stop if the log is lost."""
    newest = [found.sequence for pattern in selected.patterns() if (found := await log.last(pattern)) is not None]
    target = min(max(newest, default=0), bounds.last_sequence)
    if target < bounds.first_sequence:
        return
    try:
        reader = await log.follow(selected.patterns(), after=bounds.first_sequence - 1)
        try:
            while True:
                for record in await reader.batch(BATCH, SILENCE):
                    if record.sequence > target or (wanted.until is not None and wanted.until.passed(record)):
                        return
                    found = selected.of(record)
                    if found is not None:
                        yield found
                    if record.sequence >= target:
                        return
        finally:
            await reader.close()
    except LogReset as error:
        raise failed(f"the log was trimmed or lost while it was read: {error}; try again") from error


async def export(log: Log, views: ViewStore, path: Path, wanted: Wanted, settings: Settings) -> archive.Manifest:
    """Write the slice. Of `settings`, what commands show is filled in where it is empty. Raises Stop if there is nothing in it."""
    bounds = await log.bounds()
    selected = await _selected(log, bounds, wanted)
    writer = Writer(path)
    try:
        start, settings = await _write(log, bounds, wanted, selected, writer, settings)
        if not writer.records:
            raise not_found("the log holds nothing of that, or not in that time")
        cursors: dict[int, int] = {}
        for number in sorted(writer.numbers):
            cursor = await _stored(views, bounds, number, selected, writer)
            if cursor is not None:
                cursors[number] = cursor
        return writer.close(
            partitions=bounds.partitions,
            start=start,
            narrowed=selected.narrowed,
            asked=wanted.asked,
            settings=settings,
            cursors=cursors,
        )
    except BaseException:
        writer.abandon()
        raise


async def _selected(log: Log, bounds: Bounds, wanted: Wanted) -> Selection:
    cluster = wanted.asked.cluster or None
    if wanted.aggregates is None:
        return Selection(cluster, frozenset(wanted.asked.namespaces) or None)
    namespaces = Selection(cluster, frozenset(aggregate.namespace for aggregate in wanted.aggregates))
    folder, related = Folder(bounds.partitions), Related(wanted.aggregates)
    async for record in _records(log, bounds, wanted, namespaces):
        for partition, folded in folder.fold(record):
            related.look(partition, folded)
    return related.selection(cluster)


async def _write(
    log: Log, bounds: Bounds, wanted: Wanted, selected: Selection, writer: Writer, settings: Settings
) -> tuple[str, Settings]:
    """The records, and before them the views at their beginning; what those are (`Manifest.start`), and what commands show of the settings."""
    folder: Folder | None = Folder(bounds.partitions, cursor=bounds.first_sequence - 1)
    start = archive.BEGINNING if bounds.first_sequence <= 1 else archive.INCOMPLETE
    skipped = False
    async for record in _records(log, bounds, wanted, selected):
        if archive.BEGUN_HEADER in record.headers:
            start = archive.INCOMPLETE
        if record.subject.split(".")[4:5] == [subjects.COMMAND]:
            settings = settings_shown(record, settings)
        if folder is not None:
            if wanted.since is not None and not wanted.since.reached(record):
                skipped = True
                for _ in folder.fold(record):
                    pass
                continue
            for key, data in folder.stored():
                writer.key(archive.START, key, data)
            folder = None
        writer.record(record)
    return (archive.FOLDED if skipped and start == archive.BEGINNING else start), settings


async def _stored(store: ViewStore, bounds: Bounds, number: int, selected: Selection, writer: Writer) -> int | None:
    """Add the partition's views as they are stored now; the position they are of. None if they are of another log, or cannot be read."""
    keys, _ = await store.load(number)
    try:
        fence = keys.pop(subjects.fence_key(number))
        state = viewcodec.decode_fence(fence)
        views = viewcodec.assemble(keys)
    except (KeyError, viewcodec.Unreadable, ValueError):
        return None
    if state.log != bounds.identity or any(view.sequence > state.cursor for view in views.values()):
        return None
    for key, data in _keys_of(number, views, selected):
        writer.key(archive.STORED, key, data)
    return state.cursor


def _keys_of(number: int, views: dict[Aggregate, View], selected: Selection) -> Iterator[tuple[str, bytes]]:
    for aggregate in sorted(views):
        if selected.has_view(aggregate):
            for key, data in viewcodec.encode(number, views[aggregate], None).items():
                if data is not None:
                    yield key, data


async def run(
    transport: Transport,
    *,
    names: Sequence[str],
    namespaces: Sequence[str],
    cluster: str | None,
    kind: str,
    since: str | None,
    until: str | None,
    path: Path,
    settings: Settings,
    as_json: bool,
) -> None:
    """Write the file and say what is in it. Raises Stop."""
    now = (await transport.log.bounds()).now
    asked = archive.Asked(tuple(names), tuple(namespaces), cluster or "", since or "", until or "")
    if names and len(namespaces) > 1:
        raise failed("with names, give at most one --namespace: that of the names without one")
    found: list[Aggregate] = []
    for text in names:
        namespace, name = selection.split_name(text, namespaces[0] if namespaces else None)
        found.append(await find(transport, namespace, name, kind, cluster))
    if found and len({aggregate.cluster for aggregate in found}) == 1:
        asked = replace(asked, cluster=found[0].cluster)
    wanted = Wanted(
        asked,
        frozenset(found) if found else None,
        moment(since, now) if since else None,
        moment(until, now) if until else None,
    )
    try:
        manifest = await export(transport.log, transport.views, path, wanted, settings)
    except OSError as error:
        raise failed(f"{path} cannot be written: {error}") from error
    if as_json:
        output.say({"file": str(path), "manifest": manifest})
        return
    for line in summary(path, manifest):
        output.console().print(line)


def settings(flags: Mapping[str, Any]) -> Settings:
    """What the reconciler was given, by the flags of the same names."""
    commit = CommitSettings(timeout=commit_timeout(flags["commit_job_timeout"]))
    return decide_settings(
        RunSettings(
            pod_failure_grace=flags["pod_failure_grace"],
            snapshot_registry=flags["snapshot_registry"],
            resume_pull_secret=flags["resume_pull_secret"],
            commit=commit,
        )
    )


def summary(path: Path, manifest: archive.Manifest) -> list[str]:
    """What a file holds, in lines."""
    counts: dict[str, Any] = manifest.messages
    lines = [
        f"{path}: {sum(counts.values())} messages ({', '.join(f'{n} {kind}' for kind, n in counts.items())})",
        f"positions {manifest.first_sequence} to {manifest.last_sequence}, "
        f"{output.moment(manifest.first_time)} to {output.moment(manifest.last_time)} UTC",
        f"of {', '.join(f'{c} ({len(n)} namespaces)' for c, n in manifest.clusters.items())}",
    ]
    if manifest.start == archive.INCOMPLETE:
        lines.append("the log was trimmed before: the views it starts from may lack what came earlier")
    return lines
