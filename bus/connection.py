"""One connection to NATS, with settings under which nats-py 2.16 neither gives up nor drops silently (nats.md §7).

`request` is our own: one inbox, a future and a timer per request, failed at once when the connection breaks; nats-py's costs twice
the CPU, and it waits out its timeout although the reply can no longer come.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

import msgspec
import nats
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

logger = structlog.get_logger(__name__)

REQUEST_TIMEOUT = 5.0
PENDING_SIZE = 16 * 1024 * 1024
"""Bytes that nats-py buffers while it writes or reconnects, past which a publish fails."""


class ConnectionSettings(msgspec.Struct, frozen=True):
    """How to reach NATS, named as the nats CLI names it. `url` may list several servers, by commas."""

    url: str = "nats://127.0.0.1:4222"
    name: str = "sandlog"
    credentials: Path | None = None
    nkey: Path | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_first: bool = False
    domain: str | None = None
    connect_timeout: float = 10.0

    @property
    def shown(self) -> str:
        """The URLs without user, password or token: what may stand in a log line."""
        return re.sub(r"//[^@/,]*@", "//", self.url)


class CannotConnect(Exception):
    """NATS could not be reached or refused us; the text says where, why, and what to look at."""


class Misconfigured(CannotConnect):
    """What was given cannot be used at all, whatever the server says: a URL that is none, a file that cannot be read."""


class Unreachable(Exception):
    """A request got no reply: not connected, connection lost, timed out, or nobody there (`no_responders`)."""

    def __init__(self, text: str, *, sent: bool, no_responders: bool = False) -> None:
        super().__init__(text)
        self.sent = sent
        self.no_responders = no_responders


class ApiError(Exception):
    """JetStream refused: its own code (like 10071) and description."""

    def __init__(self, what: str, error: Mapping[str, Any]) -> None:
        self.code = int(error.get("code", 0))
        self.error_code = int(error.get("err_code", 0))
        self.description = str(error.get("description", ""))
        super().__init__(f"{what}: {self.description} ({self.error_code})")


SCHEMES = ("nats", "tls", "ws", "wss")
NO_PORT = "host and port cannot be read from it (a port is a number from 1 to 65535)"


def _servers(settings: ConnectionSettings) -> list[str]:
    """The URLs, one by one. Raises Misconfigured: nats-py takes what is none for a server that cannot be reached."""
    urls = [url.strip() for url in settings.url.split(",") if url.strip()]
    for url in urls:
        # Where it breaks may lie in a password: of a URL with one, only what stands behind it is said.
        shown = f"…@{settings.url.rpartition('@')[2]}" if "@" in settings.url else url
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            wrong = "it names no host" if not parts.hostname else ""
            if parts.scheme not in SCHEMES:
                wrong = f"it begins with none of {', '.join(SCHEMES)}"
            if parts.port == 0:
                wrong = NO_PORT
        except ValueError:
            wrong = NO_PORT
        if wrong:
            raise Misconfigured(f"{shown!r} is no URL of NATS: {wrong}; write it like nats://host:4222")
    if not urls:
        raise Misconfigured("no URL of NATS is given; write it like nats://host:4222")
    return urls


def check(settings: ConnectionSettings) -> None:
    """Raises Misconfigured for what no server could mend: URLs that are none, and files that cannot be read."""
    _servers(settings)
    files = (
        ("--creds", settings.credentials),
        ("--nkey", settings.nkey),
        ("--tlsca", settings.tls_ca),
        ("--tlscert", settings.tls_certificate),
        ("--tlskey", settings.tls_key),
    )
    for flag, file in files:
        if file is None:
            continue
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            raise Misconfigured(
                f"cannot read {file}: {error.strerror or error}; name another file with {flag}"
            ) from error
    try:
        _tls_context(settings)
    except OSError as error:  # ssl.SSLError is one too
        given = [f"{flag} {file}" for flag, file in files[2:] if file is not None]
        raise Misconfigured(
            f"{', '.join(given)} cannot be used for TLS: {error}; they must be PEM, and the key the certificate's"
        ) from error


def _tls_context(settings: ConnectionSettings) -> ssl.SSLContext | None:
    wanted = settings.tls_ca or settings.tls_certificate or settings.tls_first
    if not wanted and not any(u.strip().startswith(("tls://", "wss://")) for u in settings.url.split(",")):
        return None
    context = ssl.create_default_context(cafile=str(settings.tls_ca) if settings.tls_ca else None)
    if settings.tls_certificate:
        context.load_cert_chain(str(settings.tls_certificate), str(settings.tls_key) if settings.tls_key else None)
    return context


def _options(settings: ConnectionSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": _servers(settings),
        "name": settings.name,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.25,
        "ping_interval": 5,
        "max_outstanding_pings": 2,
        "connect_timeout": 2,
        "pending_size": PENDING_SIZE,
        "tls": _tls_context(settings),
        "tls_handshake_first": settings.tls_first,
        "user_credentials": str(settings.credentials) if settings.credentials else None,
        "nkeys_seed": str(settings.nkey) if settings.nkey else None,
        "user": settings.user,
        "password": settings.password,
        "token": settings.token,
    }
    return {key: value for key, value in options.items() if value is not None}


def _advice(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLError):
        return "check --tlsca, --tlscert and --tlskey against the server's certificate"
    if isinstance(error, nats.errors.AuthorizationError) or "uthorization" in str(error):
        return "check the credentials (--creds, --nkey, --user and --password)"
    if isinstance(error, OSError):
        return "check the address, and that the server runs and listens there"
    return "check the address and the server's own log"


Listener = Callable[[], None]


class Connection:
    """`async with await Connection.open(settings) as connection`. Shared by everything of one process."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.nc = Client()
        self.api_prefix = f"$JS.{settings.domain}.API" if settings.domain else "$JS.API"
        self.reconnects = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_reconnect: dict[object, Listener] = {}
        self._on_disconnect: dict[object, Listener] = {}
        self._connected = asyncio.Event()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._next = 0
        self._inbox = ""
        self._last_error: BaseException | None = None

    @classmethod
    async def open(cls, settings: ConnectionSettings) -> Self:
        """Connect within `settings.connect_timeout`, or raise CannotConnect (Misconfigured, before anything is tried)."""
        check(settings)
        self = cls(settings)
        try:
            async with asyncio.timeout(settings.connect_timeout):
                await self.nc.connect(
                    **_options(settings),
                    error_cb=self._error,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    closed_cb=self._closed,
                )
        except (TimeoutError, OSError, nats.errors.Error, ValueError) as error:
            # A client that failed before it had a list of servers asserts that it was connected.
            with contextlib.suppress(OSError, nats.errors.Error, AssertionError):
                await self.nc.close()
            cause = self._last_error or self.nc.last_error or error
            raise CannotConnect(f"cannot connect to NATS at {settings.shown}: {cause}; {_advice(cause)}") from error
        self._inbox = self.nc.new_inbox()
        await self.nc.subscribe(f"{self._inbox}.*", cb=self._reply, pending_msgs_limit=0, pending_bytes_limit=0)
        self._connected.set()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        return bool(self.nc.is_connected)

    @property
    def clustered(self) -> bool:
        """Whether the server says that it is one of a NATS cluster."""
        return bool(self.nc._server_info.get("cluster"))

    def on_reconnect(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after each reconnect; returns what takes it off again."""
        key = object()
        self._on_reconnect[key] = listener
        return lambda: void(self._on_reconnect.pop(key, None))

    def on_disconnect(self, listener: Listener) -> Callable[[], None]:
        key = object()
        self._on_disconnect[key] = listener
        return lambda: void(self._on_disconnect.pop(key, None))

    async def wait_connected(self, timeout: float) -> bool:
        """Whether it is connected within `timeout` seconds."""
        if self.connected:
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._connected.wait()
        except TimeoutError:
            return False
        return True

    def expect(self, what: str, timeout: float = REQUEST_TIMEOUT) -> tuple[str, asyncio.Future[Msg]]:
        """A reply subject, and the future of the one message sent to it. The future fails with Unreachable."""
        loop = asyncio.get_running_loop()
        self._next += 1
        token = str(self._next)
        future: asyncio.Future[Msg] = loop.create_future()
        self._waiting[token] = future
        timer = loop.call_later(timeout, self._expire, token, what, timeout)

        def done(_: asyncio.Future[Msg]) -> None:
            timer.cancel()
            self._waiting.pop(token, None)

        future.add_done_callback(done)
        return f"{self._inbox}.{token}", future

    async def request(
        self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None, timeout: float = REQUEST_TIMEOUT
    ) -> Msg:
        """The first reply. Raises Unreachable; `sent` says whether the request may have been acted on."""
        if not self.connected:
            raise Unreachable(f"{subject}: not connected to NATS", sent=False)
        reply, future = self.expect(subject, timeout)
        try:
            await self.nc.publish(subject, data, reply, headers)
        except nats.errors.MaxPayloadError:
            future.cancel()
            raise
        except (nats.errors.Error, OSError) as error:
            future.cancel()
            raise Unreachable(f"{subject}: {error!r}", sent=True) from error
        return await future

    async def api(self, subject: str, body: object = None, timeout: float = REQUEST_TIMEOUT) -> dict[str, Any]:
        """A JetStream API call, like `api("STREAM.INFO.LOG")`. Raises ApiError or Unreachable."""
        data = msgspec.json.encode(body) if body is not None else b""
        message = await self.request(f"{self.api_prefix}.{subject}", data, timeout=timeout)
        answer = cast(dict[str, Any], msgspec.json.decode(message.data))
        if "error" in answer:
            raise ApiError(subject, answer["error"])
        return answer

    async def close(self) -> None:
        """Let what was published go out, then close."""
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            if self.connected:
                await self.nc.flush(2)
        with contextlib.suppress(nats.errors.Error, OSError):
            await self.nc.close()
        self._fail_all("connection closed")

    async def _reply(self, message: Msg) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is None or future.done():
            return
        if message.headers and message.headers.get("Status") == "503":
            future.set_exception(Unreachable("no responders", sent=False, no_responders=True))
        else:
            future.set_result(message)

    def _expire(self, token: str, what: str, timeout: float) -> None:
        future = self._waiting.get(token)
        if future is not None and not future.done():
            future.set_exception(Unreachable(f"{what}: no reply within {timeout:g} s", sent=True))

    def _fail_all(self, why: str) -> None:
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(Unreachable(why, sent=True))
                future.exception()  # read here: a request whose caller went away is no error of its own

    async def _error(self, error: Exception) -> None:
        # After a refusal the server just closes: what follows it tells less.
        if not isinstance(self._last_error, nats.errors.AuthorizationError):
            self._last_error = error
        if self._connected.is_set():
            logger.warning("nats error", error=repr(error), url=self.settings.shown)

    async def _disconnected(self) -> None:
        if self._connected.is_set():
            logger.warning("disconnected from nats", url=self.settings.shown)
        self._connected.clear()
        self._fail_all("connection lost")
        for listener in list(self._on_disconnect.values()):
            listener()

    async def _reconnected(self) -> None:
        self.reconnects += 1
        logger.info("reconnected to nats", url=self.settings.shown, reconnects=self.reconnects)
        self._connected.set()
        for listener in list(self._on_reconnect.values()):
            listener()

    async def _closed(self) -> None:
        self._fail_all("connection closed")
        if not self.closed.done():
            self.closed.set_result(None)


def void(_: object) -> None:
    """Drop a value where a function must return nothing."""
