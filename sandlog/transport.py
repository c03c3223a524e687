"""How a command gets at NATS: the server named by --nats, else the local one of the data directory, started where that makes sense.

A started local server leaves its URL in `<data directory>/server.json`, so that commands in another shell find it.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from bus.clock import LogClock
from bus.connection import CannotConnect, Connection, ConnectionSettings, Misconfigured
from bus.log import Log, LogUnavailable
from bus.log_nats import LogSettings, NatsLog
from bus.membership import Memberships
from bus.membership_nats import NatsMemberships
from bus.natsserver import LocalNats, NatsServerError
from bus.streams import StreamRefused
from bus.viewstore import ViewStore, ViewStoreUnavailable
from bus.viewstore_nats import NatsViewStore, ViewStoreSettings
from sandlog.exits import Stop, no_nats, usage
from sandlog.options import Target

logger = structlog.get_logger(__name__)

SERVER_FILE: Final = "server.json"
LOCAL_TIMEOUT: Final = 2.0


class Running(msgspec.Struct, frozen=True):
    """What `server.json` says: where the local server listens."""

    url: str


class Transport(msgspec.Struct, frozen=True):
    """NATS as the roles and commands use it. `local` None: a server that is not ours to stop."""

    connection: Connection
    log: Log
    views: ViewStore
    memberships: Memberships
    clock: LogClock
    url: str
    local: LocalNats | None = None


def running(directory: Path) -> str | None:
    """The URL that the last local server of this data directory left, whether it still runs or not."""
    try:
        return msgspec.json.decode((directory / SERVER_FILE).read_bytes(), type=Running).url
    except (OSError, msgspec.DecodeError):
        return None


@contextlib.asynccontextmanager
async def local_server(directory: Path) -> AsyncIterator[LocalNats]:
    """A nats-server of ours in `directory`, its URL left there. Raises Stop."""
    server = LocalNats(directory)
    try:
        await server.start()
    except (NatsServerError, OSError) as error:
        raise no_nats(f"the local NATS server cannot run: {error}") from error
    file = server.directory / SERVER_FILE
    try:
        file.touch(mode=0o600)
        file.chmod(0o600)
        file.write_bytes(msgspec.json.encode(Running(server.url)))
        yield server
    finally:
        file.unlink(missing_ok=True)
        await server.stop()


async def _connect(settings: ConnectionSettings) -> Connection:
    try:
        return await Connection.open(settings)
    except Misconfigured as error:
        raise usage(str(error)) from error
    except CannotConnect as error:
        raise no_nats(str(error)) from error


async def _local_connection(target: Target) -> Connection | None:
    """A connection to the local server that runs in the data directory, None if none does."""
    url = running(target.data_directory)
    if url is None:
        return None
    settings = msgspec.structs.replace(target.settings(url), connect_timeout=LOCAL_TIMEOUT)
    try:
        return await Connection.open(settings)
    except CannotConnect:
        return None


def _none_runs(directory: Path) -> str:
    below = directory / "nats"
    if running(below) is not None:
        return f"no local NATS server runs in {directory}, but one was started in {below}: say --data-dir {below}"
    return (
        f"no local NATS server runs in {directory}: start one with `sandlog run all`, "
        "or say where yours is with --nats URL (or another --data-dir)"
    )


def is_served(directory: Path) -> bool:
    """Whether a process runs a local server in the data directory: it holds the lock there, however slow the server is to answer."""
    try:
        with (directory / "lock").open(encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


@contextlib.asynccontextmanager
async def for_reading(target: Target) -> AsyncIterator[Transport]:
    """For commands that look: changes no stream, starts no server. Raises Stop if there is no NATS or no log on it."""
    if target.connection is not None:
        connection = await _connect(target.connection)
    else:
        found = await _local_connection(target)
        if found is None:
            raise no_nats(_none_runs(target.data_directory))
        connection = found
    async with connection:
        log = NatsLog(connection, LogSettings())
        clock = LogClock()
        try:
            clock.observe((await log.bounds()).now)
        except LogUnavailable as error:
            raise no_nats(
                f"NATS at {connection.settings.shown} has no log that can be read ({error}): "
                "has any role run against it, and are account and --js-domain right?"
            ) from error
        views = NatsViewStore(connection, ViewStoreSettings())
        yield Transport(connection, log, views, await _memberships(connection), clock, connection.settings.shown)


async def _memberships(connection: Connection, **settings: Any) -> NatsMemberships:
    return await NatsMemberships.open(connection, **settings)


@contextlib.asynccontextmanager
async def for_roles(target: Target, log: LogSettings, views: ViewStoreSettings) -> AsyncIterator[Transport]:
    """For processes that work: makes or checks the streams; without --nats shares or starts the local server. Raises Stop."""
    async with contextlib.AsyncExitStack() as stack:
        local: LocalNats | None = None
        if target.connection is not None:
            connection = await _connect(target.connection)
        else:
            found = await _local_connection(target)
            if found is None:
                local = await stack.enter_async_context(local_server(target.data_directory))
                found = await _connect(target.settings(local.url))
            connection = found
            logger.info(
                "no --nats given: using the local server",
                url=connection.settings.shown,
                data=str(target.data_directory),
                started=local is not None,
            )
        await stack.enter_async_context(connection)
        try:
            opened = await NatsLog.open(connection, log)
            store = await NatsViewStore.open(connection, views)
            memberships = await _memberships(connection)
            clock = LogClock()
            clock.observe((await opened.bounds()).now)
        except (StreamRefused, LogUnavailable, ViewStoreUnavailable) as error:
            raise Stop(3, f"JetStream at {connection.settings.shown} does not serve us: {error}") from error
        yield Transport(connection, opened, store, memberships, clock, connection.settings.shown, local)
