"""One name in the log is one cluster: bridges tell theirs to each other, and a process under a name that another cluster holds does not start."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from bridge.cluster import ClusterClient
from bridge.epochs import identity, taken
from bridge.presence import Rival
from bus.log import LogUnavailable
from bus.membership import Membership, Memberships
from bus.membership_nats import MembershipUnavailable
from sandlog.exits import REFUSED, Stop

logger = structlog.get_logger(__name__)

UID: Final = "cluster_uid"
"""Attribute of a bridge among the members: the uid of the namespace kube-system of its cluster."""
PATIENCE: Final = 4.0
"""Seconds in which a bridge that died is forgotten (its TTL on one server); a restart on a replaced cluster waits for it."""
PAUSE: Final = 0.5
TIMEOUT: Final = 5.0
"""Seconds that the API server may take to say who it is when we start."""


def group_of(cluster: str) -> str:
    return f"bridge.{cluster}"


class ClusterPresence:
    """`bridge.presence.Presence` by the members of the cluster's group. `join` first; `tell` joins anew with the uid."""

    def __init__(self, memberships: Memberships, cluster: str, name: str) -> None:
        self._memberships = memberships
        self._group = group_of(cluster)
        self._name = name
        self._membership: Membership | None = None
        self._told = ""
        self._left = False

    async def join(self) -> None:
        """Be seen, also while the API server does not answer."""
        if self._membership is None and not self._left:
            self._membership = await self._memberships.join(self._group, self._name, {})

    async def tell(self, uid: str) -> None:
        if uid == self._told or self._left:
            return
        try:
            if self._membership is not None:
                await self._membership.leave()
                self._membership = None
            self._membership = await self._memberships.join(self._group, self._name, {UID: uid})
        except MembershipUnavailable as error:
            raise LogUnavailable(str(error)) from error
        self._told = uid
        if self._left:
            await self._membership.leave()

    async def rivals(self, uid: str) -> tuple[Rival, ...]:
        try:
            return await rivals(self._memberships, self._group, uid)
        except MembershipUnavailable as error:
            raise LogUnavailable(str(error)) from error

    async def leave(self) -> None:
        self._left = True
        if self._membership is not None:
            await self._membership.leave()


async def rivals(memberships: Memberships, group: str, uid: str) -> tuple[Rival, ...]:
    """The live bridges of the group that watch another cluster than `uid`. Read afresh. Raises MembershipUnavailable."""
    found = [
        Rival(member.name, member.attributes.get(UID, ""))
        for member in await memberships.all()
        if member.group == group
    ]
    return tuple(rival for rival in found if rival.uid not in ("", uid))


async def refuse_if_taken(memberships: Memberships, client: ClusterClient, cluster: str) -> None:
    """Raises Stop if live bridges hold the name for another cluster. Where ours cannot be identified now, the epoch looks again later."""
    uid = await identity(client, TIMEOUT)
    if not uid:
        return
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            found = await rivals(memberships, group_of(cluster), uid)
        except MembershipUnavailable as error:
            logger.warning("cannot tell who else watches a cluster of this name", cluster=cluster, error=str(error))
            return
        if not found:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise Stop(REFUSED, taken(cluster, found[0], uid))
        await asyncio.sleep(PAUSE)
