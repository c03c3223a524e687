"""What a partition knows of each name: the newest version, and which views hold it. Rebuilt from the views, never stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from bus import resources, scopes
from bus.subjects import Aggregate
from bus.views import PoolView, SandboxView, SnapshotView, Version, View


class Name(msgspec.Struct, frozen=True):
    """A name of a kind (its word, `pod`) in a namespace of a cluster: the identity that order is kept by (DESIGN §4, Order)."""

    cluster: str
    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.name}"


class Entry(msgspec.Struct, frozen=True):
    version: Version
    uid: str
    scope: str
    gone: bool
    holders: tuple[Aggregate, ...]


def names_of(view: View) -> Iterator[tuple[Name, Entry]]:
    """All that a view tells of names, itself as the only holder."""
    holder = (view.aggregate,)

    def name(kind: resources.Kind, text: str) -> Name:
        return Name(view.cluster, kind.word, view.namespace, text)

    for pod_name, pod in view.pods.items():
        yield name(resources.POD, pod_name), Entry(pod.version, pod.uid, pod.scope, pod.gone, holder)
    if view.known == (0, 0):
        own = None
    else:
        own = Entry(view.known, view.object.uid if view.object else "", "", view.object is None, holder)
    match view:
        case SandboxView():
            if own is not None:
                yield (
                    name(resources.BATCH_SANDBOX, view.name),
                    msgspec.structs.replace(own, scope=scopes.SANDBOXES.word),
                )
            if view.snapshot is not None:
                slot = view.snapshot
                yield (
                    name(resources.SANDBOX_SNAPSHOT, slot.name),
                    Entry(slot.version, slot.uid, scopes.SNAPSHOTS.word, slot.gone, holder),
                )
        case PoolView():
            if own is not None:
                yield name(resources.POOL, view.name), msgspec.structs.replace(own, scope=scopes.POOLS.word)
        case SnapshotView():
            if own is not None:
                yield (
                    name(resources.SANDBOX_SNAPSHOT, view.name),
                    msgspec.structs.replace(own, scope=scopes.SNAPSHOTS.word),
                )
            for job_name, job in view.jobs.items():
                entry = Entry(job.version, job.uid, scopes.COMMIT_JOBS.word, job.gone, holder)
                yield name(resources.JOB, job_name), entry


def _combined(before: Entry, entry: Entry) -> Entry:
    """What two views tell of one name: the newer; of equals the one that holds it, for the other let go of it at that very version."""
    if (before.version, not before.gone) == (entry.version, not entry.gone):
        holders = tuple(dict.fromkeys((*before.holders, *entry.holders)))
        return msgspec.structs.replace(before, holders=holders)
    return max(before, entry, key=lambda e: (e.version, not e.gone))


class Index:
    def __init__(self, views: Iterable[View] = ()) -> None:
        self._entries: dict[Name, Entry] = {}
        for view in views:
            self.take(view)

    def take(self, view: View) -> None:
        """Add what a view tells."""
        for name, entry in names_of(view):
            before = self._entries.get(name)
            self._entries[name] = entry if before is None else _combined(before, entry)

    def get(self, name: Name) -> Entry | None:
        return self._entries.get(name)

    def put(self, name: Name, entry: Entry) -> None:
        self._entries[name] = entry

    def of_scope(self, cluster: str, word: str, namespace: str) -> Iterator[tuple[Name, Entry]]:
        """All names last seen through a scope, in a namespace or ('') all of them."""
        for name, entry in self._entries.items():
            if entry.scope == word and name.cluster == cluster and namespace in ("", name.namespace):
                yield name, entry

    def forget(self, aggregate: Aggregate, before: View, after: View | None) -> None:
        """A view let go of tombstones, or of itself: names that nothing holds any more are unknown again."""
        kept = {name for name, _ in names_of(after)} if after is not None else set()
        for name, _ in names_of(before):
            if name in kept:
                continue
            entry = self._entries.get(name)
            if entry is None:
                continue
            holders = tuple(holder for holder in entry.holders if holder != aggregate)
            if holders:
                self._entries[name] = msgspec.structs.replace(entry, holders=holders)
            else:
                del self._entries[name]
