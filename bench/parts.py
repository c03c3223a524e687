"""What each part of sandlog costs by itself: the log per sandbox, fold and decide rates, and taking over 10,000 sandboxes.

    python bench/parts.py [--sandboxes 200] [--many 10000] [--output json]

Runs on a simulated API server and a local nats-server; needs nothing but the repository.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import click
import msgspec
import structlog
import yaml
from figures import show
from many import TakeOver, pattern, seed, take_over
from recorded import NAMESPACE, Kind, Rates, rates, record
from rich.console import Console

from simcluster.client import HttpClient
from simcluster.direct import DirectClient
from simcluster.kubelet import HttpKubelet
from simcluster.node import Behaviour, Node
from simcluster.skin import SimServer
from simcluster.store import Store

ROOT = Path(__file__).resolve().parents[1]


class Parts(msgspec.Struct, frozen=True):
    """`many` is None if it was not wanted."""

    sandboxes: int
    messages: dict[str, Kind]
    stored_bytes: int
    rates: Rates
    many: TakeOver | None


async def measure(sandboxes: int, rate: float, many: int, namespaces: int, folder: Path) -> Parts:
    store = _store()
    async with SimServer(store=store) as server, HttpClient(server.url, "sim-token") as client:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
        kubelet = asyncio.create_task(HttpKubelet(client, Node(Behaviour(start_delay=0.05))).run())
        try:
            recording = await record(kubeconfig, folder / "recorded", sandboxes, rate)
        finally:
            kubelet.cancel()
            await asyncio.gather(kubelet, return_exceptions=True)
        made = pattern(DirectClient(store), NAMESPACE)
    taken = None
    if many:
        store = _store()
        for number in range(namespaces):
            store.add_namespace(f"many-{number}")
        seed(DirectClient(store), made, many, namespaces)
        async with SimServer(store=store) as server:
            kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
            before = store.resource_version
            taken = await take_over(kubeconfig, folder / "many", many)
            if store.resource_version != before:
                # The copies are not taken for what they should be: something else was measured.
                raise RuntimeError(f"sandlog changed {store.resource_version - before} objects of a cluster at rest")
    return Parts(sandboxes, recording.kinds(), recording.stored_bytes, rates(recording), taken)


def _store() -> Store:
    return Store(lambda: datetime.now(UTC), random.Random(1), history_limit=100_000)


def show_parts(parts: Parts) -> None:
    console = Console()
    total = Kind(
        sum(kind.messages for kind in parts.messages.values()), sum(kind.bytes for kind in parts.messages.values())
    )
    rows: list[tuple[object, ...]] = [
        (word, round(kind.messages / parts.sandboxes, 2), round(kind.bytes / parts.sandboxes))
        for word, kind in ({**parts.messages, "together": total}).items()
    ]
    rows.append(("as the stream counts", "", round(parts.stored_bytes / parts.sandboxes)))
    show(console, f"The log, per sandbox of {parts.sandboxes}, create → ready", ("message", "number", "bytes"), rows)
    rate_rows = [
        ("fold", parts.rates.records, round(parts.rates.fold), round(1e6 / parts.rates.fold, 1)),
        ("decide", parts.rates.decisions, round(parts.rates.decide), round(1e6 / parts.rates.decide, 1)),
    ]
    show(console, "Rates, one core", ("", "number", "a second", "µs each"), rate_rows)
    if parts.many is not None:
        _show_many(console, parts.many)


def _show_many(console: Console, many: TakeOver) -> None:
    starts: list[tuple[object, ...]] = [("empty log: listed, folded, all ready", many.cold)]
    starts += [(f"views kept, {name}: all ready", seconds) for name, seconds in many.warm.items()]
    show(console, f"Start with {many.sandboxes} sandboxes", ("", "seconds"), starts)
    memory = [
        (name, found.empty, found.full, None if found.empty is None else round(found.full - found.empty, 1))
        for name, found in many.memory.items()
    ]
    show(
        console,
        f"Memory, MB resident, with {many.sandboxes} sandboxes",
        ("process", "with none", "with all", "they take"),
        memory,
    )
    console.print(f"views in the bucket: {many.view_bytes / many.sandboxes:.0f} bytes per sandbox")


@click.command(help=__doc__)
@click.option("--sandboxes", default=200, show_default=True, type=click.IntRange(1), help="of the recorded log")
@click.option("--rate", default=40.0, show_default=True, help="a second, 0: at once")
@click.option("--many", default=10_000, show_default=True, help="of memory and start-up; 0: leave that out")
@click.option("--namespaces", default=16, show_default=True, type=click.IntRange(1), help="that those are spread over")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(output: str, **given: Any) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="sandlog-parts-") as folder:
        parts = asyncio.run(measure(**given, folder=Path(folder)))
    if output == "json":
        sys.stdout.write(msgspec.json.encode(parts).decode() + "\n")
    else:
        show_parts(parts)


if __name__ == "__main__":
    main()
