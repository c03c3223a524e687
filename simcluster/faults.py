"""Faults of the HTTP skin: what a test can make go wrong, each with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from simcluster.errors import ApiError, bad_request, conflict, expired, failure

Json = dict[str, Any]

SILENCE_LIMIT = 600.0
MAX_FAULTS = 1000
LATENCY_LIMIT = 60.0
WRITES = ("create", "update", "patch", "delete", "deletecollection")
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Fault(msgspec.Struct):
    """The next `count` requests of these verbs (empty: any) on this plural (empty: any) in this namespace (empty:
    any) by an agent that contains `agent` get this code. `after`: perform the request first, then lose the answer."""

    code: int
    count: int
    verbs: tuple[str, ...] = ()
    resource: str = ""
    agent: str = ""
    retry_after: int | None = None
    after: bool = False
    namespace: str = ""

    def fits(self, verb: str, resource: str, agent: str, namespace: str) -> bool:
        return (
            (not self.verbs or verb in self.verbs)
            and (not self.resource or resource == self.resource)
            and (not self.namespace or namespace == self.namespace)
            and self.agent in agent
        )


class Faults:
    """The knobs. Methods may be called at any time; `/sim/faults` calls them by name."""

    def __init__(self, drop: Callable[[], int], compact: Callable[[], None]) -> None:
        self._drop = drop
        self._compact = compact
        self._pending: list[Fault] = []
        self._latency: dict[str, float] = {}
        self._voice = asyncio.Event()
        self._voice.set()
        self._watch_voice = asyncio.Event()
        self._watch_voice.set()

    # --- knobs ------------------------------------------------------------------------------------------

    def drop_watches(self) -> int:
        """Cuts every watch's connection now; how many there were."""
        return self._drop()

    def go_silent(self, watches_only: bool = False) -> None:
        """From now on requests are accepted and nothing is sent, until `speak` (or 600 s per request)."""
        self._watch_voice.clear()
        if not watches_only:
            self._voice.clear()

    def speak(self) -> None:
        """Ends the silence."""
        self._voice.set()
        self._watch_voice.set()

    def expire_watches(self, count: int = 1) -> None:
        """The next watches get an ERROR event 410."""
        self._add(Fault(410, count, ("watch",)))

    def compact(self) -> None:
        """Forgets the history: watches from older versions get 410, as after an etcd compaction."""
        self._compact()

    def conflict(self, resource: str = "", count: int = 1) -> None:
        """The next updates and patches of a resource get 409."""
        self._add(Fault(409, count, ("update", "patch"), resource))

    def fail(
        self,
        code: int,
        count: int = 1,
        verbs: tuple[str, ...] | list[str] = (),
        resource: str = "",
        agent: str = "",
        retry_after: int | None = None,
        after: bool = False,
        namespace: str = "",
    ) -> None:
        """The next requests that fit get this code. `after`: they are performed all the same."""
        self._add(Fault(code, count, tuple(verbs), resource, agent, retry_after, after, namespace))

    def latency(self, seconds: float, verb: str = "") -> None:
        """Every answer to that verb ("" = all) is late by so much; 0 ends it."""
        self._latency[verb] = min(max(seconds, 0.0), LATENCY_LIMIT)

    def clear(self) -> None:
        """No faults any more."""
        self._pending.clear()
        self._latency.clear()
        self.speak()

    def _add(self, fault: Fault) -> None:
        if len(self._pending) >= MAX_FAULTS:
            raise bad_request("too many faults are pending")
        self._pending.append(fault)

    # --- for the skin -----------------------------------------------------------------------------------

    def take(self, verb: str, resource: str, agent: str, namespace: str = "") -> Fault | None:
        """The fault that hits this request, counted off."""
        for fault in self._pending:
            if fault.fits(verb, resource, agent, namespace):
                fault.count -= 1
                if fault.count <= 0:
                    self._pending.remove(fault)
                return fault
        return None

    def delay(self, verb: str) -> float:
        return self._latency.get(verb, self._latency.get("", 0.0))

    async def permission(self, watch: bool) -> bool:
        """Waits while silent; False if the silence outlasted its limit."""
        voice = self._watch_voice if watch else self._voice
        try:
            await asyncio.wait_for(voice.wait(), SILENCE_LIMIT)
        except TimeoutError:
            return False
        return True

    def state(self) -> Json:
        """For GET /sim/faults."""
        return {
            "pending": [msgspec.structs.asdict(fault) for fault in self._pending],
            "latency": self._latency,
            "silent": not self._voice.is_set(),
            "watchesSilent": not self._watch_voice.is_set(),
        }

    def perform(self, body: Json) -> Any:
        """`{"do": "fail", "code": 500, "count": 3, "verbs": ["patch"]}`; 400 for anything else."""
        names = ("drop_watches", "go_silent", "speak", "expire_watches", "compact")
        name = body.pop("do", None)
        if name not in (*names, "conflict", "fail", "latency", "clear"):
            raise bad_request(f"no such fault: {name}")
        try:
            return getattr(self, name)(**body)
        except TypeError as problem:
            raise bad_request(str(problem)) from None


def error_of(fault: Fault, resource: str, name: str) -> ApiError:
    """The error that a fault answers with."""
    if fault.code == 409:
        text = "the object has been modified; please apply your changes to the latest version and try again"
        return conflict(resource, name, text, {"name": name, "kind": resource})
    if fault.code == 410:
        return expired("too old resource version: 1 (2)")
    details = {"retryAfterSeconds": fault.retry_after} if fault.retry_after is not None else {}
    reason = _REASONS.get(fault.code, "InternalError")
    return failure(fault.code, reason, f"injected fault: {reason}", details, retry_after=fault.retry_after)
