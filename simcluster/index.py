"""Who owns whom, by uid, and what the garbage collector has to look at."""

from __future__ import annotations

from typing import Any

from simcluster.history import Key
from simcluster.resources import Resource

Json = dict[str, Any]
Place = tuple[Resource, Key]


class OwnerIndex:
    """Live uids, dependents by owner uid, and the places that changed in a way garbage collection cares
    about. Costs nothing for writes of objects without owners or dependents."""

    def __init__(self) -> None:
        self.live: dict[str, Place] = {}
        self.dependents: dict[str, dict[tuple[str, Key], Resource]] = {}
        self.dirty: dict[tuple[str, Key], Resource] = {}
        self.ending_namespaces: dict[str, None] = {}
        self._owners: dict[tuple[str, Key], tuple[str, ...]] = {}

    def put(self, resource: Resource, key: Key, obj: Json) -> None:
        """After a create or update."""
        metadata = obj["metadata"]
        place = (resource.qualified, key)
        self.live[metadata["uid"]] = (resource, key)
        owners = tuple(owner["uid"] for owner in metadata.get("ownerReferences", ()))
        if owners != self._owners.get(place, ()):
            self._forget(place)
            self._owners[place] = owners
            for uid in owners:
                self.dependents.setdefault(uid, {})[place] = resource
        if owners or "deletionTimestamp" in metadata:
            self.dirty[place] = resource
        if "deletionTimestamp" in metadata and resource.qualified == "namespaces":
            self.ending_namespaces[key[1]] = None

    def drop(self, resource: Resource, key: Key, obj: Json) -> None:
        """After a removal: the object's dependents, and its own owners, are to be looked at."""
        metadata = obj["metadata"]
        place = (resource.qualified, key)
        self.live.pop(metadata["uid"], None)
        self.dirty.pop(place, None)
        self.dirty.update(self.dependents.get(metadata["uid"], {}))
        self._forget(place)
        if resource.qualified == "namespaces":
            self.ending_namespaces.pop(key[1], None)

    def _forget(self, place: tuple[str, Key]) -> None:
        for uid in self._owners.pop(place, ()):
            if uid in self.live:
                # A foreground deletion of the owner may have waited for this one.
                owner, key = self.live[uid]
                self.dirty[(owner.qualified, key)] = owner
            found = self.dependents.get(uid, {})
            found.pop(place, None)
            if not found:
                self.dependents.pop(uid, None)
