"""`/healthz`, `/readyz` and `/metrics` over HTTP, on the stock controller's flags (controller-behaviour.md §8.1)."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from sandlog.exits import failed
from sandlog.metrics import PrometheusMetrics

logger = structlog.get_logger(__name__)

OFF: Final = ("", "0")
Readiness = Callable[[], Mapping[str, str]]
"""What is not ready, and why; empty when all is."""


class Address(msgspec.Struct, frozen=True):
    """`host` None: all interfaces."""

    host: str | None
    port: int


def parse_address(text: str) -> Address | None:
    """`:8081`, `127.0.0.1:8081` or `[::1]:8081` as Go has it; None for `0` and '', which mean off. Raises ValueError."""
    if text in OFF:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is no address: write it like :8081 or 127.0.0.1:8081, or 0 for none")
    return Address(host.strip("[]") or None, int(port))


class Endpoints(msgspec.Struct, frozen=True):
    """Where to serve what. `certificate` and `key`: the metrics over HTTPS."""

    health: Address | None = None
    metrics: Address | None = None
    certificate: Path | None = None
    key: Path | None = None


def _text(status: int, body: str) -> web.Response:
    return web.Response(status=status, text=body, content_type="text/plain")


def _routes(figures: PrometheusMetrics, alive: Readiness, ready: Readiness) -> dict[str, tuple[web.RouteDef, ...]]:
    def probe(what: Readiness) -> Callable[[web.Request], object]:
        async def handler(_: web.Request) -> web.Response:
            wrong = what()
            lines = "".join(f"{name}: {why}\n" for name, why in sorted(wrong.items()))
            return _text(503 if wrong else 200, lines or "ok")

        return handler

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=figures.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return {
        "health": (web.get("/healthz", probe(alive)), web.get("/readyz", probe(ready))),  # type: ignore[arg-type]
        "metrics": (web.get("/metrics", metrics),),
    }


def _tls(endpoints: Endpoints) -> ssl.SSLContext | None:
    if endpoints.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(endpoints.certificate, endpoints.key)
    except (OSError, ssl.SSLError) as error:
        raise failed(f"cannot read the metrics certificate {endpoints.certificate}: {error}") from error
    return context


@contextlib.asynccontextmanager
async def serve(
    endpoints: Endpoints, figures: PrometheusMetrics, alive: Readiness, ready: Readiness
) -> AsyncIterator[dict[str, str]]:
    """Serve until the block ends; gives the URL of each part. One address for both is one server. Raises Stop if a port is taken."""
    tls = _tls(endpoints)
    wanted = {"health": endpoints.health, "metrics": endpoints.metrics}
    routes = _routes(figures, alive, ready)
    async with contextlib.AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for address in dict.fromkeys(a for a in wanted.values() if a is not None):
            parts = [part for part in wanted if wanted[part] == address]
            secure = tls if parts == ["metrics"] else None
            base = await _listen(stack, address, [r for part in parts for r in routes[part]], secure)
            urls.update(dict.fromkeys(parts, base))
            logger.info("serving", what=" and ".join(parts), url=base)
        yield urls


async def _listen(
    stack: contextlib.AsyncExitStack, address: Address, routes: list[web.RouteDef], tls: ssl.SSLContext | None
) -> str:
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, address.host, address.port, ssl_context=tls).start()
    except OSError as error:
        raise failed(
            f"cannot listen on {address.host or ''}:{address.port}: {error.strerror or error}; "
            "choose another with --health-probe-bind-address or --metrics-bind-address (0 for none)"
        ) from error
    port = runner.addresses[0][1]
    return f"{'https' if tls else 'http'}://{address.host or '127.0.0.1'}:{port}"
