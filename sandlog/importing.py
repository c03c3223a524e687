"""`sandlog import`: an exported slice into a log, and its views into the store, to look at with get and history (DESIGN §10).

The whole file is verified before anything is written. Positions, causes and ids are changed to the new log's; each message keeps its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bus import subjects, viewcodec
from bus.log import Bounds, Log, Record
from bus.log_nats import LogSettings
from bus.membership import Member
from bus.views import PartitionState
from bus.viewstore import COMMIT_LIMIT, Fenced, ViewStore
from bus.viewstore_nats import ViewStoreSettings
from history.archive import BEGUN_HEADER, Archive, Unusable
from history.renumber import Renumber, Start, starts
from projector.keeper import Keeper
from sandlog import output
from sandlog.exits import NO_NATS, Stop, failed, not_found
from sandlog.export import summary
from sandlog.options import Target
from sandlog.transport import Transport, for_reading, for_roles

BATCH = 512
SILENCE = 2.0
TRIES = 5
PROJECTOR = "projector"
BRIDGE = "bridge."


class Imported(msgspec.Struct, frozen=True):
    """`clusters`: the names in the file → those in the log now. `views`: those that the slice ends with; -1 where a running projector makes them."""

    first_sequence: int
    last_sequence: int
    messages: int
    clusters: dict[str, str]
    views: int


class Permission(msgspec.Struct, frozen=True):
    """What was asked for on purpose. `append`: into a log that holds something; `live`: under the name of a cluster that is known there."""

    append: bool = False
    live: bool = False


def opened(path: Path) -> Archive:
    """Raises Stop."""
    try:
        return Archive(path)
    except FileNotFoundError as error:
        raise not_found(f"{path} does not exist") from error
    except (OSError, Unusable) as error:
        raise failed(str(error)) from error


def new_names(given: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """`--as NEW` where the file has one cluster, else `--as OLD=NEW` for each. Raises Stop."""
    clusters = {name: name for name in known}
    for text in given:
        old, equals, new = text.partition("=")
        if not equals:
            if len(clusters) != 1:
                raise failed(f"the file has several clusters ({', '.join(clusters)}): say --as OLD=NEW")
            old, new = next(iter(clusters)), text
        if old not in clusters:
            raise failed(f"the file has no cluster {old!r}, only {', '.join(clusters)}")
        try:
            clusters[old] = subjects.check_cluster(new)
        except ValueError as error:
            raise failed(str(error)) from error
    if len(set(clusters.values())) < len(clusters):
        raise failed("two clusters cannot become one")
    return clusters


async def refuse_unasked(
    log: Log, members: Sequence[Member], clusters: Mapping[str, str], permission: Permission
) -> None:
    """Raises Stop for a log that holds something, and for a cluster's name that is in use, unless it was asked for."""
    bounds = await log.bounds()
    if bounds.last_sequence >= bounds.first_sequence and not permission.append:
        raise failed(
            f"the log holds {bounds.last_sequence - bounds.first_sequence + 1} messages already: "
            "use an empty one (another --data-dir), or say --append"
        )
    if permission.live:
        return
    served = {member.group.removeprefix(BRIDGE) for member in members if member.group.startswith(BRIDGE)}
    for name in clusters.values():
        if name in served or await log.last(f"log.*.{name}.>") is not None:
            raise failed(
                f"the cluster {name} is known to this log{' and has a live bridge' if name in served else ''}: what is imported "
                "would mix with what it is; give it another name with --as, or say --live"
            )


async def load(archive: Archive, log: Log, views: ViewStore, clusters: Mapping[str, str], *, fold: bool) -> Imported:
    """Append all of it, and (`fold`) bring the views up to its end. Raises Stop, Unusable before anything is written."""
    archive.verify()
    bounds = await log.bounds()
    renumber = Renumber(clusters, bounds.partitions)
    try:
        begun = starts(archive.manifest, archive.start(), renumber)
    except (viewcodec.Unreadable, ValueError, msgspec.MsgspecError) as error:
        raise failed(f"the views that {archive.path} starts from cannot be read by this version: {error}") from error
    for number, start in begun.items():
        await _begin(views, bounds, number, start)
    appended = await _append_all(log, bounds, archive, renumber, archive.manifest.start if begun else None)
    places = {(c, n) for c, namespaces in archive.manifest.clusters.items() for n in namespaces}
    numbers = {renumber.partition(cluster, namespace) for cluster, namespace in places}
    found = -1
    if fold:
        found = sum([await _fold(log, views, number, frozenset(clusters.values())) for number in sorted(numbers)])
    first, last = appended
    return Imported(first, last, sum(archive.manifest.messages.values()), dict(clusters), found)


async def _append_all(
    log: Log, bounds: Bounds, archive: Archive, renumber: Renumber, begun: str | None
) -> tuple[int, int]:
    """Append all messages; the first and the last position. One by one beside others' messages, as a stream where the log is ours alone."""
    if bounds.last_sequence < bounds.first_sequence:
        return await _stream(log, bounds, archive, renumber, begun)
    run, first, last = uuid.uuid4().hex[:12], 0, 0
    for record, (subject, data, headers) in _changed(archive, renumber, begun):
        # The id makes a repeat after a lost answer harmless.
        last = await log.append(subject, data, headers, message_id=f"import/{run}/{record.sequence}")
        renumber.positions.add(record.sequence, last)
        first = first or last
    return first, last


