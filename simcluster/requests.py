"""From an HTTP request to the store and back, with no sockets: what the skin and the direct client share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from simcluster import discovery, listing, patching
from simcluster.caller import Caller
from simcluster.deletion import Options
from simcluster.errors import (
    ApiError,
    bad_request,
    failure,
    invalid_options,
    method_not_allowed,
    not_found,
    success,
)
from simcluster.errors import Cause as _Cause
from simcluster.patching import decoded
from simcluster.resources import Resource
from simcluster.schema import shown
from simcluster.store import Store
from simcluster.watch import Watch

Json = dict[str, Any]

REQUEST_LIMIT = 3 * 1024 * 1024
_HEALTH = ("/readyz", "/healthz", "/livez")


class Request(msgspec.Struct, frozen=True):
    """One request. `query` has the last value of each parameter."""

    method: str
    path: str
    query: dict[str, str] = {}
    body: bytes = b""
    content_type: str = "application/json"
    caller: Caller = Caller()


class Response(msgspec.Struct, frozen=True):
    """An answer; `retry_after` becomes a Retry-After header (seconds)."""

    status: int
    body: bytes
    content_type: str = "application/json"
    retry_after: int | None = None


class Target(msgspec.Struct, frozen=True):
    """What a path points at."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class NoSuchPath(Exception):
    """The server knows nothing under that path."""


