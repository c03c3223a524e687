"""`sandlog demo`: a local NATS, a simulated cluster, every role, and sandboxes that become ready before one's eyes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import structlog

from bus import resources
from bus.log_nats import LogSettings as StreamSettings
from bus.natsserver import _die_with_parent
from bus.viewstore_nats import ViewStoreSettings
from sandlog import logs, output, roles
from sandlog.demo_course import Course, Summary
from sandlog.demo_display import Display, choose
from sandlog.exits import Stop, failed
from sandlog.failures import plain
from sandlog.metrics import PrometheusMetrics
from sandlog.options import Target
from sandlog.pulse import answering
from sandlog.run_options import RunSettings
from sandlog.runtime import Supervisor
from sandlog.transport import Transport, for_roles, is_served
from simcluster.client import HttpClient, WatchEnded

logger = structlog.get_logger(__name__)

CLUSTER: Final = "demo"
NAMESPACE: Final = "default"
START_BOUND: Final = 30.0
AT_ONCE: Final = 16
"""Creations at a time, as a busy server would send them."""
TOKEN: Final = "sim-token"
SANDBOXES: Final = f"{resources.BATCH_SANDBOX.path}/namespaces/{NAMESPACE}/{resources.BATCH_SANDBOX.plural}"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"


class DemoSettings(msgspec.Struct, frozen=True):
    """The flags of `demo`. `rate`: creations a second, 0 for all at once. `within`: seconds in which all must be ready."""

    sandboxes: int
    rate: float
    within: float
    plain: bool
    keep: bool
    data_directory: Path | None
    as_json: bool


def sandbox(name: str) -> dict[str, Any]:
    """A BatchSandbox of one pod, as a client writes it."""
    container = {"name": "sandbox", "image": "sandbox:demo", "env": [{"name": "GREETING", "value": "hello"}]}
    return {
        "apiVersion": resources.BATCH_SANDBOX.api_version,
        "kind": resources.BATCH_SANDBOX.name,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
    }


@contextlib.asynccontextmanager
async def simulated_cluster(directory: Path) -> AsyncIterator[str]:
    """A simulated cluster with its kubelet, in a process of its own; its URL. The kubeconfig is `directory`/kubeconfig."""
    command = ["-m", "simcluster", "--port", "0", "--kubelet", "--kubeconfig", str(directory / "kubeconfig")]
    with (directory / "simcluster.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is ours to turn into an orderly end
            preexec_fn=_die_with_parent(),
        )
    try:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_BOUND):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line.startswith(b"http"):
            end = (directory / "simcluster.log").read_text(errors="replace")[-500:]
            raise failed(f"the simulated cluster did not start: {line.decode().strip() or end or 'it said nothing'}")
        yield line.decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@contextlib.contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    """A folder for everything: the one named, else a temporary one that goes with us."""
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted
        return
    made = Path(tempfile.mkdtemp(prefix="sandlog-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


async def run(settings: DemoSettings) -> None:
    """Raises Stop with exit code 1 if not all sandboxes became ready in time."""
    display = choose(plain=settings.plain, silent=settings.as_json)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with _directory(settings.data_directory) as directory:
        _refuse_if_in_use(directory)
        _log_to(directory / "demo.log")
        with plain():
            async with contextlib.AsyncExitStack() as stack:
                supervisor, url = await _start(stack, directory, display)
                client = await stack.enter_async_context(HttpClient(url, TOKEN, agent="sandlog-demo"))
                start_up = loop.time() - began
                course = Course([f"demo-{number:03d}" for number in range(settings.sandboxes)])
                await _follow(client, course, display, settings)
                summary = course.summary(start_up)
                display.end(summary, _hints(directory, settings))
                if settings.as_json:
                    output.say(summary)
                _check(summary, settings, directory)
                if settings.keep:
                    await _keep(display)
                supervisor.stop()


def _target(directory: Path) -> Target:
    return Target(None, directory / "nats", START_BOUND)


def _refuse_if_in_use(directory: Path) -> None:
    """Two demos are two clusters: under one name in one log they would undo each other's work. Raises Stop."""
    if is_served(_target(directory).data_directory):
        raise _in_use(directory)


def _in_use(directory: Path) -> Stop:
    return failed(
        f"another demo, or `sandlog run`, is at work in {directory}: end it first, or name another --data-dir"
    )


def _log_to(file: Path) -> None:
    logs.configure(logs.LogSettings("text", logging.INFO), file.open("a", encoding="utf-8"))


async def _start(stack: contextlib.AsyncExitStack, directory: Path, display: Display) -> tuple[Supervisor, str]:
    """Everything that the demo needs, up and ready."""
    cluster_up = stack.enter_async_context(simulated_cluster(directory))
    starting = asyncio.ensure_future(cluster_up)
    try:
        target = _target(directory)
        transport = await stack.enter_async_context(for_roles(target, StreamSettings(), ViewStoreSettings()))
        if transport.local is None:
            raise _in_use(directory)
        display.say(f"NATS at {transport.url}, data in {target.data_directory}")
    finally:
        url = await starting
    display.say(f"simulated cluster at {url}, a kubelet stand-in on it")
    supervisor = await _roles(stack, transport, directory / "kubeconfig")
    display.say(f"{', '.join(roles.ALL)} at work")
    return supervisor, url


