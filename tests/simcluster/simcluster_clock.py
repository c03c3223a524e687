"""Virtual time for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """Virtual time: starts at noon of a fixed day, moves when told."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
