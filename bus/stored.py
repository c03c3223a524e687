"""What JetStream's JSON and reply subjects say of a stored message: pure parsing, without nats-py's metadata objects (nats.md §2)."""

from __future__ import annotations

import base64
from calendar import timegm
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bus.log import Record

SECOND = 1_000_000_000
NO_HEADERS: Mapping[str, str] = {}


class Position(NamedTuple):
    """A delivery, as its ack subject tells it. `pending` is what the consumer's own server knows: a hint only (nats.md §6.1)."""

    consumer: str
    delivered: int
    sequence: int
    consumer_sequence: int
    time: int
    pending: int


def position(reply: str) -> Position:
    """Parse `$JS.ACK.…` of both forms: 9 tokens, or with domain and account 11 and a last one of no meaning."""
    tokens = reply.split(".")
    at = 3 if len(tokens) == 9 else 5
    consumer, delivered, sequence, consumer_sequence, time, pending = tokens[at : at + 6]
    return Position(consumer, int(delivered), int(sequence), int(consumer_sequence), int(time), int(pending))


def nanoseconds(text: str) -> int:
    """RFC 3339 in UTC, as the server writes it, to nanoseconds since the epoch; Go's zero time gives 0."""
    main, _, fraction = text.removesuffix("Z").partition(".")
    date, _, clock = main.partition("T")
    year, month, day = (int(part) for part in date.split("-"))
    if year < 1970:
        return 0
    hour, minute, second = (int(part) for part in clock[:8].split(":"))
    return timegm((year, month, day, hour, minute, second)) * SECOND + int((fraction or "0").ljust(9, "0")[:9])


def rfc3339(time: int) -> str:
    """The reverse of `nanoseconds`."""
    seconds, fraction = divmod(time, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def headers_of(raw: bytes) -> dict[str, str]:
    """The header block of a stored message (`NATS/1.0`, then `Name: value` lines)."""
    headers: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
    return headers


def record(message: Mapping[str, Any]) -> Record:
    """The `message` of a STREAM.MSG.GET answer."""
    raw = message.get("hdrs")
    return Record(
        subject=message["subject"],
        sequence=message["seq"],
        time=nanoseconds(message["time"]),
        headers=headers_of(base64.b64decode(raw)) if raw else NO_HEADERS,
        data=base64.b64decode(message.get("data") or ""),
    )
