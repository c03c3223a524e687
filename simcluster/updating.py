"""Updates: from a request's body to the object that is stored. Who owns which field, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simcluster import metadata as meta
from simcluster import podrules
from simcluster.creating import SYSTEM_OWNED, check_type, metadata_of, object_causes, ordered, read_body
from simcluster.errors import (
    Cause,
    bad_request,
    conflict,
    failure,
    invalid,
    modified,
)
from simcluster.history import Version
from simcluster.resources import Resource
from simcluster.rules import refuse, rules_of
from simcluster.schema import shown

if TYPE_CHECKING:
    from simcluster.caller import Caller
    from simcluster.store import Store

Json = dict[str, Any]


def prepared_for_update(
    store: Store,
    resource: Resource,
    current: Version,
    wanted: Json,
    caller: Caller,
    subresource: str,
    patch: bool,
    strict: bool,
) -> Json | None:
    """The object after an update, or None when nothing would change."""
    old = current.obj
    name = current.key[1]
    _check_identity(resource, current, wanted, patch)
    given = metadata_of(resource, wanted, patch)
    _check_lock(resource, current, given, patch)
    metadata = _merged_metadata(resource, old["metadata"], given, subresource)
    obj = _owned_parts(resource, old, read_body(resource, {**wanted, "metadata": metadata}, strict), subresource)
    obj = ordered(resource, obj)
    refuse(resource, name, _update_causes(resource, old, obj, given, subresource))
    if resource.has_generation and _without(obj) != _without(old):
        obj["metadata"] = {**obj["metadata"], "generation": old["metadata"]["generation"] + 1}
    if _same(old, obj):
        return None
    entries = meta.managed(
        old["metadata"].get("managedFields", []),
        caller.manager,
        resource.api_version,
        subresource,
        store.timestamp(),
    )
    return {**obj, "metadata": {**obj["metadata"], "managedFields": entries}}


def bound(store: Store, pods: Resource, current: Version, binding: Json) -> Json:
    """The pod with its node, and PodScheduled; 409 when it has one already or is going."""
    obj, name = current.obj, current.key[1]
    target = (binding.get("target") or {}).get("name")
    if not target:
        raise invalid(pods, name, [Cause.required("target.name")], what="Binding")
    node = obj["spec"].get("nodeName")
    details = {"name": name, "kind": "pods/binding"}
    uid = (binding.get("metadata") or {}).get("uid")
    if uid and uid != obj["metadata"]["uid"]:
        text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {obj['metadata']['uid']}"
        raise conflict("pods/binding", name, text, details)
    if "deletionTimestamp" in obj["metadata"]:
        text = f"pod {name} is being deleted, cannot be assigned to a host"
        raise conflict("pods/binding", name, text, details)
    if node:
        raise conflict("pods/binding", name, f"pod {name} is already assigned to node {shown(node)}", details)
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": store.timestamp(),
    }
    others = [c for c in obj["status"].get("conditions", []) if c["type"] != "PodScheduled"]
    return {
        **obj,
        "spec": {**obj["spec"], "nodeName": target},
        "status": {**obj["status"], "conditions": [*others, condition]},
    }


def _check_identity(resource: Resource, current: Version, wanted: Json, patch: bool) -> None:
    namespace, name = current.key
    metadata = wanted.get("metadata")
    if isinstance(metadata, dict):
        if patch and not metadata.get("name"):
            text = "was undeterminable: name must be provided"
            raise bad_request(f"the name of the object ({name} based on URL) {text}")
        if metadata.get("name") not in (None, "", name):
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
            )
        if metadata.get("namespace") not in (None, "", namespace):
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if patch and wanted.get("apiVersion") != resource.api_version:
        cause = Cause.invalid("apiVersion", shown(wanted.get("apiVersion")), f"must be {resource.api_version}")
        raise invalid(resource, name, [cause], what=resource.kind)
    check_type(resource, wanted)


def _check_lock(resource: Resource, current: Version, given: Json, patch: bool) -> None:
    version, uid = given.get("resourceVersion"), given.get("uid")
    name = current.key[1]
    if uid and uid != current.obj["metadata"]["uid"] and not patch:
        text = (
            f"StorageError: invalid object, Code: 4, Key: /registry/{resource.plural}/{'/'.join(current.key)}, "
            "ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: "
            f"{uid}, UID in object meta: {current.obj['metadata']['uid']}"
        )
        raise conflict(resource.qualified, name, text, modified(resource, name).status["details"])
    if not version:
        if resource.unconditional_update:
            return
        cause = Cause.invalid("metadata.resourceVersion", "0", "must be specified for an update")
        error = invalid(resource, name, [cause], what=resource.qualified)
        error.status["details"]["kind"] = resource.plural
        raise error
    if not version.isdigit():
        raise failure(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if int(version) != current.resource_version:
        raise modified(resource, name)


def _merged_metadata(resource: Resource, old: Json, given: Json, subresource: str) -> Json:
    if subresource == "status":
        return _status_metadata(resource, old, given)
    new = {k: v for k, v in meta.cleaned(given).items() if k not in SYSTEM_OWNED}
    kept = {k: old[k] for k in (*SYSTEM_OWNED, "name", "namespace") if k in old}
    return {**new, **kept}


_WITH_STATUS = ("labels", "annotations", "finalizers")


def _status_metadata(resource: Resource, old: Json, given: Json) -> Json:
    # A custom resource's status write leaves metadata alone; a built-in one takes labels and the like.
    if resource.is_custom:
        return old
    kept = {key: value for key, value in old.items() if key not in _WITH_STATUS}
    return {**kept, **{key: given[key] for key in _WITH_STATUS if given.get(key)}}


def _owned_parts(resource: Resource, old: Json, new: Json, subresource: str) -> Json:
    """A status write changes the status only, any other write everything but the status."""
    if not resource.status_subresource:
        return new
    base, source = (old, new) if subresource == "status" else (new, old)
    result = {**base, "metadata": new["metadata"]}
    result.pop("status", None)
    if "status" in source and source["status"] is not None:
        result["status"] = source["status"]
    if resource.plural == "pods" and "status" in result:
        result["status"] = podrules.synced_addresses(result["status"])
    return result


def _update_causes(resource: Resource, old: Json, obj: Json, given: Json, subresource: str) -> list[Cause]:
    found = []
    if given.get("uid") and given["uid"] != old["metadata"]["uid"]:
        found.append(Cause.invalid("metadata.uid", shown(given["uid"]), "field is immutable"))
    deletion = given.get("deletionTimestamp")
    if deletion and deletion != old["metadata"].get("deletionTimestamp"):
        found.append(Cause.invalid("metadata.deletionTimestamp", shown(deletion), "field is immutable"))
    found += meta.new_finalizer_causes(old["metadata"], obj["metadata"])
    if subresource == "status":
        return found + (object_causes(resource, obj, subresource) if resource.is_custom else [])
    changes = rules_of(resource).update_causes(old, obj)
    if changes:
        return found + changes
    return found + (
        object_causes(resource, obj, subresource) if resource.is_custom else meta.metadata_causes(obj["metadata"])
    )


def _without(obj: Json) -> Json:
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}


_COMPARED_APART = ("metadata",)


def _same(old: Json, new: Json) -> bool:
    if len(old) != len(new):
        return False
    if any(new.get(k, _MISSING) != v for k, v in old.items() if k not in _COMPARED_APART):
        return False
    before, after = old["metadata"], new["metadata"]
    return len(before) == len(after) and all(after.get(k, _MISSING) == v for k, v in before.items())


_MISSING = object()
