"""`sandlog run`: the process around the roles: logs, NATS, health and metrics, signals, an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import structlog

from bus.natsserver import LocalNats, NatsServerError
from bus.version import CODE_VERSION
from sandlog import logs, redaction, roles
from sandlog.cluster_name import refuse_if_taken
from sandlog.exits import no_nats
from sandlog.failures import plain
from sandlog.health import serve
from sandlog.metrics import PrometheusMetrics
from sandlog.namespaces import missing
from sandlog.options import Target
from sandlog.pulse import answering
from sandlog.run_options import RunSettings
from sandlog.runtime import Supervisor
from sandlog.sampler import sample
from sandlog.stock_lease import refuse_if_held
from sandlog.transport import Transport, for_roles

logger = structlog.get_logger(__name__)

GUARD_INTERVAL = 1.0


async def run(role: str, target: Target, settings: RunSettings, warnings: tuple[str, ...]) -> None:
    """Until SIGTERM or SIGINT. Raises Stop if it cannot start, or a role ends for good."""
    logs.configure(settings.logs)
    for sentence in (*warnings, *settings.warnings):
        logger.warning(sentence)
    names = roles.wanted(role)
    logger.info("sandlog starts", roles=list(names), version=CODE_VERSION)
    metrics = PrometheusMetrics()
    supervisor = Supervisor(metrics, random.Random(), roles.fatal)
    supervisor.on_signals()
    with plain():
        await _until_asked(supervisor, lambda working: _whole(names, target, settings, supervisor, metrics, working))
    logger.info("sandlog stopped")


async def _until_asked(supervisor: Supervisor, work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run it. Asked to stop before it says that it works, it is cut off where it is: NATS or the API server may not answer for long."""
    working = asyncio.Event()
    whole = asyncio.create_task(work(working), name="whole")
    asked = asyncio.create_task(supervisor.asked_to_stop(), name="asked to stop")
    try:
        await asyncio.wait({whole, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not whole.done() and not working.is_set():
            whole.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await whole
            return
        await whole
    finally:
        asked.cancel()
        if not whole.done():
            whole.cancel()
            await asyncio.gather(whole, return_exceptions=True)


async def _whole(
    names: tuple[str, ...],
    target: Target,
    settings: RunSettings,
    supervisor: Supervisor,
    metrics: PrometheusMetrics,
    working: asyncio.Event,
) -> None:
    async with (
        for_roles(target, settings.stream, settings.views) as transport,
        _cluster(names, settings) as cluster,
    ):
        if cluster is not None:
            await asyncio.gather(
                refuse_if_taken(transport.memberships, cluster.client, cluster.name),
                missing(cluster.client, settings.namespaces if "bridge" in names else ()),
            )
        local = target.data_directory if target.connection is None else None
        key = redaction.key(settings.redaction_key, local) if cluster is not None else b""
        member = roles.member_name(settings)
        parts = roles.Parts(transport, metrics, random.Random(), settings, cluster, member, key)
        roles.add(supervisor, names, parts)
        working.set()
        await _work(supervisor, parts)


@contextlib.asynccontextmanager
async def _cluster(names: tuple[str, ...], settings: RunSettings) -> AsyncIterator[roles.Cluster | None]:
    """The cluster, for those roles that need one."""
    if not any(name in roles.OF_CLUSTER for name in names):
        yield None
        return
    async with roles.open_cluster(settings) as cluster:
        if "executor" in names and not settings.ignore_stock_lease:
            await refuse_if_held(cluster.client, cluster.name)
        yield cluster


async def _work(supervisor: Supervisor, parts: roles.Parts) -> None:
    transport = parts.transport

    def not_ready() -> dict[str, str]:
        wrong = supervisor.not_ready()
        if not transport.connection.connected:
            wrong["nats"] = f"not connected to {transport.url}"
        return wrong

    def dead() -> dict[str, str]:
        return {"nats": "connection given up"} if transport.connection.closed.done() else {}

    assert isinstance(parts.metrics, PrometheusMetrics)
    cluster = parts.cluster.name if parts.cluster is not None else None
    async with (
        serve(parts.settings.endpoints, parts.metrics, dead, not_ready),
        answering(transport.connection, parts.member, cluster or "", supervisor.status, not_ready),
    ):
        guards = [
            asyncio.create_task(_until_closed(transport, supervisor), name="connection guard"),
            asyncio.create_task(sample(transport, supervisor, parts.metrics, cluster), name="sampler"),
        ]
        if transport.local is not None:
            guards.append(asyncio.create_task(_keep_up(transport.local), name="local server guard"))
        try:
            await supervisor.run()
        finally:
            for guard in guards:
                guard.cancel()
            await asyncio.gather(*guards, return_exceptions=True)
    if transport.connection.closed.done():
        raise no_nats(f"the connection to {transport.url} was given up; its log output says why")


async def _until_closed(transport: Transport, supervisor: Supervisor) -> None:
    """A connection that was closed for good (credentials revoked) never comes back: end the process."""
    await asyncio.shield(transport.connection.closed)
    logger.error("the connection to nats is closed for good", url=transport.url)
    supervisor.stop()


async def _keep_up(server: LocalNats) -> None:
    """Start the local server again if it ends."""
    while True:
        await asyncio.sleep(GUARD_INTERVAL)
        if not server.running:
            logger.error("the local nats-server ended, starting it again", data=str(server.directory))
            try:
                await server.start()
            except (NatsServerError, OSError) as error:
                logger.error("the local nats-server does not start", error=str(error))
