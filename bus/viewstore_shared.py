"""Views of a process that both commits and watches them: its own commits do not go out to the store's consumers and come back.

`SharedViewStore` is a `bus.viewstore.ViewStore` around another. A watch takes the partitions that this process owns from its commits
as they succeed, and only the others from a watch of the store within; where the process owns all, there is none.

Why nothing is lost, with a projector that keeps to the rules of `OwnedViews`:
- What was committed before `own` is in what a watch begins with: it is read from the store's leader after `own`, and so after the load.
- What another process commits to an owned partition after the load fences our next commit, or is found by the projector's check of the
  fence. It follows from messages that our projector folds too, so there is such a commit. All that ends the ownership.
- A commit that failed, whose outcome may be unknown, ends the ownership: until the projector has loaded again, all comes from the store.
- Whenever what is owned changes, every watch ends with ViewStoreUnavailable: watch again.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import structlog

from bus.patterns import covers
from bus.viewstore import Entry, ViewStore, ViewStoreUnavailable, ViewWatch

logger = structlog.get_logger(__name__)

BACKLOG = 100_000
"""Keys with changes that nobody took, at which a watch ends: what does not read must not fill the memory."""
PUMPED = 2048
"""Keys with changes that nobody took, at which no more is read from the store."""
BATCH = 1024
PRESENT_PATIENCE = 5.0
"""Seconds of silence of the store while it owes present values."""
LISTS = 8
"""Partitions read at a time."""


def of_partitions(patterns: Iterable[str], partitions: Iterable[int]) -> tuple[str, ...]:
    """The patterns, narrowed to the keys of these partitions."""
    numbers = sorted(set(partitions))
    found: dict[str, None] = {}
    for pattern in patterns:
        first, _, rest = pattern.partition(".")
        if first == ">":
            found.update((f"{number}.>", None) for number in numbers)
        elif first == "*":
            found.update((f"{number}.{rest}", None) for number in numbers if rest)
        elif first.isdecimal() and int(first) in numbers:
            found[pattern] = None
    return tuple(found)


def partition_of_key(key: str) -> int:
    """-1 for a key of no partition."""
    first = key.partition(".")[0]
    return int(first) if first.isdecimal() else -1


class SharedViewWatch:
    """`bus.viewstore.ViewWatch`. Of changes that were not taken yet, only the last of each key is given, in its place, as by a bucket
    of history 1. In commit order for each partition; partitions of other processes may lag behind ours."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self.initial = 0
        self.failure = ""
        self._present: deque[Entry] = deque()
        self._listed: dict[int, dict[str, int]] = {}
        """By owned partition, the revisions that the watch began with, until a commit is newer than all of them."""
        self._changes: dict[str, Entry] = {}
        self._wake: asyncio.Future[None] | None = None
        self._taken = asyncio.Event()
        self._within: ViewWatch | None = None
        self._pump: asyncio.Task[None] | None = None

    async def batch(self, limit: int, timeout: float | None = None) -> list[Entry]:
        if not self._present and not self._changes and not self.failure:
            await self._wait(timeout)
        if self.failure:
            raise ViewStoreUnavailable(self.failure)
        if self._present:
            return [self._present.popleft() for _ in range(min(limit, len(self._present)))]
        if len(self._changes) <= limit:
            taken, self._changes = list(self._changes.values()), {}
        else:
            taken = [self._changes.pop(key) for key in list(self._changes)[:limit]]
        self._taken.set()
        return taken

    async def close(self) -> None:
        self.fail("closed")
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait((self._pump,))
        if self._within is not None:
            await self._within.close()

    # -- for the store

    def fail(self, reason: str) -> None:
        """End it: `batch` raises from now on."""
        if self.failure:
            return
        self.failure = reason
        self._present.clear()
        self._changes.clear()
        self._listed.clear()
        if self._pump is not None:
            self._pump.cancel()
        self._awake()

    def begin(self, listed: Iterable[Entry], others: Iterable[Entry], within: ViewWatch | None) -> None:
        """Present values of owned partitions and of others. What was committed meanwhile, and is newer, counts among them."""
        present = {entry.key: entry for entry in (*listed, *others) if self._wants(entry.key)}
        for entry in listed:
            self._listed.setdefault(partition_of_key(entry.key), {})[entry.key] = entry.revision
        committed, self._changes = self._changes, {}
        for key, entry in committed.items():
            before = present.get(key)
            if before is None or before.revision < entry.revision:
                present[key] = entry
        values = [entry for entry in present.values() if entry.data is not None]
        self._present.extend(sorted(values, key=lambda entry: entry.revision))
        self.initial = len(values)
        self._within = within
        if within is not None:
            self._pump = asyncio.get_running_loop().create_task(self._pumping(within))

    def committed(self, partition: int, entries: Iterable[Entry], revision: int) -> None:
        """What this process committed to an owned partition, under this revision of the fence."""
        if self.failure:
            return
        listed = self._listed.get(partition)
        if listed is not None and revision > max(listed.values(), default=0):
            del self._listed[partition]
            listed = None
        for entry in entries:
            if self._wants(entry.key) and (listed is None or listed.get(entry.key, 0) < entry.revision):
                self._put(entry)
        if len(self._changes) > BACKLOG:
            self.fail("nobody takes the changes")
        self._awake()

    # -- its own

    def _wants(self, key: str) -> bool:
        return any(covers(pattern, key) for pattern in self.patterns)

    def _put(self, entry: Entry) -> None:
        # Taken out first, so that the dict stays in the order of changes.
        self._changes.pop(entry.key, None)
        self._changes[entry.key] = entry

    async def _pumping(self, within: ViewWatch) -> None:
        try:
            while True:
                for entry in await within.batch(BATCH):
                    self._put(entry)
                self._awake()
                while len(self._changes) > PUMPED:
                    self._taken.clear()
                    await self._taken.wait()
        except ViewStoreUnavailable as lost:
            self._pump = None
            self.fail(str(lost))
        except Exception as error:
            logger.exception("watch of the store within failed")
            self._pump = None
            self.fail(repr(error))

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _wait(self, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = loop.call_later(timeout, self._awake) if timeout is not None else None
        try:
            await self._wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()


class SharedViewStore:
    """`bus.viewstore.ViewStore` and `bus.viewstore.OwnedViews`, for one process and one event loop."""

    def __init__(self, within: ViewStore) -> None:
        self._within = within
        self._owned: frozenset[int] = frozenset()
        self._total = 0
        self._newest: dict[int, int] = {}
        """By partition, the fence's revision of the last commit that was told."""
        # In the order of their making; one that was dropped without a close costs nothing.
        self._watches: weakref.WeakKeyDictionary[SharedViewWatch, None] = weakref.WeakKeyDictionary()

    def own(self, partitions: Iterable[int], total: int) -> None:
        owned = frozenset(partitions)
        if owned == self._owned and (total == self._total or not owned):
            return
        self._owned, self._total = owned, total
        self._newest = {}
        self._end_watches("this process owns other partitions now")

    def _end_watches(self, reason: str) -> None:
        for watch in list(self._watches):
            watch.fail(reason)
        self._watches.clear()

    async def load(self, partition: int) -> tuple[dict[str, bytes], int]:
        return await self._within.load(partition)

    async def get(self, key: str) -> Entry | None:
        return await self._within.get(key)

    async def list(self, prefix: str) -> list[Entry]:
        return await self._within.list(prefix)

    async def commit(self, partition: int, changes: Mapping[str, bytes | None], expected: int) -> int:
        try:
            revision = await self._within.commit(partition, changes, expected)
        except ValueError:
            raise
        except BaseException:
            # Cancelled ones too: it may have landed, or land yet. Whoever owns loads again and says so.
            if partition in self._owned:
                self.own((), 0)
            raise
        if partition in self._owned:
            self._tell(partition, changes, revision)
        return revision

    def _tell(self, partition: int, changes: Mapping[str, bytes | None], revision: int) -> None:
        if revision <= self._newest.get(partition, 0):
            self.own((), 0)  # two commits at a time, told in the wrong order
            return
        self._newest[partition] = revision
        if not self._watches:
            return
        fence = f"{partition}._"
        keys = (fence, *(key for key in changes if key != fence))
        entries = [Entry(key, changes[key], number) for number, key in enumerate(keys, revision)]
        for watch in list(self._watches):
            watch.committed(partition, entries, revision)

    async def watch(self, patterns: tuple[str, ...] = (">",)) -> SharedViewWatch:
        watch = SharedViewWatch(patterns)
        # From here on commits are kept for it; what it begins with is read after.
        self._watches[watch] = None
        owned = self._owned
        others = patterns
        if owned:
            others = of_partitions(patterns, frozenset(range(self._total)) - owned)
        within: ViewWatch | None = None
        try:
            if others:
                within = await self._within.watch(others)
            listed = await self._listed(owned)
            present = await _present(within) if within is not None else ()
            if watch.failure:
                raise ViewStoreUnavailable(watch.failure)
        except BaseException:
            self._watches.pop(watch, None)
            if within is not None:
                await within.close()
            raise
        watch.begin(listed, present, within)
        return watch

    async def _listed(self, owned: frozenset[int]) -> Sequence[Entry]:
        if not owned:
            return []
        if len(owned) == self._total:
            return [entry for entry in await self._within.list("") if partition_of_key(entry.key) in owned]
        numbers = sorted(owned)
        found: list[Entry] = []
        for first in range(0, len(numbers), LISTS):
            lists = (self._within.list(f"{number}.") for number in numbers[first : first + LISTS])
            for result in await asyncio.gather(*lists, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
                found += result
        return found


async def _present(within: ViewWatch) -> list[Entry]:
    """All that a watch begins with, in the last state that came."""
    found: dict[str, Entry] = {}
    given = 0
    while given < within.initial:
        entries = await within.batch(min(BATCH, within.initial - given), PRESENT_PATIENCE)
        if not entries and given < within.initial:
            raise ViewStoreUnavailable(f"{within.initial - given} present values did not come")
        given += len(entries)
        found.update((entry.key, entry) for entry in entries)
    return list(found.values())
