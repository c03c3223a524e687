"""A client of any cluster that a kubeconfig names, made for measuring: raw aiohttp, bytes in and out, one stream a watch."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from kubernetes_asyncio import client, config

AGENT = "sandlog-bench"
CONNECTIONS = 96
MERGE_PATCH = "application/merge-patch+json"


class Refused(Exception):
    """An answer of 300 or more. `status` is its HTTP code."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


class Kube:
    """`async with await Kube.open(kubeconfig, context) as kube`."""

    def __init__(self, settings: client.Configuration, token: str | None) -> None:
        self.url = str(settings.host).rstrip("/")
        headers = {"User-Agent": AGENT}
        if token:
            headers["Authorization"] = token
        connector = aiohttp.TCPConnector(ssl=_context(settings), limit=CONNECTIONS)
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)
        )

    @classmethod
    async def open(cls, kubeconfig: str | None, context: str | None) -> Self:
        """The file as kubectl understands it, credentials plugins included. Raises kubernetes_asyncio's ConfigException."""
        settings = client.Configuration()
        await config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=settings)
        return cls(settings, await settings.get_api_key_with_prefix("BearerToken"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> bytes:
        """Raises Refused."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content_type} if data else {}
        async with self._session.request(method, self.url + path, data=data, headers=headers) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise Refused(answer.status, content.decode(errors="replace"))
            return content

    async def watch(self, path: str, version: str) -> AsyncIterator[bytes]:
        """The lines of one watch, until the server ends it. Raises Refused."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "3600"}
        async with self._session.get(self.url + path, params=query) as answer:
            if answer.status >= 300:
                raise Refused(answer.status, await answer.text())
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line


def _context(settings: client.Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, keyfile=settings.key_file)
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
