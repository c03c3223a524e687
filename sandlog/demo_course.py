"""What happens to the sandboxes of the demo: when each was asked for, when its pod and when itself was ready. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bus import names

WAITING: Final = "waiting"
CREATED: Final = "created"
STARTED: Final = "pod"
POD_READY: Final = "pod ready"
READY: Final = "ready"
FAILED: Final = "failed"
STATES: Final = (WAITING, CREATED, STARTED, POD_READY, READY, FAILED)


class Spread(msgspec.Struct, frozen=True):
    """Percentiles in milliseconds (nearest rank)."""

    p50: float
    p90: float
    p99: float
    longest: float


def spread(seconds: Sequence[float]) -> Spread | None:
    """None of nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000, 1)

    return Spread(rank(0.5), rank(0.9), rank(0.99), round(ordered[-1] * 1000, 1))


class Summary(msgspec.Struct, frozen=True):
    """The demo in figures. `seconds`: from the first request until the last was ready."""

    sandboxes: int
    ready: int
    failed: int
    seconds: float
    asked_to_ready_ms: Spread | None
    pod_ready_to_ready_ms: Spread | None
    start_up_seconds: float = 0.0


class Course:
    """Fed with moments (monotonic seconds) and watch events; knows the state of each sandbox."""

    def __init__(self, sandboxes: Sequence[str]) -> None:
        self.states: dict[str, str] = dict.fromkeys(sandboxes, WAITING)
        self._asked: dict[str, float] = {}
        self._pod_ready: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self.recent: list[tuple[str, float]] = []
        """the latest to become ready, with the seconds that it took"""

    @property
    def done(self) -> bool:
        return len(self._ready) == len(self.states)

    def count(self, state: str) -> int:
        return sum(found == state for found in self.states.values())

    def asked(self, name: str, now: float) -> None:
        self._asked[name] = now
        self._to(name, CREATED)

    def sandbox(self, event: str, thing: Mapping[str, Any], now: float) -> None:
        """A BatchSandbox as a watch told it."""
        name, status = thing["metadata"]["name"], thing.get("status") or {}
        if name not in self.states or event == "DELETED":
            return
        if status.get("phase") == "Failed":
            self.states[name] = FAILED
        elif status.get("phase") == "Succeed" and name not in self._ready:
            self._ready[name] = now
            self._to(name, READY)
            self.recent = [*self.recent[-4:], (name, now - self._asked.get(name, now))]

    def pod(self, event: str, thing: Mapping[str, Any], now: float) -> None:
        """A pod as a watch told it."""
        name = (thing["metadata"].get("labels") or {}).get(names.SANDBOX_NAME, "")
        if name not in self.states or event == "DELETED":
            return
        conditions = (thing.get("status") or {}).get("conditions") or ()
        if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            self._pod_ready.setdefault(name, now)
            self._to(name, POD_READY)
        else:
            self._to(name, STARTED)

    def _to(self, name: str, state: str) -> None:
        """Only ever forward: events of pods and sandboxes come by different ways."""
        if STATES.index(state) > STATES.index(self.states[name]) or self.states[name] == FAILED:
            self.states[name] = state

    def summary(self, start_up: float = 0.0) -> Summary:
        ready = self._ready
        lasted = max(ready.values(), default=0.0) - min(self._asked.values(), default=0.0) if ready else 0.0
        return Summary(
            sandboxes=len(self.states),
            ready=len(ready),
            failed=self.count(FAILED),
            seconds=round(lasted, 3),
            asked_to_ready_ms=spread([ready[n] - self._asked[n] for n in ready if n in self._asked]),
            # Two watches: one may be told a moment before the other.
            pod_ready_to_ready_ms=spread(
                [max(0.0, ready[n] - self._pod_ready[n]) for n in ready if n in self._pod_ready]
            ),
            start_up_seconds=round(start_up, 2),
        )
