"""The fold: a partition's views as a function of the log (DESIGN §5). No clock, no I/O, no chance.

A `Partition` is the state; `fold` takes one record and returns which views it changed. Folding the same prefix twice gives equal
views, repeats and stragglers change nothing, and a record that cannot be taken harms only itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from bus import messages, subjects
from bus.log import Record
from bus.messages import Command, Epoch, Gone, Listed, NotUnderstood, Observation, Outcome, Seen, Tick
from bus.subjects import Aggregate, Subject
from bus.times import SECOND
from bus.views import ClusterState, SandboxView, ScopeState, SnapshotView, Version, View
from projector import commands, observe, scopes
from projector.closing import Known
from projector.holdings import EMPTY, Holdings
from projector.index import Entry, Name

TICK_AHEAD = 1 * SECOND
"""How far a tick's due time counts past the tick's own log time (DESIGN §4, Time)."""
NUMBER_LIMIT: Final = 2**63
"""An epoch or resourceVersion from here on is none: taken at its word, it would make everything after it a straggler."""
UNKNOWN_VERSION: Final[Version] = (NUMBER_LIMIT, 0)
"""Of an object whose observation could not be read at all."""

NOT_TAKEN = (NotUnderstood, ValueError, msgspec.MsgspecError, RecursionError, OverflowError)
"""What reading arbitrary bytes can raise."""


class Folded(msgspec.Struct, frozen=True):
    """What a record changed: views (those no longer there included), and why it could not be taken, if so."""

    touched: frozenset[Aggregate] = frozenset()
    error: str | None = None


NOTHING = Folded()

_partition_of = lru_cache(maxsize=4096)(subjects.partition_of)


class Partition(Holdings):
    """One partition's views, and what belongs to no view."""

    def fold(self, record: Record) -> Folded:
        """Take one record, in log order. A position at or before the cursor is ignored."""
        if record.sequence <= self.state.cursor:
            return NOTHING
        if self._ahead:
            self._catch_up(record.sequence - 1)
        self._touched = set()
        self._sequence = record.sequence
        error = None
        try:
            subject = subjects.parse(record.subject)
            if subject.partition is None or subject.partition == self.number:
                self._time = messages.time_of(record.time, record.headers)
                self._take(subject, record)
        except NOT_TAKEN as problem:
            error = str(problem)[:300] or type(problem).__name__
        self._follow()
        self.state = replace(self.state, cursor=record.sequence, cursor_time=record.time)
        return Folded(frozenset(self._touched), error) if self._touched or error else NOTHING

    def _take(self, subject: Subject, record: Record) -> None:
        match subject.message:
            case subjects.OBSERVATION:
                self._observation(Name(subject.cluster, subject.kind, subject.namespace, subject.name), record)
            case subjects.COMMAND:
                self._command(_known_kind(subject.aggregate), record)
            case subjects.OUTCOME:
                outcome = messages.decode(record.data, record.headers, Outcome)
                self._on_view(_known_kind(subject.aggregate), lambda v: self._concluded(v, outcome))
            case subjects.TICK:
                tick = messages.decode(record.data, record.headers, Tick)
                self._time = max(self._time, min(tick.due, self._time + TICK_AHEAD))
                self._on_view(_known_kind(subject.aggregate), lambda v: v)
            case subjects.LIST:
                self._list(subject.cluster, messages.decode(record.data, record.headers, Listed))
            case subjects.EPOCH:
                self._epoch(subject.cluster, messages.decode(record.data, record.headers, Epoch))

    # -- observations

    def _observation(self, name: Name, record: Record) -> None:
        version = UNKNOWN_VERSION
        try:
            seen: Observation = messages.decode(record.data, record.headers, Observation)
            _check_observation(name, seen)
            version = (seen.epoch, seen.resource_version)
            before = self.index.get(name)
            if self._is_stale(name, seen, version, before):
                return
            made = observe.prepare(name, seen)
            holders = (
                observe.holders(name, seen, made, self._find, self._links.naming) if isinstance(seen, Seen) else ()
            )
        except NOT_TAKEN:
            self._unreadable(name, version)
            raise
        former = before.holders if before is not None else observe.own_holder(name)
        gone = not holders
        known = Known(version, seen.uid, gone=isinstance(seen, Gone), deleting=made.deleting)
        key = name.key
        for aggregate in holders if holders == former else dict.fromkeys((*holders, *former)):
            held = aggregate in holders
            self._on_view(
                aggregate,
                lambda view, held=held: commands.observed(  # type: ignore[misc]
                    observe.into(view, name, made, held=held, now=max(view.now, self._time)), key, known, self._sequence
                ),
                create=held or before is None,
            )
        if holders or former:
            self.index.put(name, Entry(version, seen.uid, seen.scope, gone, holders or former))
            self._loose.pop(name, None)
        else:
            self._keep_loose(name, version)
        self._arrived(name, seen.scope, version)

    def _is_stale(self, name: Name, seen: Observation, version: Version, before: Entry | None) -> bool:
        cluster = self.state.clusters.get(name.cluster)
        if cluster is None or seen.epoch > cluster.epoch:
            known = cluster or ClusterState()
            self._set_cluster(name.cluster, scopes.raised(known, seen.epoch, known.uid))
        elif seen.epoch < cluster.epoch:
            return True
        loose = self._loose.get(name)
        if loose is not None and version <= loose != UNKNOWN_VERSION:
            return True
        if before is not None:
            return version <= before.version
        # An unknown name at or below the last complete list is a straggler, not a new object, unless a list waits for it.
        return version <= scopes.complete_version(cluster, seen.scope, name.namespace) and not scopes.is_awaited(
            cluster, seen.scope, name.namespace, name.name, version
        )

    def _unreadable(self, name: Name, version: Version) -> None:
        """Known to be unreadable counts as known: one malformed object must not keep a scope from being complete (DESIGN §8.7)."""
        self._keep_loose(name, version)
        for word in observe.SCOPES_OF_KIND.get(name.kind, ()):
            self._arrived(name, word, None if version == UNKNOWN_VERSION else version)

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

    def _command(self, aggregate: Aggregate, record: Record) -> None:
        try:
            command: Command | None = messages.decode(record.data, record.headers, Command)
        except NOT_TAKEN:
            self._commanded(aggregate, None)
            raise
        self._commanded(aggregate, command)

    def _commanded(self, aggregate: Aggregate, command: Command | None) -> None:
        self._on_view(aggregate, lambda v: commands.commanded(v, self._sequence, command, self._left(v)), create=True)

    def _concluded(self, view: View, outcome: Outcome) -> View:
        now = replace(view, now=max(view.now, self._time))
        return commands.concluded(now, outcome, self._epoch_of(view.cluster), self._left(view))

    # -- lists and epochs

    def _list(self, cluster_name: str, listed: Listed) -> None:
        _check_list(listed)
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
            missing = self._apply_list(cluster_name, listed, objects)
            state = scopes.whole(state, version, missing)
        self._set_scope(cluster_name, key, state)
        if objects is not None and state.complete is not None:
            self._sweep(cluster_name)

    def _ours(self, cluster: str, listed: Listed) -> Listed:
        ours = {
            namespace: entries
            for namespace, entries in listed.objects.items()
            if listed.namespace in ("", namespace) and _partition_of(cluster, namespace, self.partitions) == self.number
        }
        return replace(listed, objects=ours)

    def _apply_list(self, cluster: str, listed: Listed, objects: scopes.Objects) -> dict[str, int]:
        """Remove what a whole list lacks; return what it names and we do not know that new."""
        version = (listed.epoch, listed.resource_version)
        gone = [
            (name, entry)
            for name, entry in self.index.of_scope(cluster, listed.scope, listed.namespace)
            if not entry.gone and entry.version <= version and name.name not in objects.get(name.namespace, ())
        ]
        for name, entry in gone:
            self._remove(name, entry, version)
        self._confirm_absent(cluster, listed, objects, version)
        kind = observe.kind_of_scope(listed.scope)
        missing: dict[str, int] = {}
        for namespace, entries in objects.items():
            for name_text, (_, resource_version) in entries.items():
                name = Name(cluster, kind, namespace, name_text)
                found = self._find(name)
                known = found.version if found is not None else (0, 0)
                if max(known, self._loose.get(name, (0, 0))) < (listed.epoch, resource_version):
                    missing[f"{namespace}/{name_text}"] = resource_version
        return missing

    def _remove(self, name: Name, entry: Entry, version: Version) -> None:
        made = observe.Prepared(Gone(version[0], version[1], entry.uid, entry.scope), deleting=False)
        known = Known(version, entry.uid, gone=True, deleting=False)
        for aggregate in entry.holders:
            self._on_view(
                aggregate,
                lambda view: commands.observed(
                    observe.into(view, name, made, held=True, now=max(view.now, self._time)),
                    name.key,
                    known,
                    self._sequence,
                ),
            )
        self.index.put(name, replace(entry, version=version, gone=True))

    def _confirm_absent(self, cluster: str, listed: Listed, objects: scopes.Objects, version: Version) -> None:
        kind = observe.kind_of_scope(listed.scope)
        for aggregate, view in list(self.views.items()):
            if not view.open or view.cluster != cluster or listed.namespace not in ("", view.namespace):
                continue
            names = objects.get(view.namespace, {})
            keys = {key for item in view.open for key in item.waits if key.startswith(f"{kind}/")}
            absent = [
                key
                for key in sorted(keys)
                if key.partition("/")[2] not in names and self._may_be_absent(view, key, listed.scope)
            ]
            own_absent = (
                isinstance(view, SandboxView | SnapshotView)
                and view.object is None
                and listed.scope == observe.OWN_SCOPE[type(view)]
                and view.name not in names
            )
            if absent:
                self._on_view(aggregate, lambda v, absent=absent: commands.absent(v, absent, version))  # type: ignore[misc]
            if own_absent:
                self._on_view(aggregate, commands.dropped_creates)

    @staticmethod
    def _may_be_absent(view: View, key: str, scope: str) -> bool:
        """Whether a list of `scope` is one that would name this object: a list of other pods says nothing of it."""
        known = observe.known_of(view, key)
        if known is not None and not known.gone:
            return False
        kind, _, text = key.partition("/")
        if kind == observe.POD:
            return scope == (view.pods[text].scope if known is not None else observe.POD_SCOPE[type(view)])
        return True

    def _epoch(self, cluster_name: str, epoch: Epoch) -> None:
        cluster = self.state.clusters.get(cluster_name, ClusterState())
        if not 0 <= epoch.epoch < NUMBER_LIMIT:
            raise NotUnderstood(f"epoch {epoch.epoch} is none")
        if epoch.epoch > cluster.epoch:
            self._set_cluster(cluster_name, scopes.raised(cluster, epoch.epoch, epoch.cluster_uid))
        elif epoch.epoch == cluster.epoch and epoch.cluster_uid != cluster.uid:
            self._set_cluster(cluster_name, replace(cluster, uid=epoch.cluster_uid))


def _known_kind(aggregate: Aggregate) -> Aggregate:
    if aggregate.kind not in EMPTY:
        raise NotUnderstood(f"unknown kind of aggregate {aggregate.kind[:40]!r}")
    return aggregate


def _check_observation(name: Name, seen: Observation) -> None:
    if seen.scope not in observe.SCOPES_OF_KIND.get(name.kind, ()):
        raise NotUnderstood(f"unknown scope {seen.scope[:40]!r} of kind {name.kind[:40]!r}")
    if seen.epoch >= NUMBER_LIMIT or seen.resource_version >= NUMBER_LIMIT:
        raise NotUnderstood("epoch or resourceVersion is no number of an API server")


def _check_list(listed: Listed) -> None:
    observe.kind_of_scope(listed.scope)
    if listed.epoch >= NUMBER_LIMIT or listed.resource_version >= NUMBER_LIMIT:
        raise NotUnderstood("epoch or resourceVersion is no number of an API server")
    if not 1 <= listed.chunk <= listed.chunks:
        raise NotUnderstood(f"chunk {listed.chunk} of {listed.chunks}")
