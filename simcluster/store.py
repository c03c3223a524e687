"""The simulated API server's state: objects, versions, and the writes that change them.

Pure and synchronous. Time comes from `now`, names and uids from `rng`: the same calls from the same
seed give the same bytes. Behaviour was compared with kube-apiserver 1.36; tests/simcluster says where.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from simcluster import creating, deletion, updating
from simcluster import metadata as meta
from simcluster.caller import INTERNAL, Caller
from simcluster.errors import already_exists, bad_request, failure, not_found
from simcluster.history import ADDED, DELETED, MODIFIED, Change, History, Key, Version, select_from
from simcluster.index import OwnerIndex
from simcluster.resources import BUILT_IN, Resource, load_custom_resources
from simcluster.selectors import Predicate
from simcluster.watch import Watch

Json = dict[str, Any]

OBJECT_LIMIT = 1536 * 1024
FIRST_VERSION = 100


class Write(msgspec.Struct, frozen=True):
    """One stored write, as observers see it. `change` says what became of the object."""

    verb: str
    resource: Resource
    namespace: str
    name: str
    subresource: str
    caller: Caller
    change: Change


Observer = Callable[[Write], None]


class Store:
    """All objects of one simulated cluster.

    `history_limit`: changes kept per resource (older watches get 410). `object_limit`: objects kept in
    all; a create beyond it answers 507, so a runaway test cannot fill the memory.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        rng: random.Random,
        *,
        history_limit: int = 10_000,
        object_limit: int = 200_000,
        custom: tuple[Resource, ...] | None = None,
        namespaces: tuple[str, ...] = ("default", "kube-system"),
    ) -> None:
        self.now = now
        self.rng = rng
        self.resource_version = FIRST_VERSION
        self.resources = BUILT_IN + (load_custom_resources() if custom is None else custom)
        self.observers: list[Observer] = []
        self.owners = OwnerIndex()
        self.object_limit = object_limit
        self._by_plural = {(r.group, r.version, r.plural): r for r in self.resources}
        self._by_kind = {(r.api_version, r.kind): r for r in self.resources}
        self._tables: dict[str, dict[Key, Version]] = {r.qualified: {} for r in self.resources}
        self._history = {r.qualified: History(history_limit, FIRST_VERSION) for r in self.resources}
        for name in namespaces:
            self.add_namespace(name)

    # --- reading ------------------------------------------------------------------------------------

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """The resource served under that path, if any."""
        return self._by_plural.get((group, version, plural))

    def kind(self, api_version: str, kind: str) -> Resource:
        """The resource of a kind; KeyError if it is not served."""
        return self._by_kind[(api_version, kind)]

    def table(self, resource: Resource) -> dict[Key, Version]:
        """Every object of a resource, by (namespace, name). Not to be changed."""
        return self._tables[resource.qualified]

    def history(self, resource: Resource) -> History:
        """The resource's recent changes."""
        return self._history[resource.qualified]

    def get(self, resource: Resource, namespace: str, name: str) -> Version:
        """The object's newest version, or 404."""
        version = self.table(resource).get((namespace, name))
        if version is None:
            raise not_found(resource, name)
        return version

    def select(self, resource: Resource, namespace: str = "", predicate: Predicate | None = None) -> list[Version]:
        """The newest versions in a namespace ("" = all) that match, in key order."""
        return select_from(self.table(resource), namespace, predicate)

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        predicate: Predicate | None = None,
        start: int | None = None,
        bookmarks: bool = False,
    ) -> Watch:
        """A watch after version `start`; None begins with an ADDED for everything there is."""
        return Watch(self, resource, namespace, predicate, start, bookmarks)

    # --- writing ------------------------------------------------------------------------------------

    def create(
        self,
        resource: Resource,
        namespace: str,
        body: Json,
        caller: Caller,
        *,
        dry_run: bool = False,
        strict: bool = False,
    ) -> Version:
        """Stores a new object. 400, 403 (namespace going), 404 (no namespace), 409, 422."""
        obj = creating.prepared_for_create(self, resource, namespace, body, caller, strict)
        key = (namespace, obj["metadata"]["name"])
        if key in self.table(resource):
            raise already_exists(resource, key[1])
        if dry_run:
            return Version(key, obj, self.resource_version)
        if sum(map(len, self._tables.values())) >= self.object_limit:
            raise failure(507, "InsufficientStorage", "the simulated cluster is full")
        return self.commit(ADDED, resource, key, obj, "create", "", caller)

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        caller: Caller,
        *,
        subresource: str = "",
        patch: bool = False,
        dry_run: bool = False,
        strict: bool = False,
    ) -> Version:
        """Replaces an object by `change(object)`. A write that changes nothing leaves the version as it
        is. When it takes the last finalizer off a deleted object, the object goes. 400, 404, 409, 422."""
        current = self.get(resource, namespace, name)
        verb = "patch" if patch else "update"
        obj = updating.prepared_for_update(
            self, resource, current, change(current.obj), caller, subresource, patch, strict
        )
        if obj is None:
            return current
        if deletion.may_go(obj["metadata"]):
            if not dry_run:
                self.remove(resource, current, obj, "delete" if not patch else verb, caller)
            return Version(current.key, obj, current.resource_version)
        if dry_run:
            return Version(current.key, obj, current.resource_version)
        return self.commit(MODIFIED, resource, current.key, obj, verb, subresource, caller)

    def delete(
        self, resource: Resource, namespace: str, name: str, options: deletion.Options, caller: Caller
    ) -> tuple[Version, bool]:
        """Deletes, or begins to: the version that results, and whether the object is gone. 404, 409."""
        return deletion.delete(self, resource, self.get(resource, namespace, name), options, caller)

    def bind(self, namespace: str, name: str, binding: Json, caller: Caller) -> None:
        """pods/binding: assigns the pod to a node, once."""
        pods = self.kind("v1", "Pod")
        current = self.get(pods, namespace, name)
        obj = updating.bound(self, pods, current, binding)
        self.commit(MODIFIED, pods, current.key, obj, "create", "binding", caller)

    def add_namespace(self, name: str) -> Version:
        """Makes a namespace; 409 if there is one."""
        return self.create(self.kind("v1", "Namespace"), "", {"metadata": {"name": name}}, INTERNAL)

    # --- the one place where state changes ------------------------------------------------------------

    def commit(
        self, kind: str, resource: Resource, key: Key, obj: Json, verb: str, subresource: str, caller: Caller
    ) -> Version:
        """Stores a version under the next resourceVersion, and tells the observers."""
        table = self.table(resource)
        previous = table.get(key)
        version = self._next_version(key, obj)
        if len(version.encoded) > OBJECT_LIMIT:
            raise failure(500, "", "etcdserver: request is too large")
        self.resource_version += 1
        table[key] = version
        self.owners.put(resource, key, version.obj)
        self._record(Change(kind, version, previous), resource, verb, subresource, caller)
        return version

    def remove(self, resource: Resource, current: Version, obj: Json, verb: str, caller: Caller) -> Version:
        """Takes the object out; its last state is `obj`, at the next resourceVersion."""
        version = self._next_version(current.key, obj)
        self.resource_version += 1
        del self.table(resource)[current.key]
        self.owners.drop(resource, current.key, current.obj)
        self._record(Change(DELETED, version, current), resource, verb, "", caller)
        return version

    def _next_version(self, key: Key, obj: Json) -> Version:
        number = self.resource_version + 1
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(number)}}
        return Version(key, stored, number)

    def _record(self, change: Change, resource: Resource, verb: str, subresource: str, caller: Caller) -> None:
        self.history(resource).append(change)
        namespace, name = change.version.key
        write = Write(verb, resource, namespace, name, subresource, caller, change)
        for observer in self.observers:
            observer(write)

    # --- small helpers for the parts --------------------------------------------------------------------

    def timestamp(self) -> str:
        """Now, as metadata has it."""
        return meta.timestamp(self.now())

    def check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        """Creates need a namespace that exists and is not going."""
        if not resource.namespaced:
            return
        if not namespace:
            raise bad_request("an empty namespace may not be set during creation")
        found = self.get(self.kind("v1", "Namespace"), "", namespace)
        if "deletionTimestamp" in found.obj["metadata"]:
            text = (
                f'{resource.qualified} "{name}" is forbidden: unable to create new content in namespace '
                f"{namespace} because it is being terminated"
            )
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            details: Json = {"name": name, "kind": resource.plural, "causes": [cause]}
            if resource.group:
                details["group"] = resource.group
            raise failure(403, "Forbidden", text, details)
