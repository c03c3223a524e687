"""Import under new positions and names: the views are the old ones with those changed, wherever the slice begins (DESIGN §10)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest
from history_files import log_of, no_views, records_of
from support.virtual_time import until, virtual

from bus import subjects, viewcodec
from bus.clock import LogClock
from bus.log import Record
from bus.log_memory import MemoryLog, MemoryStream
from bus.membership import Member
from bus.membership_memory import MemoryGroups, MemoryMemberships
from bus.metrics import NoMetrics
from bus.subjects import Aggregate
from bus.views import View
from bus.viewstore_memory import MemoryViewStore
from history.archive import Archive
from history.renumber import Positions, Renumber
from history.slice import Folder
from projector.service import Projector, ProjectorSettings
from reconciler.settings import DEFAULT
from sandlog.exits import Stop
from sandlog.export import Moment, Wanted, export
from sandlog.importing import Permission, load, new_names, refuse_unasked

AS = {"c1": "lab"}
MICROSECOND = 1000


def of_microseconds(records: list[Record]) -> list[Record]:
    """With times that a time header holds exactly, whatever reads it."""
    return [msgspec.structs.replace(record, time=record.time // MICROSECOND * MICROSECOND) for record in records]


async def views_in(store: MemoryViewStore) -> dict[Aggregate, View]:
    return viewcodec.assemble({entry.key: entry.data for entry in await store.list("") if entry.data is not None})


def expected(records: list[Record], after: Record, base: int) -> dict[Aggregate, View]:
    """What the whole history folds to, its positions up to `after` taken as before the slice."""
    folder, renumber = Folder(2), Renumber(AS, 64)
    for record in records:
        for _ in folder.fold(record):
            pass
        if record.sequence > after.sequence:
            renumber.positions.add(record.sequence, base + record.sequence - after.sequence)
    views = [renumber.view(view) for view in folder.views().values()]
    return {view.aggregate: view for view in views}


def test_positions_before_the_slice_are_none_and_gaps_are_the_one_before() -> None:
    positions = Positions()
    for old, new in ((10, 1), (11, 2), (20, 3), (21, 4)):
        positions.add(old, new)

    assert [positions(old) for old in (9, 10, 11, 12, 19, 20, 21, 99)] == [0, 1, 2, 2, 2, 3, 4, 4]
    assert [positions.holds(old) for old in (9, 10, 12, 21, 22)] == [False, True, False, True, False]


@pytest.mark.parametrize("name", ["pause_resume", "commit_fails_then_retry", "pooled"])
@virtual
async def test_the_views_are_the_old_ones_under_new_positions(tmp_path: Path, name: str) -> None:
    records = of_microseconds(records_of(name))
    log = log_of(records)
    for since in range(2, len(records), 11):
        path = tmp_path / "part.zip"
        await export(log, no_views(), path, Wanted(since=Moment(since)), DEFAULT)
        target, store = MemoryLog(MemoryStream(partitions=64)), no_views()
        with Archive(path) as archive:
            done = await load(archive, target, store, AS, fold=True)

        views = await views_in(store)
        assert views == expected(records, records[since - 2], 0)
        assert done.views == len(views)
        assert done.last_sequence == len(records) - since + 1


@virtual
async def test_a_running_projector_folds_what_is_imported_from_its_views_on(tmp_path: Path) -> None:
    records = of_microseconds(records_of("pause_resume"))
    path = tmp_path / "part.zip"
    await export(log_of(records), no_views(), path, Wanted(since=Moment(50)), DEFAULT)
    target, store = MemoryLog(MemoryStream(partitions=64)), no_views()
    members = MemoryMemberships(MemoryGroups(20.0))
    projector = Projector(
        target, store, members, LogClock(), random.Random(1), NoMetrics(), ProjectorSettings(), name="p"
    )
    running = asyncio.create_task(projector.run())
    await until(lambda: projector.status()["ready"])
    with Archive(path) as archive:
        done = await load(archive, target, store, AS, fold=False)
    wanted = expected(records, records[48], 0)

    async def is_there() -> bool:
        return await views_in(store) == wanted

    await until(is_there, 60.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert done.views == -1


@virtual
async def test_beside_what_a_log_holds_already_neither_changes_the_other(tmp_path: Path) -> None:
    first, second = records_of("pooled"), of_microseconds(records_of("pause_resume"))
    path = tmp_path / "part.zip"
    await export(log_of(second), no_views(), path, Wanted(since=Moment(30)), DEFAULT)
    target, store = log_of(first, partitions=64), no_views()
    with Archive(path) as archive:
        await load(archive, target, store, AS, fold=True)

    lab = {aggregate: view for aggregate, view in (await views_in(store)).items() if aggregate.cluster == "lab"}
    assert lab == expected(second, second[28], len(first))
    assert [record.data for record in target.stream.after(0)][: len(first)] == [record.data for record in first]


@virtual
async def test_commands_and_outcomes_name_each_other_by_new_ids(tmp_path: Path) -> None:
    records = of_microseconds(records_of("pause_resume"))
    path = tmp_path / "part.zip"
    await export(log_of(records), no_views(), path, Wanted(since=Moment(40)), DEFAULT)
    target = MemoryLog(MemoryStream(partitions=64))
    with Archive(path) as archive:
        await load(archive, target, no_views(), AS, fold=False)

    stored = target.stream.after(0)
    assert not any(b'"c1/' in record.data for record in stored)
    commands = [record for record in stored if f".{subjects.COMMAND}." in record.subject]
    for command in commands[1:]:
        view = msgspec.json.decode(command.data)["view"]
        prefix = f'"lab/default/{command.subject.split(".")[5]}/{command.subject.split(".")[6]}:{view}:'
        assert prefix.encode() in command.data
        assert int(command.headers["Sandlog-Cause"]) == view < command.sequence


@virtual
async def test_a_cluster_with_a_live_bridge_is_refused_though_the_log_is_empty() -> None:
    empty = MemoryLog(MemoryStream())
    members = [Member("bridge.c1", "b")]

    with pytest.raises(Stop, match="live bridge"):
        await refuse_unasked(empty, members, {"c1": "c1"}, Permission())
    await refuse_unasked(empty, members, {"c1": "c1"}, Permission(live=True))
    await refuse_unasked(empty, members, {"c1": "lab"}, Permission())


def test_new_names() -> None:
    assert new_names((), ["a"]) == {"a": "a"}
    assert new_names(("x",), ["a"]) == {"a": "x"}
    assert new_names(("a=x", "b=y"), ["a", "b"]) == {"a": "x", "b": "y"}
    for given in (("x",), ("c=x",), ("a=b",), ("a=all",)):
        with pytest.raises(Stop):
            new_names(given, ["a", "b"])
