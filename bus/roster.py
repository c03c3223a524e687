"""Whom a member believes to be there: pure, time is given in seconds of a monotonic clock.

While its own heartbeat does not get through, a member cannot tell the others' death from its own blindness: it keeps those whom it knew
(DESIGN §9). After a long silence everybody's heartbeat has expired and everybody comes back at his own pace, so it waits one more TTL.
"""

from __future__ import annotations

from bus.membership import Member


class Roster:
    def __init__(self, own: Member, ttl: float) -> None:
        self._own = own
        self._ttl = ttl
        self._seen: dict[str, Member] = {}
        self._shown: tuple[Member, ...] = (own,)
        self._refreshed_at: float | None = None
        self._failing = False
        self._thaw_at = 0.0

    def seen(self, member: Member) -> None:
        self._seen[member.name] = member

    def gone(self, name: str) -> None:
        self._seen.pop(name, None)

    def forget_all(self) -> None:
        """The watch begins anew: whoever is there will be told again."""
        self._seen.clear()

    def refreshed(self, now: float) -> None:
        """Our own heartbeat was stored."""
        if self._failing and self._refreshed_at is not None and now - self._refreshed_at > self._ttl / 2:
            self._thaw_at = now + self._ttl
        self._failing = False
        self._refreshed_at = now

    def failed(self) -> None:
        """Our own heartbeat could not be stored."""
        self._failing = True

    def frozen(self, now: float) -> bool:
        late = self._refreshed_at is not None and now - self._refreshed_at > self._ttl
        return self._failing or late or now < self._thaw_at

    def members(self, now: float) -> tuple[Member, ...]:
        """By name, this one included."""
        if not self.frozen(now):
            everyone = self._seen | {self._own.name: self._own}
            self._shown = tuple(everyone[name] for name in sorted(everyone))
        return self._shown
