"""Lists: at the newest version, at an exact one, in chunks with a continue token."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import msgspec

from simcluster.errors import (
    ApiError,
    Cause,
    bad_request,
    expired,
    failure,
    invalid_options,
    too_large_version,
)
from simcluster.history import Version, select_from
from simcluster.resources import Resource
from simcluster.selectors import Predicate, compile_selector

if TYPE_CHECKING:
    from simcluster.store import Store

Json = dict[str, Any]
Query = dict[str, str]

INCONSISTENT = -1


class _Token(msgspec.Struct, frozen=True):
    """A continue token: the list's version (-1: whatever is newest) and the last key it gave."""

    v: str
    rv: int
    start: str


def selector(resource: Resource, query: Query, name: str = "") -> Predicate | None:
    """The predicate of labelSelector and fieldSelector (and of one name)."""
    fields = query.get("fieldSelector", "")
    if name:
        fields = f"metadata.name={name}" + (f",{fields}" if fields else "")
    return compile_selector(query.get("labelSelector", ""), fields, resource.fields)


def is_true(query: Query, name: str) -> bool:
    """A boolean query parameter, in any of the spellings that the server takes."""
    return query.get(name, "") in ("1", "t", "T", "true", "TRUE", "True")


def integer(query: Query, name: str) -> int:
    """A numeric query parameter; 0 if absent, 400 if no number."""
    text = query.get(name, "")
    try:
        return int(text) if text else 0
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def list_body(store: Store, resource: Resource, namespace: str, query: Query) -> bytes:
    """The encoded list that answers a GET of a collection."""
    predicate = selector(resource, query)
    limit = max(integer(query, "limit"), 0)
    version, start = _version(store, query, limit)
    table = store.table(resource)
    if version not in (None, store.resource_version):
        table = _table_at(store, resource, version, query)
    found = select_from(table, namespace, predicate)
    if start is not None:
        found = [v for v in found if f"/{'/'.join(v.key)}\0" > start]
    at = store.resource_version if version is None else version
    rest = 0
    token = ""
    if limit and len(found) > limit:
        rest = len(found) - limit
        found = found[:limit]
        token = _encode(at, f"/{'/'.join(found[-1].key)}\0")
    return encode_list(resource, found, at, token, rest if predicate is None else 0)


def _version(store: Store, query: Query, limit: int) -> tuple[int | None, str | None]:
    """The version to list at (None: the newest) and the key to start after."""
    text, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    token = query.get("continue", "")
    if match and not text:
        detail = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        raise invalid_options("ListOptions", [Cause.forbidden("resourceVersionMatch", detail)])
    if match not in ("", "Exact", "NotOlderThan"):
        cause = Cause.unsupported("resourceVersionMatch", f'"{match}"', ["Exact", "NotOlderThan", ""])
        raise invalid_options("ListOptions", [cause])
    if token:
        if text not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        decoded = _decode(token)
        return (None if decoded.rv == INCONSISTENT else decoded.rv), decoded.start
    if text in ("", "0"):
        if match == "Exact":
            detail = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            raise invalid_options("ListOptions", [Cause.forbidden("resourceVersionMatch", detail)])
        return None, None
    if not text.isdigit():
        problem = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: resourceVersion: {problem}")
    asked = int(text)
    if asked > store.resource_version:
        raise too_large_version(asked, store.resource_version)
    return (asked if match == "Exact" or (limit and not match) else None), None


def _table_at(store: Store, resource: Resource, version: int | None, query: Query) -> dict[Any, Version]:
    history = store.history(resource)
    table = store.table(resource)
    if version is None:
        return table
    if version >= history.oldest:
        return history.state_at(table, version)
    if "continue" in query:
        raise _continue_expired(_decode(query["continue"]).start)
    raise expired("The resourceVersion for the provided list is too old.")


def _continue_expired(start: str) -> ApiError:
    error = expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of "
        "the results. Continuing with the provided token results in an inconsistent list - objects that were "
        "created, modified, or deleted between the time the first chunk was returned and now may show up in the "
        "list."
    )
    error.status["metadata"] = {"continue": _encode(INCONSISTENT, start)}
    return error


def _encode(version: int, start: str) -> str:
    raw = msgspec.json.encode(_Token("meta.k8s.io/v1", version, start))
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(token: str) -> _Token:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        return msgspec.json.decode(raw, type=_Token)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise bad_request("invalid continue token: continue key is not valid") from None


def encode_list(resource: Resource, items: list[Version], version: int, token: str = "", rest: int = 0) -> bytes:
    """A list object from the items' cached bytes. Items of built-in kinds come without kind and
    apiVersion, as the real server sends them."""
    metadata: Json = {"resourceVersion": str(version)}
    if token or resource.is_custom:
        metadata["continue"] = token
    if rest:
        metadata["remainingItemCount"] = rest
    head = msgspec.json.encode(
        {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
    )
    bodies = [item.encoded for item in items]
    if not resource.is_custom:
        type_part = msgspec.json.encode({"kind": resource.kind, "apiVersion": resource.api_version})
        cut = len(type_part)
        bodies = [b"{" + body[cut:] for body in bodies]
    return head[:-1] + b',"items":[' + b",".join(bodies) + b"]}"


def watch_start(store: Store, query: Query) -> int | None:
    """The version a watch starts after; None for synthetic ADDED events. 422 or 500 as the server."""
    text = query.get("resourceVersion", "")
    initial = is_true(query, "sendInitialEvents")
    if initial and query.get("resourceVersionMatch") != "NotOlderThan":
        detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid_options("ListOptions", [Cause.forbidden("resourceVersionMatch", detail)])
    if text and not text.isdigit():
        problem = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise failure(500, "", f'resourceVersion: Invalid value: "{text}": {problem}')
    if initial or text in ("", "0"):
        return None
    return int(text)
