"""The cluster's epoch (DESIGN §4): a counter that rises when the API server's past was replaced, so that (epoch, resourceVersion) only grows.

The log holds it; it is raised by compare-and-set and whoever finds another one than its own follows it and lists again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog

from bridge.cluster import ClusterClient, Unreachable
from bridge.presence import Alone, Presence, Rival, short
from bus import messages, scopes, subjects
from bus.log import Log, LogUnavailable, Record, WrongLastSequence
from bus.messages import Epoch, Gone, Listed, NotUnderstood, Seen
from bus.metrics import Metrics
from bus.version import CODE_VERSION

logger = structlog.get_logger(__name__)

IDENTITY: Final = "/api/v1/namespaces/kube-system"
IDENTITY_TIMEOUT: Final = 10.0
IDENTITY_AGE: Final = 30.0
"""Seconds for which the uid of kube-system is not read again: the scopes of a bridge list at about the same time."""

RAISES_AT_ONCE: Final = 2
RAISE_APART: Final = 20.0
"""Seconds for which a process owes one raise of the epoch: every raise makes every bridge list everything anew."""
YIELD_FIRST: Final = 30.0
YIELD_LONGEST: Final = 480.0
"""Seconds that a bridge waits before it looks again whether another cluster still holds its name; doubled each time."""
YIELD_LAST: Final = 20.0
"""Seconds after which the name must be free a second time: more than the TTL of a member that may only have missed its heartbeat."""


class Held(Exception):
    """The cluster's epoch must not be raised now: nothing may be listed for `wait` seconds."""

    def __init__(self, wait: float, reason: str) -> None:
        super().__init__(reason)
        self.wait = wait


class _Identity(msgspec.Struct, frozen=True):
    class Meta(msgspec.Struct, frozen=True):
        uid: str = ""

    metadata: Meta


