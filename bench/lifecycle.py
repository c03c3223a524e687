"""Drives N sandboxes through create → ready → delete on any cluster, whichever controller runs there, and says what that took.

    python bench/lifecycle.py --kubeconfig FILE --sandboxes 400 --rate 40 [--pause] [--audit-log FILE] [--process NAME=PID]…

Latencies come from this client's own watches. "Pod ready → sandbox ready" is the controller's own share of "asked → ready".
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
from costs import AUDIT_DELAY, Processes, Writes, audit
from figures import Latency, between, latency
from kube import MERGE_PATCH, Kube, Refused
from kubernetes_asyncio.config import ConfigException
from report import Report, Stage, show_report
from watching import GROUP, Sandbox, Step, Watching

AT_ONCE = 64
"""Requests of ours under way at a time, as a busy server would send them."""


class Settings(msgspec.Struct, frozen=True):
    """`rate`: sandboxes a second, 0 for all at once. `limit`: seconds that a stage may take. `settle`: seconds after it."""

    kubeconfig: str | None
    context: str | None
    namespace: str
    sandboxes: int
    rate: float
    replicas: int
    image: str
    pause: bool
    audit_log: Path | None
    processes: dict[str, int]
    limit: float
    settle: float
    keep: bool


class Lifecycle:
    def __init__(self, kube: Kube, settings: Settings) -> None:
        self._kube, self._settings = kube, settings
        self._watching = Watching(kube, settings.namespace)
        prefix = f"b{secrets.token_hex(3)}"
        self._names = [f"{prefix}-{number}" for number in range(settings.sandboxes)]
        self._path = f"{GROUP}/namespaces/{settings.namespace}/batchsandboxes"
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._processes = Processes(settings.processes)
        self._audited = 0

    async def run(self) -> Report:
        started = asyncio.Event()
        watching = asyncio.create_task(self._watching.run(started))
        try:
            await _first(started.wait(), watching)
            stages = await _first(self._stages(), watching)
            return Report(self._settings.sandboxes, self._settings.rate, stages, self._watching.resumed)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await watching

    async def _stages(self) -> list[Stage]:
        stages = [await self._stage("ready", self._create, self._is_ready)]
        if self._settings.pause:
            stages.append(await self._stage("paused", self._pause, lambda s: s.phase == "Paused"))
            stages.append(await self._stage("resumed", self._resume, self._is_ready))
        if not self._settings.keep:
            stages.append(await self._stage("gone", self._delete, lambda s: s.gone))
        return stages

    def _is_ready(self, sandbox: Sandbox) -> bool:
        return sandbox.phase == "Succeed" and sandbox.endpoints and sandbox.ready >= self._settings.replicas

    async def _stage(self, name: str, act: Callable[[str], Awaitable[Any]], wanted: Callable[[Sandbox], bool]) -> Stage:
        step = self._watching.step = Step(self._names, wanted)
        self._begin_costs()
        began = time.monotonic()
        refused = await self._ask(step, act, began)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(step.finished.wait(), self._settings.limit)
        seconds = max(step.times.values(), default=began) - began
        await asyncio.sleep(self._settings.settle)
        cpu = self._processes.since(len(self._names))
        asked, reached = len(self._names), len(step.times)
        return Stage(
            name, asked, reached, refused, round(seconds, 3), _latencies(name, step), cpu, await self._writes()
        )

    async def _ask(self, step: Step, act: Callable[[str], Awaitable[Any]], began: float) -> int:
        """Ask for all, in order, at the rate wanted; how many were refused."""
        rate, tasks = self._settings.rate, []
        for number, name in enumerate(self._names):
            if rate:
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            tasks.append(asyncio.create_task(self._ask_one(step, act, name)))
        problems = [problem for problem in await asyncio.gather(*tasks) if problem]
        for problem in dict.fromkeys(problems):
            click.echo(f"refused: {problem}", err=True)
        return len(problems)

    async def _ask_one(self, step: Step, act: Callable[[str], Awaitable[Any]], name: str) -> str:
        async with self._slots:
            step.asked[name] = time.monotonic()
            try:
                await act(name)
            except Refused as refused:
                return str(refused)
        return ""

    # -- what is asked for

    def _create(self, name: str) -> Awaitable[Any]:
        container: dict[str, Any] = {"name": "sandbox", "image": self._settings.image, "command": ["sleep", "1000"]}
        container["env"] = [{"name": "K", "value": "v"}]
        pod = {"terminationGracePeriodSeconds": 0, "containers": [container]}
        template = {"metadata": {"labels": {"app": "bench"}}, "spec": pod}
        body = {
            "apiVersion": "sandbox.opensandbox.io/v1alpha1",
            "kind": "BatchSandbox",
            "metadata": {"name": name},
            "spec": {"replicas": self._settings.replicas, "template": template},
        }
        return self._kube.call("POST", self._path, body)

    def _pause(self, name: str) -> Awaitable[Any]:
        return self._kube.call("PATCH", f"{self._path}/{name}", {"spec": {"pause": True}}, MERGE_PATCH)

    def _resume(self, name: str) -> Awaitable[Any]:
        return self._kube.call("PATCH", f"{self._path}/{name}", {"spec": {"pause": False}}, MERGE_PATCH)

    def _delete(self, name: str) -> Awaitable[Any]:
        return self._kube.call("DELETE", f"{self._path}/{name}")

    # -- what it cost

    def _begin_costs(self) -> None:
        self._processes.since(1)
        if self._settings.audit_log is not None:
            self._audited = self._settings.audit_log.stat().st_size

    async def _writes(self) -> dict[str, Writes]:
        if self._settings.audit_log is None:
            return {}
        await asyncio.sleep(AUDIT_DELAY)
        return audit(self._settings.audit_log, self._audited, len(self._names))


def _latencies(stage: str, step: Step) -> dict[str, Latency | None]:
    names = {
        "ready": ("asked → ready", "pod ready → sandbox ready"),
        "paused": ("intent → Paused", "commit ended → Paused"),
        "resumed": ("intent → Succeed", "pod ready → Succeed"),
        "gone": ("delete → gone",),
    }[stage]
    found = {names[0]: latency(between(step.asked, step.times))}
    if stage in ("ready", "resumed"):
        found[names[1]] = latency(between(step.pods_ready, step.times))
    if stage == "paused":
        found[names[1]] = latency(between(step.commits, step.times))
    return found


async def _first(work: Awaitable[Any], watching: asyncio.Task[None]) -> Any:
    """The work's result; the watches' error, should they end before."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        watching.result()
    return task.result()


