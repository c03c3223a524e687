"""What `sandlog status` looks at: NATS, the members, the lag of each part, and what the log says of each cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from bus import scopes, subjects, viewcodec
from bus.connection import Connection
from bus.log import Bounds, Log, Record
from bus.membership import Member
from bus.times import SECOND
from bus.views import PartitionState
from sandlog.pulse import Pulse, ask
from sandlog.transport import Transport

AT_ONCE: Final = 32
"""Questions to NATS at a time."""
CONSUMERS: Final = 10_000
"""Consumers looked at, at most."""


class Lag(msgspec.Struct, frozen=True):
    """A partition whose newest message to fold lies past its cursor. `seconds`: how old that message is; `cursor` None: never folded."""

    partition: int
    cursor: int | None
    last: int
    seconds: float


class Work(msgspec.Struct, frozen=True):
    """A durable consumer: what waits for it, what is being done, how long the oldest of it has waited (None: nothing waits)."""

    durable: str
    pending: int
    in_progress: int
    redelivered: int
    asking: int
    """pulls that wait for a message: somebody is there"""
    oldest_seconds: float | None = None


class ScopeSurvey(msgspec.Struct, frozen=True):
    """A kind that the bridge lists. `list_age` in seconds (None: never listed); `incomplete` partitions that await more of it."""

    word: str
    list_age: float | None
    incomplete: int


class ClusterSurvey(msgspec.Struct, frozen=True):
    """`seen_age`: seconds since anything was last seen of it."""

    name: str
    epoch: int
    seen_age: float | None
    scopes: list[ScopeSurvey]
    work: Work | None


class Survey(msgspec.Struct, frozen=True):
    """Everything at one moment. Ages in seconds of log time."""

    url: str
    server: str
    round_trip_ms: float
    bounds: Bounds
    messages: int
    bytes: int
    max_bytes: int
    max_age_seconds: float
    replicas: int
    members: list[Member]
    pulses: list[Pulse]
    """what each process says of itself; one that does not answer in time is missing"""
    lags: list[Lag]
    clusters: list[ClusterSurvey]
    dead: int


def _seconds(now: int, then: int) -> float:
    return round(max(0, now - then) / SECOND, 3)


async def _gather(calls: Iterable[Any]) -> list[Any]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(call: Any) -> Any:
        async with gate:
            return await call

    return await asyncio.gather(*(one(call) for call in calls))


async def take(transport: Transport) -> Survey:
    """Ask NATS. Raises LogUnavailable, ViewStoreUnavailable, Unreachable or ApiError."""
    began = time.perf_counter()
    bounds = await transport.log.bounds()
    round_trip = time.perf_counter() - began
    filter_ = f"log.*.*.*.{subjects.DEAD}.>"
    info = await transport.connection.api("STREAM.INFO.LOG", {"subjects_filter": filter_})
    state, config = info["state"], info["config"]
    fences = await _fences(transport, bounds.partitions)
    lags = await _lags(transport.log, bounds, fences)
    members = await transport.memberships.all()
    consumers = await _consumers(transport.connection)
    names = _clusters(fences, members, state)
    return Survey(
        url=transport.url,
        server=str(transport.connection.nc._server_info.get("version", "")),
        round_trip_ms=round(round_trip * 1000, 2),
        bounds=bounds,
        messages=state["messages"],
        bytes=state["bytes"],
        max_bytes=config.get("max_bytes", -1),
        max_age_seconds=config.get("max_age", 0) / SECOND,
        replicas=config.get("num_replicas", 1),
        members=members,
        pulses=await ask(transport.connection, {member.name for member in members}),
        lags=lags,
        clusters=[await _cluster(transport.log, name, bounds.now, fences, consumers) for name in names],
        dead=sum((state.get("subjects") or {}).values()),
    )


async def _fences(transport: Transport, partitions: int) -> dict[int, PartitionState]:
    entries = await _gather(transport.views.get(subjects.fence_key(p)) for p in range(partitions))
    found: dict[int, PartitionState] = {}
    for partition, entry in enumerate(entries):
        if entry is not None and entry.data is not None:
            try:
                found[partition] = viewcodec.decode_fence(entry.data)
            except viewcodec.Unreadable:
                continue
    return found


async def _lags(log: Log, bounds: Bounds, fences: dict[int, PartitionState]) -> list[Lag]:
    """The partitions that are behind. What is of all partitions (lists) is left out: it is folded with the rest."""
    kinds = (subjects.OBSERVATION, subjects.COMMAND, subjects.OUTCOME, subjects.TICK)
    asked = [(p, f"log.{p}.*.*.{kind}.>") for p in range(bounds.partitions) for kind in kinds]
    records = await _gather(log.last(pattern) for _, pattern in asked)
    newest: dict[int, Record] = {}
    for (partition, _), record in zip(asked, records, strict=True):
        if record is not None and (partition not in newest or record.sequence > newest[partition].sequence):
            newest[partition] = record
    return [
        Lag(p, fences[p].cursor if p in fences else None, record.sequence, _seconds(bounds.now, record.time))
        for p, record in newest.items()
        if p not in fences or fences[p].cursor < record.sequence
    ]


def _clusters(fences: dict[int, PartitionState], members: list[Member], state: Any) -> list[str]:
    found = {name for fence in fences.values() for name in fence.clusters}
    found |= {member.group.partition(".")[2] for member in members if "." in member.group}
    return sorted(found)


async def _cluster(
    log: Log, name: str, now: int, fences: dict[int, PartitionState], consumers: list[dict[str, Any]]
) -> ClusterSurvey:
    words = [scope.word for scope in scopes.SCOPES]
    asked = [f"log.*.{name}.*.{subjects.OBSERVATION}.>", *(subjects.list_of(name, word) for word in words)]
    seen, *lists = await _gather(log.last(pattern) for pattern in asked)
    of_cluster = [fence.clusters[name] for fence in fences.values() if name in fence.clusters]
    ages = {word: _seconds(now, r.time) if r is not None else None for word, r in zip(words, lists, strict=True)}
    newest = max((r for r in (seen, *lists) if r is not None), key=lambda r: r.time, default=None)
    return ClusterSurvey(
        name,
        max((c.epoch for c in of_cluster), default=0),
        _seconds(now, newest.time) if newest is not None else None,
        [
            ScopeSurvey(word, ages[word], sum(_incomplete(c.scopes, word) for c in of_cluster))
            for word in words
            if ages[word] is not None or any(_incomplete(c.scopes, word) for c in of_cluster)
        ],
        await _work(log, name, now, consumers),
    )


def _incomplete(found: dict[str, Any], word: str) -> bool:
    """Whether a scope of this word (in whatever namespaces) is not complete in a partition that knows the cluster."""
    return any(state.complete is None for key, state in found.items() if key.partition("/")[0] == word)


async def _consumers(connection: Connection) -> list[dict[str, Any]]:
    """Every consumer of the log, page by page."""
    found: list[dict[str, Any]] = []
    while len(found) < CONSUMERS:
        answer = await connection.api("CONSUMER.LIST.LOG", {"offset": len(found)})
        page = answer.get("consumers") or []
        found += page
        if not page or len(found) >= answer.get("total", 0):
            break
    return found


def _reading(consumers: list[dict[str, Any]], subject: str) -> list[dict[str, Any]]:
    """Those durables that read exactly this."""
    return [
        info
        for info in consumers
        if info["config"].get("durable_name")
        and subject in (info["config"].get("filter_subject"), *(info["config"].get("filter_subjects") or ()))
    ]


async def consumers_of(connection: Connection, cluster: str) -> list[tuple[str, int]]:
    """(durable, commands that wait) of a cluster. Raises ApiError or Unreachable."""
    found = _reading(await _consumers(connection), subjects.commands_of(cluster))
    return [(info["name"], info["num_pending"]) for info in found]


async def _work(log: Log, cluster: str, now: int, consumers: list[dict[str, Any]]) -> Work | None:
    """The consumer of this cluster's commands."""
    wanted = subjects.commands_of(cluster)
    for info in _reading(consumers, wanted):
        oldest = None
        if info["num_pending"] or info["num_ack_pending"]:
            waiting = await log.read((wanted,), after=info["ack_floor"]["stream_seq"], limit=1)
            oldest = _seconds(now, waiting[0].time) if waiting else None
        return Work(
            info["name"],
            info["num_pending"],
            info["num_ack_pending"],
            info["num_redelivered"],
            info["num_waiting"],
            oldest,
        )
    return None
