"""A small HTTP client of a Kubernetes API server, simulated or real: JSON in, JSON out."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

Json = dict[str, Any]

LINE_LIMIT = 16 * 1024 * 1024


class WatchEnded(Exception):
    """A watch was refused or told an ERROR; `code` is its HTTP code. List again."""

    def __init__(self, code: int) -> None:
        super().__init__(f"watch ended: {code}")
        self.code = code


class HttpClient:
    """`server` is a URL. `ca_file` None and `insecure` False: the system's certificates."""

    def __init__(
        self,
        server: str,
        token: str = "",
        *,
        agent: str = "sim-kubelet",
        ca_file: str | None = None,
        insecure: bool = False,
        connections: int = 100,
    ) -> None:
        self.server = server.rstrip("/")
        self._headers = {"User-Agent": agent}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._ssl: ssl.SSLContext | bool = True
        if server.startswith("https"):
            self._ssl = ssl.create_default_context(cafile=ca_file)
            if insecure:
                self._ssl.check_hostname = False
                self._ssl.verify_mode = ssl.CERT_NONE
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpClient:
        connector = aiohttp.TCPConnector(ssl=self._ssl, limit=self._connections)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use the client as an async context manager")
        return self._session

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
        timeout: float = 30.0,
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body). aiohttp.ClientError or TimeoutError when there is no answer."""
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self._open.request(
            method,
            self.server + path,
            data=data,
            params=query,
            headers={"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=timeout),
        ) as answer:
            return answer.status, dict(answer.headers), await answer.read()

    async def watch(self, path: str, query: dict[str, str], idle: float = 60.0) -> AsyncIterator[tuple[str, Json]]:
        """Events as (type, object); ends when the server closes, TimeoutError after `idle` silent seconds."""
        limits = aiohttp.ClientTimeout(total=None, sock_read=idle)
        async with self._open.get(self.server + path, params={**query, "watch": "1"}, timeout=limits) as answer:
            if answer.status != 200:
                raise WatchEnded(answer.status)
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LINE_LIMIT:
                    raise WatchEnded(413)
                for line in lines:
                    if line:
                        event = msgspec.json.decode(line, type=dict)
                        if event["type"] == "ERROR":
                            raise WatchEnded(event["object"].get("code", 500))
                        yield event["type"], event["object"]
