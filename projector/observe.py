"""Where an observation goes, and what it makes of each view that holds the object. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from bus import names, resources, scopes, subjects
from bus.messages import Gone, Observation, Seen
from bus.subjects import Aggregate
from bus.views import (
    NO_SOURCE,
    Job,
    Pod,
    PoolObject,
    PoolView,
    SandboxObject,
    SandboxView,
    Snapshot,
    SnapshotView,
    Version,
    View,
)
from projector import commands, remembered, slots, sources
from projector.closing import Known
from projector.index import Entry, Name

V = TypeVar("V", SandboxView, PoolView, SnapshotView)

Find = Callable[[Name], Entry | None]
Naming = Callable[[Name], tuple[Aggregate, ...]]
"""The sandboxes whose allocation names a pod."""

POD: Final = resources.POD.word
JOB: Final = resources.JOB.word
SANDBOX: Final = resources.BATCH_SANDBOX.word
SNAPSHOT: Final = resources.SANDBOX_SNAPSHOT.word
POOL: Final = resources.POOL.word
POD_SCOPE: Final = {
    SandboxView: scopes.SANDBOX_PODS.word,
    PoolView: scopes.POOL_PODS.word,
    SnapshotView: scopes.COMMIT_PODS.word,
}
"""Through which scope the pods that an aggregate's ops name are seen, while nothing is known of them."""
OWN_SCOPE: Final = {
    SandboxView: scopes.SANDBOXES.word,
    PoolView: scopes.POOLS.word,
    SnapshotView: scopes.SNAPSHOTS.word,
}
_OWN_KIND: Final = {SandboxView: SANDBOX, PoolView: POOL, SnapshotView: SNAPSHOT}
SCOPES_OF_KIND: Final = {
    kind: tuple(scope.word for scope in scopes.SCOPES if scope.kind.word == kind)
    for kind in {scope.kind.word for scope in scopes.SCOPES}
}


def kind_of_scope(word: str) -> str:
    """The word of the kind that a scope lists. Raises ValueError for a scope that this version does not know."""
    scope = scopes.BY_WORD.get(word)
    if scope is None:
        raise ValueError(f"unknown scope {word!r}")
    return scope.kind.word


class Prepared(msgspec.Struct, frozen=True):
    """An observation, decoded once for all views that hold the object."""

    seen: Observation
    deleting: bool
    pod: resources.Pod | None = None
    sandbox: SandboxObject | None = None
    snapshot: Snapshot | None = None
    job: Job | None = None
    pool: PoolObject | None = None

    @property
    def version(self) -> Version:
        return (self.seen.epoch, self.seen.resource_version)


def prepare(name: Name, seen: Observation) -> Prepared:
    """Raises msgspec.ValidationError for an object that is not of its kind's shape."""
    if isinstance(seen, Gone):
        return Prepared(seen, deleting=False)
    match name.kind:
        case kind if kind == POD:
            pod = slots.decode_pod(seen)
            return Prepared(seen, pod.metadata.deletion_timestamp is not None, pod=pod)
        case kind if kind == SANDBOX:
            sandbox = slots.sandbox_object(seen)
            return Prepared(seen, bool(sandbox.deleting), sandbox=sandbox)
        case kind if kind == SNAPSHOT:
            snapshot = slots.snapshot_slot(seen)
            return Prepared(seen, snapshot.deleting, snapshot=snapshot)
        case kind if kind == JOB:
            job = slots.job_slot(seen)
            return Prepared(seen, job.deleting, job=job)
        case kind if kind == POOL:
            pool = slots.pool_object(seen)
            return Prepared(seen, bool(pool.deleting), pool=pool)
    raise ValueError(f"unknown kind {name.kind!r}")


_OWN_AGGREGATE: Final = {
    SANDBOX: subjects.SANDBOX,
    POOL: subjects.POOL,
    SNAPSHOT: subjects.SNAPSHOT,
}


def own_holder(name: Name) -> tuple[Aggregate, ...]:
    """The aggregate that an object is itself, if it is one: its deletion has a place even if the object was never seen."""
    kind = _OWN_AGGREGATE.get(name.kind)
    return (Aggregate(name.cluster, name.namespace, kind, name.name),) if kind is not None else ()


