"""A local NATS to look at with the command line, and the command line as a function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog
from sandlog_helpers import Cli, Nats, Ran

from bus.natsserver import LocalNats
from sandlog.main import main
from sandlog.transport import SERVER_FILE, Running


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("get", "--nats", url)`: runs the command in this process."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        return Ran(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    """A local server whose data directory names it, as that of `sandlog run` does."""
    server = LocalNats(tmp_path / "nats")
    asyncio.run(server.start())
    (server.directory / SERVER_FILE).write_bytes(msgspec.json.encode(Running(server.url)))
    yield Nats(server.url, server.directory)
    asyncio.run(server.stop())
