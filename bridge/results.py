"""Results of ops from the API server's answers. From a write's answer only uid and resourceVersion are decoded."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bridge.api_errors import classify, refusal
from bridge.calls import Answer, TimeOver
from bus.messages import CONFLICT, DONE, EXPIRED, UNFINISHED, Result
from bus.ops import Op
from bus.resources import ObjectMeta

GONE = "Gone"
DELETING = "Deleting"
REPLACED = "Replaced"
"""Another object of that name is there."""
STANDS = "Stands"
"""A repeated command found its wish fulfilled: by an earlier delivery, nobody knows at which version."""


class Context(msgspec.Struct, frozen=True):
    """What all ops of a command share. `expires` is log time, ns; `repeated`: the command was delivered before, so its ops may have been done.

    `written`: uid → the object as an earlier op of this command has just written it, the API server's answer: as good as a live read. It
    is filled while the command is performed, and never leaves it. `began`: the loop's time at which the executor took the command up.
    """

    namespace: str
    expires: int
    repeated: bool = False
    began: float | None = None
    written: dict[str, bytes] = msgspec.field(default_factory=dict)


class Stored(msgspec.Struct, frozen=True):
    """What of an object tells which one it is and where it stands. rv 0: not told."""

    uid: str
    resource_version: int


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _Live(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


_stored = msgspec.json.Decoder(_Object)
_live = msgspec.json.Decoder(_Live)


def version_of(text: str) -> int:
    """A resourceVersion as a number (KEP-5504: they are comparable decimal integers); 0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() else 0


def stored_of(body: bytes) -> Stored:
    """uid and resourceVersion of a written object; of an answer that holds none (a Status), empty."""
    try:
        metadata = _stored.decode(body).metadata
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Stored("", 0)
    return Stored(metadata.uid, version_of(metadata.resource_version))


def metadata_of(body: bytes) -> ObjectMeta | None:
    """An object's metadata as read live; None if the body cannot be read."""
    try:
        return _live.decode(body).metadata
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def done(op: Op, uid: str, resource_version: int, reason: str = "") -> Result:
    return Result(op.id, DONE, uid=uid, resource_version=resource_version, reason=reason)


def conflict(op: Op, uid: str, resource_version: int, reason: str = "") -> Result:
    return Result(op.id, CONFLICT, uid=uid, resource_version=resource_version, code=409, reason=reason)


def refused(op: Op, uid: str, answer: Answer, secrets: Iterable[str] = ()) -> Result:
    """A refusal that is an outcome: conflict, missing or failed, as its status says."""
    told = refusal(answer.status, answer.body, secrets)
    return Result(op.id, classify(answer.status), uid=uid, code=told.code, reason=told.reason, message=told.message)


def time_over(op: Op, uid: str, over: TimeOver) -> Result:
    return Result(op.id, UNFINISHED if over.unclear else EXPIRED, uid=uid)
