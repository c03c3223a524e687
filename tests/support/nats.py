"""A nats-server as a child process that tests may kill, wipe and start again on the same port."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

from bus.log import MAX_MESSAGE_BYTES
from bus.natsserver import find_binary
from support.controlplane import free_ports
from support.programs import START_LIMIT, Program

STOP_LIMIT = 20.0


class NatsServer:
    """`start` it, `kill` it (SIGKILL), `wipe` its data, `start` it again: the URL stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        (self._port,) = free_ports(1)
        self._program: Program | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "nats.conf"
        configuration.write_text(
            f'listen: "127.0.0.1:{self._port}"\n'
            f"max_payload: {MAX_MESSAGE_BYTES}\n"
            "max_pending: 256MB\n"
            f'jetstream {{ store_dir: "{self.folder / "jetstream"}" }}\n'
        )
        program = self._program = Program("nats", [str(find_binary()), "-c", str(configuration)], self.folder)
        end = time.monotonic() + START_LIMIT
        while True:
            problem = program.trouble()
            assert problem is None, problem
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                assert time.monotonic() < end, f"nats-server does not listen: {program.tail()}"
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        if self._program is not None:
            self._program.kill()
            self._program = None

    def wipe(self) -> None:
        """All its data are gone. Not while it runs."""
        assert self._program is None
        shutil.rmtree(self.folder / "jetstream", ignore_errors=True)

    def stop(self) -> None:
        if self._program is not None:
            self._program.stop(STOP_LIMIT)
            self._program = None

    def trouble(self) -> str | None:
        return None if self._program is None else self._program.trouble()
