"""A Kubernetes API server as the bridge sees it: bytes in, bytes out. `bridge.kube` speaks HTTP; tests put a simulated store behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec

from bus.resources import Kind

MERGE_PATCH = "application/merge-patch+json"


class Response(msgspec.Struct, frozen=True):
    """An answer of any status. `headers` has lower-case names (`date`, `retry-after`)."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unreachable(Exception):
    """No answer: no connection, a broken one, or none in time. Whether the call took effect is unknown."""


class ClusterClient(Protocol):
    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Response:
        """One call; every HTTP status is a Response. Raises Unreachable."""
        ...

    def watch(self, path: str, *, query: Mapping[str, str], idle_timeout: float) -> AsyncIterator[list[bytes]]:
        """The lines of a watch as they come, each a watch event in JSON, grouped as they arrived.

        Ends when the server ends it. Raises Unreachable when it breaks or is silent for `idle_timeout` seconds (bookmarks count as
        sound), and WatchRefused when the server answers with another status than 200.
        """
        ...


class WatchRefused(Exception):
    def __init__(self, response: Response) -> None:
        super().__init__(f"watch refused with status {response.status}")
        self.response = response


def path_of(kind: Kind, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The path of a collection (all namespaces for ''), an object, or its subresource."""
    path = kind.path + (f"/namespaces/{namespace}" if namespace else "") + f"/{kind.plural}"
    if name:
        path += f"/{name}"
    if subresource:
        path += f"/{subresource}"
    return path
