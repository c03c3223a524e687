"""The published command line, `osb`, drives our controller (server-client.md §6)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from realclient_world import POLL, CommandLine

pytestmark = pytest.mark.real_client


async def test_osb_creates_pauses_resumes_and_kills(osb: CommandLine) -> None:
    created = await osb.run("sandbox", "create", "--image", "python:3.11", "--timeout", "10m")
    id = created["id"]
    assert await state(osb, id) == "Running"
    assert (await osb.run("sandbox", "endpoint", id, "--port", "8000"))["endpoint"].endswith(":8000")

    await osb.run("sandbox", "pause", id)
    await until(osb, id, "Paused")
    await osb.run("sandbox", "resume", id)
    await until(osb, id, "Running")
    assert id in str(await osb.run("sandbox", "list"))
    await osb.run("sandbox", "kill", id)


async def state(osb: CommandLine, id: str) -> Any:
    found = await osb.run("sandbox", "get", id)
    status = found["status"]
    return status["state"] if isinstance(status, dict) else status


async def until(osb: CommandLine, id: str, wanted: str, limit: float = 30.0) -> None:
    end = time.monotonic() + limit
    while (found := await state(osb, id)) != wanted:
        assert time.monotonic() < end, f"not {wanted} within {limit:g} s: {found}"
        await asyncio.sleep(POLL)
