"""Which views depend on which: pods named by sandboxes, snapshots of sandboxes. Rebuilt from the views, never stored.

So a change reaches the views that it concerns without a look at all the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from bus import subjects
from bus.subjects import Aggregate
from bus.views import PoolView, SandboxView, SnapshotView, View
from projector import sources
from projector.index import Name

K = TypeVar("K")
_Place = tuple[str, str, str]
"""cluster, namespace, a pod's name"""


class Links:
    def __init__(self, views: Iterable[View] = ()) -> None:
        self._naming: dict[_Place, set[Aggregate]] = {}
        self._snapshots: dict[Aggregate, set[Aggregate]] = {}
        self._renamed: dict[Aggregate, None] = {}
        self._stale: dict[Aggregate, None] = {}
        for view in views:
            self.changed(None, view)
        self._renamed.clear()
        self._stale.clear()

    def naming(self, pod: Name) -> tuple[Aggregate, ...]:
        """The sandboxes that name this pod as allocated to them."""
        found = self._naming.get((pod.cluster, pod.namespace, pod.name))
        return tuple(sorted(found)) if found else ()

    def snapshots(self, sandbox: Aggregate) -> tuple[Aggregate, ...]:
        """The snapshots of a sandbox that are not over."""
        return tuple(sorted(self._snapshots.get(sandbox, ())))

    def renamed(self) -> tuple[Aggregate, ...]:
        """Sandboxes that name other pods than before; each told once."""
        return _taken(self._renamed)

    def stale(self) -> tuple[Aggregate, ...]:
        """Sandboxes whose snapshots' sources may have changed; each told once."""
        return _taken(self._stale)

    def changed(self, before: View | None, after: View | None) -> None:
        """A view is another now; None: it is not there."""
        view = after if after is not None else before
        if isinstance(view, SandboxView):
            self._sandbox(_sandbox(before), _sandbox(after), view)
        elif isinstance(view, SnapshotView):
            self._snapshot(_snapshot(before), _snapshot(after), view)

    def _sandbox(self, before: SandboxView | None, after: SandboxView | None, view: SandboxView) -> None:
        objects = (before and before.object, after and after.object)
        if objects[0] is not objects[1]:
            self._names(before, after, view)
        elif before is not None and after is not None and before.pods is after.pods:
            return
        if self._snapshots and view.aggregate in self._snapshots:
            self._stale[view.aggregate] = None

    def _names(self, before: SandboxView | None, after: SandboxView | None, view: SandboxView) -> None:
        former = sources.allocated(before) if before is not None else ()
        named = sources.allocated(after) if after is not None else ()
        if former == named:
            return
        aggregate = view.aggregate
        self._renamed[aggregate] = None
        for pod in set(former) - set(named):
            _drop(self._naming, (view.cluster, view.namespace, pod), aggregate)
        for pod in set(named) - set(former):
            self._naming.setdefault((view.cluster, view.namespace, pod), set()).add(aggregate)

    def _snapshot(self, before: SnapshotView | None, after: SnapshotView | None, view: SnapshotView) -> None:
        if before is not None and after is not None and _same(before, after):
            return
        former, sandbox = _sandbox_of(before), _sandbox_of(after)
        if former is not None and former != sandbox:
            _drop(self._snapshots, former, view.aggregate)
        if sandbox is not None:
            self._snapshots.setdefault(sandbox, set()).add(view.aggregate)
        for each in (former, sandbox):
            if each is not None:
                self._stale[each] = None

    def look_again(self, view: View) -> None:
        """A view that was committed before a crash is as this record left it."""
        if isinstance(view, SandboxView):
            self._renamed[view.aggregate] = None
            self._stale[view.aggregate] = None
        elif isinstance(view, PoolView):
            for pod in view.pods:
                self._renamed.update(dict.fromkeys(self._naming.get((view.cluster, view.namespace, pod), ())))
        elif (sandbox := _sandbox_of(view)) is not None:
            self._stale[sandbox] = None


def _same(before: SnapshotView, after: SnapshotView) -> bool:
    return before.object is after.object and before.jobs is after.jobs and before.pods is after.pods


def _taken(pending: dict[Aggregate, None]) -> tuple[Aggregate, ...]:
    found = tuple(pending)
    pending.clear()
    return found


def _drop(index: dict[K, set[Aggregate]], key: K, aggregate: Aggregate) -> None:
    held = index.get(key)
    if held is None:
        return
    held.discard(aggregate)
    if not held:
        del index[key]


def _sandbox(view: View | None) -> SandboxView | None:
    return view if isinstance(view, SandboxView) else None


def _snapshot(view: View | None) -> SnapshotView | None:
    return view if isinstance(view, SnapshotView) else None


def _sandbox_of(view: SnapshotView | None) -> Aggregate | None:
    """The sandbox of a snapshot that is open, or may still hold a pod."""
    if view is None or view.object is None or not (sources.is_open(view) or sources.works(view)):
        return None
    return Aggregate(view.cluster, view.namespace, subjects.SANDBOX, view.object.sandbox)
