"""A BatchSandbox's template rewritten for a resume, or taken from its source pod for a pause, as merge patches (PAU-27…29, N-06, N-15). Pure."""

from __future__ import annotations

from typing import Any, Final

from bus import names
from bus.ops import RewriteTemplate

INVALID_TEMPLATE: Final = "InvalidTemplate"
POD_LABELS: Final = (names.POOL_NAME, names.POOL_REVISION, names.SANDBOX_NAME, names.POD_INDEX)
"""Labels that say whose a pod is: never part of a template."""
NOT_AT_CREATION: Final = frozenset(
    {"nodeName", "ephemeralContainers", "priority", "preemptionPolicy", "overhead"},
)
"""Of a live pod's spec, what a new pod must not bring: its node; containers that were added to it, which a creation may not have; and
what admission has computed of its PriorityClass (or the default one) and RuntimeClass, which it refuses where the class is another by then."""
ALLOCATION: Final = (names.ALLOC_STATUS, names.ALLOC_RELEASE, names.ALLOC_RELEASED)
NO_ENDPOINTS: Final = "[]"


class CannotRewrite(Exception):
    """The object has not the shape that a template is made of. The text names the place and holds no value."""


def rewrite_patch(sandbox: dict[str, Any], op: RewriteTemplate) -> dict[str, Any]:
    """The merge patch that puts the images in; empty where all stands already. Raises CannotRewrite."""
    patch: dict[str, Any] = {}
    spec = _object(sandbox.get("spec"), "spec")
    if spec.get("template") is not None:
        pod_spec = _object(_object(spec["template"], "spec.template").get("spec"), "spec.template.spec")
        changed = _with_images(pod_spec, op.images) | _with_pull_secret(pod_spec, op.pull_secret)
        if changed:
            patch["spec"] = {"template": {"spec": changed}}
    if op.detach:
        patch = _merged(patch, _detach_patch(sandbox))
    return patch


def detach_patch(sandbox: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """The merge patch that makes a pooled sandbox one with its source pod's template; empty where all stands already. Raises CannotRewrite."""
    spec = _object(sandbox.get("spec"), "spec")
    patch = _detach_patch(sandbox)
    before, after = spec.get("template"), template_of(pod)
    if before != after:
        # A merge patch keeps what it does not name: of an older template nothing may stay.
        whole = difference(before, after) if isinstance(before, dict) else after
        patch = _merged(patch, {"spec": {"template": whole}})
    if _annotations(sandbox).get(names.ENDPOINTS) not in (None, NO_ENDPOINTS):
        patch = _merged(patch, {"metadata": {"annotations": {names.ENDPOINTS: NO_ENDPOINTS}}})
    return patch


def template_of(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod's labels, annotations and spec as a template: all but whose it is and what a new pod must not bring. Raises CannotRewrite.

    Everything else stays word for word (PAU-28, N-06), also what admission had put in: it takes its own token volume, tolerations and pull
    secrets as given, and computes what NOT_AT_CREATION names anew.
    """
    metadata = _object(pod.get("metadata"), "metadata")
    spec = {key: value for key, value in _object(pod.get("spec"), "spec").items() if key not in NOT_AT_CREATION}
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key not in POD_LABELS}
    annotations = metadata.get("annotations") or {}
    kept = {key: value for key, value in (("labels", labels), ("annotations", annotations)) if value}
    return {"metadata": kept, "spec": spec} if kept else {"spec": spec}


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The merge patch (RFC 7386) from one object to another; lists whole."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if key in before and old == value:
            continue
        patch[key] = difference(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return patch


def _with_images(spec: dict[str, Any], images: dict[str, str]) -> dict[str, Any]:
    containers = spec.get("containers")
    if not isinstance(containers, list):
        raise CannotRewrite("spec.template.spec.containers is not a list")
    rewritten = []
    for number, container in enumerate(containers):
        given = _object(container, f"spec.template.spec.containers[{number}]")
        name = given.get("name")
        image = images.get(name) if isinstance(name, str) else None
        rewritten.append(given if image is None else {**given, "image": image})
    return {} if rewritten == containers else {"containers": rewritten}


def _with_pull_secret(spec: dict[str, Any], secret: str) -> dict[str, Any]:
    given = spec.get("imagePullSecrets") or []
    if not isinstance(given, list):
        raise CannotRewrite("spec.template.spec.imagePullSecrets is not a list")
    if not secret or any(isinstance(each, dict) and each.get("name") == secret for each in given):
        return {}
    return {"imagePullSecrets": [*given, {"name": secret}]}


def _detach_patch(sandbox: dict[str, Any]) -> dict[str, Any]:
    """No pool reference, no finalizer of the pool's, and no annotation that names its pods (B40)."""
    patch: dict[str, Any] = {}
    if _object(sandbox.get("spec"), "spec").get("poolRef"):
        patch["spec"] = {"poolRef": None}
    annotations = {key: None for key in ALLOCATION if key in _annotations(sandbox)}
    finalizers = _object(sandbox.get("metadata"), "metadata").get("finalizers") or []
    metadata: dict[str, Any] = {"annotations": annotations} if annotations else {}
    if names.POOL_ALLOCATION in finalizers:
        metadata["finalizers"] = [each for each in finalizers if each != names.POOL_ALLOCATION]
    if metadata:
        patch["metadata"] = metadata
    return patch


def _annotations(sandbox: dict[str, Any]) -> dict[str, Any]:
    return _object(sandbox.get("metadata"), "metadata").get("annotations") or {}


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two merge patches of different fields as one."""
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CannotRewrite(f"{place} is not an object")
    return value
