"""Stands in for the scheduler and every kubelet, as an ordinary API client: for a simulated cluster and
for a real control plane without nodes.

    python -m simcluster.kubelet --server URL --token TOKEN [--start-delay S] [--bad-image TEXT] …
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime

import aiohttp
import msgspec
import structlog

from simcluster.client import HttpClient, WatchEnded
from simcluster.node import Behaviour, Node, Work

log = structlog.get_logger(__name__)

CONCURRENCY = 32
RELIST_DELAY = 0.2
_GONE = (404, 409, 422)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class HttpKubelet:
    """Runs a Node against a server. Use `run` in a task; change knobs through `set_rule` and the like."""

    def __init__(self, client: HttpClient, node: Node, now: Callable[[], datetime] = _utc_now) -> None:
        self.node = node
        self._client = client
        self._now = now
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self.ready = asyncio.Event()

    def set_default(self, behaviour: Behaviour) -> None:
        self.node.set_default(behaviour, self._now())
        self._wake.set()

    def set_rule(self, substring: str, behaviour: Behaviour) -> None:
        self.node.set_rule(substring, behaviour, self._now())
        self._wake.set()

    def clear_rule(self, substring: str) -> None:
        self.node.clear_rule(substring, self._now())
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._work(tasks))

    async def _follow(self) -> None:
        while True:
            try:
                await self._list_and_watch()
            except WatchEnded as ended:
                log.info("watch ended", code=ended.code)
            except (aiohttp.ClientError, TimeoutError, OSError) as problem:
                log.warning("no connection", problem=type(problem).__name__)
            await asyncio.sleep(RELIST_DELAY)

    async def _list_and_watch(self) -> None:
        status, _, body = await self._client.call("GET", "/api/v1/pods")
        if status != 200:
            raise WatchEnded(status)
        listed = msgspec.json.decode(body)
        self.node.sync(listed["items"], self._now())
        self._wake.set()
        self.ready.set()
        query = {
            "resourceVersion": listed["metadata"]["resourceVersion"],
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "600",
        }
        async for kind, pod in self._client.watch("/api/v1/pods", query):
            if kind != "BOOKMARK":
                self.node.observe(kind, pod, self._now())
                self._wake.set()

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            for work in self.node.due(self._now()):
                await self._slots.acquire()
                tasks.create_task(self._perform(work))
            await self._sleep()

    async def _sleep(self) -> None:
        due = self.node.next_event_at()
        delay = None if due is None else max((due - self._now()).total_seconds(), 0.0)
        try:
            await asyncio.wait_for(self._wake.wait(), delay)
        except TimeoutError:
            return

    async def _perform(self, work: Work) -> None:
        try:
            for action in work.actions:
                status, _, _ = await self._client.call(action.method, action.path, action.body, action.content_type)
                if status >= 300 and status not in _GONE:
                    log.info("try again", step=work.step, code=status)
                    self._retry(work)
                    return
        except (aiohttp.ClientError, TimeoutError, OSError):
            self._retry(work)
        finally:
            self._slots.release()

    def _retry(self, work: Work) -> None:
        self.node.failed(work, self._now())
        self._wake.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simcluster.kubelet", description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--token", default=os.environ.get("SANDLOG_SIM_TOKEN", ""))
    parser.add_argument("--ca-file")
    parser.add_argument("--insecure", action="store_true", help="do not check the server's certificate")
    parser.add_argument("--node", default="node-1")
    parser.add_argument("--ip-prefix", default="10.1")
    parser.add_argument("--start-delay", type=float, default=0.05, help="seconds")
    parser.add_argument("--commit-delay", type=float, default=0.1, help="seconds")
    parser.add_argument("--stop-delay", type=float, default=0.0, help="seconds")
    parser.add_argument("--crash-after", type=float, help="seconds")
    parser.add_argument("--evict-after", type=float, help="seconds")
    parser.add_argument("--oom-after", type=float, help="seconds")
    for name, text in (
        ("--bad-image", "pulling such an image fails"),
        ("--invalid-image", "such an image name is invalid"),
        ("--crash-image", "such an image crashes"),
        ("--fail-commit", "a commit with such an argument fails"),
    ):
        parser.add_argument(name, action="append", default=[], metavar="TEXT", help=text)
    return parser


def _node(arguments: argparse.Namespace) -> Node:
    base = Behaviour(
        start_delay=arguments.start_delay,
        commit_delay=arguments.commit_delay,
        stop_delay=arguments.stop_delay,
        crash_after=arguments.crash_after,
        evict_after=arguments.evict_after,
        oom_after=arguments.oom_after,
    )
    node = Node(base, node_name=arguments.node, ip_prefix=arguments.ip_prefix)
    changes: list[tuple[list[str], dict[str, object]]] = [
        (arguments.bad_image, {"waiting": "ErrImagePull"}),
        (arguments.invalid_image, {"waiting": "InvalidImageName"}),
        (arguments.crash_image, {"crash_after": 0.0}),
        (arguments.fail_commit, {"commit_exit_code": 1}),
    ]
    for texts, change in changes:
        for text in texts:
            node.set_rule(text, msgspec.structs.replace(base, **change), _utc_now())
    return node


async def _main(arguments: argparse.Namespace) -> None:
    client = HttpClient(arguments.server, arguments.token, ca_file=arguments.ca_file, insecure=arguments.insecure)
    async with client:
        running = asyncio.ensure_future(HttpKubelet(client, _node(arguments)).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            log.info("stopped")


if __name__ == "__main__":
    asyncio.run(_main(_parser().parse_args()))
