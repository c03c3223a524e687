"""Create a stream, or bring an existing one to what we need of it; and what its leader says of it."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog

from bus.connection import ApiError, Connection
from bus.stored import nanoseconds

logger = structlog.get_logger(__name__)

STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
NO_STORAGE = (10047, 10023, 10028)  # insufficient storage, insufficient resources, memory resources exceeded
SMALLEST = 256 * 1024 * 1024


class StreamRefused(Exception):
    """The stream cannot be made, or an existing one cannot be brought to the settings; the text says which and what to do."""


class StreamState(msgspec.Struct, frozen=True):
    """STREAM.INFO, which the leader answers. Times in nanoseconds; `first` is last + 1 when it is empty.

    `trimmed_time`: everything that was trimmed was stored before this.
    """

    identity: str
    first: int
    last: int
    now: int
    trimmed_time: int
    replicas: int
    metadata: dict[str, str]
    config: dict[str, Any]


def _state(answer: dict[str, Any]) -> StreamState:
    state, config = answer["state"], answer["config"]
    empty = not state["messages"]
    return StreamState(
        identity=answer["created"],
        first=state["last_seq"] + 1 if empty else state["first_seq"],
        last=state["last_seq"],
        now=nanoseconds(answer["ts"]),
        trimmed_time=nanoseconds(state["last_ts"] if empty else state["first_ts"]),
        replicas=config.get("num_replicas", 1),
        metadata=config.get("metadata") or {},
        config=config,
    )


async def stream_state(connection: Connection, name: str) -> StreamState:
    """Raises ApiError (STREAM_NOT_FOUND among them) or Unreachable."""
    return _state(await connection.api(f"STREAM.INFO.{name}"))


def differing(present: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The fields of `wanted` that are otherwise in `present`; metadata only where they lack a key."""
    found = []
    for key, value in wanted.items():
        if key == "metadata":
            if set(value) - set(present.get(key) or {}):
                found.append(key)
        elif present.get(key, _absent(value)) != value:
            found.append(key)
    return found


def _absent(value: object) -> object:
    # The server leaves out what is false or zero.
    return type(value)() if isinstance(value, (bool, int, str)) else None


async def ensure_stream(connection: Connection, wanted: dict[str, Any], *, may_shrink: bool = False) -> StreamState:
    """Create the stream, or update it where it differs; metadata that it has stay. `may_shrink`: halve max_bytes, down to 256 MiB,
    while the server has no room for it. Raises StreamRefused, ApiError or Unreachable."""
    name = wanted["name"]
    try:
        answer = await connection.api(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.error_code != STREAM_NOT_FOUND:
            raise
        created = await _create(connection, wanted, may_shrink=may_shrink)
        if created is not None:
            return created
        answer = await connection.api(f"STREAM.INFO.{name}")
    return await _bring_to(connection, answer, wanted, may_shrink=may_shrink)


async def _create(connection: Connection, wanted: dict[str, Any], *, may_shrink: bool) -> StreamState | None:
    """None if somebody else was first, with other settings."""
    name = wanted["name"]
    while True:
        try:
            await connection.api(f"STREAM.CREATE.{name}", wanted, timeout=10)
            state = await stream_state(connection, name)
        except ApiError as error:
            if error.error_code == STREAM_NAME_IN_USE:
                return None
            if may_shrink and error.error_code in NO_STORAGE and wanted["max_bytes"] > SMALLEST:
                wanted = wanted | {"max_bytes": wanted["max_bytes"] // 2}
                continue
            raise StreamRefused(
                f"cannot make the stream {name}: {error.description} ({error.error_code}); "
                "check that JetStream is on for this account, its limits, and that no other stream has these subjects"
            ) from error
        logger.info("stream made", stream=name, max_bytes=wanted.get("max_bytes"), replicas=state.replicas)
        return state


async def _bring_to(
    connection: Connection, answer: dict[str, Any], wanted: dict[str, Any], *, may_shrink: bool
) -> StreamState:
    present = answer["config"]
    changes = differing(present, wanted)
    if may_shrink and present.get("max_bytes", -1) > 0 and "max_bytes" in changes:
        changes.remove("max_bytes")  # it was shrunk to the server, or set by somebody who knows
    if not changes:
        return _state(answer)
    name = wanted["name"]
    updated = present | {key: wanted[key] for key in changes}
    updated["metadata"] = (wanted.get("metadata") or {}) | (present.get("metadata") or {})
    try:
        await connection.api(f"STREAM.UPDATE.{name}", updated, timeout=10)
    except ApiError as error:
        differences = ", ".join(f"{key} is {present.get(key)!r}, wanted {wanted[key]!r}" for key in changes)
        raise StreamRefused(
            f"the stream {name} exists with other settings that cannot be changed ({differences}): "
            f"{error.description} ({error.error_code}); give the settings it has, or delete it (the API servers rebuild it)"
        ) from error
    logger.info("stream updated", stream=name, fields=changes)
    return await stream_state(connection, name)
