"""`ClusterClient` over HTTP: our own aiohttp calls, bodies as bytes. Configuration and credentials are `bridge.credentials`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
import structlog
from yarl import URL

from bridge.cluster import Response, Unreachable, WatchRefused
from bridge.credentials import Credentials, Source
from bridge.lines import Lines, LineTooLong
from bridge.pace import TokenBucket
from bus.version import CODE_VERSION

logger = structlog.get_logger(__name__)

CONNECT_TIMEOUT: Final = 10.0
KEEP_ALIVE: Final = 60.0
READ_BUFFER: Final = 256 * 1024
REFUSAL_LONGEST: Final = 64 * 1024
_SKIPPED = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_LOST = (aiohttp.ClientError, OSError, TimeoutError)


class KubeSettings(msgspec.Struct, frozen=True):
    """`qps` 0: no limit of our own; the server has its own (API priority and fairness). `connections` at once, watches included."""

    source: Source = Source()
    qps: float = 0.0
    burst: int = 0
    connections: int = 128


class KubeClient:
    """`async with await KubeClient.open(settings) as client`; one per cluster and process."""

    def __init__(self, settings: KubeSettings, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._bucket = TokenBucket(settings.qps, settings.burst or int(settings.qps * 2)) if settings.qps > 0 else None
        self._tls_generation = 0
        self._session: aiohttp.ClientSession | None = None
        self._retired: list[aiohttp.ClientSession] = []
        self._base = ""
        self._options: dict[str, Any] = {}

    @classmethod
    async def open(cls, settings: KubeSettings) -> Self:
        """Raises credentials.CannotConfigure; that the server can be reached is found out by the first call."""
        self = cls(settings, await Credentials.load(settings.source))
        self._connect()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def address(self) -> str:
        return self._credentials.host

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = 30.0,
    ) -> Response:
        """See ClusterClient. A 401 is tried once more with credentials read afresh: nothing was done."""
        url = self._url(path, query)
        try:
            async with asyncio.timeout(timeout):
                response = await self._once(method, url, body, content_type)
                if response.status == 401:
                    await self._credentials.refresh()
                    response = await self._once(method, url, body, content_type)
                return response
        except _LOST as error:
            raise self._unreachable(f"{method} {path}", error, timeout) from error

    async def watch(self, path: str, *, query: Mapping[str, str], idle_timeout: float) -> AsyncIterator[list[bytes]]:
        """See ClusterClient."""
        url = self._url(path, query)
        lines = Lines()
        try:
            async with asyncio.timeout(idle_timeout):
                response = await self._begin("GET", url, None, "")
                if response.status == 401:
                    response.release()
                    await self._credentials.refresh()
                    response = await self._begin("GET", url, None, "")
            async with response:
                if response.status != 200:
                    async with asyncio.timeout(idle_timeout):
                        body = await response.content.read(REFUSAL_LONGEST)
                    raise WatchRefused(Response(response.status, _lower(response), body))
                while True:
                    async with asyncio.timeout(idle_timeout):
                        chunk = await response.content.readany()
                    if not chunk:
                        return
                    if complete := lines.feed(chunk):
                        yield complete
        except LineTooLong as error:
            # The same position would bring the same line again.
            raise WatchRefused(Response(413, {}, str(error).encode())) from error
        except _LOST as error:
            raise self._unreachable(f"watch {path}", error, idle_timeout) from error

    async def close(self) -> None:
        for session in (*self._retired, self._session):
            if session is not None:
                await session.close()
        self._retired, self._session = [], None

    async def _once(self, method: str, url: URL, body: bytes | None, content_type: str) -> Response:
        async with await self._begin(method, url, body, content_type) as response:
            return Response(response.status, _lower(response), await response.read())

    async def _begin(self, method: str, url: URL, body: bytes | None, content_type: str) -> aiohttp.ClientResponse:
        if self._bucket is not None:
            await self._bucket.take()
        headers = {"Content-Type": content_type} if body is not None else {}
        if authorization := await self._credentials.authorization():
            headers["Authorization"] = authorization
        if self._tls_generation != self._credentials.generation:
            await self._reconnect()
        if self._session is None:
            raise aiohttp.ClientConnectionError("the client was closed")
        return await self._session.request(method, url, data=body, headers=headers, **self._options)

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        text = self._base + quote(path, safe="/-._~:")
        return URL(f"{text}?{urlencode(query)}" if query else text, encoded=True)

    def _connect(self) -> None:
        credentials = self._credentials
        connector = aiohttp.TCPConnector(
            limit=self._settings.connections,
            ssl=credentials.tls(),
            keepalive_timeout=KEEP_ALIVE,
            ttl_dns_cache=30,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"Accept": "application/json", "User-Agent": f"sandlog/{CODE_VERSION}"},
            skip_auto_headers=_SKIPPED,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
        )
        self._base = credentials.host
        self._options = {"allow_redirects": False}
        if proxy := credentials.proxy:
            self._options["proxy"] = proxy
        if name := credentials.server_hostname:
            self._options["server_hostname"] = name
        self._tls_generation = credentials.generation

    async def _reconnect(self) -> None:
        """New connections with the credentials read afresh; calls and watches under way end on the old ones."""
        if self._session is not None:
            self._retired.append(self._session)
        self._connect()
        while len(self._retired) > 1:
            # Its calls are two refreshes old; a watch on it is broken and resumes.
            await self._retired.pop(0).close()

    def _unreachable(self, what: str, error: BaseException, timeout: float) -> Unreachable:
        if isinstance(error, TimeoutError):
            reason = f"no answer within {timeout:g} s"
        elif isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLError):
            reason = f"{error}; check the cluster's certificate authority in the kubeconfig"
        elif isinstance(error, aiohttp.ClientConnectorError):
            reason = f"{error}; check the server's address in the kubeconfig, the network and any proxy"
        else:
            reason = str(error) or type(error).__name__
        return Unreachable(f"{self._base}: {what}: {reason}")


def _lower(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
