"""Watch streams over HTTP: newline-separated JSON, chunked, with bookmarks and a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from simcluster.errors import failure
from simcluster.watch import Watch

log = structlog.get_logger(__name__)

MAX_WATCHES = 10_000
WATCH_SECONDS = 1800.0


class Streams:
    """The open watches of a server. `permission(True)` is awaited before anything is sent."""

    def __init__(
        self,
        date: Callable[[], str],
        permission: Callable[[bool], Awaitable[bool]],
        bookmark_seconds: float,
    ) -> None:
        self._date = date
        self._permission = permission
        self._bookmark_seconds = bookmark_seconds
        self._open: dict[asyncio.Event, tuple[str, web.Request]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def wake(self, resource: str = "") -> None:
        """Something changed in a resource ("" = in any)."""
        for event, (watched, _) in self._open.items():
            if not resource or watched == resource:
                event.set()

    def drop(self) -> int:
        """Cuts every connection that carries a watch; how many there were."""
        for _, http in self._open.values():
            if http.transport is not None:
                http.transport.abort()
        self.wake()
        return len(self._open)

    def close(self) -> None:
        """Ends every watch, and every later one at once."""
        self._closed = True
        self.drop()

    async def serve_line(self, http: web.Request, line: bytes) -> web.StreamResponse:
        """A stream of one event."""
        response = self._response()
        await response.prepare(http)
        await response.write(line)
        await response.write_eof()
        return response

    async def serve(self, http: web.Request, watch: Watch, query: dict[str, str]) -> web.StreamResponse:
        """Sends a watch's events until it ends, its time is up, or the client is gone."""
        if len(self._open) >= MAX_WATCHES:
            raise failure(429, "TooManyRequests", "too many watches", {}, retry_after=1)
        response = self._response()
        await response.prepare(http)
        changed = asyncio.Event()
        self._open[changed] = (watch.resource.qualified, http)
        try:
            await self._send(response, watch, changed, _seconds(query))
            await response.write_eof()
        except ConnectionError:
            log.debug("watch cut", resource=watch.resource.plural)
        finally:
            del self._open[changed]
        return response

    def _response(self) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Date": self._date()})
        response.enable_chunked_encoding()
        return response

    async def _send(self, response: web.StreamResponse, watch: Watch, changed: asyncio.Event, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        bookmark_at = clock() + self._bookmark_seconds
        while not watch.ended and not self._closed:
            changed.clear()
            lines = watch.poll()
            if watch.bookmarks and (clock() >= bookmark_at or clock() >= end):
                lines.append(watch.bookmark())
                bookmark_at = clock() + self._bookmark_seconds
            if lines:
                if not await self._permission(True):
                    return
                await response.write(b"".join(lines))
            if clock() >= end:
                return
            if not watch.pending():
                wake_at = min(end, bookmark_at) if watch.bookmarks else end
                await _wait(changed, wake_at - clock())


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), max(seconds, 0.0))
    except TimeoutError:
        return


def _seconds(query: dict[str, str]) -> float:
    text = query.get("timeoutSeconds", "")
    wanted = float(text) if text.isdigit() else 0.0
    return min(wanted, WATCH_SECONDS) if wanted else WATCH_SECONDS
