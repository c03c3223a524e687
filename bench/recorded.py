"""A real log of many sandboxes: sandlog on a simulated cluster, driven through create → ready, and what it wrote down meanwhile.

From it: messages and bytes per sandbox, how fast it can be folded, and how fast its views can be decided about.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
import waiting
from lifecycle import Settings, measure
from support.programs import Role

from bus import subjects
from bus.connection import Connection, ConnectionSettings
from bus.log import Record
from bus.log_nats import STREAM, NatsLog
from bus.natsserver import LocalNats
from bus.subjects import Aggregate
from bus.views import PartitionState, View
from projector.fold import Partition
from reconciler.decide import decide

ROUNDS = 5
NAMESPACE = "bench"


class Kind(msgspec.Struct, frozen=True):
    """Of one kind of message: how many, and their bytes: subject, headers and body."""

    messages: int
    bytes: int


class Recording(msgspec.Struct, frozen=True):
    """`stored_bytes`: as the stream counts them, before it compresses a full block on disk."""

    sandboxes: int
    partitions: int
    records: list[Record]
    stored_bytes: int

    def kinds(self) -> dict[str, Kind]:
        """`message kind` → how much, most bytes first."""
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for record in self.records:
            subject = subjects.parse(record.subject)
            word = f"{subject.message} {subject.kind}".strip()
            counts[word] += 1
            headers = sum(len(key) + len(value) + 4 for key, value in record.headers.items())
            sizes[word] += len(record.subject) + headers + len(record.data)
        return {word: Kind(counts[word], size) for word, size in sizes.most_common()}


async def record(kubeconfig: Path, folder: Path, sandboxes: int, rate: float) -> Recording:
    """Raises RuntimeError if not all became ready."""
    async with LocalNats(folder / "nats") as nats:
        arguments = ["--nats", nats.url, "--kubeconfig", str(kubeconfig), "--cluster", "bench"]
        role = Role("all", 0, folder, arguments)
        try:
            await waiting.ready([role])
            report = await measure(
                Settings(
                    kubeconfig=str(kubeconfig),
                    context=None,
                    namespace=NAMESPACE,
                    sandboxes=sandboxes,
                    rate=rate,
                    replicas=1,
                    image="busybox:1",
                    pause=False,
                    audit_log=None,
                    processes={},
                    limit=120.0,
                    settle=1.0,
                    keep=True,
                )
            )
            if not report.complete:
                raise RuntimeError(f"not all became ready: {role.tail(2000)}")
        finally:
            await waiting.stop([role])
        return await _read(nats.url, sandboxes)


async def _read(url: str, sandboxes: int) -> Recording:
    async with await Connection.open(ConnectionSettings(url=url)) as connection:
        log = await NatsLog.open(connection)
        bounds = await log.bounds()
        records = await log.read(["log.>"])
        info = await connection.api(f"STREAM.INFO.{STREAM}")
        return Recording(sandboxes, bounds.partitions, records, int(info["state"]["bytes"]))


class Rates(msgspec.Struct, frozen=True):
    """A second, the best of several rounds, one process, nothing else in it."""

    records: int
    fold: float
    decisions: int
    decide: float


def rates(recording: Recording) -> Rates:
    """Folds the log as one projector of all partitions would, and decides about each view that a record changed."""
    fold, decided = 0.0, 0.0
    views = _changed_views(recording)
    for _ in range(ROUNDS):
        partitions = _partitions(recording.partitions)
        began = time.perf_counter()
        for record in recording.records:
            for partition in _keepers(partitions, record):
                partition.fold(record)
        fold = max(fold, len(recording.records) / (time.perf_counter() - began))
        began = time.perf_counter()
        for view in views:
            decide(view)
        decided = max(decided, len(views) / (time.perf_counter() - began))
    return Rates(len(recording.records), fold, len(views), decided)


def _partitions(count: int) -> list[Partition]:
    return [Partition(number, count, PartitionState(log="bench")) for number in range(count)]


def _keepers(partitions: list[Partition], record: Record) -> Iterable[Partition]:
    number = subjects.parse(record.subject).partition
    return partitions if number is None else (partitions[number],)


def _changed_views(recording: Recording) -> list[View]:
    partitions = _partitions(recording.partitions)
    views: list[View] = []
    for record in recording.records:
        for partition in _keepers(partitions, record):
            touched: Iterable[Aggregate] = partition.fold(record).touched
            views.extend(partition.views[each] for each in touched if each in partition.views)
    return views
