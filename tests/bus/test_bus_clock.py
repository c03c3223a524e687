"""Log time: the server's, estimated from what was read and the loop's own clock (DESIGN §4, Time)."""

from __future__ import annotations

import asyncio

import pytest

from bus.clock import SECOND, LogClock

START = 1_800_000_000 * SECOND


class FakeTimeLoop:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self) -> float:
        return self.seconds


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeTimeLoop:
    return FakeTimeLoop(monkeypatch)


def test_log_time_is_unknown_before_the_first_timestamp(loop: FakeTimeLoop) -> None:
    with pytest.raises(RuntimeError, match="not known"):
        LogClock().now()


def test_log_time_goes_on_with_the_monotonic_clock(loop: FakeTimeLoop) -> None:
    clock = LogClock(drift=0.0)
    clock.observe(START)
    loop.seconds += 5
    assert clock.now() == START + 5 * SECOND


def test_a_late_timestamp_does_not_set_it_back_and_an_early_one_sets_it_forward(loop: FakeTimeLoop) -> None:
    """A timestamp arrives late, never early: the greatest offset is the best."""
    clock = LogClock(drift=0.0)
    clock.observe(START)
    loop.seconds += 1
    clock.observe(START)  # read a second after it was written
    assert clock.now() == START + SECOND
    clock.observe(START + 2 * SECOND)
    assert clock.now() == START + 2 * SECOND


def test_it_is_never_ahead_of_a_server_that_it_hears(loop: FakeTimeLoop) -> None:
    clock = LogClock(drift=200.0)
    server = START
    for _ in range(100):
        clock.observe(server)
        assert clock.now() <= server + 1000  # a float's rounding of nanoseconds since the epoch
        loop.seconds += 10
        server += 10 * SECOND


def test_a_server_clock_set_back_is_followed_as_the_estimate_ages(loop: FakeTimeLoop) -> None:
    clock = LogClock(drift=200.0)
    clock.observe(START)
    # Set back by 0.1 s. At 200 ppm the old estimate is that much worse after 500 s.
    loop.seconds += 600
    back = START + 600 * SECOND - SECOND // 10
    clock.observe(back)
    assert abs(clock.now() - back) <= 1000
