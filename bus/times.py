"""Times as Kubernetes and the log write them. Nanoseconds since the epoch inside, RFC 3339 outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> int | None:
    """RFC 3339, with any fraction and offset (the server writes microseconds and `+00:00`); None if it is no time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    since = moment - _EPOCH
    return (since.days * 86400 + since.seconds) * SECOND + since.microseconds * 1000


def format_time(nanoseconds: int) -> str:
    """Whole seconds with `Z`, as metav1.Time."""
    moment = _EPOCH + timedelta(seconds=nanoseconds // SECOND)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(nanoseconds: int) -> str:
    """Microseconds with `Z`, as metav1.MicroTime, and wherever people compare moments."""
    moment = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
