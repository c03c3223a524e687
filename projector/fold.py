"""The fold: a partition's views as a function of the log (DESIGN §5). No clock, no I/O, no chance.

A `Partition` is the state; `fold` takes one record and returns which views it changed. Folding the same prefix twice gives equal
views, repeats and stragglers change nothing, and a record that cannot be taken harms only itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from bus import messages, subjects
from bus.log import Record
from bus.messages import Command, Epoch, Gone, Listed, NotUnderstood, Observation, Outcome, Seen, Tick
from bus.subjects import Aggregate, Subject
from bus.times import SECOND
from bus.views import ClusterState, PartitionState, PoolView, SandboxView, ScopeState, SnapshotView, Version, View
from projector import commands, observe, scopes
from projector.commands import Known
from projector.index import Entry, Index, Name
from projector.sweep import swept

TICK_AHEAD = 1 * SECOND
"""How far a tick's due time counts past the tick's own log time (DESIGN §4, Time)."""

_EMPTY = {subjects.SANDBOX: SandboxView, subjects.POOL: PoolView, subjects.SNAPSHOT: SnapshotView}


class Folded(msgspec.Struct, frozen=True):
    """What a record changed: views (those no longer there included), and why it could not be taken, if so."""

    touched: frozenset[Aggregate] = frozenset()
    error: str | None = None


NOTHING = Folded()

Change = Callable[[View], View]
"""What a record does to one view."""


class Partition:
    """One partition's views, and what belongs to no view."""

    def __init__(
        self, number: int, partitions: int, state: PartitionState, views: dict[Aggregate, View] | None = None
    ) -> None:
        self.number = number
        self.partitions = partitions
        self.state = state
        self.views: dict[Aggregate, View] = views or {}
        self.index = Index(self.views.values())
        self._touched: set[Aggregate] = set()

    # -- the fold

    def fold(self, record: Record) -> Folded:
        """Take one record, in log order. A position at or before the cursor is ignored."""
        if record.sequence <= self.state.cursor:
            return NOTHING
        self._touched = set()
        error = None
        try:
            subject = subjects.parse(record.subject)
            if subject.partition is None or subject.partition == self.number:
                self._take(subject, record)
        except (NotUnderstood, ValueError, msgspec.MsgspecError) as problem:
            error = str(problem)[:300]
        self.state = replace(self.state, cursor=record.sequence, cursor_time=record.time)
        return Folded(frozenset(self._touched), error) if self._touched or error else NOTHING

    def _take(self, subject: Subject, record: Record) -> None:
        time = messages.time_of(record.time, record.headers)
        match subject.message:
            case subjects.OBSERVATION:
                self._observation(subject, record, time)
            case subjects.COMMAND:
                self._command(subject, record, time)
            case subjects.OUTCOME:
                outcome = messages.decode(record.data, record.headers, Outcome)
                self._on_view(subject.aggregate, record, time, lambda v: self._concluded(v, outcome))
            case subjects.TICK:
                tick = messages.decode(record.data, record.headers, Tick)
                due = max(time, min(tick.due, time + TICK_AHEAD))
                self._on_view(subject.aggregate, record, due, lambda v: v)
            case subjects.LIST:
                self._list(subject.cluster, messages.decode(record.data, record.headers, Listed), record, time)
            case subjects.EPOCH:
                self._epoch(subject.cluster, messages.decode(record.data, record.headers, Epoch))

    # -- observations

    def _observation(self, subject: Subject, record: Record, time: int) -> None:
        name = Name(subject.cluster, subject.kind, subject.namespace, subject.name)
        try:
            seen: Observation = messages.decode(record.data, record.headers, Observation)
            made = observe.prepare(name, seen)
            holders = observe.holders(name, seen, made, self.index) if isinstance(seen, Seen) else ()
        except (NotUnderstood, msgspec.MsgspecError):
            self._unreadable(name)
            raise
        version = (seen.epoch, seen.resource_version)
        before = self.index.get(name)
        if self._is_stale(name, seen, version, before):
            return
        former = before.holders if before is not None else ()
        known = Known(version, seen.uid, gone=isinstance(seen, Gone), deleting=made.deleting)
        for aggregate in dict.fromkeys((*holders, *former)):
            held = aggregate in holders
            self._on_view(
                aggregate,
                record,
                time,
                lambda view, held=held: commands.observed(  # type: ignore[misc]
                    observe.into(view, name, made, held=held, now=time), name.key, known, record.sequence
                ),
                create=held,
            )
        self.index.put(name, Entry(version, seen.uid, seen.scope, isinstance(seen, Gone), holders or former))
        self._arrived(name, seen.scope, version)

    def _is_stale(self, name: Name, seen: Observation, version: Version, before: Entry | None) -> bool:
        cluster = self.state.clusters.get(name.cluster)
        if cluster is None or seen.epoch > cluster.epoch:
            self._set_cluster(name.cluster, replace(cluster or ClusterState(), epoch=seen.epoch))
        elif seen.epoch < cluster.epoch:
            return True
        if before is not None:
            return version <= before.version
        # An unknown name at or below the last complete list is a straggler, not a new object.
        return version <= scopes.complete_version(cluster, seen.scope, name.namespace)

    def _unreadable(self, name: Name) -> None:
        for word in observe.SCOPES_OF_KIND.get(name.kind, ()):
            self._arrived(name, word, None)

    def _arrived(self, name: Name, word: str, version: Version | None) -> None:
        cluster = self.state.clusters.get(name.cluster)
        if cluster is None:
            return
        for narrowed in ("", name.namespace):
            key = scopes.scope_key(word, narrowed)
            state = cluster.scopes.get(key)
            if state is not None and state.missing:
                self._set_scope(name.cluster, key, scopes.arrived(state, f"{name.namespace}/{name.name}", version))

    # -- commands

    def _command(self, subject: Subject, record: Record, time: int) -> None:
        try:
            command: Command | None = messages.decode(record.data, record.headers, Command)
        except NotUnderstood:
            self._on_view(
                subject.aggregate, record, time, lambda v: commands.commanded(v, record.sequence, None), create=True
            )
            raise
        self._on_view(
            subject.aggregate, record, time, lambda v: commands.commanded(v, record.sequence, command), create=True
        )

    def _concluded(self, view: View, outcome: Outcome) -> View:
        return commands.concluded(view, outcome, self._epoch_of(view.cluster), self._left(view))

    def _left(self, view: View) -> commands.LeftOpen:
        def known(key: str) -> Known | None:
            kind, _, name = key.partition("/")
            entry = self.index.get(Name(view.cluster, kind, view.namespace, name))
            if entry is None:
                return None
            return Known(entry.version, entry.uid, gone=entry.gone, deleting=observe.is_deleting(view, kind, name))

        return known

    # -- lists and epochs

    def _list(self, cluster_name: str, listed: Listed, record: Record, time: int) -> None:
        cluster = self.state.clusters.get(cluster_name, ClusterState())
        if listed.epoch < cluster.epoch:
            return
        if listed.epoch > cluster.epoch:
            self._set_cluster(cluster_name, scopes.raised(cluster, listed.epoch, cluster.uid))
            cluster = self.state.clusters[cluster_name]
        key = scopes.scope_key(listed.scope, listed.namespace)
        version = (listed.epoch, listed.resource_version)
        before = cluster.scopes.get(key, ScopeState())
        if before.complete is not None and version <= before.complete:
            return
        state, objects = scopes.chunk(before, self._ours(cluster_name, listed))
        if objects is not None:
            missing = self._apply_list(cluster_name, listed, objects, record, time)
            state = scopes.whole(state, version, missing)
        self._set_scope(cluster_name, key, state)
        if objects is not None and state.complete is not None:
            self._sweep(cluster_name)

    def _ours(self, cluster: str, listed: Listed) -> Listed:
        ours = {
            namespace: entries
            for namespace, entries in listed.objects.items()
            if subjects.partition_of(cluster, namespace, self.partitions) == self.number
        }
        return replace(listed, objects=ours)

    def _apply_list(
        self, cluster: str, listed: Listed, objects: scopes.Objects, record: Record, time: int
    ) -> dict[str, int]:
        """Remove what a whole list lacks; return what it names and we do not know that new."""
        version = (listed.epoch, listed.resource_version)
        gone = [
            (name, entry)
            for name, entry in self.index.of_scope(cluster, listed.scope, listed.namespace)
            if not entry.gone and entry.version <= version and name.name not in objects.get(name.namespace, ())
        ]
        for name, entry in gone:
            self._remove(name, entry, version, record, time)
        self._confirm_absent(cluster, listed, objects, version, record, time)
        kind = observe.kind_of_scope(listed.scope)
        missing: dict[str, int] = {}
        for namespace, entries in objects.items():
            for name_text, (_, resource_version) in entries.items():
                found = self.index.get(Name(cluster, kind, namespace, name_text))
                if found is None or found.version < (listed.epoch, resource_version):
                    missing[f"{namespace}/{name_text}"] = resource_version
        return missing

    def _remove(self, name: Name, entry: Entry, version: Version, record: Record, time: int) -> None:
        made = observe.Prepared(Gone(version[0], version[1], entry.uid, entry.scope), deleting=False)
        known = Known(version, entry.uid, gone=True, deleting=False)
        for aggregate in entry.holders:
            self._on_view(
                aggregate,
                record,
                time,
                lambda view: commands.observed(
                    observe.into(view, name, made, held=True, now=time), name.key, known, record.sequence
                ),
            )
        self.index.put(name, replace(entry, version=version, gone=True))

    def _confirm_absent(
        self, cluster: str, listed: Listed, objects: scopes.Objects, version: Version, record: Record, time: int
    ) -> None:
        kind = observe.kind_of_scope(listed.scope)
        for aggregate, view in list(self.views.items()):
            if not view.open or view.cluster != cluster or listed.namespace not in ("", view.namespace):
                continue
            listed_names = objects.get(view.namespace, {})
            keys = [key for item in view.open for key in item.waits if key.startswith(f"{kind}/")]
            absent = [key for key in keys if key.partition("/")[2] not in listed_names]
            if absent:
                self._on_view(aggregate, record, time, lambda v, absent=absent: _all_absent(v, absent, version))  # type: ignore[misc]

    def _epoch(self, cluster_name: str, epoch: Epoch) -> None:
        cluster = self.state.clusters.get(cluster_name, ClusterState())
        if epoch.epoch > cluster.epoch:
            self._set_cluster(cluster_name, scopes.raised(cluster, epoch.epoch, epoch.cluster_uid))
        elif epoch.epoch == cluster.epoch and epoch.cluster_uid != cluster.uid:
            self._set_cluster(cluster_name, replace(cluster, uid=epoch.cluster_uid))

    def _sweep(self, cluster: str) -> None:
        state = self.state.clusters[cluster]
        for aggregate, view in list(self.views.items()):
            if view.cluster != cluster:
                continue
            kept = swept(view, state)
            if kept is view:
                continue
            self._touched.add(aggregate)
            if kept is None:
                del self.views[aggregate]
            else:
                self.views[aggregate] = kept
            self.index.forget(aggregate, view, kept)

    # -- state

    def _on_view(
        self, aggregate: Aggregate, record: Record, time: int, change: Change, *, create: bool = False
    ) -> None:
        view = self.views.get(aggregate)
        if view is None:
            if not create:
                return
            view = _EMPTY[aggregate.kind](aggregate.cluster, aggregate.namespace, aggregate.name)
            settled = scopes.is_complete(
                self.state.clusters.get(aggregate.cluster), aggregate.kind, aggregate.namespace
            )
            view = replace(view, settled=settled)
        elif view.sequence >= record.sequence and self._touched.isdisjoint((aggregate,)):
            # Committed before a crash, with the cursor still behind it.
            return
        changed = change(replace(view, now=max(view.now, time)))
        changed = commands.expired(changed, self._epoch_of(aggregate.cluster), self._left(changed))
        self.views[aggregate] = replace(changed, sequence=record.sequence)
        self._touched.add(aggregate)

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
        for aggregate, view in self.views.items():
            if view.cluster != cluster_name:
                continue
            settled = scopes.is_complete(cluster, aggregate.kind, aggregate.namespace)
            if settled != view.settled:
                self.views[aggregate] = replace(view, settled=settled)
                self._touched.add(aggregate)

    def incomplete(self) -> list[str]:
        """Clusters of which something is not complete: lists are to be asked for."""
        return [
            name
            for name, cluster in self.state.clusters.items()
            if not cluster.scopes or any(scope.complete is None for scope in cluster.scopes.values())
        ]


def _completeness(cluster: ClusterState) -> frozenset[str]:
    return frozenset(key for key, scope in cluster.scopes.items() if scope.complete is not None)


def _all_absent(view: View, keys: Iterable[str], version: Version) -> View:
    for key in keys:
        view = commands.absent(view, key, version)
    return view
