"""What `--api-calls` and `--concurrency` make of the executor's places (docs/cli.md)."""

from __future__ import annotations

import pytest

from bridge.lanes import LanesSettings
from sandlog.roles import lanes_of


@pytest.mark.parametrize(
    ("api_calls", "creates", "most_creates"),
    [(24, 8, 12), (128, 8, 64), (8, 4, 4), (1, 1, 1)],
)
def test_creates_begin_with_eight_and_take_half_at_the_most(api_calls: int, creates: int, most_creates: int) -> None:
    assert lanes_of(api_calls) == LanesSettings(limit=api_calls, creates=creates, most_creates=most_creates)


def test_the_default_is_the_lanes_own() -> None:
    assert lanes_of(24) == LanesSettings()