def _named_by_none(name: Name) -> tuple[Aggregate, ...]:
    return ()


def holders(
    name: Name, seen: Seen, made: Prepared, find: Find, naming: Naming = _named_by_none
) -> tuple[Aggregate, ...]:
    """The aggregates whose views hold this object. A name as an owner reference has it wins over a label, which may be shortened (B106)."""

    def aggregate(kind: str, text: str) -> Aggregate:
        return Aggregate(name.cluster, name.namespace, kind, text)

    if name.kind == SANDBOX:
        return (aggregate(subjects.SANDBOX, name.name),)
    if name.kind == POOL:
        return (aggregate(subjects.POOL, name.name),)
    meta = made.pod.metadata if made.pod is not None else slots.decode_metadata(seen)
    labels = meta.labels or {}
    found: list[Aggregate] = []
    if name.kind == SNAPSHOT:
        found.append(aggregate(subjects.SNAPSHOT, name.name))
        owner = meta.controller(resources.BATCH_SANDBOX.name)
        if owner is not None and name.name == names.pause_snapshot_name(owner.name):
            found.append(aggregate(subjects.SANDBOX, owner.name))
    elif name.kind == JOB:
        owner = meta.controller(resources.SANDBOX_SNAPSHOT.name)
        snapshot = owner.name if owner is not None else _snapshot_named(meta, labels)
        if snapshot:
            found.append(aggregate(subjects.SNAPSHOT, snapshot))
    else:
        found.extend(_pod_holders(name, meta, labels, find))
        if is_pooled(found):
            found.extend(naming(name))
    return tuple(found)


def is_pooled(holders: Iterable[Aggregate]) -> bool:
    """Whether a pod with these holders is a pool's: sandboxes hold it by naming it."""
    return any(holder.kind == subjects.POOL for holder in holders)


def _snapshot_named(meta: resources.ObjectMeta, labels: dict[str, str]) -> str | None:
    """The snapshot that a Job or its pod names: the annotation holds it whole, the label perhaps shortened (B106)."""
    label = labels.get(names.SNAPSHOT_NAME)
    whole = (meta.annotations or {}).get(names.SNAPSHOT_NAME)
    return whole if whole and label == names.label_value(whole) else label


def _pod_holders(name: Name, meta: resources.ObjectMeta, labels: dict[str, str], find: Find) -> tuple[Aggregate, ...]:
    job = meta.controller(resources.JOB.name)
    if job is not None:
        known = find(Name(name.cluster, JOB, name.namespace, job.name))
        if known is not None and known.holders:
            return known.holders
    for kind, owner_kind, _ in _POD_OWNERS:
        owner = meta.controller(owner_kind.name)
        if owner is not None and owner.name:
            return (Aggregate(name.cluster, name.namespace, kind, owner.name),)
    for kind, _, label in _POD_OWNERS:
        text = _snapshot_named(meta, labels) if kind == subjects.SNAPSHOT else labels.get(label)
        if text:
            return (Aggregate(name.cluster, name.namespace, kind, text),)
    return ()


_POD_OWNERS: Final = (
    (subjects.SANDBOX, resources.BATCH_SANDBOX, names.SANDBOX_NAME),
    (subjects.POOL, resources.POOL, names.POOL_NAME),
    (subjects.SNAPSHOT, resources.SANDBOX_SNAPSHOT, names.SNAPSHOT_NAME),
)


def known_of(view: View, key: str) -> Known | None:
    """The newest that a view itself holds of an object (`kind/name`): what ends its ops must not depend on other views."""
    kind, _, name = key.partition("/")
    slot: Pod | Job | Snapshot | None = None
    if kind == POD:
        slot = view.pods.get(name)
    elif kind == _OWN_KIND[type(view)] and name == view.name:
        if view.object is not None:
            return Known(view.object.version, view.object.uid, gone=False, deleting=bool(view.object.deleting))
        return Known(view.known, "", gone=True, deleting=False) if view.known != (0, 0) else None
    elif isinstance(view, SnapshotView) and kind == JOB:
        slot = view.jobs.get(name)
    elif isinstance(view, SandboxView) and kind == SNAPSHOT and view.snapshot is not None:
        slot = view.snapshot if view.snapshot.name == name else None
    return Known(slot.version, slot.uid, gone=slot.gone, deleting=slot.deleting) if slot is not None else None


