"""Sandlog's own roles as child processes, against an API server and a nats-server."""

from __future__ import annotations

import signal
from pathlib import Path

from support.nats import NatsServer
from support.programs import Role

SEPARATE = ("bridge", "executor", "projector", "reconciler")
MODES = {"one": ("all",), "two-of-each": SEPARATE * 2}
"""How many processes a whole sandlog is."""


class Sandlog:
    """The running roles. `arguments` are what each of them is given."""

    def __init__(self, folder: Path, nats: NatsServer, arguments: list[str]) -> None:
        self.folder, self.nats, self.arguments = folder, nats, arguments
        self.roles: list[Role] = []
        self._ended: list[Role] = []

    @property
    def nats_url(self) -> str:
        return self.nats.url

    def start(self, *roles: str) -> list[Role]:
        """Start these, and wait until each says that it is ready."""
        started = self.launch(*roles)
        for role in started:
            role.until_ready()
        return started

    def launch(self, *roles: str) -> list[Role]:
        """Start these without waiting for them."""
        started = []
        for role in roles:
            number = sum(1 for other in (*self.roles, *self._ended) if other.role == role)
            started.append(Role(role, number, self.folder, self.arguments))
            self.roles.append(started[-1])
        return started

    def of(self, role: str) -> list[Role]:
        return [each for each in self.roles if each.role == role]

    def kill(self, *killed: Role) -> None:
        """SIGKILL, as the kernel or a lost node would."""
        for role in killed:
            role.signal(signal.SIGKILL)
        for role in killed:
            role.kill()
            self._forget(role)

    def end(self, role: Role) -> None:
        """SIGTERM; asserts that it ends as it should."""
        code = role.stop()
        self._forget(role)
        assert code == 0, f"{role.name} ended with {code}: {role.tail()}"

    def until_ready(self) -> None:
        for role in self.roles:
            role.until_ready()

    def trouble(self) -> str | None:
        return next((problem for role in self.roles if (problem := role.trouble())), None)

    def output(self) -> str:
        everyone = (*self._ended, *self.roles)
        return "\n".join(role.output.read_text(errors="replace") for role in everyone)

    def metrics(self) -> str:
        return "\n".join(role.metrics() for role in self.roles)

    def figure(self, name: str, **labels: str) -> float:
        """The sum over all roles of a metric, where its labels are these."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total = 0.0
        for line in self.metrics().splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == f"sandlog_{name}" and all(label in head for label in wanted):
                total += float(value)
        return total

    def stop(self) -> list[int]:
        for role in self.roles:
            role.process.terminate()
        return [role.ended() for role in self.roles]

    def _forget(self, role: Role) -> None:
        self.roles.remove(role)
        self._ended.append(role)
