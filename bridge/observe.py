"""From an object as the API server told it to the message that the log gets. Pure, but for what it remembers to save work."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from bridge import jsonscan
from bridge.redact import Fields, Redactor, facts, fields_of
from bus import subjects
from bus.messages import Gone, Seen, encode
from bus.scopes import SANDBOXES, Scope

LIMIT: Final = 1024 * 1024
"""Bytes of a message, past which an object is observed without what is large in its spec. NATS takes 1 MiB unless told otherwise; etcd 1.5 MiB."""
HEADROOM: Final = 4096
"""Bytes that the message itself needs beside the object, and its headers."""
SMALL: Final = 1024
"""Bytes of a member of a spec that stays although the object is too large: expiry, replicas and the like are still followed."""
REMEMBERED: Final = 65_536

_ESSENTIAL = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "ownerReferences",
)
"""The metadata that stay of an object that is too large even without its spec; all of them are bounded by the API server."""


class NotAnObject(ValueError):
    """What the server sent cannot be told apart as an object with a name and a resourceVersion."""


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """The part of metadata that a watch needs."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None

    @property
    def version(self) -> int:
        """The resourceVersion as the number it is (KEP-5504). Raises NotAnObject."""
        if not (self.resource_version.isascii() and self.resource_version.isdigit()):
            raise NotAnObject(f"resourceVersion {self.resource_version[:20]!r}")
        return int(self.resource_version)


class _Object(msgspec.Struct, frozen=True):
    metadata: Meta


_object = msgspec.json.Decoder(_Object)
_meta = msgspec.json.Decoder(Meta)
_any = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def meta_of(raw: bytes | msgspec.Raw) -> Meta:
    """An object's metadata, however deep the rest of it nests. Raises NotAnObject."""
    try:
        return _object.decode(raw).metadata
    except _UNDECODABLE:
        pass
    try:
        return _meta.decode(jsonscan.members(bytes(raw))["metadata"])
    except (*_UNDECODABLE, jsonscan.NotJson, KeyError) as error:
        raise NotAnObject(str(error)[:200]) from error


class Message(msgspec.Struct, frozen=True):
    """What to append. `reduced`: the object was too large, what is large in its spec is left out."""

    subject: str
    data: bytes
    reduced: bool = False


class Observer:
    """Makes the observations of one cluster. `limit` is the largest message, in bytes."""

    def __init__(self, cluster: str, redactor: Redactor, *, limit: int = LIMIT) -> None:
        self.partitions = subjects.DEFAULT_PARTITIONS
        self._cluster = cluster
        self._redactor = redactor
        self._limit = limit - HEADROOM
        self._partition_of: dict[tuple[str, int], int] = {}
        self._facts: OrderedDict[str, tuple[int, dict[str, str]]] = OrderedDict()

    def seen(self, scope: Scope, epoch: int, raw: bytes | msgspec.Raw, meta: Meta, *, listed: bool = False) -> Message:
        """The observation of an object. Raises NotAnObject."""
        try:
            fields = fields_of(raw)
        except jsonscan.NotJson as error:
            raise NotAnObject(str(error)) from error
        known = self._facts_of(scope, meta, fields.get("spec"))
        # Items of a list of a built-in kind do not say what they are.
        fields.setdefault("kind", msgspec.Raw(_encode(scope.kind.name)))
        fields.setdefault("apiVersion", msgspec.Raw(_encode(scope.kind.api_version)))
        data, reduced = self._fitting(self._redactor.fields(fields, scope.kind.word))
        body = Seen(epoch, meta.version, meta.uid, scope.word, msgspec.Raw(data), known, listed, reduced)
        return Message(self._subject(scope, meta), encode(body), reduced)

    def gone(self, scope: Scope, epoch: int, meta: Meta) -> Message:
        """The observation of a deletion; `meta` is the event's. Raises NotAnObject."""
        self._facts.pop(meta.uid, None)
        body = Gone(epoch, meta.version, meta.uid, scope.word)
        return Message(self._subject(scope, meta), encode(body))

    def _subject(self, scope: Scope, meta: Meta) -> str:
        if not meta.name or not meta.namespace:
            raise NotAnObject("no name or namespace")
        key = meta.namespace, self.partitions
        partition = self._partition_of.get(key)
        if partition is None:
            if len(self._partition_of) >= REMEMBERED:
                self._partition_of.clear()
            partition = self._partition_of[key] = subjects.partition_of(self._cluster, meta.namespace, self.partitions)
        return subjects.observation(partition, self._cluster, meta.namespace, scope.kind.word, meta.name)

    def _facts_of(self, scope: Scope, meta: Meta, spec: msgspec.Raw | None) -> dict[str, str]:
        """Computed once a generation: a change of the status alone costs nothing."""
        if scope is not SANDBOXES or spec is None:
            return {}
        known = self._facts.get(meta.uid)
        if known is None or known[0] != meta.generation or not meta.generation:
            known = self._facts[meta.uid] = meta.generation, _facts(scope.kind.word, spec)
        self._facts.move_to_end(meta.uid)
        if len(self._facts) > REMEMBERED:
            self._facts.popitem(last=False)
        return known[1]

    def _fitting(self, fields: Fields) -> tuple[bytes, bool]:
        data = _encode(fields)
        if len(data) <= self._limit:
            return data, False
        fields["spec"] = _small(fields.get("spec"))
        data = _encode(fields)
        if len(data) <= self._limit:
            return data, True
        return _encode(
            {"metadata": _essential(fields), "kind": fields["kind"], "apiVersion": fields["apiVersion"]}
        ), True


def _facts(kind: str, spec: msgspec.Raw) -> dict[str, str]:
    try:
        decoded: Any = _any.decode(spec)
    except _UNDECODABLE:
        return {}
    return facts(kind, decoded)


def _small(spec: msgspec.Raw | None) -> msgspec.Raw:
    """The small members of a spec."""
    try:
        members = fields_of(spec or b"{}")
    except jsonscan.NotJson:
        return msgspec.Raw(b"{}")
    return msgspec.Raw(_encode({key: value for key, value in members.items() if len(bytes(value)) <= SMALL}))


def _essential(fields: Fields) -> Fields:
    try:
        metadata = fields_of(fields["metadata"])
    except (jsonscan.NotJson, KeyError):
        return {}
    return {key: value for key, value in metadata.items() if key in _ESSENTIAL}
