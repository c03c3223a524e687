"""Rules of object metadata that hold for every kind: names, labels, finalizers, owners, managedFields."""

from __future__ import annotations

import random
import re
from datetime import datetime
from typing import Any

from simcluster.errors import Cause
from simcluster.schema import shown

Json = dict[str, Any]

MAX_MANAGED_FIELDS = 10
ANNOTATIONS_LIMIT = 256 * 1024
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATED_BASE = 63 - 5
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = _LABEL + r"(\." + _LABEL + r")*"
_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_KEY = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_RE = {
    name: re.compile(f"^(?:{text})$")
    for name, text in {"label": _LABEL, "subdomain": _SUBDOMAIN, "value": _VALUE, "key": _KEY}.items()
}

_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_SUBDOMAIN}')"
)
LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
    f"end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for "
    f"validation is '{_VALUE}')"
)
_KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_KEY}')"
)


def timestamp(now: datetime) -> str:
    """A metadata time: RFC 3339, UTC, whole seconds."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime:
    """The inverse of `timestamp`."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def generated_name(base: str, rng: random.Random) -> str:
    """generateName: the base, cut to leave room, and five characters that spell no words."""
    return base[:_MAX_GENERATED_BASE] + random_suffix(rng)


def random_suffix(rng: random.Random) -> str:
    return "".join(rng.choice(_ALPHABET) for _ in range(5))


def random_uid(rng: random.Random) -> str:
    """A version 4 UUID from the store's own random source."""
    digits = f"{(rng.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62)) | (0x4 << 76) | (0x2 << 62):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_label_name(text: str) -> bool:
    """DNS-1123 label, at most 63."""
    return len(text) <= 63 and bool(_RE["label"].match(text))


def name_causes(name: str, label_only: bool = False) -> list[Cause]:
    """metadata.name: a DNS-1123 subdomain of at most 253 (a label of at most 63 for namespaces)."""
    if not name:
        return [Cause.required("metadata.name", "name or generateName is required")]
    if label_only and "." in name:
        return [Cause.invalid("metadata.name", shown(name), "must not contain dots")]
    limit, rule, text = (63, "label", LABEL_TEXT) if label_only else (253, "subdomain", _SUBDOMAIN_TEXT)
    found = []
    if len(name) > limit:
        message = f"must be no more than {limit} {'bytes' if label_only else 'characters'}"
        found.append(Cause.invalid("metadata.name", shown(name), message))
    if not _RE[rule].match(name):
        found.append(Cause.invalid("metadata.name", shown(name), text))
    return found


def metadata_causes(metadata: Json) -> list[Cause]:
    """Labels, annotations and owners."""
    found = label_causes(metadata.get("labels") or {}, "metadata.labels")
    annotations: Json = metadata.get("annotations") or {}
    for key in annotations:
        found += _key_causes(key, "metadata.annotations")
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > ANNOTATIONS_LIMIT:
        found.append(Cause.too_long("metadata.annotations", ANNOTATIONS_LIMIT))
    return found + _owner_causes(metadata.get("ownerReferences") or [])


def label_causes(labels: Json, field: str) -> list[Cause]:
    found = []
    for key, value in labels.items():
        found += _key_causes(key, field)
        if len(value) > 63:
            found.append(Cause.invalid(field, shown(value), "must be no more than 63 bytes"))
        elif not _RE["value"].match(value):
            found.append(Cause.invalid(field, shown(value), _VALUE_TEXT))
    return found


def _key_causes(key: str, field: str) -> list[Cause]:
    prefix, slash, name = key.rpartition("/")
    if slash and not (prefix and len(prefix) <= 253 and _RE["subdomain"].match(prefix.lower())):
        return [Cause.invalid(field, shown(key), "prefix part " + _SUBDOMAIN_TEXT)]
    if not name:
        return [Cause.invalid(field, shown(key), "name part must be non-empty")]
    if len(name) > 63:
        return [Cause.invalid(field, shown(key), "name part must be no more than 63 bytes")]
    return [] if _RE["key"].match(name) else [Cause.invalid(field, shown(key), _KEY_TEXT)]


def _owner_causes(owners: list[Json]) -> list[Cause]:
    found = []
    texts = {"apiVersion": "version must not be empty"}
    for owner in owners:
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                text = texts.get(name, "must not be empty")
                found.append(Cause.invalid(f"metadata.ownerReferences.{name}", '""', text))
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        first, second = (f"{o.get('kind')}/{o.get('name')}" for o in controllers[:2])
        text = (
            f'Only one reference can have Controller set to true. Found "true" in references for {first} and {second}'
        )
        found.append(Cause.invalid("metadata.ownerReferences", shown(owners), text))
    return found


def new_finalizer_causes(old: Json, new: Json) -> list[Cause]:
    """While an object is being deleted, finalizers can only go."""
    if "deletionTimestamp" not in old:
        return []
    before = old.get("finalizers") or []
    added = [name for name in new.get("finalizers") or [] if name not in before]
    if not added:
        return []
    names = ", ".join(shown(name) for name in added)
    text = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{names}}}"
    return [Cause.forbidden("metadata.finalizers", text)]


def type_problem(metadata: Any) -> str | None:
    """What Go's decoder says about metadata of the wrong shape; None when it fits."""
    if not isinstance(metadata, dict):
        return f"json: cannot unmarshal {_go_type(metadata)} into Go value of type v1.ObjectMeta"
    for name in ("name", "namespace", "generateName", "uid", "resourceVersion"):
        if metadata.get(name) is not None and not isinstance(metadata[name], str):
            return _mismatch(metadata[name], name, "string")
    for name in ("labels", "annotations"):
        values = metadata.get(name)
        if values is not None and not isinstance(values, dict):
            return _mismatch(values, name, "map[string]string")
        for value in (values or {}).values():
            if value is not None and not isinstance(value, str):
                return _mismatch(value, name, "string")
    for name, kind, go in (("finalizers", str, "string"), ("ownerReferences", dict, "v1.OwnerReference")):
        values = metadata.get(name)
        if values is not None and not isinstance(values, list):
            return _mismatch(values, name, f"[]{go}")
        for value in values or []:
            if not isinstance(value, kind):
                return _mismatch(value, name, go)
    return None


def _mismatch(value: Any, name: str, go: str) -> str:
    return f"json: cannot unmarshal {_go_type(value)} into Go struct field ObjectMeta.metadata.{name} of type {go}"


def _go_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    names = {str: "string", int: "number", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def cleaned(metadata: Json) -> Json:
    """Metadata without nulls and empty collections, which the server does not store."""
    return {key: value for key, value in metadata.items() if value not in (None, {}, [], "")}


def managed(before: list[Json], manager: str, api_version: str, subresource: str, time: str) -> list[Json]:
    """managedFields after a write: one entry per manager and subresource, the newest last.

    The field sets stay empty: nothing here does server-side apply, but clients must cope with the
    entries being there.
    """
    entry: Json = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": {},
    }
    if subresource:
        entry["subresource"] = subresource
    others = [e for e in before if e.get("manager") != manager or e.get("subresource", "") != subresource]
    return [*others[-(MAX_MANAGED_FIELDS - 1) :], entry]
