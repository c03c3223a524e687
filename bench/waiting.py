"""Waiting for roles in threads: the API server that they ask may run in this very process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from support.programs import Role


async def ready(roles: Sequence[Role]) -> None:
    """Raises AssertionError, with what it said, when one is not."""
    await asyncio.gather(*(asyncio.to_thread(role.until_ready) for role in roles))


async def stop(roles: Sequence[Role]) -> None:
    for role in roles:
        if role.trouble() is None:
            role.process.terminate()
    await asyncio.gather(*(asyncio.to_thread(role.ended) for role in roles))