@contextlib.contextmanager
def _fast_loop() -> Iterator[asyncio.Runner]:
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


async def measure(settings: Settings) -> Report:
    """Raises Refused when the cluster does, and aiohttp's errors when it cannot be reached."""
    async with await Kube.open(settings.kubeconfig, settings.context) as kube:
        try:
            await kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": settings.namespace}})
            made = True
        except Refused as refused:
            if refused.status != 409:
                raise
            made = False
        try:
            return await Lifecycle(kube, settings).run()
        finally:
            if made and not settings.keep:
                await kube.call("DELETE", f"/api/v1/namespaces/{settings.namespace}")


def _processes(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    try:
        return {name: int(pid) for name, _, pid in (text.partition("=") for text in given)}
    except ValueError as error:
        raise click.BadParameter("NAME=PID is wanted") from error


@click.command(help=__doc__)
@click.option("--kubeconfig", help="default: KUBECONFIG, else ~/.kube/config")
@click.option("--context", help="of the kubeconfig")
@click.option(
    "--namespace", default=lambda: f"bench-{secrets.token_hex(3)}", help="default: a new one, deleted at the end"
)
@click.option("--sandboxes", default=128, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--rate", default=0.0, show_default=True, help="sandboxes a second; 0: all at once")
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1))
@click.option("--image", default="busybox:1", show_default=True)
@click.option("--pause", is_flag=True, help="pause and resume them between ready and delete")
@click.option(
    "--audit-log", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="counts API calls by user"
)
@click.option(
    "--process", "processes", multiple=True, callback=_processes, metavar="NAME=PID", help="counts its CPU; repeatable"
)
@click.option("--limit", default=180.0, show_default=True, help="seconds that a stage may take")
@click.option("--settle", default=1.0, show_default=True, help="seconds after each stage that count for CPU and calls")
@click.option("--keep", is_flag=True, help="delete neither sandboxes nor namespace")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(output: str, **given: Any) -> None:
    try:
        with _fast_loop() as runner:
            report = runner.run(measure(Settings(**given)))
    except (Refused, ConfigException, aiohttp.ClientError) as error:
        raise click.ClickException(f"{type(error).__name__}: {error}") from error
    if output == "json":
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        show_report(report)
    sys.exit(0 if report.complete else 1)


if __name__ == "__main__":
    main()