async def _stream(log: Log, bounds: Bounds, archive: Archive, renumber: Renumber, begun: str | None) -> tuple[int, int]:
    """Into an empty log: positions are known beforehand, if nobody else appends."""
    last = bounds.last_sequence
    appender = log.appender("import")
    try:
        for record, (subject, data, headers) in _changed(archive, renumber, begun):
            last += 1
            renumber.positions.add(record.sequence, last)
            await appender.add(subject, data, headers)
            if not last % BATCH:
                await appender.flush()
        await appender.flush()
    finally:
        await appender.close()
    stored = await log.bounds()
    if (stored.identity, stored.last_sequence) != (bounds.identity, last):
        raise failed(
            "something else appended to this log meanwhile: its positions are mixed up; begin with another log"
        )
    return bounds.last_sequence + 1, last


def _changed(
    archive: Archive, renumber: Renumber, begun: str | None
) -> Iterator[tuple[Record, tuple[str, bytes, dict[str, str]]]]:
    """Each record, and what to append for it: a record's own position must be added before the next is taken."""
    for number, record in enumerate(archive.records()):
        subject, data, headers = renumber.record(record)
        if begun is not None and not number:
            headers[BEGUN_HEADER] = begun
        yield record, (subject, data, headers)


async def _begin(store: ViewStore, bounds: Bounds, number: int, start: Start) -> None:
    """Put the views that the slice starts from into a partition. A projector that has it loads it again."""
    for _ in range(TRIES):
        stored, revision = await store.load(number)
        fence = subjects.fence_key(number)
        state = viewcodec.decode_fence(stored[fence]) if fence in stored else PartitionState()
        if state.log != bounds.identity:
            state = PartitionState(log=bounds.identity, cursor=bounds.first_sequence - 1)
        state = replace(state, clusters={**state.clusters, **start.clusters})
        document = viewcodec.encode_fence(state)
        changes: dict[str, bytes | None] = {}
        try:
            for view in start.views:
                of_view = viewcodec.encode(number, view, None)
                if changes and len(changes) + len(of_view) >= COMMIT_LIMIT:
                    revision = await store.commit(number, {fence: document, **changes}, revision)
                    changes = {}
                changes.update(of_view)
            await store.commit(number, {fence: document, **changes}, revision)
        except Fenced:
            continue
        return
    raise failed(f"the views of partition {number} do not hold still: stop the projectors, or import into another log")


async def _fold(log: Log, store: ViewStore, number: int, clusters: frozenset[str]) -> int:
    """Bring a partition's views up to the log's end, as a projector would; how many of these clusters there are."""
    bounds = await log.bounds()
    keeper = await Keeper.load(number, bounds, log, store)
    patterns = subjects.folded_by((number,))
    newest = [found.sequence for pattern in patterns if (found := await log.last(pattern)) is not None]
    target = min(max(newest, default=0), bounds.last_sequence)
    try:
        reader = await log.follow(patterns, after=keeper.partition.state.cursor)
        try:
            while keeper.partition.state.cursor < target:
                for record in await reader.batch(BATCH, SILENCE):
                    keeper.fold(record)
                    if keeper.full:
                        await keeper.commit(store)
        finally:
            await reader.close()
        await keeper.commit(store)
    except Fenced as error:
        raise failed("a projector works on the same views: it folds what was imported") from error
    return sum(view.cluster in clusters for view in keeper.partition.views.values())


@contextlib.asynccontextmanager
async def _transport(target: Target, partitions: int) -> AsyncIterator[Transport]:
    """The log as it is, if there is one; else a new one, on a local server where no NATS was named."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            transport = await stack.enter_async_context(for_reading(target))
        except Stop as stop:
            if stop.code != NO_NATS:
                raise
            settings = LogSettings(partitions=partitions)
            transport = await stack.enter_async_context(for_roles(target, settings, ViewStoreSettings()))
        yield transport


async def run(
    target: Target, *, path: Path, renamed: Sequence[str], permission: Permission, keep: bool, as_json: bool
) -> None:
    """Import and say what was. Raises Stop."""
    with opened(path) as archive:
        clusters = new_names(renamed, archive.manifest.clusters)
        async with _transport(target, archive.manifest.partitions) as transport:
            members = await transport.memberships.all()
            await refuse_unasked(transport.log, members, clusters, permission)
            projected = any(member.group == PROJECTOR for member in members)
            try:
                done = await load(archive, transport.log, transport.views, clusters, fold=not projected)
            except Unusable as error:
                raise failed(str(error)) from error
            _say(path, archive, done, transport, keep=keep, as_json=as_json)
            if keep and transport.local is not None:
                await _until_stopped()


async def _until_stopped() -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def _say(path: Path, archive: Archive, done: Imported, transport: Transport, *, keep: bool, as_json: bool) -> None:
    if as_json:
        output.say(done)
        return
    console = output.console()
    for line in summary(path, archive.manifest):
        console.print(line, soft_wrap=True)
    views = "" if done.views < 0 else f"; {done.views} views"
    console.print(f"imported as positions {done.first_sequence} to {done.last_sequence}{views}")
    for old, new in done.clusters.items():
        if old != new:
            console.print(f"cluster {old} is {new} here")
    if transport.local is not None and keep:
        console.print(
            f"the local server runs until Ctrl-C. In another shell: sandlog get --data-dir {transport.local.directory}"
        )
    elif transport.local is not None:
        console.print("the local server ends now, and the views with it: --keep leaves it running to look at")
    sys.stdout.flush()
