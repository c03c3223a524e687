"""What sandlog leaves behind for those who look: commands and dead letters in its log, Events, conditions, process output, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
from nats.js import JetStreamContext

from bus.connection import Connection, ConnectionSettings
from bus.log import Record
from bus.log_nats import NatsLog
from bus.messages import CODE_HEADER
from bus.subjects import DEFAULT_PARTITIONS, partition_of
from support.api import Api
from support.sandlog import Sandlog

CLUSTER = "test"
POLL = 0.05
SECOND = 1_000_000_000


@contextlib.asynccontextmanager
async def opened_log(sandlog: Sandlog) -> AsyncIterator[NatsLog]:
    async with await Connection.open(ConnectionSettings(url=sandlog.nats_url)) as connection:
        yield await NatsLog.open(connection)


@contextlib.asynccontextmanager
async def jetstream(sandlog: Sandlog) -> AsyncIterator[JetStreamContext]:
    """NATS as anybody with its credentials can use it, past our own code."""
    client = await nats.connect(sandlog.nats_url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


def subject(namespace: str, message: str, kind: str, name: str) -> str:
    """Of the log, with the partition that the namespace has."""
    partition = partition_of(CLUSTER, namespace, DEFAULT_PARTITIONS)
    return f"log.{partition}.{CLUSTER}.{namespace}.{message}.{kind}.{name.replace('.', '_')}"


async def records(sandlog: Sandlog, *patterns: str) -> list[Record]:
    async with opened_log(sandlog) as log:
        return await log.read(list(patterns))


async def commands(sandlog: Sandlog, namespace: str, name: str) -> list[tuple[float, dict[str, Any]]]:
    """(log time in seconds, body) of each command about a sandbox."""
    found = await records(sandlog, subject(namespace, "cmd", "sandbox", name))
    return [(r.time / SECOND, json.loads(r.data)) for r in found]


async def sandlog_dead(sandlog: Sandlog) -> list[dict[str, Any]]:
    """What `sandlog dead` shows an operator."""
    arguments = ("-m", "sandlog", "dead", "--nats", sandlog.nats_url, "--output", "json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-2000:]
    found: list[dict[str, Any]] = json.loads(out)
    return found


async def until(what: str, condition: Callable[[], Any], limit: float = 30.0) -> Any:
    """Poll something that no watch tells (a metric, the log). `condition` may be a coroutine function; the first true value."""
    end = asyncio.get_running_loop().time() + limit
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert asyncio.get_running_loop().time() < end, f"not within {limit:g} s: {what}"
        await asyncio.sleep(POLL)


async def texts(api: Api, sandlog: Sandlog) -> dict[str, str]:
    """All places where text of ours stands for people to read, by place; the log's observations and commands are none of them."""
    places = {
        "events": str(await api.list("Event")),
        "statuses": str([o.get("status") for o in await api.list("BatchSandbox")]),
        "process logs": sandlog.output(),
        "metrics": sandlog.metrics(),
    }
    told = await records(sandlog, "log.*.*.*.dead.>", "log.*.*.*.out.>", "log.*.*.*.cmd.>")
    ours = [r.data.decode() for r in told if CODE_HEADER in r.headers]
    places["commands, outcomes and dead letters"] = "\n".join(ours)
    return places
