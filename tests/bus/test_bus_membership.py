"""The pure parts of membership: who owns what, and whom a blind member believes in (DESIGN §9)."""

from __future__ import annotations

import pytest

from bus.hashing import fnv1a32
from bus.membership import Member, shares
from bus.roster import Roster

A, B, C = (Member("projector", name) for name in "abc")


@pytest.mark.parametrize(("text", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)])
def test_fnv1a32_is_the_published_one(text: str, value: int) -> None:
    """Test vectors of the FNV reference (Noll), the hash of JetStream's partition()."""
    assert fnv1a32(text) == value


def test_nobody_owns_anything_when_nobody_is_there() -> None:
    assert shares(64, []) == {}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 64, 100])
def test_every_slot_has_one_owner_and_nobody_more_than_the_ceiling(count: int) -> None:
    owned = shares(64, [f"host-{n}" for n in range(count)])
    assert sorted(slot for slots in owned.values() for slot in slots) == list(range(64))
    assert max(len(slots) for slots in owned.values()) <= -(-64 // count)


def test_shares_are_the_same_whatever_the_order_and_repeats() -> None:
    assert shares(64, ["c", "a", "b"]) == shares(64, ["a", "b", "c", "a"])


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_a_departure_moves_little_more_than_what_the_departed_owned(count: int) -> None:
    """Rendezvous hashing moves only the departed member's slots; the bound on load adds a few, far fewer than a new deal would."""
    names = [f"host-{n}" for n in range(count)]
    before = {slot: name for name, slots in shares(64, names).items() for slot in slots}
    after = {slot: name for name, slots in shares(64, names[1:]).items() for slot in slots}
    moved = sum(1 for slot in range(64) if before[slot] != after[slot])
    lost = sum(1 for name in before.values() if name == names[0])
    assert lost <= moved <= lost + 64 // 4


def test_a_member_counts_itself_before_it_sees_itself() -> None:
    roster = Roster(A, ttl=3.0)
    roster.refreshed(0.0)
    assert roster.members(0.0) == (A,)
    roster.seen(B)
    assert roster.members(0.1) == (A, B)
    roster.gone("b")
    assert roster.members(0.2) == (A,)


def test_a_member_that_cannot_refresh_keeps_those_it_knew() -> None:
    roster = Roster(A, ttl=3.0)
    roster.refreshed(0.0)
    roster.seen(B)
    assert roster.members(0.1) == (A, B)
    roster.failed()
    roster.gone("b")
    roster.seen(C)
    assert roster.members(0.5) == (A, B)
    roster.refreshed(1.0)
    assert roster.members(1.0) == (A, C), "a short stumble is over with the next heartbeat"


def test_a_heartbeat_that_is_overdue_freezes_too() -> None:
    roster = Roster(A, ttl=3.0)
    roster.refreshed(0.0)
    roster.seen(B)
    assert roster.members(0.1) == (A, B)
    roster.gone("b")
    assert roster.members(3.1) == (A, B)


def test_after_a_long_silence_it_waits_one_ttl_for_the_others_to_come_back() -> None:
    roster = Roster(A, ttl=3.0)
    roster.refreshed(0.0)
    roster.seen(B)
    assert roster.members(0.1) == (A, B)
    roster.failed()
    roster.gone("b")  # everybody's key expired while NATS was away
    roster.refreshed(10.0)
    assert roster.members(12.9) == (A, B)
    roster.refreshed(12.9)
    assert roster.members(13.0) == (A,)
