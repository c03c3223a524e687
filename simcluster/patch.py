"""Merge patch (RFC 7386) and JSON patch (RFC 6902: add, remove, replace, test, move, copy).

Documents are treated as immutable: a patched document shares what the patch leaves alone.
"""

from __future__ import annotations

from typing import Any


class PatchFailed(Exception):
    """A JSON patch that cannot be applied to this document."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386. A null removes; objects merge; anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902 in order; raises PatchFailed, and then nothing has changed."""
    for operation in operations:
        target = _apply(target, operation)
    return target


def _apply(target: Any, operation: dict[str, Any]) -> Any:
    kind = operation.get("op")
    path = _pointer(operation.get("path"))
    if kind == "test":
        if _get(target, path) != operation.get("value"):
            raise PatchFailed("testing value failed")
        return target
    if kind == "remove":
        return _edit(target, path, "remove", None)
    if kind in ("add", "replace"):
        if "value" not in operation:
            raise PatchFailed("missing value")
        return _edit(target, path, kind, operation["value"])
    if kind in ("move", "copy"):
        source = _pointer(operation.get("from"))
        value = _get(target, source)
        if kind == "move":
            target = _edit(target, source, "remove", None)
        return _edit(target, path, "add", value)
    raise PatchFailed(f"unexpected kind: {kind}")


def _pointer(path: Any) -> list[str]:
    if path == "":
        return []
    if not isinstance(path, str) or not path.startswith("/"):
        raise PatchFailed("bad pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _get(target: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(target, dict) and part in target:
            target = target[part]
        elif isinstance(target, list):
            target = target[_index(part, len(target) - 1)]
        else:
            raise PatchFailed(f"missing path: {part}")
    return target


def _index(part: str, highest: int) -> int:
    if not part.isdigit() or int(part) > highest:
        raise PatchFailed(f"bad index: {part}")
    return int(part)


def _edit(target: Any, path: list[str], kind: str, value: Any) -> Any:
    if not path:
        if kind == "remove":
            raise PatchFailed("cannot remove the whole document")
        return value
    if isinstance(target, dict):
        return _edit_object(target, path, kind, value)
    if isinstance(target, list):
        return _edit_list(target, path, kind, value)
    raise PatchFailed(f"missing path: {path[0]}")


def _edit_object(target: dict[str, Any], path: list[str], kind: str, value: Any) -> dict[str, Any]:
    key, rest = path[0], path[1:]
    # The server's library lets "replace" add a key; it minds only a missing parent.
    if (rest or kind == "remove") and key not in target:
        raise PatchFailed(f"missing path: {key}")
    result = dict(target)
    if rest:
        result[key] = _edit(target[key], rest, kind, value)
    elif kind == "remove":
        del result[key]
    else:
        result[key] = value
    return result


def _edit_list(target: list[Any], path: list[str], kind: str, value: Any) -> list[Any]:
    part, rest = path[0], path[1:]
    result = list(target)
    if rest:
        index = _index(part, len(target) - 1)
        result[index] = _edit(target[index], rest, kind, value)
    elif kind == "add":
        index = len(target) if part == "-" else _index(part, len(target))
        result.insert(index, value)
    elif kind == "remove":
        del result[_index(part, len(target) - 1)]
    else:
        result[_index(part, len(target) - 1)] = value
    return result
