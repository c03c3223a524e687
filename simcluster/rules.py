"""Per kind: what is read, defaulted and validated on create and update. One table, `RULES`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

import msgspec

from simcluster import poddecode, podrules
from simcluster.errors import Cause, invalid, unreadable
from simcluster.resources import Resource
from simcluster.schema import apply_defaults, prune, shown, validate

Json = dict[str, Any]

CONFIG_LIMIT = 1024 * 1024


def _same(obj: Json) -> Json:
    return obj


def _no_problem(_obj: Json) -> str | None:
    return None


def _no_causes(_obj: Json) -> list[Cause]:
    return []


def _no_update_causes(_old: Json, _new: Json) -> list[Cause]:
    return []


class Rules(msgspec.Struct, frozen=True):
    """`problem`: what the decoder refuses (400). `defaults`: the object as stored. `causes`,
    `update_causes`: what validation refuses (422)."""

    problem: Callable[[Json], str | None] = _no_problem
    defaults: Callable[[Json], Json] = _same
    causes: Callable[[Json], list[Cause]] = _no_causes
    update_causes: Callable[[Json, Json], list[Cause]] = _no_update_causes


# --- jobs -----------------------------------------------------------------------------------------

_JOB_DEFAULTS: Json = {
    "parallelism": 1,
    "completions": 1,
    "backoffLimit": 6,
    "completionMode": "NonIndexed",
    "manualSelector": False,
    "suspend": False,
    "podReplacementPolicy": "TerminatingOrFailed",
}


def _job_problem(job: Json) -> str | None:
    spec = job.get("spec") or {}
    template = spec.get("template") or {}
    if not isinstance(spec, dict) or not isinstance(template, dict):
        return "json: cannot unmarshal string into Go struct field Job.spec of type v1.JobSpec"
    return poddecode.spec_problem(template.get("spec"), "PodSpec.spec.template.spec")


def _job_defaults(job: Json) -> Json:
    metadata, spec = job["metadata"], job.get("spec") or {}
    labels = {
        "batch.kubernetes.io/controller-uid": metadata["uid"],
        "batch.kubernetes.io/job-name": metadata["name"],
        "controller-uid": metadata["uid"],
        "job-name": metadata["name"],
    }
    template = spec.get("template") or {}
    template_metadata = template.get("metadata") or {}
    template_labels = {**(template_metadata.get("labels") or {}), **labels}
    pod_spec = {"restartPolicy": "", **(template.get("spec") or {})}
    new_spec = {
        **_JOB_DEFAULTS,
        "selector": {
            "matchLabels": {"batch.kubernetes.io/controller-uid": metadata["uid"]},
        },
        **{k: v for k, v in spec.items() if v is not None},
        "template": {
            "metadata": {**template_metadata, "labels": template_labels},
            "spec": podrules.spec_with_defaults(pod_spec, admitted=False),
        },
    }
    own = metadata.get("labels") or template_labels
    return {**job, "metadata": {**metadata, "labels": own}, "spec": new_spec}


def _job_causes(job: Json) -> list[Cause]:
    spec = job["spec"]
    found = []
    for name in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        if isinstance(spec.get(name), int) and spec[name] < 0:
            text = "must be greater than or equal to 0"
            found.append(Cause.invalid(f"spec.{name}", shown(spec[name]), text))
    pod_spec = spec["template"]["spec"]
    field = "spec.template.spec"
    policy = pod_spec.get("restartPolicy")
    if not policy:
        found.append(Cause.required(f"{field}.restartPolicy", 'valid values: "OnFailure", "Never"'))
    elif policy not in ("OnFailure", "Never"):
        found.append(Cause.unsupported(f"{field}.restartPolicy", shown(policy), ["OnFailure", "Never"]))
    return found + podrules.spec_causes({**pod_spec, "restartPolicy": "Never"}, field)


def _job_update_causes(old: Json, new: Json) -> list[Cause]:
    return [
        Cause.invalid(f"spec.{name}", shown(new["spec"].get(name)), "field is immutable")
        for name in ("template", "selector", "completions", "completionMode")
        if old["spec"].get(name) != new["spec"].get(name)
    ]


# --- events, secrets, config maps, namespaces, leases ------------------------------------------------


def _event_defaults(event: Json) -> Json:
    base: Json = {
        "source": {},
        "firstTimestamp": None,
        "lastTimestamp": None,
        "eventTime": None,
        "reportingComponent": "",
        "reportingInstance": "",
    }
    return {**base, **event}


def _event_problem(event: Json) -> str | None:
    involved = event.get("involvedObject", {})
    if not isinstance(involved, dict):
        return "json: cannot unmarshal string into Go struct field Event.involvedObject of type v1.ObjectReference"
    return None


def _event_causes(event: Json) -> list[Cause]:
    namespace = (event.get("involvedObject") or {}).get("namespace") or "default"
    if namespace != event["metadata"].get("namespace"):
        text = "does not match event.namespace"
        return [Cause.invalid("involvedObject.namespace", shown(namespace), text)]
    return []


def _secret_problem(secret: Json) -> str | None:
    for value in (secret.get("data") or {}).values():
        if not isinstance(value, str):
            return "json: cannot unmarshal number into Go struct field Secret.data of type []uint8"
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return "illegal base64 data at input byte 0"
    return _map_problem(secret.get("stringData"), "Secret.stringData")


def _secret_defaults(secret: Json) -> Json:
    result = {"type": "Opaque", **secret}
    plain = result.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        result["data"] = {**(result.get("data") or {}), **encoded}
    return result


def _map_problem(values: Any, field: str) -> str | None:
    if values is None:
        return None
    wrong = (
        values if not isinstance(values, dict) else next((v for v in values.values() if not isinstance(v, str)), None)
    )
    if wrong is None:
        return None
    kind = "number" if isinstance(wrong, int | float) else "object" if isinstance(wrong, dict) else "array"
    return f"json: cannot unmarshal {kind} into Go struct field {field} of type string"


def _size_causes(obj: Json) -> list[Cause]:
    total = sum(len(str(v)) for v in (obj.get("data") or {}).values())
    return [Cause.too_long("[]", CONFIG_LIMIT)] if total > CONFIG_LIMIT else []


def _namespace_defaults(namespace: Json) -> Json:
    metadata = namespace["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}
    return {
        **namespace,
        "metadata": {**metadata, "labels": labels},
        "spec": {"finalizers": ["kubernetes"]},
        "status": namespace.get("status") or {"phase": "Active"},
    }


RULES: dict[str, Rules] = {
    "pods": Rules(
        poddecode.decode_problem,
        podrules.with_defaults,
        lambda pod: podrules.spec_causes(pod["spec"], "spec"),
        podrules.update_causes,
    ),
    "jobs": Rules(_job_problem, _job_defaults, _job_causes, _job_update_causes),
    "events": Rules(_event_problem, _event_defaults, _event_causes),
    "secrets": Rules(_secret_problem, _secret_defaults, _size_causes),
    "configmaps": Rules(lambda c: _map_problem(c.get("data"), "ConfigMap.data"), causes=_size_causes),
    "namespaces": Rules(defaults=_namespace_defaults),
}
_NONE = Rules()


def rules_of(resource: Resource) -> Rules:
    """The kind's rules; a custom resource has none but its schema."""
    return _NONE if resource.is_custom else RULES.get(resource.plural, _NONE)


def read(resource: Resource, obj: Json, removed: list[str] | None = None) -> Json:
    """The body as the kind knows it: pruned and defaulted by schema, or refused by the decoder (400)."""
    if resource.schema is None:
        problem = rules_of(resource).problem(obj)
        if problem:
            raise unreadable(resource, problem)
        return obj
    # Metadata has its own rules: the schema says nothing of its fields.
    schema = resource.schema
    bare = {key: value for key, value in obj.items() if key != "metadata"}
    pruned = apply_defaults(prune(bare, schema, "", removed), schema)
    return {**pruned, "metadata": obj["metadata"]}


def check_custom(resource: Resource, obj: Json, status_only: bool) -> list[Cause]:
    """Schema violations of a custom resource. A write of the status reports fields below `status`
    without that prefix in its texts, as the server does."""
    schema = resource.schema or {}
    if status_only:
        status_schema = schema.get("properties", {}).get("status", {})
        return validate(obj["status"], status_schema, "status", "") if "status" in obj else []
    return validate({k: v for k, v in obj.items() if k != "metadata"}, schema, "")


def refuse(resource: Resource, name: str, causes: list[Cause]) -> None:
    """Raises 422 when there is any cause."""
    if causes:
        raise invalid(resource, name, causes)
