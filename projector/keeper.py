"""Keeps one partition's views in step with the store: load and judge, fold, commit in bounded pieces."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from bus import subjects, viewcodec
from bus.log import Bounds, Log, Record
from bus.subjects import Aggregate
from bus.views import PartitionState, View
from bus.viewstore import COMMIT_LIMIT, Fenced, ViewStore
from projector.fold import Partition

logger = structlog.get_logger(__name__)


class Keeper:
    def __init__(self, partition: Partition, revision: int, committed: dict[Aggregate, View], stale: set[str]) -> None:
        self.partition = partition
        self.asks_at = 0.0
        self.touched: set[Aggregate] = set()
        self._revision = revision
        self._committed = committed
        self._stale = stale
        self._stored = partition.state if not stale and revision else None
        self._advanced_at = 0.0

    @classmethod
    async def load(cls, number: int, bounds: Bounds, log: Log, store: ViewStore) -> Keeper:
        """What the store holds of a partition, if it was folded from this log as it is now; else a fresh start from what the log still has."""
        stored, revision = await store.load(number)
        fence = subjects.fence_key(number)
        try:
            state = viewcodec.decode_fence(stored[fence]) if fence in stored else None
            views = viewcodec.assemble(stored) if state is not None else {}
        except (viewcodec.Unreadable, ValueError) as problem:
            logger.warning("views cannot be read, folding anew", partition=number, error=str(problem)[:200])
            state, views = None, {}
        if state is not None and state.cursor > bounds.last_sequence:
            # Whoever had the partition before us may have folded on since the bounds were read.
            bounds = await log.bounds()
        if state is not None and await _is_of(state, views, bounds, log):
            return cls(Partition(number, bounds.partitions, state, dict(views)), revision, dict(views), set())
        if state is not None:
            logger.warning("views are of another log, folding anew", partition=number, cursor=state.cursor)
        fresh = PartitionState(log=bounds.identity, cursor=bounds.first_sequence - 1)
        return cls(Partition(number, bounds.partitions, fresh), revision, {}, set(stored) - {fence})

    @property
    def dirty(self) -> bool:
        return bool(self.touched or self._stale) or self._stored is not self.partition.state

    @property
    def full(self) -> bool:
        """Whether another record might make more keys than one commit takes."""
        return len(self.touched) >= COMMIT_LIMIT // 2

    def fold(self, record: Record) -> str | None:
        folded = self.partition.fold(record)
        self.touched |= folded.touched
        return folded.error

    def advance(self, position: int, time: int, now: float, interval: float) -> bool:
        """Move the cursor of a partition for which nothing came up to where the log was read; at most once an interval.

        `time` is that message's.
        """
        if now - self._advanced_at < interval:
            return False
        self._advanced_at = now
        self.partition.advance(position, time)
        return self.dirty

    async def check(self, store: ViewStore) -> None:
        """Whether the store still holds our last commit: one in memory is lost with its server, and a quiet log would never tell.

        Raises Fenced, ViewStoreUnavailable.
        """
        entry = await store.get(subjects.fence_key(self.partition.number))
        found = entry.revision if entry is not None else 0
        if found != self._revision:
            raise Fenced(f"partition {self.partition.number}: last sequence {found}, expected {self._revision}")

    async def commit(self, store: ViewStore) -> None:
        """Write what changed; in several commits where it is more than one takes, the cursor with the last of them.

        Views ahead of the cursor are safe: the fold ignores positions at or before a view's own. Where there is no cursor of this log yet,
        the fence names no log until all is written: after a crash in between, all is folded anew. Raises Fenced, ViewStoreUnavailable.
        """
        state = self.partition.state
        fence = subjects.fence_key(self.partition.number)
        before = self._stored or PartitionState()
        everything = False
        while not everything:
            changes, views, everything = self._gather(COMMIT_LIMIT - 1)
            document = viewcodec.encode_fence(state if everything else before)
            await self._write(store, {fence: document, **changes})
            self._stale -= set(changes)
            self._note(views)
        self._stored = state

    async def _write(self, store: ViewStore, changes: dict[str, bytes | None]) -> None:
        self._revision = await store.commit(self.partition.number, changes, self._revision)

    def _note(self, views: list[Aggregate]) -> None:
        for aggregate in views:
            self.touched.discard(aggregate)
            view = self.partition.views.get(aggregate)
            if view is None:
                self._committed.pop(aggregate, None)
            else:
                self._committed[aggregate] = view

    def _changes_of(self, aggregate: Aggregate) -> dict[str, bytes | None]:
        view, before = self.partition.views.get(aggregate), self._committed.get(aggregate)
        if view is not None:
            return viewcodec.encode(self.partition.number, view, before)
        return viewcodec.removed(self.partition.number, before) if before is not None else {}

    def _gather(self, limit: int) -> tuple[dict[str, bytes | None], list[Aggregate], bool]:
        """As many changes as fit, no view split; and whether that was all."""
        changes: dict[str, bytes | None] = {}
        views: list[Aggregate] = []
        for key in sorted(self._stale):
            if len(changes) >= limit:
                return changes, views, False
            changes[key] = None
        for aggregate in sorted(self.touched) if len(self.touched) > 1 else self.touched:
            of_view = self._changes_of(aggregate)
            if len(changes) + len(of_view) > limit and changes:
                return changes, views, False
            changes.update(of_view)
            views.append(aggregate)
        return changes, views, True


async def _is_of(state: PartitionState, views: Mapping[Aggregate, View], bounds: Bounds, log: Log) -> bool:
    """Whether the log still is what `state` was folded from: the same stream, with that message at the cursor and nothing trimmed after it.

    The same for views that a crash left ahead of the cursor: a log that lost its tail may have grown again, otherwise.
    """
    if state.log != bounds.identity or state.cursor > bounds.last_sequence:
        return False
    if state.cursor + 1 < bounds.first_sequence:
        return False
    ahead = max(views.values(), key=lambda view: view.sequence, default=None)
    if ahead is not None and ahead.sequence > state.cursor:
        record = await log.get(ahead.sequence)
        if record is None or record.time > ahead.now:
            return False
    if not state.cursor_time or state.cursor < bounds.first_sequence:
        return True
    record = await log.get(state.cursor)
    return record is None or record.time == state.cursor_time
