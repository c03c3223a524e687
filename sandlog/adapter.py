"""Gives every role one face to the supervisor, whether its `run` ends by `stop` or only by being cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from bus.membership import Membership, Memberships
from sandlog.cluster_name import ClusterPresence


class Adapted:
    """A role as the supervisor wants it.

    `drains`: its `run` returns by itself once `stop` was called, what is in flight finished. `status` None: the role's own. `announce`:
    (memberships, group, name) for a role that joins no group by itself. `presence`: for one that tells the others which cluster is its.
    """

    def __init__(
        self,
        role: Any,
        *,
        drains: bool,
        status: Callable[[], Mapping[str, Any]] | None = None,
        announce: tuple[Memberships, str, str] | None = None,
        presence: ClusterPresence | None = None,
    ) -> None:
        self._role = role
        self._drains = drains
        self._status = status
        self._announce = announce
        self._presence = presence
        self._membership: Membership | None = None
        self._inner: asyncio.Task[None] | None = None
        self._stopping = False

    async def run(self) -> None:
        """Until it is stopped or fails."""
        if self._announce is not None:
            memberships, group, name = self._announce
            self._membership = await memberships.join(group, name)
        if self._presence is not None:
            await self._presence.join()
        if self._stopping:
            return
        self._inner = asyncio.ensure_future(self._role.run())
        try:
            await self._inner
        except asyncio.CancelledError:
            # Cancelled by `stop`, not from outside: an orderly end.
            if not self._stopping or not self._inner.cancelled():
                await self._cancel()
                raise

    async def stop(self) -> None:
        self._stopping = True
        if self._membership is not None:
            await self._membership.leave()
        if self._presence is not None:
            await self._presence.leave()
        stop = getattr(self._role, "stop", None)
        asked = stop() if stop is not None else None
        if inspect.isawaitable(asked):
            await asked
        if not self._drains:
            await self._cancel()

    async def _cancel(self) -> None:
        if self._inner is not None and not self._inner.done():
            self._inner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._inner

    def status(self) -> Mapping[str, Any]:
        """`ready` and `why` are what /readyz goes by."""
        if self._status is not None:
            return self._status()
        return dict(self._role.status())
