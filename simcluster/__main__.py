"""A simulated cluster as a program: python -m simcluster --port 8001 [--kubelet] [--kubeconfig FILE]."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

import structlog
import yaml

from simcluster.client import HttpClient
from simcluster.kubelet import HttpKubelet
from simcluster.node import Behaviour, Node
from simcluster.skin import SimServer

log = structlog.get_logger(__name__)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m simcluster", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--token", action="append", default=[], metavar="TOKEN=USER")
    parser.add_argument("--namespace", action="append", default=[], help="made at the start")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--history", type=int, default=10_000, help="changes kept per resource")
    parser.add_argument("--kubeconfig", type=Path, help="written at the start")
    parser.add_argument("--kubelet", action="store_true", help="run the kubelet stand-in too")
    parser.add_argument("--start-delay", type=float, default=0.05, help="seconds until a pod runs")
    return parser


async def _main(arguments: argparse.Namespace) -> None:
    tokens = dict(pair.partition("=")[::2] for pair in arguments.token) or None
    server = SimServer(
        host=arguments.host,
        port=arguments.port,
        seed=arguments.seed,
        tokens=tokens,
        history_limit=arguments.history,
    )
    async with server:
        for name in arguments.namespace:
            server.store.add_namespace(name)
        if arguments.kubeconfig:
            arguments.kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
        print(server.url, flush=True)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await _until(stop, server, arguments)


async def _until(stop: asyncio.Event, server: SimServer, arguments: argparse.Namespace) -> None:
    if not arguments.kubelet:
        await stop.wait()
        return
    token = server.kubeconfig()["users"][0]["user"]["token"]
    async with HttpClient(server.url, token) as client:
        node = Node(Behaviour(start_delay=arguments.start_delay))
        kubelet = asyncio.create_task(HttpKubelet(client, node).run())
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait((kubelet, waiting), return_when=asyncio.FIRST_COMPLETED)
        kubelet.cancel()
        waiting.cancel()
        await asyncio.gather(kubelet, waiting, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main(_parser().parse_args()))
