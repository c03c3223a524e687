"""`sandlog forget CLUSTER`: take a cluster that left for good out of the log and the views.

The log first, then the views of each partition and the cluster's part of its fence in one fenced commit. A projector that folded something
of it meanwhile either fences that commit, and it is tried again, or is fenced by it and loads again, without the cluster. What a reconciler
still decided meanwhile is found by the next pass; it ends with one that finds nothing. The API server is not touched.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from bus import subjects, viewcodec
from bus.connection import ApiError
from bus.membership import Member
from bus.viewstore import COMMIT_LIMIT, Fenced, ViewStore
from sandlog import output, watched
from sandlog.exits import failed, usage
from sandlog.survey import consumers_of
from sandlog.transport import Transport

PASSES = 5
PAUSE = 0.5
"""Seconds between two passes: what was on its way when the first one began has arrived by then."""
TRIES = 10
RETRY = 0.05
PURGE_TIMEOUT = 60.0
CONSUMER_NOT_FOUND = 10014


class Forgotten(msgspec.Struct, frozen=True):
    """What was removed. `keys`: of views (large ones have several)."""

    cluster: str
    messages: int
    keys: int
    consumers: int


def refuse_live(cluster: str, members: list[Member]) -> None:
    """Raises Stop while a bridge or an executor of the cluster is alive: it would write again what was removed."""
    alive = [m for m in members if m.group in (f"{watched.BRIDGE}{cluster}", f"{watched.EXECUTOR}{cluster}")]
    if alive:
        names = ", ".join(f"{member.group.partition('.')[0]} {member.name}" for member in alive)
        raise failed(
            f"the cluster {cluster} is served by {names}: stop that first. A process that was killed counts for some seconds more"
        )


async def run(transport: Transport, *, cluster: str, yes: bool, as_json: bool) -> None:
    """Remove all of the cluster. Raises Stop."""
    try:
        subjects.check_cluster(cluster)
    except ValueError as error:
        raise usage(str(error)) from error
    refuse_live(cluster, await transport.memberships.all())
    there = await transport.log.last(_everything(cluster)) is not None
    known = await watched.known(transport)
    if not there and cluster not in known:
        raise watched.unknown(cluster, known)
    if not yes:
        raise usage(
            f"this removes the history and the views of the cluster {cluster} for good (its API server is not touched); "
            "`sandlog export` keeps a copy. Say --yes if that is meant"
        )
    done = await forget(transport, cluster)
    if as_json:
        output.say(done)
        return
    output.console().print(
        f"forgot {cluster}: {done.messages} messages, {done.keys} keys of views, {done.consumers} consumers",
        markup=False,
    )


async def forget(transport: Transport, cluster: str) -> Forgotten:
    """Passes until one finds nothing. Raises Stop if something goes on writing, or a bridge comes meanwhile."""
    consumers = await _consumers(transport, cluster)
    messages = keys = 0
    for number in range(PASSES):
        if number:
            await asyncio.sleep(PAUSE)
        refuse_live(cluster, await transport.memberships.all())
        purged = await _purge(transport, cluster)
        removed = await _views(transport, cluster)
        messages, keys = messages + purged, keys + removed[0]
        if number and not purged and not any(removed):
            return Forgotten(cluster, messages, keys, consumers)
    raise failed(
        f"something goes on writing about the cluster {cluster}: stop the reconcilers for a moment, and say it again"
    )


def _everything(cluster: str) -> str:
    """Of all partitions, and what concerns all of them (`all` stands in the partition's place)."""
    return f"log.*.{cluster}.>"


async def _consumers(transport: Transport, cluster: str) -> int:
    found = await consumers_of(transport.connection, cluster)
    for name, _ in found:
        try:
            await transport.connection.api(f"CONSUMER.DELETE.LOG.{name}")
        except ApiError as error:
            if error.error_code != CONSUMER_NOT_FOUND:
                raise
    return len(found)


async def _purge(transport: Transport, cluster: str) -> int:
    request = {"filter": _everything(cluster)}
    answer = await transport.connection.api("STREAM.PURGE.LOG", request, timeout=PURGE_TIMEOUT)
    return int(answer.get("purged", 0))


async def _views(transport: Transport, cluster: str) -> tuple[int, int]:
    """(keys removed, fences that knew the cluster)"""
    keys = fences = 0
    partitions = (await transport.log.bounds()).partitions
    for partition in range(partitions):
        removed, knew = await _partition(transport.views, partition, cluster)
        keys, fences = keys + removed, fences + knew
    return keys, fences


async def _partition(views: ViewStore, partition: int, cluster: str) -> tuple[int, int]:
    """Take the cluster out of one partition, a commit at a time. Raises Stop if others always come first."""
    fence = subjects.fence_key(partition)
    prefix = f"{partition}.{cluster}."
    total = knew = tries = 0
    while tries < TRIES:
        stored, revision = await views.load(partition)
        mine = [key for key in stored if key.startswith(prefix)]
        state = viewcodec.decode_fence(stored[fence]) if fence in stored else None
        if not mine and (state is None or cluster not in state.clusters):
            return total, knew
        if state is None:
            raise failed(f"partition {partition} has views but no fence: start a projector first, it makes one")
        now = mine[: COMMIT_LIMIT - 1]
        if len(now) == len(mine):
            # With the last of its views, so that what is left of a cluster is never without its state.
            state = replace(state, clusters={name: c for name, c in state.clusters.items() if name != cluster})
        try:
            await views.commit(partition, {fence: viewcodec.encode_fence(state), **dict.fromkeys(now)}, revision)
        except Fenced:
            tries += 1
            await asyncio.sleep(RETRY * tries)
            continue
        total, knew = total + len(now), 1
    raise failed(f"partition {partition} is committed to all the time: say it again in a moment")
