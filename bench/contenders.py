"""What can be measured: the floor that the user gives, one sandlog with all roles, and each role in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from support.controlplane import ControlPlane
from support.programs import Program, Role
from support.sandlog import SEPARATE

from bus.natsserver import LocalNats

FLOOR, ALL, SPLIT = "floor", "all", "split"
FLOOR_USER = "controller"
FLOOR_WARM_UP = 1.5


class Running(msgspec.Struct, frozen=True):
    """A contender that is ready: its processes by name."""

    processes: dict[str, int]
    programs: list[Program]

    def trouble(self) -> str | None:
        return next((problem for program in self.programs if (problem := program.trouble())), None)


@contextlib.asynccontextmanager
async def floor(command: str, plane: ControlPlane, folder: Path) -> AsyncIterator[Running]:
    """`command` may say {server}, {token} and {kubeconfig}; its user is `controller`."""
    words = [
        word.format(server=plane.url, token=plane.token(FLOOR_USER), kubeconfig=plane.kubeconfig(FLOOR_USER))
        for word in shlex.split(command)
    ]
    program = Program(FLOOR, words, folder)
    try:
        # It has no way to say that it is ready; it makes two requests to be so.
        await asyncio.sleep(FLOOR_WARM_UP)
        yield Running({FLOOR: program.process.pid}, [program])
    finally:
        program.stop()


@contextlib.asynccontextmanager
async def sandlog(roles: tuple[str, ...], plane: ControlPlane, folder: Path) -> AsyncIterator[Running]:
    """Over a nats-server of its own, with an empty log, as a new installation is."""
    shutil.rmtree(folder, ignore_errors=True)
    async with LocalNats(folder / "nats") as nats:
        arguments = ["--nats", nats.url, "--kubeconfig", str(plane.kubeconfig("sandlog")), "--cluster", "bench"]
        arguments += ["--snapshot-registry", "registry.test/snapshots", "--ignore-stock-lease"]
        started = [Role(role, 0, folder, arguments) for role in roles]
        try:
            for role in started:
                role.until_ready()
            assert nats.pid is not None
            processes = {role.role: role.process.pid for role in started}
            yield Running({**processes, "nats-server": nats.pid}, list(started))
        finally:
            for role in started:
                role.process.terminate()
            for role in started:
                role.ended()


def start(
    name: str, floor_command: str | None, plane: ControlPlane, folder: Path
) -> contextlib.AbstractAsyncContextManager[Running]:
    """Raises ValueError for an unknown name."""
    if name == FLOOR and floor_command:
        return floor(floor_command, plane, folder / FLOOR)
    if name == ALL:
        return sandlog(("all",), plane, folder / ALL)
    if name == SPLIT:
        return sandlog(SEPARATE, plane, folder / SPLIT)
    raise ValueError(f"no contender {name!r}")


def kubelet(plane: ControlPlane, folder: Path, start_delay: float, commit_delay: float) -> Program:
    """The stand-in for all kubelets, in a process of its own."""
    arguments = ["--server", plane.url, "--token", plane.token("kubelet"), "--insecure"]
    arguments += ["--start-delay", str(start_delay), "--commit-delay", str(commit_delay)]
    return Program("kubelet", [sys.executable, "-m", "simcluster.kubelet", *arguments], folder)
