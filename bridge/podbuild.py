"""Pods of a template-mode BatchSandbox, as the executor creates them (controller-behaviour.md §0.3, DESIGN §6, §7). Pure.

A builder is made once per (uid, generation) of a sandbox: the pods without a shard patch share the encoding of the template's spec.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bridge.strategic_merge import PatchError, apply
from bus import names
from bus.resources import BATCH_SANDBOX, POD

INVALID_TEMPLATE = "InvalidTemplate"
INVALID_SHARD_PATCH = "InvalidShardPatch"

_encoder = msgspec.json.Encoder()


class CannotBuild(Exception):
    """No pod can be built. `reason` is one of the two above; `message` names the place and holds no value."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class PodBuilder:
    """Builds the pods of one generation of a BatchSandbox.

    `sandbox` is the whole object as decoded JSON; `template_digest` its `bus.hashing.template_digest`. Raises CannotBuild if none of
    its pods can be built.
    """

    def __init__(self, sandbox: dict[str, Any], template_digest: str) -> None:
        metadata = sandbox["metadata"]
        spec = _object(sandbox.get("spec"), INVALID_TEMPLATE, "spec")
        self._name = metadata["name"]
        self._namespace = metadata["namespace"]
        self._digest = template_digest
        self._owner = {
            "apiVersion": BATCH_SANDBOX.api_version,
            "kind": BATCH_SANDBOX.name,
            "name": self._name,
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        self._template = _checked(spec.get("template"), INVALID_TEMPLATE, "spec.template")
        patches = spec.get("shardPatches")
        if patches is not None and not isinstance(patches, list):
            raise CannotBuild(INVALID_SHARD_PATCH, "spec.shardPatches is not a list")
        self._patches: list[Any] = patches or []
        self._spec: msgspec.Raw | None = None

    def build(self, name: str, index: int) -> dict[str, Any]:
        """The pod of this index as an object; its parts are shared, not to be changed. Raises CannotBuild."""
        template = self._patched(index)
        return self._pod(name, index, template, template["spec"])

    def encode(self, name: str, index: int) -> bytes:
        """The pod of this index as JSON. Raises CannotBuild."""
        template = self._patched(index)
        if template is not self._template:
            return _encoder.encode(self._pod(name, index, template, template["spec"]))
        if self._spec is None:
            self._spec = msgspec.Raw(_encoder.encode(self._template["spec"]))
        return _encoder.encode(self._pod(name, index, template, self._spec))

    def _patched(self, index: int) -> dict[str, Any]:
        patch = self._patches[index] if 0 <= index < len(self._patches) else None
        if patch is None:
            return self._template
        place = f"spec.shardPatches[{index}]"
        try:
            patched = apply(self._template, patch)
        except PatchError as error:
            raise CannotBuild(INVALID_SHARD_PATCH, f"{place}: {error}") from None
        except RecursionError:
            raise CannotBuild(INVALID_SHARD_PATCH, f"{place}: is nested too deeply") from None
        return _checked(patched, INVALID_SHARD_PATCH, f"{place}: the patched template")

    def _pod(self, name: str, index: int, template: dict[str, Any], spec: Any) -> dict[str, Any]:
        given = template.get("metadata") or {}
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {
                **(given.get("labels") or {}),
                names.POD_INDEX: str(index),
                names.SANDBOX_NAME: names.label_value(self._name),
            },
            "annotations": {**(given.get("annotations") or {}), names.TEMPLATE_DIGEST: self._digest},
            "ownerReferences": [self._owner],
        }
        if given.get("finalizers"):
            metadata["finalizers"] = given["finalizers"]
        return {"apiVersion": POD.api_version, "kind": POD.name, "metadata": metadata, "spec": spec}


def build_pod(sandbox: dict[str, Any], name: str, index: int, template_digest: str) -> dict[str, Any]:
    """One pod, for whoever needs only one. Raises CannotBuild."""
    return PodBuilder(sandbox, template_digest).build(name, index)


def _checked(template: Any, reason: str, place: str) -> dict[str, Any]:
    """`template`, if it has the shape that a pod is made from; what is inside its spec is the API server's to judge."""
    whole = _object(template, reason, place)
    _object(whole.get("spec"), reason, f"{place}.spec")
    metadata = whole.get("metadata")
    if metadata is None:
        return whole
    fields = _object(metadata, reason, f"{place}.metadata")
    for key in ("labels", "annotations"):
        if fields.get(key) is not None:
            _object(fields[key], reason, f"{place}.metadata.{key}")
    if not isinstance(fields.get("finalizers") or [], list):
        raise CannotBuild(reason, f"{place}.metadata.finalizers is not a list")
    return whole


def _object(value: Any, reason: str, place: str) -> dict[str, Any]:
    if value is None:
        raise CannotBuild(reason, f"{place} is missing")
    if not isinstance(value, dict):
        raise CannotBuild(reason, f"{place} is not an object")
    return value
