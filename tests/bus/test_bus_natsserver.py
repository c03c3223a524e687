"""The local server: its port, its data, its end (issue 3, bus), and what is said when NATS cannot be reached."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bus.connection import CannotConnect, Connection, ConnectionSettings
from bus.log_nats import LogSettings, NatsLog
from bus.natsserver import LocalNats, NatsServerError, default_data_directory

CHILD = """
import asyncio, pathlib, sys
from bus.natsserver import LocalNats

async def main():
    async with LocalNats(pathlib.Path(sys.argv[1])) as server:
        print(server.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def test_data_survives_a_restart_and_the_server_ends_with_its_block(tmp_path: Path) -> None:
    settings = LogSettings(max_bytes=2**28)
    identities = []
    for _ in range(2):
        async with LocalNats(tmp_path) as server:
            pid = server.pid
            assert pid is not None
            async with await Connection.open(ConnectionSettings(url=server.url)) as connection:
                log = await NatsLog.open(connection, settings)
                await log.append("log.1.c1.default.obs.pod.a", b"x")
                identities.append((await log.bounds()).identity)
        assert not alive(pid)
    assert identities[0] == identities[1]


async def test_two_servers_on_one_data_directory_are_refused_with_the_holder(tmp_path: Path) -> None:
    async with LocalNats(tmp_path):
        with pytest.raises(NatsServerError, match=f"in use by another nats-server .held by process {os.getpid()}"):
            await LocalNats(tmp_path).start()
    async with LocalNats(tmp_path) as again:
        assert again.running


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NatsServerError, match="ended at once"):
        await LocalNats(tmp_path, extra="no_such_setting: {").start()
    with pytest.raises(NatsServerError, match="nowhere"):
        await LocalNats(tmp_path, binary=tmp_path / "nowhere").start()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is of Linux")
async def test_the_server_dies_with_us_even_by_sigkill(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(tmp_path), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    while not (line := await asyncio.wait_for(child.stdout.readline(), 20)).strip().isdigit():
        assert line, "the child ended early"
    pid = int(line)
    assert alive(pid)
    child.send_signal(signal.SIGKILL)
    await child.wait()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert not alive(pid)


def test_the_default_data_directory_is_the_users_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_data_directory() == tmp_path / "sandlog" / "nats"


async def test_nobody_at_the_address_is_an_error_that_names_it_within_the_bound() -> None:
    settings = ConnectionSettings(url="nats://127.0.0.1:1", connect_timeout=0.5)
    with pytest.raises(CannotConnect, match=r"nats://127.0.0.1:1.*check the address"):
        await asyncio.wait_for(Connection.open(settings), 5)


async def test_user_and_password_are_used_and_a_refusal_points_at_them(tmp_path: Path) -> None:
    authorization = "authorization { user: a, password: b }"
    async with LocalNats(tmp_path, extra=authorization) as server:
        good = ConnectionSettings(url=server.url, user="a", password="b")
        async with await Connection.open(good) as connection:
            assert connection.connected
        with pytest.raises(CannotConnect, match="check the credentials"):
            await Connection.open(ConnectionSettings(url=server.url, user="a", password="wrong", connect_timeout=1.0))


async def test_a_domain_is_used_in_api_reads_and_bucket_writes(tmp_path: Path) -> None:
    from bus.membership_nats import NatsMemberships
    from bus.viewstore_nats import NatsViewStore

    async with LocalNats(tmp_path, jetstream="domain: hub") as server:
        async with await Connection.open(ConnectionSettings(url=server.url, domain="hub")) as connection:
            log = await NatsLog.open(connection, LogSettings(max_bytes=2**28))
            reader = await log.follow(["log.>"], after=0)
            queue = await log.work("executor", ["log.>"], ack_wait=5, max_in_flight=5)
            await log.append("log.1.c1.default.obs.pod.a", b"x")
            assert [record.data for record in await reader.batch(5, 5)] == [b"x"]
            (delivery,) = await queue.batch(5, 5)
            await delivery.ack()
            store = await NatsViewStore.open(connection)
            revision = await store.commit(1, {"1._": b"c", "1.c1.x.pool.p": b"p"}, 0)
            assert await store.load(1) == ({"1._": b"c", "1.c1.x.pool.p": b"p"}, revision)
            members = await (await NatsMemberships.open(connection)).join("projector", "a")
            assert [member.name for member in members.members()] == ["a"]
            await members.leave()
            await reader.close()
            await queue.close()