async def _roles(stack: contextlib.AsyncExitStack, transport: Transport, kubeconfig: Path) -> Supervisor:
    """All roles in this process; returns when they are ready."""
    settings = RunSettings(kubeconfig=kubeconfig, cluster=CLUSTER, qps=0, member="demo")
    metrics, randomness = PrometheusMetrics(process=False), random.Random()
    cluster = await stack.enter_async_context(roles.open_cluster(settings))
    supervisor = Supervisor(metrics, randomness, roles.fatal)
    key = secrets.token_bytes(32)
    roles.add(supervisor, roles.ALL, roles.Parts(transport, metrics, randomness, settings, cluster, "demo", key))
    await stack.enter_async_context(
        answering(transport.connection, "demo", CLUSTER, supervisor.status, supervisor.not_ready)
    )
    task = asyncio.create_task(supervisor.run(), name="roles")

    async def end() -> None:
        supervisor.stop()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    deadline = asyncio.get_running_loop().time() + START_BOUND
    while wrong := supervisor.not_ready():
        if task.done():
            task.result()
        if asyncio.get_running_loop().time() > deadline:
            raise failed(
                f"the roles did not become ready: {'; '.join(f'{name}: {why}' for name, why in wrong.items())}"
            )
        await asyncio.sleep(0.02)
    return supervisor


async def _follow(client: HttpClient, course: Course, display: Display, settings: DemoSettings) -> None:
    """Create the sandboxes and watch until all are ready, or the time is over."""
    finished = asyncio.Event()

    def changed() -> None:
        display.changed()
        if course.done:
            finished.set()

    with display.following(course):
        watching = [
            asyncio.create_task(_watch(client, SANDBOXES, course.sandbox, changed)),
            asyncio.create_task(_watch(client, PODS, course.pod, changed)),
        ]
        try:
            async with asyncio.timeout(settings.within):
                await _create(client, course, settings.rate)
                await finished.wait()
        except TimeoutError:
            logger.error("not all sandboxes became ready in time", within=settings.within)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)


async def _create(client: HttpClient, course: Course, rate: float) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    now = asyncio.get_running_loop().time
    began = now()

    async def one(number: int, name: str) -> None:
        if rate:
            await asyncio.sleep(max(0.0, began + number / rate - now()))
        async with gate:
            course.asked(name, now())
            status, _, body = await client.call("POST", SANDBOXES, sandbox(name))
        if status >= 300:
            raise failed(f"the API server refused to create {name}: {status} {body.decode(errors='replace')[:300]}")

    await asyncio.gather(*(one(number, name) for number, name in enumerate(list(course.states))))


async def _watch(
    client: HttpClient, path: str, see: Callable[[str, dict[str, Any], float], None], changed: Callable[[], None]
) -> None:
    """Tell `see` of everything at `path`, from now on, and `changed` after each."""
    now = asyncio.get_running_loop().time
    while True:
        try:
            _, _, body = await client.call("GET", path)
            listed = msgspec.json.decode(body)
            for thing in listed["items"]:
                see("ADDED", thing, now())
            query = {"resourceVersion": listed["metadata"]["resourceVersion"]}
            async for event, thing in client.watch(path, query):
                see(event, thing, now())
                changed()
        except (WatchEnded, aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.warning("watching again", path=path, error=repr(error))
            await asyncio.sleep(0.1)


def _hints(directory: Path, settings: DemoSettings) -> list[str]:
    """What to try next."""
    if settings.keep:
        at = f"--data-dir {directory / 'nats'}"
        return [
            "Everything keeps running until Ctrl-C. In another shell:",
            f"  sandlog status {at}",
            f"  sandlog get {at}",
            f"  sandlog history {NAMESPACE}/demo-000 {at}",
            f"  kubectl --kubeconfig {directory / 'kubeconfig'} get batchsandboxes,pods",
        ]
    return [
        "What to try next:",
        "  sandlog demo --keep                        leaves it running, to look at with status, get and history",
        "  sandlog run all --kubeconfig FILE          the same on a real cluster (first: sandlog crds | kubectl apply --server-side -f -)",
    ]


def _check(summary: Summary, settings: DemoSettings, directory: Path) -> None:
    missing = summary.sandboxes - summary.ready
    if not missing:
        return
    kept = Path(tempfile.gettempdir()) / f"sandlog-demo-{os.getpid()}.log"
    with contextlib.suppress(OSError):
        shutil.copyfile(directory / "demo.log", kept)
    raise failed(
        f"{missing} of {summary.sandboxes} sandboxes were not ready within {settings.within:g} s ({summary.failed} failed); "
        f"what the roles said is in {kept}; a slow machine may need --within"
    )


async def _keep(display: Display) -> None:
    """Until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    display.say("stopping")
