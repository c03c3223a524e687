"""How many creates at a time: few where they queue in the API server, more where each takes long by itself (bridge.create_limit)."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.create_limit import WINDOW, CreateLimit


def performed(limit: CreateLimit, times: Iterable[float], start: float = 0.0, step: float = 0.01) -> float:
    now = start
    for seconds in times:
        limit.took(seconds, now)
        now += step
    return now


def test_creates_that_wait_for_each_other_stay_few() -> None:
    """An API server that takes 5 ms alone and is kept busy: each create takes as long as all that are in it."""
    limit = CreateLimit(4, 12)
    performed(limit, [0.005])
    for _ in range(100):
        performed(limit, [0.005 * (limit.current + 4)] * limit.current)
    assert limit.current == 4


def test_creates_that_are_slow_by_themselves_go_many_at_a_time() -> None:
    """A webhook that takes 200 ms, whoever else waits: with 4 at a time no more than 20 pods a second would be made."""
    limit = CreateLimit(4, 12)
    performed(limit, [0.2, 0.21, 0.205, 0.22] * 30)
    assert limit.current == 12


def test_it_moves_by_one_a_round() -> None:
    limit = CreateLimit(2, 12)
    performed(limit, [0.2, 0.2])
    assert limit.current == 3
    performed(limit, [0.2, 0.2])
    assert limit.current == 3
    performed(limit, [0.2])
    assert limit.current == 4


def test_it_comes_down_when_they_begin_to_wait() -> None:
    limit = CreateLimit(2, 6)
    performed(limit, [0.1] * (2 + 3 + 4 + 5 + 6))
    assert limit.current == 6
    performed(limit, [0.3] * (6 + 5 + 4 + 3))
    assert limit.current == 2
    performed(limit, [0.3] * 50)
    assert limit.current == 2


def test_in_between_it_stays() -> None:
    """Twice the best time: neither unhindered (1.5) nor queueing (2.5)."""
    limit = CreateLimit(2, 6)
    performed(limit, [0.1, 0.3])
    performed(limit, [0.2] * 100)
    assert limit.current == 2


def test_the_best_time_is_forgotten() -> None:
    """A server that has got slower for good: after two windows its new best counts."""
    limit = CreateLimit(2, 3)
    performed(limit, [0.01, 0.05])
    performed(limit, [0.2, 0.2], start=WINDOW)
    assert limit.current == 2
    performed(limit, [0.2, 0.2], start=2 * WINDOW)
    assert limit.current == 3


def test_the_best_of_long_ago_does_not_count() -> None:
    limit = CreateLimit(2, 3)
    performed(limit, [0.01, 0.05])
    performed(limit, [0.2, 0.2], start=10 * WINDOW)
    assert limit.current == 3


def test_the_least_may_be_the_most() -> None:
    limit = CreateLimit(1, 1)
    performed(limit, [0.1] * 10)
    assert limit.current == 1
