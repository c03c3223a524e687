"""What Go's decoder says about pods with fields of the wrong type (400)."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def decode_problem(pod: Json) -> str | None:
    """What Go's decoder says about a field of the wrong type; None when all fit."""
    return spec_problem(pod.get("spec"), "PodSpec.spec")


def spec_problem(spec: Any, struct: str) -> str | None:
    if spec is None:
        return None
    if not isinstance(spec, dict):
        return f"json: cannot unmarshal {_go(spec)} into Go struct field Pod.spec of type v1.PodSpec"
    for name in ("containers", "initContainers"):
        problem = _list_problem(spec.get(name), f"{struct}.{name}", "v1.Container")
        if problem:
            return problem
        for container in spec.get(name) or []:
            if problem := _container_problem(container, f"{struct}.{name}"):
                return problem
    if problem := _list_problem(spec.get("volumes"), f"{struct}.volumes", "v1.Volume"):
        return problem
    for name in ("nodeName", "restartPolicy", "serviceAccountName", "schedulerName"):
        if problem := _scalar_problem(spec.get(name), f"{struct}.{name}", str, "string"):
            return problem
    for name in ("terminationGracePeriodSeconds", "activeDeadlineSeconds"):
        if problem := _scalar_problem(spec.get(name), f"{struct}.{name}", int, "int64"):
            return problem
    return None


def _container_problem(container: Json, field: str) -> str | None:
    for name in ("name", "image", "workingDir"):
        if problem := _scalar_problem(container.get(name), f"{field}.{name}", str, "string"):
            return problem
    for name in ("command", "args"):
        values = container.get(name)
        if values is not None and not isinstance(values, list):
            return _text(values, f"{field}.{name}", "[]string")
        for value in values or []:
            if not isinstance(value, str):
                return _text(value, f"{field}.{name}", "string")
    for name, go in (("env", "v1.EnvVar"), ("volumeMounts", "v1.VolumeMount"), ("ports", "v1.ContainerPort")):
        if problem := _list_problem(container.get(name), f"{field}.{name}", go):
            return problem
    for variable in container.get("env") or []:
        if problem := _scalar_problem(variable.get("value"), f"{field}.env.value", str, "string"):
            return problem
    return None


def _list_problem(values: Any, field: str, go: str) -> str | None:
    if values is None:
        return None
    if not isinstance(values, list):
        return _text(values, field, f"[]{go}")
    wrong = next((value for value in values if not isinstance(value, dict)), None)
    return None if wrong is None else _text(wrong, field, go)


def _scalar_problem(value: Any, field: str, kind: type, go: str) -> str | None:
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return None
    return _text(value, field, go)


def _text(value: Any, field: str, go: str) -> str:
    return f"json: cannot unmarshal {_go(value)} into Go struct field {field} of type {go}"


def _go(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return {str: "string", int: "number", float: "number", list: "array", dict: "object"}.get(type(value), "null")
