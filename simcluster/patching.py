"""A PATCH request's body, by its media type, as a change of an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from simcluster.errors import bad_request, failure
from simcluster.patch import PatchFailed, json_patch, merge_patch
from simcluster.resources import Resource

Json = dict[str, Any]
Change = Callable[[Json], Json]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


def change(resource: Resource, content_type: str, body: bytes) -> Change:
    """The function that the patch is; 400 if it cannot be read, 415 for a type the kind does not take."""
    media = content_type.partition(";")[0].strip().lower()
    if media == JSON_PATCH:
        return _operations(body)
    strategic = media == STRATEGIC_PATCH and not resource.is_custom
    if media != MERGE_PATCH and not strategic:
        accepted = [JSON_PATCH, MERGE_PATCH, *([] if resource.is_custom else [STRATEGIC_PATCH])]
        text = "the body of the request was in an unknown format - accepted media types include: "
        raise failure(415, "UnsupportedMediaType", text + ", ".join(accepted))
    patch = decoded(body, "error decoding patch: ")
    if not isinstance(patch, dict):
        kind = "array" if isinstance(patch, list) else "string"
        text = f"json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
        raise bad_request(f"error decoding patch: {text}")
    if strategic:
        _refuse_keyed_lists(patch)
    return lambda old: merge_patch(old, patch)


def _operations(body: bytes) -> Change:
    operations = decoded(body, "error decoding patch: ")
    if not isinstance(operations, list) or not all(isinstance(op, dict) for op in operations):
        kind = "object" if isinstance(operations, dict) else "string"
        text = f"json: cannot unmarshal {kind} into Go value of type []handlers.jsonPatchOp"
        raise bad_request(f"error decoding patch: {text}")

    def apply(old: Json) -> Json:
        try:
            new = json_patch(old, operations)
        except PatchFailed:
            text = "the server rejected our request due to an error in our request"
            raise failure(422, "Invalid", text, {}) from None
        if not isinstance(new, dict):
            raise bad_request("error decoding patch: not an object")
        return new

    return apply


def _refuse_keyed_lists(patch: Json) -> None:
    # Lists merge by key in a strategic patch; that is not simulated, and must not pass for a merge patch.
    if any(isinstance(v, list) or k.startswith("$") for k, v in _leaves(patch)):
        raise failure(415, "UnsupportedMediaType", "the simulated cluster has no strategic merge of lists")


def _leaves(value: Json) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, child in value.items():
        found += _leaves(child) if isinstance(child, dict) else [(key, child)]
    return found


def decoded(body: bytes, prefix: str) -> Any:
    """The JSON value; 400 with that prefix when it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise bad_request(f"{prefix}{problem}") from None
