"""Watches as cursors over a resource's history: nothing is queued per watcher, so nothing can grow.

A watcher that falls out of the history gets the ERROR event 410, as from the real server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from simcluster.errors import expired
from simcluster.history import ADDED, DELETED, MODIFIED, Change, Version
from simcluster.resources import Resource
from simcluster.selectors import Predicate

if TYPE_CHECKING:
    from simcluster.store import Store

Json = dict[str, Any]

BATCH = 500
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


def event_line(kind: str, encoded: bytes) -> bytes:
    """One line of a watch stream."""
    return b'{"type":"' + kind.encode() + b'","object":' + encoded + b"}\n"


class Watch:
    """A watch of one resource from a version on.

    `poll` gives the next events as encoded lines, [] when there are none yet. `ended` is set after an
    ERROR event: the server closes such a stream. `position` is the version reached.
    """

    def __init__(
        self,
        store: Store,
        resource: Resource,
        namespace: str,
        predicate: Predicate | None,
        start: int | None,
        bookmarks: bool,
    ) -> None:
        self.resource = resource
        self.bookmarks = bookmarks
        self.ended = False
        self._store = store
        self._namespace = namespace
        self._predicate = predicate
        self._initial: list[Version] = []
        self._announce = False
        if start is None:
            self._initial = store.select(resource, namespace, predicate)
            self._initial.reverse()
            self._announce = bookmarks
            self.position = store.resource_version
        else:
            self.position = start

    def poll(self, limit: int = BATCH) -> list[bytes]:
        """The next events, at most about `limit`."""
        if self.ended:
            return []
        if self._initial:
            return self._initial_lines(limit)
        lines = self._announcement()
        history = self._store.history(self.resource)
        if self.position < history.oldest:
            self.ended = True
            error = expired(f"too old resource version: {self.position} ({history.oldest})")
            return [*lines, event_line("ERROR", msgspec.json.encode(error.status))]
        while len(lines) < limit and (changes := history.after(self.position, limit)):
            self.position = changes[-1].resource_version
            lines += [line for change in changes if (line := self._line(change))]
        # A version from the future stays: the server waits until it has come to pass.
        self.position = max(self.position, self._store.resource_version) if not lines else self.position
        return lines

    def pending(self) -> bool:
        """Whether `poll` would give something."""
        history = self._store.history(self.resource)
        return not self.ended and bool(
            self._initial or self._announce or self.position < history.oldest or history.after(self.position, 1)
        )

    def bookmark(self) -> bytes:
        """A BOOKMARK event at the version reached."""
        return self._bookmark({})

    def _bookmark(self, metadata: Json) -> bytes:
        obj = {
            "kind": self.resource.kind,
            "apiVersion": self.resource.api_version,
            "metadata": {"resourceVersion": str(self.position), **metadata},
        }
        return event_line("BOOKMARK", msgspec.json.encode(obj))

    def _initial_lines(self, limit: int) -> list[bytes]:
        lines = [event_line(ADDED, self._initial.pop().encoded) for _ in range(min(limit, len(self._initial)))]
        return lines if self._initial else lines + self._announcement()

    def _announcement(self) -> list[bytes]:
        if not self._announce:
            return []
        self._announce = False
        return [self._bookmark({"annotations": {INITIAL_EVENTS_END: "true"}})]

    def _line(self, change: Change) -> bytes | None:
        version, previous = change.version, change.previous
        if self._namespace and version.key[0] != self._namespace:
            return None
        if self._predicate is None:
            return event_line(change.type, version.encoded)
        was = previous is not None and self._predicate(previous.obj)
        if change.type == DELETED:
            return event_line(DELETED, version.encoded) if was else None
        now = self._predicate(version.obj)
        if now:
            return event_line(MODIFIED if was else ADDED, version.encoded)
        if was and previous is not None:
            return event_line(DELETED, _left(previous, change.resource_version))
        return None


def _left(previous: Version, resource_version: int) -> bytes:
    # The server tells a selector's watcher the last state that matched, at the version of the change.
    metadata = {**previous.obj["metadata"], "resourceVersion": str(resource_version)}
    return msgspec.json.encode({**previous.obj, "metadata": metadata})
