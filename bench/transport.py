"""What the transport costs: µs of client CPU, and the rate, for each way that the roles use it. `python bench/transport.py [--uvloop]`.

A local nats-server on the same machine. A trickle's own timer is subtracted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import structlog

from bus.connection import Connection, ConnectionSettings
from bus.log_nats import NatsLog
from bus.natsserver import LocalNats
from bus.viewstore_nats import NatsViewStore

SUBJECT = "log.3.c1.default.obs.pod.sandbox-1"
HEADERS = {"Sandlog-Schema": "1", "Sandlog-Code": "0.1.0", "Sandlog-Cause": "123456"}
BODY = b"x" * 1024
VIEW = b"v" * 1500
CURSOR = b"c" * 200


class Server:
    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._tick = os.sysconf("SC_CLK_TCK")

    def cpu(self) -> float:
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / self._tick


class Meter:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def measure(self, name: str, count: int, work: Awaitable[object], less: float = 0.0) -> float:
        client, server, started = time.process_time(), self._server.cpu(), time.perf_counter()
        await work
        seconds = time.perf_counter() - started
        client = (time.process_time() - client) / count * 1e6 - less
        server = (self._server.cpu() - server) / count * 1e6
        print(f"{name:44} {client:8.1f} µs client {server:8.1f} µs server {count / seconds:10.0f} /s", flush=True)
        return client


async def trickle(action: Callable[[int], Awaitable[object]], count: int, rate: int) -> None:
    started = time.perf_counter()
    for number in range(count):
        await action(number)
        await asyncio.sleep(max(0.0, started + (number + 1) / rate - time.perf_counter()))


async def nothing(_: int) -> None:
    return None


async def bench_log(meter: Meter, connection: Connection) -> None:
    log = await NatsLog.open(connection)
    appender = log.appender("bench")
    timer = await meter.measure("(timer of the trickle, 500/s)", 1000, trickle(nothing, 1000, 500))

    async def add(_: int) -> None:
        await appender.add(SUBJECT, BODY, HEADERS)

    async def burst(count: int) -> None:
        for number in range(count):
            await add(number)
        await appender.flush()

    await meter.measure("append, trickle of 500/s", 1000, trickle(add, 1000, 500), timer)
    await meter.measure("append, burst", 50_000, burst(50_000))

    async def awaited(count: int) -> None:
        for _ in range(count):
            await log.append(SUBJECT, BODY, HEADERS, message_id=str(time.perf_counter()))

    await meter.measure("append, awaited", 1000, awaited(1000))
    reader = await log.follow(["log.>"], after=0)

    async def follow(count: int) -> None:
        got = 0
        while got < count:
            got += len(await reader.batch(min(900, count - got), 5))

    await meter.measure("follow, history", 52_000, follow(52_000))
    latencies: list[float] = []

    async def echo(_: int) -> None:
        started = time.perf_counter()
        await add(0)
        await reader.batch(1, 5)
        latencies.append(time.perf_counter() - started)

    await meter.measure("append and follow, trickle of 500/s", 1000, trickle(echo, 1000, 500), timer)
    latencies.sort()
    print(f"    append → follower p50 {latencies[500] * 1e3:.2f} ms, p99 {latencies[990] * 1e3:.2f} ms")
    await reader.close()
    queue = await log.work("bench", ["log.>"], ack_wait=30, max_in_flight=1000)

    async def work(count: int) -> None:
        done = 0
        while done < count:
            for delivery in await queue.batch(32, 5):
                await delivery.ack()
                done += 1

    await meter.measure("work and ack, batches of 32", 20_000, work(20_000))
    await queue.close()
    await appender.close()


async def bench_views(meter: Meter, connection: Connection) -> None:
    store = await NatsViewStore.open(connection)
    revision = 0

    async def commit(number: int, keys: int = 1) -> None:
        nonlocal revision
        changes: dict[str, bytes | None] = {"3._": CURSOR}
        changes |= {f"3.c1.default.sandbox.s{(number + k) % 1000}": VIEW for k in range(keys)}
        revision = await store.commit(3, changes, revision)

    async def commits(count: int, keys: int) -> None:
        for number in range(count):
            await commit(number, keys)

    timer = await meter.measure("(timer of the trickle, 200/s)", 400, trickle(nothing, 400, 200))
    await meter.measure("commit of 2 keys, trickle of 200/s", 400, trickle(commit, 400, 200), timer)
    await meter.measure("commit of 2 keys, back to back", 3000, commits(3000, 1))
    await meter.measure("commit of 100 keys", 200, commits(200, 99))
    await meter.measure("commit of 900 keys", 30, commits(30, 899))
    watch = await store.watch()
    while await watch.batch(1000, 0.1):
        pass

    async def watched(count: int) -> None:
        for number in range(count):
            await commit(number)
            seen = 0
            while seen < 2:
                seen += len(await watch.batch(100, 5))

    await meter.measure("commit of 2 keys and watch of both", 2000, watched(2000))
    await watch.close()

    async def load(count: int) -> None:
        for _ in range(count):
            await store.load(3)

    await meter.measure("load of a partition of 1000 views", 20, load(20))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with LocalNats(Path(folder)) as local:
            assert local.pid is not None
            meter = Meter(Server(local.pid))
            async with await Connection.open(ConnectionSettings(url=local.url)) as connection:
                await bench_log(meter, connection)
                await bench_views(meter, connection)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uvloop", action="store_true", help="run on uvloop")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if parser.parse_args().uvloop:
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())