def target_of(store: Store, path: str) -> Target | None:
    """The object or collection of a path; None if the path is not of that form."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    resource = store.find(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        raise NoSuchPath(path)
    name, subresource = [*rest[1:], "", ""][:2]
    return Target(resource, namespace, name, subresource)


def verb_of(method: str, target: Target, query: dict[str, str]) -> str:
    """The Kubernetes verb, as audit logs and authorization name it."""
    if method == "GET":
        if listing.is_true(query, "watch"):
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, "")


def handle(store: Store, request: Request) -> Response | Watch:
    """Performs a request; failures are Responses too. A watch is for the caller to poll."""
    try:
        return _handle(store, request)
    except NoSuchPath:
        return Response(404, b"404 page not found\n", "text/plain; charset=utf-8")
    except ApiError as error:
        return refusal(error)


def refusal(error: ApiError) -> Response:
    """The answer that tells of an error."""
    return Response(error.code, msgspec.json.encode(error.status), retry_after=error.retry_after)


def _handle(store: Store, request: Request) -> Response | Watch:
    if request.path in _HEALTH:
        return Response(200, b"ok", "text/plain; charset=utf-8")
    if len(request.body) > REQUEST_LIMIT:
        text = f"Request entity too large: limit is {REQUEST_LIMIT}"
        raise failure(413, "RequestEntityTooLarge", text)
    document = discovery.document(request.path.rstrip("/") or "/", store.resources)
    if document is not None:
        return Response(200, msgspec.json.encode(document))
    target = target_of(store, request.path)
    if target is None:
        raise NoSuchPath(request.path)
    handler = _HANDLERS.get(verb_of(request.method, target, request.query))
    if handler is None:
        raise method_not_allowed()
    _check_subresource(target)
    return handler(store, target, request)


def _check_subresource(target: Target) -> None:
    known = ["status"] if target.resource.status_subresource else []
    if target.resource.plural == "pods":
        known.append("binding")
    if target.subresource and target.subresource not in known:
        raise not_found(target.resource, target.name)


# --- verbs ----------------------------------------------------------------------------------------


def _get(store: Store, target: Target, request: Request) -> Response:
    _found_in_namespace(target)
    return Response(200, store.get(target.resource, target.namespace, target.name).encoded)


def _list(store: Store, target: Target, request: Request) -> Response:
    return Response(200, listing.list_body(store, target.resource, target.namespace, request.query))


def _watch(store: Store, target: Target, request: Request) -> Watch:
    predicate = listing.selector(target.resource, request.query, target.name)
    bookmarks = listing.is_true(request.query, "allowWatchBookmarks")
    start = listing.watch_start(store, request.query)
    return store.watch(target.resource, target.namespace, predicate, start, bookmarks)


def _create(store: Store, target: Target, request: Request) -> Response:
    body = _object(target.resource, request)
    if target.subresource == "binding":
        store.bind(target.namespace, target.name, body, request.caller)
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return Response(201, msgspec.json.encode(status))
    if target.name or (target.resource.namespaced and not target.namespace):
        raise method_not_allowed()
    version = store.create(
        target.resource,
        target.namespace,
        body,
        request.caller,
        dry_run=_dry_run(request),
        strict=request.query.get("fieldValidation") == "Strict",
    )
    return Response(201, version.encoded)


def _update(store: Store, target: Target, request: Request) -> Response:
    _named(target)
    body = _object(target.resource, request)
    return _write(store, target, request, lambda _old: body, patch=False)


def _patch(store: Store, target: Target, request: Request) -> Response:
    _named(target)
    change = patching.change(target.resource, request.content_type, request.body)
    return _write(store, target, request, change, patch=True)


def _write(store: Store, target: Target, request: Request, change: Any, patch: bool) -> Response:
    version = store.update(
        target.resource,
        target.namespace,
        target.name,
        change,
        request.caller,
        subresource=target.subresource,
        patch=patch,
        dry_run=_dry_run(request),
        strict=request.query.get("fieldValidation") == "Strict",
    )
    return Response(200, version.encoded)


def _delete(store: Store, target: Target, request: Request) -> Response:
    if target.subresource:
        raise method_not_allowed()
    options = _delete_options(request)
    version, gone = store.delete(target.resource, target.namespace, target.name, options, request.caller)
    if gone and not target.resource.returns_deleted:
        uid = version.obj["metadata"]["uid"]
        return Response(200, msgspec.json.encode(success(target.resource, target.name, uid)))
    return Response(200, version.encoded)


def _delete_collection(store: Store, target: Target, request: Request) -> Response:
    options = _delete_options(request)
    predicate = listing.selector(target.resource, request.query)
    at = store.resource_version
    found = store.select(target.resource, target.namespace, predicate)
    for version in found:
        try:
            store.delete(target.resource, *version.key, options, request.caller)
        except ApiError as error:
            if error.code != 404:
                raise
    return Response(200, listing.encode_list(target.resource, found, at))


# --- reading requests -----------------------------------------------------------------------------


def _named(target: Target) -> None:
    if not target.name or target.subresource == "binding":
        raise method_not_allowed()
    _found_in_namespace(target)


def _found_in_namespace(target: Target) -> None:
    if target.subresource == "binding":
        raise method_not_allowed()
    if target.resource.namespaced and not target.namespace:
        raise NoSuchPath(target.name)


def _dry_run(request: Request) -> bool:
    value = request.query.get("dryRun", "")
    if value not in ("", "All"):
        raise invalid_options("CreateOptions", [_Cause.unsupported("dryRun", shown(value), ["All"])])
    return value == "All"


def _object(resource: Resource, request: Request) -> Json:
    head = f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get version/kind; "
    body = decoded(request.body, head + "json parse error: ")
    if not isinstance(body, dict):
        kind = "array" if isinstance(body, list) else "string"
        raise bad_request(f"{head}json parse error: json: cannot unmarshal {kind}")
    return body


def _delete_options(request: Request) -> Options:
    body = decoded(request.body, "couldn't read delete options: ") if request.body.strip() else {}
    if not isinstance(body, dict):
        raise bad_request("couldn't read delete options: not an object")
    return Options.read(body, request.query)


_HANDLERS: dict[str, Callable[[Store, Target, Request], Response | Watch]] = {
    "get": _get,
    "list": _list,
    "watch": _watch,
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
    "deletecollection": _delete_collection,
}
