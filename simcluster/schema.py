"""Structural schemas (the part of OpenAPI v3 that CRDs may use): prune, default, validate.

Only what our CRDs use is understood: type, format (date-time, int32, int64), minimum, maximum, enum,
required, properties, items, default, nullable, x-kubernetes-preserve-unknown-fields,
x-kubernetes-int-or-string, x-kubernetes-list-type/-map-keys. Error texts are the server's.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from simcluster.errors import Cause

Json = dict[str, Any]

_DATE_TIME = re.compile(
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    r"([Zz]|[+-]([01]\d|2[0-3]):?[0-5]\d)$"
)
_RANGES = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def prune(value: Any, schema: Json, path: str = "", removed: list[str] | None = None) -> Any:
    """The value without fields that the schema does not know; equal parts are shared, not copied.

    `removed` collects the paths that went (for fieldValidation=Strict).
    """
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    if isinstance(value, dict):
        return _prune_object(value, schema, path, removed)
    if isinstance(value, list) and "items" in schema:
        items = [prune(v, schema["items"], f"{path}[{i}]", removed) for i, v in enumerate(value)]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def _prune_object(value: Json, schema: Json, path: str, removed: list[str] | None) -> Json:
    properties: Json = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    result: Json | None = None
    for key, old in value.items():
        where = f"{path}.{key}" if path else key
        known = properties.get(key, extra if isinstance(extra, dict) else None)
        if known is None and extra is not True:
            if removed is not None:
                removed.append(where)
            result = dict(value) if result is None else result
            del result[key]
            continue
        new = prune(old, known or {"x-kubernetes-preserve-unknown-fields": True}, where, removed)
        if new is not old:
            result = dict(value) if result is None else result
            result[key] = new
    return value if result is None else result


def apply_defaults(value: Any, schema: Json) -> Any:
    """The value with the schema's defaults for what is absent, or null and not nullable."""
    if isinstance(value, dict):
        result = value
        for key, child in schema.get("properties", {}).items():
            old = value.get(key)
            absent = old is None and not (key in value and child.get("nullable"))
            new = child["default"] if absent and "default" in child else old
            if new is not None:
                new = apply_defaults(new, child)
            if new is not old:
                result = {**result, key: new}
        return result
    if isinstance(value, list) and "items" in schema:
        items = [apply_defaults(item, schema["items"]) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def validate(value: Any, schema: Json, path: str, body: str | None = None) -> list[Cause]:
    """Every violation, in the server's words. `path` is the field, `body` its name within the text
    (the server validates a status on its own, so its texts leave `status.` out)."""
    found: list[Cause] = []
    duplicates: list[Cause] = []
    _check(value, schema, path, path if body is None else body, found, duplicates)
    return found + duplicates


def _check(value: Any, schema: Json, path: str, body: str, found: list[Cause], duplicates: list[Cause]) -> None:
    cause = _type_error(value, schema, path, body)
    if cause:
        found.extend(cause)
        return
    if value is None:
        return
    _check_scalar(value, schema, path, body, found)
    if isinstance(value, dict):
        for key, child in schema.get("properties", {}).items():
            if key in value:
                _check(value[key], child, _join(path, key), _join(body, key), found, duplicates)
        for key in schema.get("required", ()):
            if key not in value:
                found.append(Cause.required(_join(path, key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            child = schema.get("items", {})
            _check(item, child, f"{path}[{index}]", f"{body}[{index}]", found, duplicates)
        duplicates.extend(_duplicates(value, schema, path))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _type_name(value: Any) -> str:
    names: tuple[tuple[type, str], ...] = (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
        (dict, "object"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _type_error(value: Any, schema: Json, path: str, body: str) -> list[Cause]:
    actual = _type_name(value)
    if value is None and schema.get("nullable"):
        return []
    if schema.get("x-kubernetes-int-or-string"):
        wanted, fits = "integer,string", actual in ("integer", "string")
    else:
        wanted = schema.get("type", "")
        fits = not wanted or actual == wanted or (wanted == "number" and actual == "integer")
    if not fits and wanted == "integer" and isinstance(value, float):
        return _not_whole(value, schema, path, body)
    if not fits:
        text = f'{body} in body must be of type {wanted}: "{actual}"'
        return [Cause.wrong_type(path, f'"{actual}"', text)]
    limits = _RANGES.get(schema.get("format", ""))
    if limits and isinstance(value, int) and not limits[0] <= value <= limits[1]:
        return [_out_of_range(schema, path)]
    return []


def _not_whole(value: float, schema: Json, path: str, body: str) -> list[Cause]:
    if value.is_integer():
        return []
    wanted = schema.get("format", "integer")
    text = f'{body} in body must be of type {wanted}: "float64"'
    return [Cause.wrong_type(path, '"float64"', text), _out_of_range(schema, path)]


def _out_of_range(schema: Json, path: str) -> Cause:
    form = schema.get("format", "int64")
    text = f"Checked value must be of type integer with format {form} in {path}"
    return Cause.invalid("<nil>", '""', text)


def shown(value: Any) -> str:
    """A value as messages show it: strings quoted, the rest as JSON."""
    return msgspec.json.encode(value).decode()


def _check_scalar(value: Any, schema: Json, path: str, body: str, found: list[Cause]) -> None:
    if "enum" in schema and value not in schema["enum"]:
        found.append(Cause.unsupported(path, shown(value), [str(v) for v in schema["enum"]]))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            text = f"{body} in body should be greater than or equal to {schema['minimum']}"
            found.append(Cause.invalid(path, shown(value), text))
        if "maximum" in schema and value > schema["maximum"]:
            text = f"{body} in body should be less than or equal to {schema['maximum']}"
            found.append(Cause.invalid(path, shown(value), text))
    if schema.get("format") == "date-time" and isinstance(value, str) and not _DATE_TIME.match(value):
        text = f"{body} in body must be of type date-time: {shown(value)}"
        found.append(Cause.wrong_type(path, shown(value), text))


def _duplicates(items: list[Any], schema: Json, path: str) -> list[Cause]:
    if schema.get("x-kubernetes-list-type") != "map":
        return []
    keys = schema["x-kubernetes-list-map-keys"]
    seen: set[str] = set()
    found = []
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        key = shown({name: item[name] for name in keys if name in item})
        if key in seen:
            found.append(Cause.duplicate(f"{path}[{index}]", key))
        seen.add(key)
    return found
