"""`sandlog run`: the process around the roles: logs, NATS, health and metrics, signals, an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import structlog

from bus.natsserver import LocalNats, NatsServerError
from bus.version import CODE_VERSION
from sandlog import logs, redaction, roles
from sandlog.exits import no_nats
from sandlog.failures import plain
from sandlog.health import serve
from sandlog.metrics import PrometheusMetrics
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
    randomness = random.Random()
    supervisor = Supervisor(metrics, randomness, roles.fatal)
    supervisor.on_signals()
    with plain():
        async with (
            for_roles(target, settings.stream, settings.views) as transport,
            _cluster(names, settings) as cluster,
        ):
            local = target.data_directory if target.connection is None else None
            key = redaction.key(settings.redaction_key, local) if cluster is not None else b""
            member = roles.member_name(settings)
            parts = roles.Parts(transport, metrics, randomness, settings, cluster, member, key)
            roles.add(supervisor, names, parts)
            await _work(supervisor, parts)
    logger.info("sandlog stopped")


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
