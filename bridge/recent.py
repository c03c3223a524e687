"""The latest BatchSandboxes a watch in this process has seen, whole: so that creating their pods needs no read.

Never used for what destroys, nor for `Paused` (DESIGN §7): those read live. Bounded; what was put out is read from the API server.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec


class Whole(msgspec.Struct, frozen=True):
    """An object as the API server last told it, secrets included: it never leaves the process."""

    uid: str
    resource_version: int
    generation: int
    body: bytes


class Recent:
    """`namespace`, `name` → the latest version seen; the least recently seen go first."""

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._objects: OrderedDict[tuple[str, str], Whole] = OrderedDict()

    def put(self, namespace: str, name: str, whole: Whole) -> None:
        self._objects[namespace, name] = whole
        self._objects.move_to_end((namespace, name))
        if len(self._objects) > self._capacity:
            self._objects.popitem(last=False)

    def drop(self, namespace: str, name: str) -> None:
        self._objects.pop((namespace, name), None)

    def clear(self) -> None:
        """Forget all: the API server's past was replaced, and resourceVersions start lower."""
        self._objects.clear()

    def get(self, namespace: str, name: str) -> Whole | None:
        return self._objects.get((namespace, name))
