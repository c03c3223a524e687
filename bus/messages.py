"""The messages of the log (DESIGN §4): bodies as tagged unions, and the headers that each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.ops import Op
from bus.times import parse_time

SCHEMA: Final = 1
"""Version of the bodies here. A reader takes its own and older ones; a newer one is a dead letter, never a guess."""

# Headers
SCHEMA_HEADER: Final = "Sandlog-Schema"
CODE_HEADER: Final = "Sandlog-Code"
CAUSE_HEADER: Final = "Sandlog-Cause"
TIME_HEADER: Final = "Sandlog-Time"
"""RFC 3339, on imported messages: when the message was first appended. Wins over the server's timestamp."""


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class Seen(_Body, frozen=True, tag="seen"):
    """An object as the API server told it: by a watch, or by a list (`listed`).

    `scope` is the watch it came through (`bus.scopes`). `object` is the server's JSON with secret values digested. `facts` is what the bridge
    computed from the whole object first (`templateDigest`, `specDigest`). `reduced`: too large for a message, the spec is left out.
    """

    epoch: int
    resource_version: int
    uid: str
    scope: str
    object: msgspec.Raw
    facts: dict[str, str] = {}
    listed: bool = False
    reduced: bool = False


class Gone(_Body, frozen=True, tag="gone"):
    """An object's deletion, or that it left the scope; confirmed by a live read where it left a label selector."""

    epoch: int
    resource_version: int
    uid: str
    scope: str


Observation = Seen | Gone


class Listed(_Body, frozen=True, tag="list"):
    """A chunk of a complete list of a scope; only all `chunks` of one `id` together count, and only for the scope's `namespace` ('' is all).

    Appended after the objects themselves. `objects`: namespace → [name, uid, resourceVersion] of each.
    """

    id: str
    epoch: int
    scope: str
    resource_version: int
    objects: dict[str, list[tuple[str, str, int]]]
    namespace: str = ""
    chunk: int = 1
    chunks: int = 1


class Ask(_Body, frozen=True, tag="ask"):
    """Somebody needs a list of a scope ('' = of all of the cluster's)."""

    by: str
    reason: str


class Epoch(_Body, frozen=True, tag="epoch"):
    """The cluster's epoch was raised, and why. `cluster_uid` is the uid of the namespace kube-system."""

    epoch: int
    cluster_uid: str
    reason: str


class Command(_Body, frozen=True, tag="command"):
    """One decision. `view` is the log position of the view it was made from; after `expires` (log time, ns) it must not be performed."""

    view: int
    expires: int
    reason: str
    ops: tuple[Op, ...]
    uid: str = ""
    """uid of the aggregate's object, '' where there is none"""


class Created(_Body, frozen=True):
    """What became of one name of a CreatePods."""

    result: str
    uid: str = ""
    resource_version: int = 0
    code: int = 0
    reason: str = ""
    message: str = ""


class Result(_Body, frozen=True):
    """What became of one op. `result` is one of the words below; `names` holds them singly for a CreatePods.

    `message` is bounded and holds no part of an object's body.
    """

    id: str
    result: str
    uid: str = ""
    resource_version: int = 0
    code: int = 0
    reason: str = ""
    message: str = ""
    names: dict[str, Created] = {}


DONE: Final = "done"
"""Performed, or found as wanted."""
CONFLICT: Final = "conflict"
"""The precondition did not hold; nothing was done. `resource_version` is the live one where it is known."""
MISSING: Final = "missing"
"""The target does not exist, or is another object of that name; nothing was done."""
FAILED: Final = "failed"
"""Refused for a reason that a repeat does not mend (a 4xx other than 404, 409, 429), or the name is taken by a foreign object."""
SKIPPED: Final = "skipped"
"""An earlier op of the chain was not done."""
EXPIRED: Final = "expired"
"""The command's time was over before this op began."""
UNFINISHED: Final = "unfinished"
"""No clear answer before the command's time was over: it may have happened."""
UNKNOWN: Final = "unknown"
"""No version that is there knows this op."""
EARLY: Final = "early"
"""By the API server's own clock the time has not come."""
ACCEPTED: Final = "accepted"
"""An Event: taken over, sent when nothing else waits."""


class Outcome(_Body, frozen=True, tag="outcome"):
    """What happened to each op of a command (its sequence)."""

    command: int
    results: tuple[Result, ...]
    by: str = ""


class Tick(_Body, frozen=True, tag="tick"):
    """A wake-up that a decision asked for: time has come to `due` (log time, ns). `view` is the position that asked."""

    due: int
    view: int


class Dead(_Body, frozen=True, tag="dead"):
    """A message that could not be understood or performed: where it stands, who gave up and why. No body."""

    subject: str
    sequence: int
    by: str
    error: str


Body = Seen | Gone | Listed | Ask | Epoch | Command | Outcome | Tick | Dead

_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


class NotUnderstood(Exception):
    """The message is of a newer schema, or is no message of this kind."""


def encode(body: Body) -> bytes:
    return _encoder.encode(body)


def is_newer(headers: Mapping[str, str]) -> bool:
    """Whether a newer version of the code wrote it; what else cannot be understood is garbage."""
    schema = headers.get(SCHEMA_HEADER, "")
    return schema.isascii() and schema.isdigit() and int(schema) > SCHEMA


def decode(data: bytes, headers: Mapping[str, str], type: Any) -> Any:
    """The body of a message, which must be of `type` (one of the classes here, or a union). Raises NotUnderstood."""
    schema = headers.get(SCHEMA_HEADER, "")
    if not schema.isascii() or not schema.isdigit() or int(schema) > SCHEMA:
        raise NotUnderstood(f"schema version {schema[:20]!r}; this is a reader of {SCHEMA}")
    decoder = _decoders.get(type)
    if decoder is None:
        decoder = _decoders[type] = msgspec.json.Decoder(type)
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotUnderstood(str(error)[:200]) from error


def headers(code: str, *, cause: int | None = None) -> dict[str, str]:
    """The headers of a message that this version of the code appends; `cause` is the sequence it follows from."""
    made = {SCHEMA_HEADER: str(SCHEMA), CODE_HEADER: code}
    if cause is not None:
        made[CAUSE_HEADER] = str(cause)
    return made


def time_of(record_time: int, record_headers: Mapping[str, str]) -> int:
    """A message's time in nanoseconds: its time header where it was imported, else the server's timestamp."""
    text = record_headers.get(TIME_HEADER)
    parsed = parse_time(text) if text else None
    return record_time if parsed is None else parsed
