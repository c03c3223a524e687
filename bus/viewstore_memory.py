"""Views in memory, under the contract of `bus.viewstore`: deterministic, one thread, for tests and for the crash explorer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bus.memory import Bell, Hook, deadline_of, never, step
from bus.patterns import covers
from bus.viewstore import COMMIT_LIMIT, Entry, Fenced, ViewStoreUnavailable


class MemoryBucket:
    """What several `MemoryViewStore`s share. `available` False makes everything raise ViewStoreUnavailable."""

    def __init__(self) -> None:
        self.generation = 0
        self.bell = Bell()
        self._available = True
        self._entries: dict[str, Entry] = {}
        self._revision = 0

    @property
    def available(self) -> bool:
        return self._available

    @available.setter
    def available(self, value: bool) -> None:
        self._available = value
        self.bell.ring()

    def wipe(self) -> None:
        """Lose everything, as a bucket in memory does with its server."""
        self._entries.clear()
        self._revision = 0
        self.generation += 1
        self.bell.ring()

    def expire_markers(self) -> None:
        """Forget deletions, as their TTL does after an hour."""
        self._entries = {key: entry for key, entry in self._entries.items() if entry.data is not None}

    def revision_of(self, key: str) -> int:
        entry = self._entries.get(key)
        return entry.revision if entry is not None else 0

    def put(self, key: str, data: bytes | None) -> int:
        self._revision += 1
        # Taken out first, so that the dict stays in the order of revisions.
        self._entries.pop(key, None)
        self._entries[key] = Entry(key, data, self._revision)
        return self._revision

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def matching(self, patterns: tuple[str, ...], after: int = 0) -> list[Entry]:
        """In the order of their revisions."""
        found = []
        for entry in reversed(self._entries.values()):
            if entry.revision <= after:
                break
            if any(covers(pattern, entry.key) for pattern in patterns):
                found.append(entry)
        found.reverse()
        return found


class MemoryViewWatch:
    """`bus.viewstore.ViewWatch`."""

    def __init__(self, bucket: MemoryBucket, patterns: tuple[str, ...]) -> None:
        self._bucket = bucket
        self._patterns = patterns
        self._generation = bucket.generation
        self._revision = 0
        self._closed = False
        self.initial = len(bucket.matching(patterns))
        self._given = 0

    async def batch(self, limit: int, timeout: float | None = None) -> list[Entry]:
        deadline = deadline_of(timeout)
        while True:
            if self._generation != self._bucket.generation:
                raise ViewStoreUnavailable("the bucket was lost")
            found = self._bucket.matching(self._patterns, self._revision) if self._bucket.available else []
            if found:
                taken = found[:limit]
                self._revision = taken[-1].revision
                self._given += len(taken)
                if len(taken) == len(found) and self._given < self.initial:
                    self.initial = self._given
                return taken
            if not await self._bucket.bell.wait(deadline):
                return []

    async def close(self) -> None:
        self._closed = True


class MemoryViewStore:
    """`bus.viewstore.ViewStore`; one for each process that is simulated. `kill` makes this one never return again."""

    def __init__(self, bucket: MemoryBucket | None = None, *, on_step: Hook | None = None) -> None:
        self.bucket = bucket if bucket is not None else MemoryBucket()
        self._on_step = on_step
        self._killed = False

    def kill(self) -> None:
        self._killed = True

    async def ensure(self) -> None:
        await self._check()

    async def _check(self) -> None:
        if self._killed:
            await never()
        if not self.bucket.available:
            raise ViewStoreUnavailable("the bucket is not available")

    async def load(self, partition: int) -> tuple[dict[str, bytes], int]:
        await self._check()
        entries = self.bucket.matching((f"{partition}.>",))
        return (
            {entry.key: entry.data for entry in entries if entry.data is not None},
            self.bucket.revision_of(f"{partition}._"),
        )

    async def commit(self, partition: int, changes: Mapping[str, bytes | None], expected: int) -> int:
        fence = f"{partition}._"
        if len(changes) > COMMIT_LIMIT:
            raise ValueError(f"{len(changes)} keys in one commit, the limit is {COMMIT_LIMIT}")
        if fence not in changes:
            raise ValueError(f"a commit to partition {partition} must hold its fence {fence}")
        await step(self._on_step, "commit.before", fence)
        await self._check()
        found = self.bucket.revision_of(fence)
        if found != expected:
            raise Fenced(f"partition {partition}: last sequence {found}, expected {expected}")
        revision = self.bucket.put(fence, changes[fence])
        for key, data in changes.items():
            if key != fence:
                self.bucket.put(key, data)
        self.bucket.bell.ring()
        await step(self._on_step, "commit.after", fence)
        # The acknowledgement takes a turn of the loop, as it would from a server.
        await asyncio.sleep(0)
        await self._check()
        return revision

    async def get(self, key: str) -> Entry | None:
        await self._check()
        return self.bucket.get(key)

    async def list(self, prefix: str) -> list[Entry]:
        await self._check()
        entries = self.bucket.matching((f"{prefix}>",))
        return sorted((entry for entry in entries if entry.data is not None), key=lambda entry: entry.key)

    async def watch(self, patterns: tuple[str, ...] = (">",)) -> MemoryViewWatch:
        await self._check()
        return MemoryViewWatch(self.bucket, patterns)
