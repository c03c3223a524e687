"""What an API server's refusal means, and what of its text may be told: never a part of the object it was about (DESIGN §7).

API servers quote what they refuse: `Invalid value: "…"`, whole structs after `Forbidden`, the bytes around a decoding error, and an admission
webhook says what it likes. So of the text only what is not quoted stays, and whatever secret was sent is cut out of it beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from bus.messages import CONFLICT, DONE, FAILED, MISSING

RETRY: Final = "retry"
"""Neither done nor refused: to be tried again (429, 5xx, 401 and 408, which say nothing about the op)."""

MAX_MESSAGE: Final = 300
CUT: Final = "…"

_BY_STATUS: Final = {401: RETRY, 404: MISSING, 408: RETRY, 409: CONFLICT, 429: RETRY}
_ALREADY_EXISTS: Final = "AlreadyExists"


class Refusal(msgspec.Struct, frozen=True):
    """A refusal fit for a Result: HTTP status, Kubernetes' reason (a word), and a text without values."""

    code: int
    reason: str
    message: str


class _Cause(msgspec.Struct, frozen=True):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class _Details(msgspec.Struct, frozen=True):
    kind: str | None = None
    causes: tuple[_Cause, ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_decoder = msgspec.json.Decoder(_Status)
_WORD = re.compile(r"[A-Za-z]{1,63}")
_FIELD = re.compile(r"[A-Za-z0-9_.\-/\[\]$<>]{1,253}")
_FIRST_WORDS = re.compile(r"[A-Z][a-z]+( [a-z]+){0,2}(?=:|$)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*("|$)|`[^`]*(`|$)')
_STRUCTURE = re.compile(r"(?:[\w.*&]*\{|(?:map|\[\])\[).*", re.DOTALL)
_DENIED = re.compile(r'^admission webhook "([a-z0-9.\-]{1,253})" denied the request')
_SPACES = re.compile(r"\s+")


def classify(status: int) -> str:
    """The kind of an answer: DONE, CONFLICT, MISSING, FAILED or RETRY."""
    if 200 <= status < 300:
        return DONE
    if status >= 500:
        return RETRY
    return _BY_STATUS.get(status, FAILED)


def already_exists(body: bytes) -> bool:
    """Whether a 409 says that the name is taken; any other 409 of a create is worth another try (a quota's own conflict)."""
    return _decode(body).reason == _ALREADY_EXISTS


def refusal(status: int, body: bytes, secrets: Iterable[str] = ()) -> Refusal:
    """What may be told of a refusal. `secrets` are values that were sent: none of them stays in the text."""
    answer = _decode(body)
    reason = answer.reason or ""
    if not _WORD.fullmatch(reason):
        reason = ""
    text = _told(status, answer, sorted({s for s in secrets if len(s) >= _SHORTEST_SECRET}, key=len, reverse=True))
    return Refusal(status, reason, bounded(_SPACES.sub(" ", text).strip()))


def bounded(text: str, limit: int = MAX_MESSAGE) -> str:
    return text if len(text) <= limit else text[: limit - 1] + CUT


def _decode(body: bytes) -> _Status:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Status()


def _told(status: int, answer: _Status, secrets: list[str]) -> str:
    if status == 422:
        causes = answer.details.causes if answer.details and answer.details.causes else ()
        return "; ".join(_cause(cause, secrets) for cause in causes) or "invalid"
    message = answer.message or ""
    if status == 400:
        return _bad_request(message)
    denied = _DENIED.match(message)
    if denied:
        rest = _without_values(_without_secrets(message[denied.end() :], secrets))
        return f"denied by admission webhook {denied[1]}{rest}"
    return _without_values(_without_secrets(message, secrets))


def _cause(cause: _Cause, secrets: list[str]) -> str:
    """`spec.containers[0].name: Invalid value`: the field, and what is wrong with it as far as it is a fixed phrase."""
    field = cause.field or ""
    if not _FIELD.fullmatch(field):
        field = ""
    message = cause.message or ""
    phrase = _FIRST_WORDS.match(message)
    # A webhook may begin with the value itself.
    fixed = phrase is not None and _without_secrets(phrase[0], secrets) == phrase[0]
    told = phrase[0] if phrase and fixed else "Invalid value"
    detail = _detail(message[phrase.end() :], secrets) if phrase else ""
    return f"{field}: {told}{detail}" if field else told + detail


def _detail(rest: str, secrets: list[str]) -> str:
    """What follows the refused value, if it is told where that one ends: the text after a whole quoted string.

    A value that is not quoted (a struct, a number) has no certain end, so nothing after it is kept.
    """
    rest = rest.removeprefix(":").strip()
    quoted = _QUOTED.match(rest)
    if quoted and quoted[0].endswith('"') and len(quoted[0]) > 1:
        rest = rest[quoted.end() :].removeprefix(":").strip()
    elif not rest or not rest[0].islower():
        return ""
    kept = _without_values(_without_secrets(rest, secrets)).strip()
    return f": {kept}" if kept and kept != CUT else ""


def _bad_request(message: str) -> str:
    """A body that could not be read: the field's place where it is told; decoders quote the bytes around the fault, so nothing else."""
    place = re.search(
        r"(?:Go struct field |unknown field \"|field )([A-Za-z]\w*(?:\.[A-Za-z]\w*(?:\[\d+\])?)+)", message
    )
    return f"the object cannot be read at {place[1]}" if place else "the object cannot be read"


def _without_values(text: str) -> str:
    """Without what is quoted or looks like a printed structure; names of the forbidden object's kind stay as they are."""
    return _STRUCTURE.sub(CUT, _QUOTED.sub(CUT, text))


_SHORTEST_SECRET: Final = 3
_WORD_LENGTH: Final = 6


def _without_secrets(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        for form in {secret, msgspec.json.encode(secret).decode()[1:-1], repr(secret)[1:-1]}:
            if len(form) >= _WORD_LENGTH:
                text = text.replace(form, CUT)
            else:
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", CUT, text)
    return text


def secrets_of(pod: Mapping[str, Any]) -> list[str]:
    """The values of a pod that must never be told: env values, and what a command line, or an annotation may hold."""
    found: list[str] = []
    metadata, spec = pod.get("metadata"), pod.get("spec")
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        found.extend(value for value in metadata["annotations"].values() if isinstance(value, str))
    if not isinstance(spec, dict):
        return found
    for key in ("containers", "initContainers", "ephemeralContainers"):
        containers = spec.get(key)
        for container in containers if isinstance(containers, list) else ():
            if isinstance(container, dict):
                found.extend(_secrets_of_container(container))
    return found


def _secrets_of_container(container: dict[str, Any]) -> Iterable[str]:
    env = container.get("env")
    for variable in env if isinstance(env, list) else ():
        if isinstance(variable, dict) and isinstance(variable.get("value"), str):
            yield variable["value"]
    for key in ("command", "args"):
        words = container.get(key)
        for word in words if isinstance(words, list) else ():
            if isinstance(word, str):
                yield word
