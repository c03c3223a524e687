"""Garbage collection by ownerReferences, foreground and orphan deletion, and the end of namespaces.

A step function: call it until it has nothing to do. Owners are known by uid alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcluster.caller import INTERNAL
from simcluster.deletion import BACKGROUND, FOREGROUND, ORPHAN, Options, may_go
from simcluster.history import MODIFIED, Key, Version

if TYPE_CHECKING:
    from simcluster.resources import Resource
    from simcluster.store import Store

Json = dict[str, Any]

MAX_ROUNDS = 1000


def collect_garbage(store: Store) -> int:
    """Does everything that can be done now; returns the number of writes. Bounded: what hangs on
    finalizers or on a kubelet is looked at again when it changes."""
    done = 0
    for _ in range(MAX_ROUNDS):
        writes = _round(store)
        done += writes
        if not writes and not store.owners.dirty:
            break
    return done


def _round(store: Store) -> int:
    dirty, store.owners.dirty = store.owners.dirty, {}
    before = store.resource_version
    for (_, key), resource in dirty.items():
        version = store.table(resource).get(key)
        if version is not None:
            _visit(store, resource, version)
    for name in list(store.owners.ending_namespaces):
        _empty_namespace(store, name)
    return store.resource_version - before


def _visit(store: Store, resource: Resource, version: Version) -> None:
    metadata = version.obj["metadata"]
    finalizers = metadata.get("finalizers", ())
    if "deletionTimestamp" in metadata and ORPHAN in finalizers:
        _orphan(store, resource, version)
    elif "deletionTimestamp" in metadata and FOREGROUND in finalizers:
        _foreground(store, resource, version)
    if (latest := store.table(resource).get(version.key)) is not None:
        _check_owners(store, resource, latest)


def _check_owners(store: Store, resource: Resource, version: Version) -> None:
    metadata = version.obj["metadata"]
    owners = metadata.get("ownerReferences", [])
    if not owners or "deletionTimestamp" in metadata:
        return
    live = [owner for owner in owners if owner["uid"] in store.owners.live]
    if not live:
        options = Options(propagation_policy="Background", uid=metadata["uid"])
        _delete(store, resource, version.key, options)
    elif len(live) < len(owners):
        _set_metadata(store, resource, version, "ownerReferences", live)


def _dependents(store: Store, version: Version) -> list[tuple[Resource, Version]]:
    places = store.owners.dependents.get(version.obj["metadata"]["uid"], {})
    found = [(resource, store.table(resource).get(key)) for (_, key), resource in places.items()]
    return [(resource, version) for resource, version in found if version is not None]


def _orphan(store: Store, resource: Resource, owner: Version) -> None:
    uid = owner.obj["metadata"]["uid"]
    for kind, dependent in _dependents(store, owner):
        kept = [o for o in dependent.obj["metadata"]["ownerReferences"] if o["uid"] != uid]
        _set_metadata(store, kind, dependent, "ownerReferences", kept)
    _drop_finalizer(store, resource, owner.key, ORPHAN)


def _foreground(store: Store, resource: Resource, owner: Version) -> None:
    """Dependents go first; those that block hold the owner until they are gone."""
    uid = owner.obj["metadata"]["uid"]
    for kind, dependent in _dependents(store, owner):
        others = [
            o for o in dependent.obj["metadata"]["ownerReferences"] if o["uid"] != uid and o["uid"] in store.owners.live
        ]
        if "deletionTimestamp" not in dependent.obj["metadata"] and not others:
            options = Options(propagation_policy="Foreground", uid=dependent.obj["metadata"]["uid"])
            _delete(store, kind, dependent.key, options)
    blocking = [
        dependent
        for _, dependent in _dependents(store, owner)
        for o in dependent.obj["metadata"]["ownerReferences"]
        if o["uid"] == uid and o.get("blockOwnerDeletion")
    ]
    if not blocking:
        _drop_finalizer(store, resource, owner.key, FOREGROUND)


def _drop_finalizer(store: Store, resource: Resource, key: Key, name: str) -> None:
    version = store.table(resource).get(key)
    if version is not None:
        kept = [f for f in version.obj["metadata"].get("finalizers", []) if f != name]
        _set_metadata(store, resource, version, "finalizers", kept)


def _set_metadata(store: Store, resource: Resource, version: Version, field: str, value: list[Any]) -> None:
    metadata = {**version.obj["metadata"], field: value}
    if not value:
        del metadata[field]
    obj = {**version.obj, "metadata": metadata}
    if may_go(metadata):
        store.remove(resource, version, obj, "patch", INTERNAL)
    else:
        store.commit(MODIFIED, resource, version.key, obj, "patch", "", INTERNAL)


def _delete(store: Store, resource: Resource, key: Key, options: Options) -> None:
    store.delete(resource, key[0], key[1], options, INTERNAL)


def _empty_namespace(store: Store, name: str) -> None:
    left = 0
    for resource in store.resources:
        if not resource.namespaced:
            continue
        for version in store.select(resource, name):
            left += 1
            if "deletionTimestamp" not in version.obj["metadata"]:
                _delete(store, resource, version.key, BACKGROUND)
                left -= version.key not in store.table(resource)
    namespaces = store.kind("v1", "Namespace")
    version_of = store.table(namespaces).get(("", name))
    if not left and version_of is not None:
        store.remove(namespaces, version_of, version_of.obj, "delete", INTERNAL)
