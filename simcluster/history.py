"""Versions of objects and the bounded history of their changes, per resource.

A version's object is never changed once stored; its JSON is encoded once, when first asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import msgspec

Json = dict[str, Any]
Key = tuple[str, str]

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"


class Version:
    """One version of one object. `key` is (namespace, name)."""

    __slots__ = ("_encoded", "key", "obj", "resource_version")

    def __init__(self, key: Key, obj: Json, resource_version: int) -> None:
        self.key = key
        self.obj = obj
        self.resource_version = resource_version
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        """The object as JSON; `kind` and `apiVersion` come first."""
        if self._encoded is None:
            self._encoded = msgspec.json.encode(self.obj)
        return self._encoded


class Change:
    """One write: what the object became (`version`; a deletion's last state) and was (`previous`)."""

    __slots__ = ("previous", "resource_version", "type", "version")

    def __init__(self, kind: str, version: Version, previous: Version | None) -> None:
        self.type = kind
        self.version = version
        self.previous = previous
        self.resource_version = version.resource_version


class History:
    """The last changes of one resource, oldest first. At most `limit` are kept (trimmed in batches, so
    that a trim costs nothing per write). `oldest`: changes after this version are all here."""

    def __init__(self, limit: int, oldest: int) -> None:
        self.limit = limit
        self.oldest = oldest
        self._changes: list[Change] = []
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self._changes)

    def append(self, change: Change) -> None:
        self._changes.append(change)
        self._versions.append(change.resource_version)
        if len(self._changes) > self.limit + max(self.limit // 4, 1):
            self.trim(len(self._changes) - self.limit)

    def trim(self, count: int) -> None:
        """Forgets the oldest `count` changes."""
        count = min(count, len(self._changes))
        if count:
            self.oldest = self._versions[count - 1]
            del self._changes[:count]
            del self._versions[:count]

    def compact(self, resource_version: int) -> None:
        """Forgets every change up to and including that version."""
        self.trim(bisect_right(self._versions, resource_version))
        self.oldest = max(self.oldest, resource_version)

    def after(self, resource_version: int, limit: int) -> list[Change]:
        """Changes with a higher version, oldest first, at most `limit`."""
        start = bisect_right(self._versions, resource_version)
        return self._changes[start : start + limit]

    def state_at(self, current: dict[Key, Version], resource_version: int) -> dict[Key, Version]:
        """The resource's objects as they were at that version (at or after `oldest`)."""
        start = bisect_right(self._versions, resource_version)
        if start == len(self._changes):
            return current
        state = dict(current)
        for change in reversed(self._changes[start:]):
            if change.previous is None:
                state.pop(change.version.key, None)
            else:
                state[change.previous.key] = change.previous
        return state


def select_from(table: dict[Key, Version], namespace: str, predicate: Callable[[Json], bool] | None) -> list[Version]:
    """Versions of a table by namespace and predicate, in key order."""
    keys = sorted(key for key in table if not namespace or key[0] == namespace)
    found = [table[key] for key in keys]
    return found if predicate is None else [v for v in found if predicate(v.obj)]