class Epochs:
    """One cluster's epoch as this process knows it. `on_change` is called when it is another one than before."""

    def __init__(
        self,
        cluster: str,
        client: ClusterClient,
        log: Log,
        metrics: Metrics,
        on_change: Callable[[], None],
        presence: Presence | None = None,
    ) -> None:
        self.current = 0
        """0: not read yet."""
        self.held = ""
        """Why nothing is listed, '' if the name is ours."""
        self._presence = presence or Alone()
        self._look_at = float("-inf")
        self._yields = 0
        self._raises_owed = float("-inf")
        """When all raises of this process are paid for."""
        self._cluster = cluster
        self._client = client
        self._log = log
        self._metrics = metrics
        self._on_change = on_change
        self._subject = subjects.epoch_of(cluster)
        self._sequence = 0
        self._named = False
        """Whether the log's last message of the subject names an epoch."""
        self._recorded_uid = ""
        self._uid = ""
        self._uid_at = float("-inf")
        self._warned = False
        self._highest: dict[str, int] = {}
        self._lock = asyncio.Lock()

    def note(self, kind: str, epoch: int, resource_version: int) -> None:
        """A resourceVersion of this kind (its word) was seen in this epoch."""
        if epoch == self.current and resource_version > self._highest.get(kind, 0):
            self._highest[kind] = resource_version

    def highest(self, kind: str) -> int:
        """The highest resourceVersion of the kind seen in the current epoch; 0 for none."""
        return self._highest.get(kind, 0)

    async def read(self) -> int:
        """The epoch as the log has it now, made if there is none, raised if the cluster is another one. To be called before each list.

        Raises LogUnavailable, NotUnderstood if a newer version wrote it, and Held while a live bridge of another cluster has the name.
        """
        async with self._lock:
            await self._follow()
            uid = await self._identity()
            if uid:
                # Told before anything is written: who finds our epoch in the log finds us among the members.
                await self._presence.tell(uid)
            if uid == self._recorded_uid:
                self._resume()
            if not self._named:
                # Lost or trimmed, or this is the first bridge. A lower epoch than was used before would count for nothing.
                known = max([1, self.current, *(epoch for _, epoch, _ in await self._last_told())])
                await self._write(known, uid, "the log named none")
            elif uid and self._recorded_uid and uid != self._recorded_uid:
                await self._give_way(uid)
                await self._raise(uid, "the namespace kube-system is another one: another cluster")
                self._resume()
            elif uid and not self._recorded_uid:
                await self._write(self.current, uid, "the cluster could be identified")
            if self.current == 0:
                raise LogUnavailable("the cluster's epoch could not be written")
            return self.current

    async def sound(self, kind: str, epoch: int, highest_before: int, resource_version: int) -> bool:
        """Whether a consistent list at this resourceVersion, requested in `epoch` when `highest_before` had been seen, may be appended.

        If not, list again: the epoch is another one by now, or was raised because the list lies in the past of what was seen (a restored etcd).
        """
        async with self._lock:
            if epoch != self.current:
                return False
            if resource_version >= highest_before:
                self.note(kind, epoch, resource_version)
                return True
            reason = f"a list of {kind} is at {resource_version}, and {highest_before} was seen before (restored etcd?)"
            await self._raise(self._uid or self._recorded_uid, reason)
            return False

    async def _give_way(self, uid: str) -> None:
        """Raises Held while the cluster that the log names has a live bridge. The log settles who was first: it is written by compare-and-set."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            raise Held(self._look_at - now, self.held)
        rivals = [rival for rival in await self._presence.rivals(uid) if rival.uid == self._recorded_uid]
        if rivals:
            wait = min(YIELD_LONGEST, YIELD_FIRST * 2**self._yields)
            self._yields += 1
            self.held = taken(self._cluster, rivals[0], uid)
            logger.error("another cluster holds our name, waiting", cluster=self._cluster, why=self.held, wait=wait)
            self._metrics.count("watch_name_held", cluster=self._cluster)
        elif self._yields:
            wait, self._yields = YIELD_LAST, 0
        else:
            return
        self._look_at = now + wait
        raise Held(wait, self.held)

    def _resume(self) -> None:
        self.held, self._yields, self._look_at = "", 0, float("-inf")

    async def _raise(self, uid: str, reason: str) -> None:
        """Whatever happens, never more than a few times a minute."""
        now = asyncio.get_running_loop().time()
        owed = max(now, self._raises_owed) + RAISE_APART
        if (wait := owed - now - RAISES_AT_ONCE * RAISE_APART) > 0:
            raise Held(wait, f"the epoch was raised too often just now; this time it would be because {reason}")
        self._raises_owed = owed
        await self._write(self.current + 1, uid, reason)

    async def _follow(self) -> None:
        """Take over what the log says. The log wins: all bridges of the cluster must agree, and after its loss it starts anew."""
        record = await self._log.last(self._subject)
        if record is None:
            self._sequence, self._named = 0, False
            return
        if record.sequence == self._sequence:
            return
        told = _epoch_of(record)
        if told is None:
            self._sequence, self._named = record.sequence, False
            return
        await self._become(told.epoch)
        self._sequence, self._named, self._recorded_uid = record.sequence, True, told.cluster_uid

    async def _write(self, epoch: int, uid: str, reason: str) -> None:
        body = messages.encode(Epoch(epoch, uid, reason))
        try:
            sequence = await self._log.append(
                self._subject,
                body,
                messages.headers(CODE_VERSION),
                expected_last_subject_sequence=self._sequence,
            )
        except WrongLastSequence:
            await self._follow()
            return
        logger.warning("epoch written", cluster=self._cluster, epoch=epoch, reason=reason)
        self._metrics.count("watch_epochs_written", cluster=self._cluster)
        await self._become(epoch)
        self._sequence, self._named, self._recorded_uid = sequence, True, uid

    async def _become(self, epoch: int) -> None:
        if epoch == self.current:
            return
        highest: dict[str, int] = {}
        for kind, of, version in await self._last_told():
            if of == epoch:
                highest[kind] = max(highest.get(kind, 0), version)
        before, self.current, self._highest = self.current, epoch, highest
        self._metrics.gauge("watch_epoch", epoch, cluster=self._cluster)
        if before:
            self._on_change()

    async def _last_told(self) -> list[tuple[str, int, int]]:
        """Kind, epoch and resourceVersion of the last list of each scope and the last observation of each kind in the log."""
        told: list[tuple[str, int, int]] = []
        for scope in scopes.SCOPES:
            record = await self._log.last(subjects.list_of(self._cluster, scope.word))
            body = _understood(record, Listed)
            if body is not None:
                told.append((scope.kind.word, body.epoch, body.resource_version))
        for kind in sorted({scope.kind.word for scope in scopes.SCOPES}):
            record = await self._log.last(f"log.*.{self._cluster}.*.{subjects.OBSERVATION}.{kind}.*")
            body = _understood(record, Seen | Gone)
            if body is not None:
                told.append((kind, body.epoch, body.resource_version))
        return told

    async def _identity(self) -> str:
        """uid of the namespace kube-system; what was known before, or '', where it cannot be read."""
        now = asyncio.get_running_loop().time()
        if now < self._uid_at + IDENTITY_AGE:
            return self._uid
        try:
            response = await self._client.request("GET", IDENTITY, timeout=IDENTITY_TIMEOUT)
        except Unreachable:
            return self._uid
        if response.status != 200:
            if not self._warned:
                self._warned = True
                advice = "allow get on the namespace kube-system (deploy/rbac.yaml), or another cluster under this name goes unnoticed"
                logger.warning(
                    "cannot identify the cluster", cluster=self._cluster, status=response.status, advice=advice
                )
            return self._uid
        try:
            self._uid = msgspec.json.decode(response.body, type=_Identity).metadata.uid
        except msgspec.MsgspecError:
            return self._uid
        self._uid_at = now
        return self._uid


async def identity(client: ClusterClient, timeout: float = IDENTITY_TIMEOUT) -> str:
    """uid of the namespace kube-system; '' where it cannot be read now."""
    try:
        response = await client.request("GET", IDENTITY, timeout=timeout)
        return msgspec.json.decode(response.body, type=_Identity).metadata.uid if response.status == 200 else ""
    except (Unreachable, msgspec.MsgspecError):
        return ""


def taken(cluster: str, rival: Rival, uid: str) -> str:
    """What to say when two clusters have one name."""
    return (
        f"the cluster name {cluster} is held by the live bridge {rival.name} for another cluster (kube-system {short(rival.uid)}, "
        f"ours is {short(uid)}): give each cluster a name of its own with --cluster NAME"
    )


def _epoch_of(record: Record) -> Epoch | None:
    """None for garbage, which is written over: nobody could list any more. Raises NotUnderstood for what a newer version wrote."""
    try:
        told: Epoch = messages.decode(record.data, record.headers, Epoch)
    except NotUnderstood as error:
        if messages.is_newer(record.headers):
            raise
        logger.warning("the log's epoch cannot be read", position=record.sequence, error=str(error)[:200])
        return None
    return told


def _understood(record: Record | None, type: Any) -> Any:
    if record is None:
        return None
    try:
        return messages.decode(record.data, record.headers, type)
    except NotUnderstood:
        return None
