"""One API call as the executor makes it: in its lane, within the command's time, tried again where the answer settles nothing (DESIGN §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime

import msgspec

from bridge.api_errors import RETRY, already_exists, classify
from bridge.cluster import ClusterClient, Response, Unreachable, path_of
from bridge.lanes import Lanes, Priority
from bus.clock import Clock, Randomness
from bus.metrics import Metrics
from bus.resources import Kind
from bus.times import SECOND


class CallSettings(msgspec.Struct, frozen=True):
    """Seconds. A delay is `first_delay` · 2ⁿ up to `longest_delay`, of which a random half may be missing."""

    timeout: float = 15.0
    first_delay: float = 0.1
    longest_delay: float = 5.0
    longest_retry_after: float = 30.0


class TimeOver(Exception):
    """The command's time is over. `unclear`: a write was sent and nobody knows whether it took effect."""

    def __init__(self, unclear: bool) -> None:
        super().__init__("unclear" if unclear else "not begun")
        self.unclear = unclear


class Answer(msgspec.Struct, frozen=True):
    """A settled answer. `unclear`: an earlier try of the same call may have taken effect, so a refusal may be due to ourselves."""

    response: Response
    unclear: bool = False

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def body(self) -> bytes:
        return self.response.body


class Call(msgspec.Struct, frozen=True):
    method: str
    kind: Kind
    namespace: str
    name: str = ""
    subresource: str = ""
    body: bytes | None = None
    content_type: str = "application/json"

    @property
    def path(self) -> str:
        return path_of(self.kind, self.namespace, self.name, self.subresource)


async def _nothing_to_check() -> None:
    return


def always(response: Response) -> bool:
    return True


def create_settled(response: Response) -> bool:
    """A 409 of a create that is not about the name is the server's own (an update of the quota lost a race): worth another try."""
    return response.status != 409 or already_exists(response.body)


class Calls:
    """The API calls of one cluster's executor."""

    def __init__(
        self,
        client: ClusterClient,
        lanes: Lanes,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        settings: CallSettings | None = None,
    ) -> None:
        self._client = client
        self._lanes = lanes
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._settings = settings or CallSettings()

    async def make(
        self,
        call: Call,
        priority: Priority,
        expires: int,
        *,
        before_retry: Callable[[], Awaitable[None]] = _nothing_to_check,
        settled: Callable[[Response], bool] = always,
        since: float | None = None,
    ) -> Answer:
        """Make `call` until its answer settles it. `expires` is log time in nanoseconds.

        `before_retry` looks at the precondition again and may raise; `settled` can declare an answer that looks final as worth
        another try; `since` is when the wait for a place began. Raises TimeOver.
        """
        unclear, tries = False, 0
        while True:
            response = await self._once(call, priority, expires, unclear, since)
            if response is not None and classify(response.status) != RETRY and settled(response):
                return Answer(response, unclear)
            if call.method != "GET" and (response is None or response.status >= 500):
                unclear = True
            delay = self._delay(tries, response)
            tries += 1
            cause = "unreachable" if response is None else str(response.status)
            self._metrics.count("api_retries", verb=call.method, kind=call.kind.word, cause=cause)
            if self._clock.now() + int(delay * SECOND) >= expires:
                raise TimeOver(unclear)
            await asyncio.sleep(delay)
            try:
                await before_retry()
            except TimeOver as over:
                raise TimeOver(unclear or over.unclear) from None

    async def _once(
        self, call: Call, priority: Priority, expires: int, unclear: bool, since: float | None
    ) -> Response | None:
        async with self._lanes.place(priority, since):
            left = expires - self._clock.now()
            if left <= 0:
                raise TimeOver(unclear)
            loop = asyncio.get_running_loop()
            began = loop.time()
            response: Response | None
            try:
                response = await self._client.request(
                    call.method,
                    call.path,
                    body=call.body,
                    content_type=call.content_type,
                    timeout=min(self._settings.timeout, max(1.0, left / SECOND)),
                )
            except Unreachable:
                response = None
            took = loop.time() - began
            code = "none" if response is None else str(response.status)
            self._metrics.observe("api_call_seconds", took, verb=call.method, kind=call.kind.word, code=code)
            if priority is Priority.CREATE and call.method == "POST" and code == "201":
                self._lanes.created(took)
            return response

    def _delay(self, tries: int, response: Response | None) -> float:
        longest = self._settings.longest_delay
        delay = min(longest, self._settings.first_delay * 2.0 ** min(tries, 16)) * self._randomness.uniform(0.5, 1.0)
        asked = _retry_after(response)
        return max(delay, min(asked, self._settings.longest_retry_after))


def _retry_after(response: Response | None) -> float:
    """Seconds that the server asked to wait, 0 if it did not. API servers write whole seconds; a date is not understood."""
    text = "" if response is None else response.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdigit() else 0.0


def date_of(response: Response) -> int | None:
    """The API server's clock when it answered, in nanoseconds (whole seconds, cut off), or None."""
    try:
        moment = parsedate_to_datetime(response.headers.get("date", ""))
    except ValueError:
        return None
    return int(moment.timestamp()) * SECOND
