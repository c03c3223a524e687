"""Who else watches a cluster of this name, as the epoch needs to know it. `sandlog.cluster_name` reads it off the members."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Rival(msgspec.Struct, frozen=True):
    """A live bridge under our cluster's name that watches another cluster: `uid` is that of its namespace kube-system."""

    name: str
    uid: str


class Presence(Protocol):
    async def tell(self, uid: str) -> None:
        """Let the others know which cluster we watch. Raises LogUnavailable."""
        ...

    async def rivals(self, uid: str) -> tuple[Rival, ...]:
        """The live bridges of other clusters than `uid`, by name. Raises LogUnavailable."""
        ...


class Alone:
    """For who shares the name with nobody."""

    async def tell(self, uid: str) -> None:
        return None

    async def rivals(self, uid: str) -> tuple[Rival, ...]:
        return ()


def short(uid: str) -> str:
    """Enough of a uid to tell two apart."""
    return uid[:8]
