"""Refuses to work beside the stock controller: both would write the same sandboxes (controller-behaviour.md §8.3)."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import structlog

from bridge.cluster import ClusterClient, Unreachable
from bridge.lease import stock_controller_holds
from sandlog.exits import NO_API_SERVER, REFUSED, Stop

logger = structlog.get_logger(__name__)

PATIENCE: Final = 60.0
"""Seconds that the API server may take to answer when we start."""
PAUSE: Final = 2.0


async def refuse_if_held(client: ClusterClient, cluster: str) -> None:
    """Raises Stop while somebody holds the lease, or if the API server does not answer at all."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            # The stock controller's lease lies in its own namespace, which is ours where we replace it.
            holder = await stock_controller_holds(client, os.environ.get("POD_NAMESPACE", ""))
        except Unreachable as error:
            if asyncio.get_running_loop().time() + PAUSE > deadline:
                raise Stop(NO_API_SERVER, f"the API server of {cluster} does not answer: {error}") from error
            logger.warning("the api server does not answer, trying again", cluster=cluster, error=str(error))
            await asyncio.sleep(PAUSE)
            continue
        if holder is None:
            return
        raise Stop(
            REFUSED,
            f"the stock controller holds its lease in {cluster} ({holder}): scale it to 0 first "
            "(the lease runs out 15 s later), or say --ignore-stock-lease if you know that it is not running",
        )
