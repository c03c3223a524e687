"""Keeps secrets out of the log: a secret-bearing value becomes a keyed digest, so that the log shows *that* it changed, never the value.

Secret-bearing are (DESIGN §4): env values wherever they stand, values of HTTP headers in probes (the server puts its egress token there,
server-client.md appendix B), `last-applied-configuration`, annotations whose key looks like a token's, and those on a configured list.
Where a shape is not what it should be, the whole of it is digested. Command and arguments stay.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from bridge import jsonscan
from bus import hashing, names

MARK: Final = "sha256-hmac:"
DEPTH: Final = 64
"""How deep an object is looked through; what lies deeper is digested whole."""

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
TOKEN_LIKE: Final = ("token", "secret", "passw", "auth", "credential", "api-key", "apikey", "private-key")
OWN: Final = frozenset(
    (
        names.ENDPOINTS,
        names.ALLOC_STATUS,
        names.ALLOC_RELEASE,
        names.ALLOC_RELEASED,
        names.TEMPLATE_DIGEST,
        names.FAILED_SPEC_DIGEST,
    )
)
"""Annotations that decisions are made from: never digested, whatever the list says."""

_TYPED = frozenset(("pod", "job", "sandboxsnapshot"))
"""Kinds whose shape the server enforces: there a secret stands only under the words of `_TRIGGERS`."""
_TRIGGERS = (b'"env"', b'"httpHeaders"', b'"annotations"', b"\\u")
_ENDINGS = ("env", "annotations", "httpheaders")
_STRUCTURE = frozenset(
    (
        "template",
        "shardpatches",
        "tasktemplate",
        "shardtaskpatches",
        "spec",
        "metadata",
        "process",
        "containers",
        "initcontainers",
        "ephemeralcontainers",
    )
)
"""Members that are objects or arrays of objects; anything else there may be a whole pod written as a text."""
_PATCH_WORDS = frozenset(("delete", "replace", "merge"))
_REFERENCES = {
    "secretKeyRef": ("name", "key", "optional"),
    "configMapKeyRef": ("name", "key", "optional"),
    "fieldRef": ("apiVersion", "fieldPath"),
    "resourceFieldRef": ("containerName", "resource", "divisor"),
    "fileKeyRef": ("volumeName", "path", "key", "optional"),
}
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_KEYS_KEPT = 4096

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder()


class _ManagedField(msgspec.Struct, omit_defaults=True):
    manager: str = ""
    operation: str = ""
    time: str = ""


_managed_fields = msgspec.json.Decoder(list[_ManagedField])

Fields = dict[str, msgspec.Raw]


def fields_of(raw: bytes | msgspec.Raw) -> Fields:
    """An object's members, undecoded, however deep it nests. Raises jsonscan.NotJson if it is no object."""
    try:
        return _members.decode(raw)
    except _UNDECODABLE:
        return {key: msgspec.Raw(value) for key, value in jsonscan.members(bytes(raw)).items()}


