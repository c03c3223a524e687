"""One cluster name is one cluster: a process does not start under a name that live bridges hold for another one."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandlog_helpers import Cli
from test_sandlog_processes import ALL_LOCAL, PATIENCE, SANDLOG, Running, answers, environment, run

from bridge.cluster import Response
from bus.membership_memory import MemoryGroups, MemoryMemberships
from sandlog import cluster_name, namespaces
from sandlog.cluster_name import ClusterPresence, refuse_if_taken
from sandlog.exits import REFUSED, Stop


class Client:
    """A cluster that is asked for a namespace alone."""

    def __init__(self, uid: str, status: int = 200) -> None:
        self.uid, self.status = uid, status

    async def request(self, method: str, path: str, **_: object) -> Response:
        return Response(self.status, {}, json.dumps({"metadata": {"uid": self.uid}}).encode())


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_name, "PATIENCE", 0.05)
    monkeypatch.setattr(cluster_name, "PAUSE", 0.01)


async def test_a_name_held_by_live_bridges_of_another_cluster_is_refused_with_both_uids() -> None:
    groups = MemoryGroups()
    first = ClusterPresence(MemoryMemberships(groups), "prod", "first")
    await first.tell("aaaaaaaa-1111-2222")

    with pytest.raises(Stop) as refused:
        await refuse_if_taken(MemoryMemberships(groups), Client("bbbbbbbb-1111-2222"), "prod")  # type: ignore[arg-type]

    assert refused.value.code == REFUSED
    for word in ("prod", "aaaaaaaa", "bbbbbbbb", "first", "--cluster NAME"):
        assert word in refused.value.message
    await refuse_if_taken(MemoryMemberships(groups), Client("aaaaaaaa-1111-2222"), "prod")  # type: ignore[arg-type]
    await refuse_if_taken(MemoryMemberships(groups), Client("bbbbbbbb-1111-2222"), "other")  # type: ignore[arg-type]


async def test_a_bridge_that_dies_frees_the_name_at_once() -> None:
    groups = MemoryGroups()
    first = ClusterPresence(MemoryMemberships(groups), "prod", "first")
    await first.tell("aaaaaaaa-1111-2222")
    asking = asyncio.create_task(
        refuse_if_taken(MemoryMemberships(groups), Client("bbbbbbbb-1111-2222"), "prod")  # type: ignore[arg-type]
    )
    await asyncio.sleep(0)
    await first.leave()
    await asking


@pytest.mark.parametrize(("status", "said"), [(200, 0), (404, 1), (403, 0)])
async def test_a_namespace_that_does_not_exist_is_told(status: int, said: int) -> None:
    missing = await namespaces.missing(Client("u", status), ("team",))  # type: ignore[arg-type]
    assert len(missing) == said


def test_a_name_that_cannot_be_a_namespace_is_a_usage_error(cli: Cli) -> None:
    for wrong in ("Bad_NS", "a.b", "-a", "x" * 64):
        ran = cli("run", "bridge", f"--namespace={wrong}")
        assert ran.code == 2, ran.err
        assert wrong in ran.err


@pytest.fixture
def two_clusters(tmp_path: Path) -> Iterator[list[Path]]:
    files = [tmp_path / f"kubeconfig-{number}" for number in (1, 2)]
    processes = []
    for number, file in enumerate(files):
        command = [sys.executable, "-m", "simcluster", "--port", "0", "--kubeconfig", str(file)]
        if number:
            command += ["--seed", "99"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline().startswith("http")
    yield files
    for process in processes:
        process.terminate()
        process.communicate(timeout=10)


def test_run_refuses_a_name_that_another_cluster_holds(tmp_path: Path, two_clusters: list[Path]) -> None:
    data = f"--data-dir={tmp_path / 'data'}"
    first = Running(tmp_path, "all", "--cluster=x", f"--kubeconfig={two_clusters[0]}", data, *ALL_LOCAL)
    try:
        health = first.url("health")
        first.wait_for(lambda: answers(f"{health}/readyz")[0] == 200)
        second = run(tmp_path, "run", "all", "--cluster=x", f"--kubeconfig={two_clusters[1]}", data, *ALL_LOCAL)
        assert second.returncode == 6, second.stderr
        assert "--cluster NAME" in second.stderr.splitlines()[-1]
        assert answers(f"{health}/readyz")[0] == 200
    finally:
        assert first.end() == 0
    assert first.text.count("epoch written") == 1


def test_sigterm_at_the_start_ends_at_once_though_the_api_server_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    running = Running(tmp_path, "all", f"--kubeconfig={kubeconfig}", f"--data-dir={tmp_path / 'data'}", *ALL_LOCAL)
    running.wait_for(lambda: "trying again" in running.text)
    began = time.monotonic()
    code = running.end()
    assert code == 0, running.text
    assert time.monotonic() - began < 2
    assert running.lines()[-1]["event"] == "sandlog stopped"


def test_a_second_demo_in_the_same_directory_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    arguments = ("demo", "--sandboxes", "3", f"--data-dir={data}")
    first = subprocess.Popen(
        [*SANDLOG, *arguments, "--keep"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(tmp_path),
    )  # fmt: skip
    assert first.stdout is not None
    for line in first.stdout:
        if "kubectl" in line:
            break
    kubeconfig = (data / "kubeconfig").read_text()
    second = run(tmp_path, *arguments)
    assert (data / "kubeconfig").read_text() == kubeconfig
    first.send_signal(signal.SIGTERM)
    _, errors = first.communicate(timeout=PATIENCE)

    assert second.returncode == 1
    assert "--data-dir" in second.stderr
    assert first.returncode == 0, errors
