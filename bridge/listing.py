"""Complete lists: read page by page at one resourceVersion, and told to the log in chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from bridge import jsonscan
from bridge.cluster import ClusterClient, Response, path_of
from bridge.observe import Meta
from bus.messages import Listed
from bus.scopes import Scope

PAGE: Final = 500
TIMEOUT: Final = 60.0
_ENTRY: Final = 96
"""Bytes of an object's entry beside its name: uid, resourceVersion and punctuation."""

Objects = dict[str, list[tuple[str, str, int]]]


class Refused(Exception):
    """The API server answered with another status than 200, or with what is no list. `status` is 0 for the latter."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Page(msgspec.Struct, frozen=True):
    """Part of a list. `resource_version` is the same on all of its pages."""

    resource_version: int
    items: list[msgspec.Raw]


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0


_list = msgspec.json.Decoder(_List)
_list_meta = msgspec.json.Decoder(_ListMeta)
_status = msgspec.json.Decoder(_Status)
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


async def pages(client: ClusterClient, scope: Scope, namespace: str, *, size: int = PAGE) -> AsyncIterator[Page]:
    """A consistent list (no resourceVersion asked for: the newest). Raises Refused and Unreachable."""
    query = {"labelSelector": scope.selector} if scope.selector else {}
    if size:
        query["limit"] = str(size)
    while True:
        response = await client.request("GET", path_of(scope.kind, namespace), query=query, timeout=TIMEOUT)
        if response.status != 200:
            raise Refused(response.status, said(response.body))
        found = _decoded(response)
        version = found.metadata.resource_version
        if not (version.isascii() and version.isdigit()):
            raise Refused(0, f"a list with resourceVersion {version[:20]!r}")
        yield Page(int(version), found.items or [])
        if not found.metadata.continue_:
            return
        query = {**query, "continue": found.metadata.continue_}


def said(body: bytes | msgspec.Raw) -> str:
    """The message of a Status, bounded; '' if there is none."""
    try:
        status = _status.decode(body)
    except _UNDECODABLE:
        return ""
    return (status.message or status.reason)[:300]


def code_of(status: bytes | msgspec.Raw) -> int:
    """The HTTP code that a Status in an ERROR event carries; 0 if there is none."""
    try:
        return _status.decode(status).code
    except _UNDECODABLE:
        return 0


def _decoded(response: Response) -> _List:
    try:
        return _list.decode(response.body)
    except _UNDECODABLE:
        pass
    try:
        members = jsonscan.members(response.body)
        items = [msgspec.Raw(item) for item in jsonscan.elements(members.get("items", b"[]"))]
        return _List(_list_meta.decode(members["metadata"]), items)
    except (*_UNDECODABLE, jsonscan.NotJson, KeyError) as error:
        raise Refused(0, "the answer is no list") from error


class Collected:
    """The objects of a list as they come, for its messages."""

    def __init__(self) -> None:
        self._objects: Objects = {}
        self.count = 0

    def add(self, meta: Meta) -> None:
        self._objects.setdefault(meta.namespace, []).append((meta.name, meta.uid, meta.version))
        self.count += 1

    def messages(
        self, id: str, epoch: int, scope: Scope, resource_version: int, namespace: str, limit: int
    ) -> list[Listed]:
        """The list as one message or more, each at most `limit` bytes; an empty list is one."""
        parts = chunks(self._objects, limit)
        return [
            Listed(id, epoch, scope.word, resource_version, part, namespace, number, len(parts))
            for number, part in enumerate(parts, 1)
        ]


def chunks(objects: Objects, limit: int) -> list[Objects]:
    """Cut so that each part takes at most `limit` bytes as JSON (names and namespaces are ASCII); one part if there is nothing."""
    parts: list[Objects] = [{}]
    left = limit
    for namespace, entries in objects.items():
        for entry in entries:
            needed = len(entry[0]) + _ENTRY
            if namespace not in parts[-1]:
                needed += len(namespace) + 8
            if needed > left and parts[-1]:
                parts.append({})
                left = limit
                needed = len(entry[0]) + _ENTRY + len(namespace) + 8
            parts[-1].setdefault(namespace, []).append(entry)
            left -= needed
    return parts
