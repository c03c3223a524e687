"""Creates: from a request's body to the new object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcluster import metadata as meta
from simcluster import podrules
from simcluster.errors import Cause, bad_request, failure, invalid, unreadable
from simcluster.resources import Resource
from simcluster.rules import check_custom, read, refuse, rules_of
from simcluster.schema import shown

if TYPE_CHECKING:
    from simcluster.caller import Caller
    from simcluster.store import Store

Json = dict[str, Any]

SYSTEM_OWNED = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)


def prepared_for_create(
    store: Store, resource: Resource, namespace: str, body: Json, caller: Caller, strict: bool
) -> Json:
    """The new object, complete but for its resourceVersion."""
    check_type(resource, body)
    given = metadata_of(resource, body)
    if given.get("namespace", "") not in ("", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    name = given.get("name") or ""
    if not name and given.get("generateName"):
        name = meta.generated_name(given["generateName"], store.rng)
    store.check_namespace(resource, namespace, name)
    if given.get("resourceVersion"):
        raise failure(500, "", "resourceVersion should not be set on objects to be created")
    refuse(resource, name, meta.name_causes(name, label_only=resource.plural == "namespaces"))
    metadata: Json = {"name": name}
    if resource.namespaced:
        metadata["namespace"] = namespace
    metadata["uid"] = meta.random_uid(store.rng)
    metadata["creationTimestamp"] = store.timestamp()
    if resource.has_generation:
        metadata["generation"] = 1
    own = {k: v for k, v in meta.cleaned(given).items() if k not in SYSTEM_OWNED}
    metadata = {**own, **metadata}
    obj = {**body, "metadata": metadata}
    if resource.status_subresource:
        obj.pop("status", None)
    obj = read_body(resource, obj, strict)
    obj = ordered(resource, rules_of(resource).defaults(obj))
    _set_initial_status(resource, obj)
    refuse(resource, name, object_causes(resource, obj, ""))
    entry = meta.managed([], caller.manager, resource.api_version, "", store.timestamp())
    return {**obj, "metadata": {**obj["metadata"], "managedFields": entry}}


def check_type(resource: Resource, body: Json) -> None:
    kind, api_version = body.get("kind"), body.get("apiVersion")
    if resource.is_custom and not kind:
        text = shown(body)
        head = text if len(text) <= 30 else text[:30] + " ..."
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get version/kind; "
            f"Object 'Kind' is missing ({head})"
        )
    if (api_version or resource.is_custom) and api_version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({api_version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    if kind and kind != resource.kind:
        _wrong_kind(resource, body, kind)


def _wrong_kind(resource: Resource, body: Json, kind: str) -> None:
    if not resource.is_custom:
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind}): {kind}")
    metadata = body.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    cause = Cause.invalid("kind", shown(kind), f"must be {resource.kind}")
    error = invalid(resource, name, [cause], what=f"{kind}.{resource.group}")
    error.status["details"]["kind"] = kind
    raise error


def metadata_of(resource: Resource, body: Json, patch: bool = False) -> Json:
    metadata = body.get("metadata")
    if metadata is None:
        return {}
    problem = meta.type_problem(metadata)
    if problem is None:
        return dict(metadata)
    if patch and resource.is_custom:
        cause = Cause.invalid("patch", shown(shown(body)), problem)
        error = invalid(resource, "", [cause], what=" ")
        error.status["message"] = f' "" is invalid: patch: {cause.text}'
        raise error
    raise unreadable(resource, problem)


def read_body(resource: Resource, obj: Json, strict: bool) -> Json:
    removed: list[str] = []
    obj = read(resource, obj, removed)
    if strict and removed:
        fields = ", ".join(f'unknown field "{path}"' for path in removed)
        raise unreadable(resource, f"strict decoding error: {fields}")
    return obj


def _set_initial_status(resource: Resource, obj: Json) -> None:
    if resource.plural == "pods":
        obj["status"] = podrules.initial_status(obj)
    elif resource.plural == "jobs":
        obj["status"] = {}


def ordered(resource: Resource, obj: Json) -> Json:
    rest = {k: v for k, v in obj.items() if k not in ("kind", "apiVersion", "metadata")}
    return {
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": obj["metadata"],
        **rest,
    }


def object_causes(resource: Resource, obj: Json, subresource: str) -> list[Cause]:
    found = meta.metadata_causes(obj["metadata"])
    if resource.is_custom:
        return found + check_custom(resource, obj, subresource == "status")
    return found + rules_of(resource).causes(obj)
