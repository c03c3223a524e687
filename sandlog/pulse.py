"""How each process says how it is: `sandlog status` asks on one NATS subject, everybody answers. Outside the log: nothing depends on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg

from bus.connection import Connection
from bus.version import CODE_VERSION

logger = structlog.get_logger(__name__)

SUBJECT: Final = "sandlog.pulse"
PATIENCE: Final = 1.0
"""Seconds that answers may take; whoever is slower has a problem of its own."""
ANSWERS: Final = 10_000


class Pulse(msgspec.Struct, frozen=True):
    """A process: its name among the members, its code, the cluster it works on, and what each of its roles says of itself."""

    member: str
    version: str
    cluster: str
    roles: dict[str, dict[str, Any]]
    not_ready: dict[str, str]


@contextlib.asynccontextmanager
async def answering(
    connection: Connection,
    member: str,
    cluster: str,
    status: Callable[[], Mapping[str, Mapping[str, Any]]],
    not_ready: Callable[[], Mapping[str, str]],
) -> AsyncIterator[None]:
    """Answer while the block runs."""

    async def answer(message: Msg) -> None:
        roles = {name: dict(found) for name, found in status().items()}
        pulse = Pulse(member, CODE_VERSION, cluster, roles, dict(not_ready()))
        try:
            await connection.nc.publish(message.reply, msgspec.json.encode(pulse))
        except (nats.errors.Error, OSError) as error:
            logger.info("status not answered", error=repr(error))

    subscription = await connection.nc.subscribe(SUBJECT, cb=answer)
    try:
        yield
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()


async def ask(connection: Connection, expected: set[str]) -> list[Pulse]:
    """The answers, by name; returns as soon as all `expected` have answered, at the latest after PATIENCE."""
    found: dict[str, Pulse] = {}
    complete = asyncio.Event()

    async def take(message: Msg) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            pulse = msgspec.json.decode(message.data, type=Pulse)
            if len(found) < ANSWERS:
                found[pulse.member] = pulse
            if expected <= set(found):
                complete.set()

    inbox = connection.nc.new_inbox()
    subscription = await connection.nc.subscribe(inbox, cb=take)
    try:
        await connection.nc.publish(SUBJECT, b"", inbox)
        if expected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await complete.wait()
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()
    return [found[name] for name in sorted(found)]
