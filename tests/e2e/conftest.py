"""A whole sandlog on an API server: one process with all roles, or two of each, over a nats-server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from conftest import Server
from support.programs import Role

from bus.natsserver import LocalNats

SEPARATE = ("bridge", "executor", "projector", "reconciler")


class Sandlog:
    """The running roles. `arguments` are what each of them is given."""

    def __init__(self, folder: Path, nats_url: str, arguments: list[str]) -> None:
        self.folder, self.nats_url, self.arguments = folder, nats_url, arguments
        self.roles: list[Role] = []

    def start(self, *roles: str) -> None:
        """Start these, and wait until each says that it is ready."""
        started = []
        for role in roles:
            number = sum(1 for other in self.roles if other.role == role)
            started.append(Role(role, number, self.folder, self.arguments))
            self.roles.append(started[-1])
        for role in started:
            role.until_ready()

    def trouble(self) -> str | None:
        return next((problem for role in self.roles if (problem := role.trouble())), None)

    def output(self) -> str:
        return "\n".join(role.output.read_text(errors="replace") for role in self.roles)

    def stop(self) -> list[int]:
        for role in self.roles:
            role.process.terminate()
        return [role.stop() for role in self.roles]


@pytest.fixture
async def nats_url(tmp_path: Path) -> AsyncIterator[str]:
    async with LocalNats(tmp_path / "nats") as nats:
        yield nats.url


@pytest.fixture
def make_sandlog(server: Server, nats_url: str, tmp_path: Path) -> object:
    def make(*more: str) -> Sandlog:
        arguments = ["--nats", nats_url, "--kubeconfig", str(server.kubeconfig), "--cluster", "test", *more]
        return Sandlog(tmp_path / "roles", nats_url, arguments)

    return make


@pytest.fixture(params=["one", "two-of-each"])
def sandlog(request: pytest.FixtureRequest, make_sandlog: Callable[..., Sandlog]) -> object:
    made = make_sandlog()
    made.start(*(("all",) if request.param == "one" else SEPARATE * 2))
    yield made
    codes = made.stop()
    assert codes == [0] * len(codes), made.output()[-4000:]