class Redactor:
    """`key` is the digests' key, the same for all bridges; `annotations` are further texts that a secret annotation's key contains."""

    def __init__(self, key: bytes, annotations: Iterable[str] = ()) -> None:
        if not key:
            raise ValueError("the key of the digests is empty")
        self._key = key
        self._parts = (*TOKEN_LIKE, *(text.lower() for text in annotations if text))
        self._known_keys: dict[str, bool] = {}
        self._handlers: dict[str, Callable[[Any], Any]] = {
            "env": self._entries,
            "httpheaders": self._entries,
            "annotations": self._annotations,
        }

    def redacted(self, raw: bytes | msgspec.Raw, kind: str) -> bytes:
        """The object's JSON as the log may have it. `kind` is its word (`pod`). Raises jsonscan.NotJson if it is no object."""
        return _encode(self.fields(fields_of(raw), kind))

    def fields(self, fields: Fields, kind: str) -> Fields:
        """The same for an object taken apart; changes `fields` and returns them."""
        typed = kind in _TYPED
        for key, value in fields.items():
            if key == "metadata":
                fields[key] = self._metadata(value)
            elif key == "spec":
                fields[key] = self._spec(value, typed)
            elif key not in ("apiVersion", "kind"):
                fields[key] = self._part(value, typed or key == "status")
        return fields

    def digest(self, value: Any) -> str:
        """Equal for equal values (texts as they are, everything else as canonical JSON)."""
        if isinstance(value, str):
            data = b"s" + value.encode(errors="surrogatepass")
        elif isinstance(value, bytes):
            data = b"b" + value
        else:
            data = b"j" + _canonical(value)
        return MARK + hmac.digest(self._key, data, "sha256").hex()[:16]

    def _digested(self, raw: bytes | msgspec.Raw) -> msgspec.Raw:
        return msgspec.Raw(_encode(self.digest(bytes(raw))))

    def _metadata(self, raw: msgspec.Raw) -> msgspec.Raw:
        try:
            metadata = _members.decode(raw)
        except _UNDECODABLE:
            return self._digested(raw)
        annotations = metadata.get("annotations")
        managed = metadata.get("managedFields")
        if annotations is None and managed is None:
            return raw
        if annotations is not None:
            metadata["annotations"] = self._annotations_part(annotations)
        if managed is not None:
            metadata["managedFields"] = _reduced_managed_fields(managed)
        return msgspec.Raw(_encode(metadata))

    def _annotations_part(self, raw: msgspec.Raw) -> msgspec.Raw:
        try:
            value = _any.decode(raw)
        except _UNDECODABLE:
            return self._digested(raw)
        return msgspec.Raw(_encode(self._annotations(value)))

    def _part(self, raw: msgspec.Raw, typed: bool) -> msgspec.Raw:
        """A member of the object. `typed`: left as it is if no word in it announces a secret."""
        if typed and not _announced(bytes(raw)):
            return raw
        try:
            return msgspec.Raw(_encode(self._walk(_any.decode(raw), 0)))
        except _UNDECODABLE:
            return self._digested(raw)

    def _spec(self, raw: msgspec.Raw, typed: bool) -> msgspec.Raw:
        """A spec; where it cannot be decoded, member by member, so that a deep one does not take the others along."""
        data = bytes(raw)
        if data == b"null" or (typed and not _announced(data)):
            return raw
        try:
            spec = _any.decode(raw)
            return msgspec.Raw(_encode(self._walk(spec, 0))) if isinstance(spec, dict) else self._digested(raw)
        except _UNDECODABLE:
            pass
        try:
            members = jsonscan.members(data)
        except jsonscan.NotJson:
            return self._digested(raw)
        return msgspec.Raw(_encode({key: self._spec_member(key, value) for key, value in members.items()}))

    def _spec_member(self, key: str, raw: bytes) -> Any:
        try:
            return self._member(key, _any.decode(raw), 0)
        except _UNDECODABLE:
            return self.digest(raw)

    def _walk(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            if depth > DEPTH:
                return self.digest(value)
            for key, child in value.items():
                value[key] = self._member(key, child, depth)
            if "value" in value and ("name" in value or "path" in value):
                value["value"] = self._secret(value["value"])
        elif isinstance(value, list):
            if depth > DEPTH:
                return self.digest(value)
            for index, child in enumerate(value):
                if isinstance(child, dict | list):
                    value[index] = self._walk(child, depth + 1)
        return value

    def _member(self, key: str, child: Any, depth: int) -> Any:
        lower = key.lower()
        if lower.endswith(_ENDINGS):
            for ending, handler in self._handlers.items():
                if lower.endswith(ending):
                    return handler(child)
        if isinstance(child, dict):
            return self._walk(child, depth + 1)
        if lower in _STRUCTURE:
            return self._structure(child, depth)
        if isinstance(child, list):
            return self._walk(child, depth + 1)
        return child

    def _structure(self, value: Any, depth: int) -> Any:
        if not isinstance(value, list):
            return self._secret(value)
        return [self._walk(each, depth + 2) if isinstance(each, dict) else self._secret(each) for each in value]

    def _secret(self, value: Any) -> Any:
        return None if value is None else self.digest(value)

    def _entries(self, value: Any) -> Any:
        """A list of `{name, value | valueFrom}`; of any other shape nothing but names stays."""
        if isinstance(value, list):
            return [self._entry(each) if isinstance(each, dict) else self._secret(each) for each in value]
        if isinstance(value, dict):
            return {key: self._secret(each) for key, each in value.items()}
        return self._secret(value)

    def _entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in entry.items():
            if (key == "name" and isinstance(value, str)) or (key == "$patch" and value in _PATCH_WORDS):
                made[key] = value
            elif key == "valueFrom" and isinstance(value, dict):
                made[key] = self._reference(value)
            else:
                made[key] = self._secret(value)
        return made

    def _reference(self, value: dict[str, Any]) -> dict[str, Any]:
        """Where an env value comes from: names and keys of other objects, no values."""
        made: dict[str, Any] = {}
        for kind, target in value.items():
            known = _REFERENCES.get(kind, ())
            if isinstance(target, dict) and known:
                made[kind] = {
                    k: v if k in known and isinstance(v, str | bool) else self._secret(v) for k, v in target.items()
                }
            else:
                made[kind] = self._secret(target)
        return made

    def _annotations(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return self._secret(value)
        for key, text in value.items():
            if not isinstance(text, str) or self._is_secret(key):
                value[key] = self._secret(text)
        return value

    def _is_secret(self, key: str) -> bool:
        known = self._known_keys.get(key)
        if known is None:
            lower = key.lower()
            known = key not in OWN and (key == LAST_APPLIED or any(part in lower for part in self._parts))
            if len(self._known_keys) >= _KEYS_KEPT:
                self._known_keys.clear()
            self._known_keys[key] = known
        return known


def _announced(data: bytes) -> bool:
    """Whether some word in it announces a secret, or might when unescaped."""
    return any(trigger in data for trigger in _TRIGGERS)


def _reduced_managed_fields(raw: msgspec.Raw) -> msgspec.Raw:
    """Who wrote when; not which fields."""
    try:
        return msgspec.Raw(_encode(_managed_fields.decode(raw)))
    except _UNDECODABLE:
        return msgspec.Raw(b"[]")


def facts(kind: str, spec: Any) -> dict[str, str]:
    """What decisions need of the whole spec, computed before it is redacted; {} where there is nothing, or the spec is no object."""
    if kind != "batchsandbox" or not isinstance(spec, dict):
        return {}
    return {"templateDigest": hashing.template_digest(spec), "specDigest": hashing.spec_digest(spec)}
