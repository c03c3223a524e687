"""What a partition holds: its views, what belongs to none, and the index over them; and how one record changes a view. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from bus import subjects
from bus.subjects import Aggregate
from bus.views import (
    ClusterState,
    PartitionState,
    Pod,
    PoolView,
    SandboxView,
    ScopeState,
    SnapshotView,
    Version,
    View,
)
from projector import commands, observe, scopes, sources
from projector.index import Entry, Index, Name
from projector.links import Links
from projector.sweep import swept

EMPTY: Final = {subjects.SANDBOX: SandboxView, subjects.POOL: PoolView, subjects.SNAPSHOT: SnapshotView}
LOOSE_LIMIT: Final = 10_000

Change = Callable[[View], View]
"""What a record does to one view."""


class Holdings:
    def __init__(
        self, number: int, partitions: int, state: PartitionState, views: dict[Aggregate, View] | None = None
    ) -> None:
        self.number = number
        self.partitions = partitions
        self.state = state
        self.views: dict[Aggregate, View] = views if views is not None else {}
        # Views committed before a crash, with the cursor still behind them: what they tell is not known yet, or the records on the
        # way to them would look like repeats to the other views. By position, the last first.
        self._ahead = sorted((v.sequence, a) for a, v in self.views.items() if v.sequence > state.cursor)[::-1]
        ahead = {aggregate for _, aggregate in self._ahead}
        self.index = Index(view for aggregate, view in self.views.items() if aggregate not in ahead)
        self._beyond = Index(self.views[aggregate] for aggregate in ahead)
        # Names known though no view holds them: unreadable, or without an owner. A restart forgets them; their next list brings them again.
        self._loose: dict[Name, Version] = {}
        self._links = Links(self.views.values())
        self._touched: set[Aggregate] = set()
        self._sequence = 0
        self._time = 0

    def advance(self, position: int, time: int) -> None:
        """The log was read up to here, and nothing of it was this partition's."""
        if position > self.state.cursor:
            self._catch_up(position)
            self.state = replace(self.state, cursor=position, cursor_time=time)

    def _catch_up(self, position: int) -> None:
        while self._ahead and self._ahead[-1][0] <= position:
            _, aggregate = self._ahead.pop()
            if aggregate in self.views:
                self.index.take(self.views[aggregate])
                self._links.look_again(self.views[aggregate])
            if not self._ahead:
                self._beyond = Index()

    def incomplete(self) -> list[str]:
        """Clusters of which something is not complete: lists are to be asked for."""
        return [
            name
            for name, cluster in self.state.clusters.items()
            if not cluster.scopes or any(scope.complete is None or scope.missing for scope in cluster.scopes.values())
        ]

    # -- names

    def _find(self, name: Name) -> Entry | None:
        found = self.index.get(name)
        return found if found is not None or not self._ahead else self._beyond.get(name)

    def _keep_loose(self, name: Name, version: Version) -> None:
        self._loose.pop(name, None)
        self._loose[name] = version
        if len(self._loose) > LOOSE_LIMIT:
            del self._loose[next(iter(self._loose))]

    @staticmethod
    def _left(view: View) -> commands.LeftOpen:
        return partial(observe.known_of, view)

    # -- views

    def _on_view(self, aggregate: Aggregate, change: Change, *, create: bool = False) -> None:
        """Apply what the record at hand does to a view, and let its command expire if its time has come."""
        view = self.views.get(aggregate)
        if view is None:
            if not create:
                return
            view = EMPTY[aggregate.kind](aggregate.cluster, aggregate.namespace, aggregate.name)
            cluster = self.state.clusters.get(aggregate.cluster)
            if cluster is not None and scopes.is_complete(cluster, aggregate.kind, aggregate.namespace):
                view = replace(view, settled=True)
        elif view.sequence >= self._sequence and aggregate not in self._touched:
            if view.sequence == self._sequence:
                self._links.look_again(view)
            return
        changed = change(view)
        now = max(view.now, self._time)
        if changed.in_flight is not None and changed.in_flight.expires <= now:
            changed = commands.expired(
                replace(changed, now=now), self._epoch_of(aggregate.cluster), self._left(changed)
            )
        self.views[aggregate] = after = replace(changed, sequence=self._sequence, now=now)
        self._touched.add(aggregate)
        self._links.changed(view, after)

    def _follow(self) -> None:
        """Bring the views that depend on what the record at hand changed up to it: pools' pods, and snapshots' sources."""
        for aggregate in self._links.renamed():
            self._rename(aggregate)
        for aggregate in self._links.stale():
            self._resource(aggregate)

    def _rename(self, aggregate: Aggregate) -> None:
        view = self.views.get(aggregate)
        if not isinstance(view, SandboxView):
            return
        named = sources.allocated(view)
        added: dict[str, Pod] = {}
        for pod in named:
            name = Name(view.cluster, observe.POD, view.namespace, pod)
            entry = self._find(name)
            if entry is None or not observe.is_pooled(entry.holders):
                continue
            if aggregate not in entry.holders and self.index.get(name) is entry:
                self.index.put(name, replace(entry, holders=(*entry.holders, aggregate)))
            slot = next((found for held in entry.holders if (found := self._pod_of(held, pod)) is not None), None)
            if slot is not None and pod not in view.pods:
                added[pod] = slot
        dropped = []
        for pod in set(view.pods) - set(named):
            name = Name(view.cluster, observe.POD, view.namespace, pod)
            entry = self.index.get(name)
            if entry is not None and observe.is_pooled(entry.holders):
                dropped.append(pod)
                self.index.put(name, replace(entry, holders=tuple(h for h in entry.holders if h != aggregate)))
        if added or dropped:
            self._on_view(aggregate, lambda v: observe.renamed(v, added, dropped, max(v.now, self._time)))  # type: ignore[arg-type]

    def _pod_of(self, aggregate: Aggregate, pod: str) -> Pod | None:
        view = self.views.get(aggregate)
        return view.pods.get(pod) if view is not None else None

    def _resource(self, sandbox: Aggregate) -> None:
        """Look anew for the sources of a sandbox's snapshots."""
        found = self.views.get(sandbox)
        if found is not None and found.sequence > self._sequence:
            return
        snapshots = {
            aggregate.name: view
            for aggregate in self._links.snapshots(sandbox)
            if isinstance(view := self.views.get(aggregate), SnapshotView)
        }
        of_sandbox = found if isinstance(found, SandboxView) else None
        for name, source in sources.sources(of_sandbox, snapshots).items():
            view = snapshots[name]
            if view.source != source:
                self._on_view(view.aggregate, lambda v, source=source: replace(v, source=source))  # type: ignore[misc]

    def _sweep(self, cluster: str) -> None:
        state = self.state.clusters[cluster]
        for aggregate, view in list(self.views.items()):
            if view.cluster != cluster or (view.sequence >= self._sequence and aggregate not in self._touched):
                continue
            kept = swept(view, state)
            if kept is view:
                continue
            if kept is None:
                del self.views[aggregate]
                self._touched.add(aggregate)
                self._links.changed(view, None)
            else:
                self._on_view(aggregate, lambda _, kept=kept: kept)  # type: ignore[misc]
            self.index.forget(aggregate, view, kept)

    # -- clusters

    def _epoch_of(self, cluster: str) -> int:
        state = self.state.clusters.get(cluster)
        return state.epoch if state is not None else 0

    def _set_cluster(self, name: str, cluster: ClusterState) -> None:
        before = self.state.clusters.get(name)
        self.state = replace(self.state, clusters={**self.state.clusters, name: cluster})
        if before is None or _completeness(before) != _completeness(cluster):
            self._resettle(name)

    def _set_scope(self, cluster_name: str, key: str, state: ScopeState) -> None:
        cluster = self.state.clusters.get(cluster_name, ClusterState())
        if cluster.scopes.get(key) != state:
            self._set_cluster(cluster_name, replace(cluster, scopes={**cluster.scopes, key: state}))

    def _resettle(self, cluster_name: str) -> None:
        cluster = self.state.clusters[cluster_name]
        settled_in: dict[tuple[str, str], bool] = {}
        for aggregate, view in list(self.views.items()):
            if aggregate.cluster != cluster_name:
                continue
            place = (aggregate.kind, aggregate.namespace)
            settled = settled_in.get(place)
            if settled is None:
                settled = settled_in[place] = scopes.is_complete(cluster, *place)
            if settled != view.settled:
                self._on_view(aggregate, lambda v, settled=settled: replace(v, settled=settled))  # type: ignore[misc]


def _completeness(cluster: ClusterState) -> frozenset[str]:
    return frozenset(key for key, scope in cluster.scopes.items() if scope.complete is not None)
