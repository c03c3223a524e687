"""Sandlog's own roles as child processes, against an API server and a nats-server."""

from __future__ import annotations

from pathlib import Path

from support.programs import Role

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
        return [role.ended() for role in self.roles]
