"""Where views are kept, as its users see it: bytes under keys, committed at once with a fence (DESIGN §5).

A partition's keys are `<partition>.…`; its fence is the key `<partition>._`. Implementations: `viewstore_nats` (the KV bucket
VIEWS) and `viewstore_memory`, under one contract test; `viewstore_shared` goes around them. What the bytes mean is `bus.viewcodec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

COMMIT_LIMIT = 900
"""Keys in one commit, the fence included: a JetStream atomic batch holds at most 1000 messages (nats.md §4)."""


class Entry(msgspec.Struct, frozen=True):
    """A key as stored. `data` None is a deletion. `revision` is the bucket's sequence."""

    key: str
    data: bytes | None
    revision: int


class Fenced(Exception):
    """Somebody else committed to this partition since: all that was loaded of it is stale."""


class ViewStoreUnavailable(Exception):
    """The store could not be reached, or did not answer in time. Whether the commit landed is unknown: load again."""


class ViewWatch(Protocol):
    async def batch(self, limit: int, timeout: float | None = None) -> list[Entry]:
        """Wait for at least one change, return all that have come, at most `limit`, in commit order of each partition;
        [] after `timeout` seconds.

        Begins with the present value of every key. Raises ViewStoreUnavailable if the bucket was lost: watch again.
        """
        ...

    @property
    def initial(self) -> int:
        """How many of the first entries are the present values."""
        ...

    async def close(self) -> None: ...


class ViewStore(Protocol):
    async def load(self, partition: int) -> tuple[dict[str, bytes], int]:
        """All keys of a partition and the revision of its fence (0: never written). Read from the leader."""
        ...

    async def commit(self, partition: int, changes: Mapping[str, bytes | None], expected: int) -> int:
        """Write and delete (None) keys at once; `changes` holds the fence key. Returns the fence's new revision.

        The fence key is written before the others, so that a watcher never sees a view before the state it was folded under; the others
        follow in the order of `changes`, each with the next revision.
        Raises Fenced if the fence's revision is not `expected`, ViewStoreUnavailable if the outcome is not known.
        At most COMMIT_LIMIT keys.
        """
        ...

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> list[Entry]:
        """Present values whose key begins with a prefix of whole tokens (`3.c1.default.sandbox.`), or all for ''."""
        ...

    async def watch(self, patterns: tuple[str, ...] = (">",)) -> ViewWatch: ...


@runtime_checkable
class OwnedViews(Protocol):
    """What a view store may have besides: it is told which partitions this process commits to."""

    def own(self, partitions: Iterable[int], total: int) -> None:
        """From now on this process alone commits to these partitions, of `total`. Said after they were loaded; with none before
        anything else is loaded, and as soon as a check finds that another process commits to them."""
        ...
