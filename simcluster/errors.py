"""Failures as the API server words them: a `Status` body per error.

Texts and reasons were compared with kube-apiserver 1.36.
"""

from __future__ import annotations

from typing import Any

from simcluster.resources import Resource

Json = dict[str, Any]


class ApiError(Exception):
    """A request the API server refuses; `status` is the `Status` object that it answers."""

    def __init__(self, code: int, status: Json, retry_after: int | None = None) -> None:
        super().__init__(f"{code} {status.get('reason', '')}: {status.get('message', '')}")
        self.code = code
        self.status = status
        self.retry_after = retry_after


def failure(
    code: int, reason: str, message: str, details: Json | None = None, retry_after: int | None = None
) -> ApiError:
    """A `Status` failure; `reason` "" is left out, as the server does for plain internal errors."""
    status: Json = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
    }
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    status["code"] = code
    return ApiError(code, status, retry_after)


def success(resource: Resource, name: str, uid: str) -> Json:
    """What a delete answers when the object is gone at once."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {**_details(resource, name), "uid": uid},
    }


def _details(resource: Resource, name: str, kind: str | None = None) -> Json:
    details: Json = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = kind or resource.plural
    return details


def not_found(resource: Resource, name: str) -> ApiError:
    """404: no object of that name."""
    return failure(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def already_exists(resource: Resource, name: str) -> ApiError:
    """409: the name is taken."""
    message = f'{resource.qualified} "{name}" already exists'
    return failure(409, "AlreadyExists", message, _details(resource, name))


def modified(resource: Resource, name: str) -> ApiError:
    """409: the optimistic lock (resourceVersion in the body) failed."""
    return conflict(
        resource.qualified,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
        _details(resource, name),
    )


def precondition(resource: Resource, name: str, text: str) -> ApiError:
    """409: a delete's precondition does not hold."""
    return conflict(resource.qualified_kind, name, text, _details(resource, name, resource.kind))


def conflict(what: str, name: str, text: str, details: Json) -> ApiError:
    """409 in the server's usual wording."""
    return failure(409, "Conflict", f'Operation cannot be fulfilled on {what} "{name}": {text}', details)


def bad_request(message: str) -> ApiError:
    """400: the request cannot be read."""
    return failure(400, "BadRequest", message)


def unreadable(resource: Resource, text: str) -> ApiError:
    """400: the body has a value of the wrong type for a built-in kind."""
    return bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {text}'
    )


def expired(message: str) -> ApiError:
    """410: the version asked for is older than the history kept."""
    return failure(410, "Expired", message)


def too_large_version(asked: int, current: int) -> ApiError:
    """504: a version from the future."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return failure(504, "Timeout", message, details, retry_after=1)


def method_not_allowed() -> ApiError:
    """405."""
    message = "the server does not allow this method on the requested resource"
    return failure(405, "MethodNotAllowed", message, {})


class Cause:
    """One field's error. `text` is what follows the field, `Invalid value: -1: …`."""

    __slots__ = ("field", "reason", "text")

    def __init__(self, field: str, reason: str, text: str) -> None:
        self.field = field
        self.reason = reason
        self.text = text

    @classmethod
    def required(cls, field: str, detail: str = "") -> Cause:
        return cls(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))

    @classmethod
    def invalid(cls, field: str, shown: str, detail: str) -> Cause:
        return cls(field, "FieldValueInvalid", f"Invalid value: {shown}: {detail}")

    @classmethod
    def wrong_type(cls, field: str, shown: str, detail: str) -> Cause:
        return cls(field, "FieldValueTypeInvalid", f"Invalid value: {shown}: {detail}")

    @classmethod
    def unsupported(cls, field: str, shown: str, supported: list[str]) -> Cause:
        values = ", ".join(f'"{value}"' for value in supported)
        text = f"Unsupported value: {shown}: supported values: {values}"
        return cls(field, "FieldValueNotSupported", text)

    @classmethod
    def duplicate(cls, field: str, shown: str) -> Cause:
        return cls(field, "FieldValueDuplicate", f"Duplicate value: {shown}")

    @classmethod
    def forbidden(cls, field: str, detail: str) -> Cause:
        return cls(field, "FieldValueForbidden", f"Forbidden: {detail}")

    @classmethod
    def too_long(cls, field: str, limit: int) -> Cause:
        return cls(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")

    @classmethod
    def missing(cls, field: str, shown: str) -> Cause:
        return cls(field, "FieldValueNotFound", f"Not found: {shown}")


def invalid(resource: Resource, name: str, causes: list[Cause], what: str | None = None) -> ApiError:
    """422: the object breaks the rules of its kind; every cause is told."""
    return _invalid(what or resource.qualified_kind, name, causes, _details(resource, name, what or resource.kind))


def invalid_options(kind: str, causes: list[Cause]) -> ApiError:
    """422 for list and delete options."""
    return _invalid(f"{kind}.meta.k8s.io", "", causes, {"group": "meta.k8s.io", "kind": kind})


def _invalid(what: str, name: str, causes: list[Cause], details: Json) -> ApiError:
    texts = [f"{cause.field}: {cause.text}" for cause in causes]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    listed = [{"reason": c.reason, "message": c.text, "field": c.field} for c in causes]
    return failure(422, "Invalid", f'{what} "{name}" is invalid: {joined}', {**details, "causes": listed})