def into(view: View, name: Name, made: Prepared, *, held: bool, now: int) -> View:
    """The view after this observation; `held` False: the object no longer belongs to it, which is as good as gone."""
    if name.kind == POD:
        return _pod_into(view, name.name, made, held=held, now=now)
    match view:
        case SandboxView() if name.kind == SANDBOX:
            return _sandbox_into(view, made, now)
        case SandboxView() if name.kind == SNAPSHOT:
            before = view.snapshot or Snapshot((0, 0), name=name.name)
            gone = replace(before, version=made.version, gone=True, deleting=False)
            return replace(view, snapshot=made.snapshot if held and made.snapshot is not None else gone)
        case PoolView() if name.kind == POOL:
            return _renewed(replace(view, object=made.pool, known=made.version), view)
        case SnapshotView() if name.kind == SNAPSHOT:
            over = made.snapshot is None or made.snapshot.status.phase in sources.ENDED
            source = NO_SOURCE if over else view.source
            renewed = _renewed(replace(view, object=made.snapshot, known=made.version, source=source), view)
            leaving = made.snapshot is None or made.snapshot.deleting
            return commands.dropped_creates(renewed) if leaving else renewed
        case SnapshotView() if name.kind == JOB:
            former = view.jobs.get(name.name) or Job((0, 0))
            gone_job = replace(former, version=made.version, gone=True, deleting=False)
            job = made.job if held and made.job is not None else gone_job
            return replace(view, jobs={**view.jobs, name.name: job})
    return view


def _renewed(view: V, before: V) -> V:
    """The view of another object of that name, or of none, starts without the former one's failures (DESIGN §8.9)."""
    if before.object is None or (view.object is not None and view.object.uid == before.object.uid):
        return view
    return replace(view, tries=0, retry_at=0, failure=None)


def _pod_into(view: View, name: str, made: Prepared, *, held: bool, now: int) -> View:
    before = view.pods.get(name)
    if made.pod is not None and held and isinstance(made.seen, Seen):
        pod = slots.pod_slot(made.seen, made.pod, before, now)
    else:
        pod = Pod(made.version, made.seen.uid, made.seen.scope, gone=True)
    after = replace(view, pods={**view.pods, name: pod})
    if isinstance(after, SandboxView) and slots.shown(before) != slots.shown(pod):
        return replace(after, unshown_since=after.unshown_since or now, unshown_last=now)
    return after


def renamed(view: SandboxView, added: Mapping[str, Pod], dropped: Iterable[str], now: int) -> SandboxView:
    """The view of a pooled sandbox that names other pods of the pool than before."""
    left = set(dropped)
    pods = {name: pod for name, pod in view.pods.items() if name not in left}
    pods.update(added)
    shows = any(slots.shown(view.pods.get(name)) != slots.shown(pods.get(name)) for name in (*left, *added))
    changed = replace(view, pods=pods)
    return replace(changed, unshown_since=view.unshown_since or now, unshown_last=now) if shows else changed


def _sandbox_into(view: SandboxView, made: Prepared, now: int) -> SandboxView:
    after, before = made.sandbox, view.object
    if after is None:
        gone = replace(view, object=None, known=made.version, pause_generation=None)
        return commands.dropped_creates(_renewed(gone, view))
    if before is None or before.uid != after.uid:
        first = after.generation == 1 and not after.bare
        pause_generation = (1 if after.pause is not None else 0) if first else None
        unshown_since = unshown_last = now
    else:
        unshown_since, unshown_last = view.unshown_since, view.unshown_last
        if after.bare:
            after = remembered.known_before(after, before)
        elif after.malformed:
            after = replace(after, allocated=before.allocated)
        pause_generation = remembered.pause_generation(view.pause_generation, before, after)
        if before.status != after.status:
            unshown_since = 0
        if before.generation != after.generation:
            unshown_since, unshown_last = unshown_since or now, now
    changed = replace(
        view,
        object=after,
        known=made.version,
        pause_generation=pause_generation,
        unshown_since=unshown_since,
        unshown_last=unshown_last,
    )
    changed = _renewed(changed, view)
    return commands.dropped_creates(changed) if after.deleting else changed
