"""The lines of a watch, decoded as far as a watch needs."""

from __future__ import annotations

import msgspec

from bridge import jsonscan
from bridge.listing import code_of, said
from bridge.observe import Meta, NotAnObject, meta_of

GONE_STATUS = 410


class WatchBroken(Exception):
    """An ERROR event, or one that shows that the watch's position counts no more. `code` is the HTTP code, 0 for none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"code {code}")
        self.code = code


class Event(msgspec.Struct, frozen=True):
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK (or one that is not known yet)."""

    type: str
    object: msgspec.Raw
    meta: Meta
    version: int


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_line = msgspec.json.Decoder(_Line)
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def event_of(line: bytes) -> Event:
    """Raises WatchBroken for an ERROR event, and NotAnObject for what cannot be read."""
    told = _decoded(line)
    if told.type == "ERROR":
        raise WatchBroken(code_of(told.object), said(told.object))
    meta = meta_of(told.object)
    return Event(told.type, told.object, meta, meta.version)


def _decoded(line: bytes) -> _Line:
    try:
        return _line.decode(line)
    except _UNDECODABLE:
        pass
    try:
        members = jsonscan.members(line)
        return _Line(msgspec.json.decode(members["type"], type=str), msgspec.Raw(members["object"]))
    except (*_UNDECODABLE, jsonscan.NotJson, KeyError) as error:
        raise NotAnObject(f"a watch event: {str(error)[:200]}") from error
