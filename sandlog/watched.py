"""Which clusters the log knows, and which of them no live bridge watches: what is stored of those is as it was last seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from bus import scopes, subjects, viewcodec
from bus.log import Log
from bus.membership import Member
from bus.viewstore import Entry
from sandlog import output
from sandlog.exits import Stop, not_found
from sandlog.transport import Transport

logger = structlog.get_logger(__name__)

BRIDGE = "bridge."
EXECUTOR = "executor."


def clusters_of(entries: Iterable[Entry], members: Iterable[Member]) -> set[str]:
    """Those of which there are views or states in the store, or members."""
    found = {member.group.partition(".")[2] for member in members if member.group.startswith((BRIDGE, EXECUTOR))}
    for entry in entries:
        try:
            _, aggregate, _ = subjects.parse_view_key(entry.key)
            if aggregate is not None:
                found.add(aggregate.cluster)
            elif entry.data is not None:
                found |= set(viewcodec.decode_fence(entry.data).clusters)
        except (ValueError, viewcodec.Unreadable) as error:
            logger.info("not readable", key=entry.key, error=str(error))
    return found


async def known(transport: Transport) -> set[str]:
    """Every cluster that the views, the states and the members know."""
    return clusters_of(await transport.views.list(""), await transport.memberships.all())


def unknown(cluster: str, names: Iterable[str]) -> Stop:
    """How a command ends that was asked for another cluster than there are."""
    there = ", ".join(sorted(names))
    return not_found(f"the cluster {cluster} is not known; " + (f"known are: {there}" if there else "none is"))


async def last_seen(log: Log, cluster: str) -> int | None:
    """Log time of the last observation or list of a cluster, nanoseconds; None if the log holds none (any more)."""
    patterns = (
        f"log.*.{cluster}.*.{subjects.OBSERVATION}.>",
        *(subjects.list_of(cluster, scope.word) for scope in scopes.SCOPES),
    )
    records = [record for pattern in patterns if (record := await log.last(pattern)) is not None]
    return max((record.time for record in records), default=None)


async def unwatched(transport: Transport, clusters: Iterable[str]) -> dict[str, int | None]:
    """Those of these clusters that no live bridge watches, with when they were last seen."""
    members = await transport.memberships.all()
    watched = {member.group.removeprefix(BRIDGE) for member in members if member.group.startswith(BRIDGE)}
    return {name: await last_seen(transport.log, name) for name in sorted(set(clusters) - watched)}


def ago(seen: Mapping[str, int | None], cluster: str, now: int) -> str:
    """`5m ago`, `long ago`; '' for a cluster that is watched."""
    if cluster not in seen:
        return ""
    time = seen[cluster]
    return f"{output.age(now - time)} ago" if time is not None else "long ago"
