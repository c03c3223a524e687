"""Figures that nobody counts as they happen: asked for every few seconds while the roles run."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from bus.metrics import Metrics
from sandlog.failures import NATS_ERRORS
from sandlog.runtime import Supervisor
from sandlog.survey import consumers_of
from sandlog.transport import Transport

logger = structlog.get_logger(__name__)

INTERVAL: Final = 5.0


async def sample(transport: Transport, supervisor: Supervisor, metrics: Metrics, cluster: str | None) -> None:
    """Until cancelled."""
    while True:
        connection = transport.connection
        metrics.gauge("nats_connected", 1 if connection.connected else 0)
        metrics.gauge("nats_reconnects", connection.reconnects)
        supervisor.not_ready()
        if cluster is not None:
            try:
                for name, pending in await consumers_of(connection, cluster):
                    metrics.gauge("commands_pending", pending, cluster=cluster)
                    logger.debug("commands pending", cluster=cluster, durable=name, pending=pending)
            except NATS_ERRORS as error:
                logger.info("commands that wait could not be counted", cluster=cluster, error=str(error))
        await asyncio.sleep(INTERVAL)
