"""`sandlog demo` and `sandlog run` as a person or Kubernetes starts them: processes, signals, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SANDLOG = (sys.executable, "-m", "sandlog")
PATIENCE = 30.0


def environment(tmp_path: Path) -> dict[str, str]:
    """No variable of the caller's changes what is tested; temporary folders are ours to look at."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SANDLOG_", "NATS_", "KUBE"))}
    return {**kept, "TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SANDLOG, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
    )


def test_demo_ends_with_all_ready_and_exit_0_and_leaves_nothing(tmp_path: Path) -> None:
    """Issue 3, done when 1; plain lines when the output is no terminal."""
    began = time.monotonic()
    ran = run(tmp_path, "demo", "--sandboxes", "10")

    assert ran.returncode == 0, ran.stderr
    assert time.monotonic() - began < 20
    assert "NATS at nats://127.0.0.1:" in ran.stdout
    assert f"data in {tmp_path}" in ran.stdout
    assert "10 of 10 sandboxes ready in" in ran.stdout
    assert "asked for → ready" in ran.stdout
    assert "sandlog demo --keep" in ran.stdout
    assert "\x1b" not in ran.stdout
    assert not list(tmp_path.glob("sandlog-demo-*"))


def test_demo_as_json_is_one_document(tmp_path: Path) -> None:
    ran = run(tmp_path, "demo", "--sandboxes", "5", "--rate", "0", "--output", "json")

    summary = json.loads(ran.stdout)
    assert ran.returncode == 0
    assert (summary["sandboxes"], summary["ready"], summary["failed"]) == (5, 5, 0)
    spread = summary["asked_to_ready_ms"]
    assert 0 < spread["p50"] <= spread["p90"] <= spread["p99"] <= spread["longest"] < 20_000


def test_demo_that_is_not_done_in_time_is_exit_code_1_and_keeps_what_was_said(tmp_path: Path) -> None:
    ran = run(tmp_path, "demo", "--sandboxes", "20", "--rate", "10", "--within", "1")

    assert ran.returncode == 1
    kept = re.search(r"what the roles said is in (\S+);", ran.stderr)
    assert kept is not None, ran.stderr
    assert "every scope is listed" in Path(kept[1]).read_text()
    assert "--within" in ran.stderr
    assert not [found for found in tmp_path.glob("sandlog-demo-*") if found.is_dir()]


def test_ctrl_c_ends_the_demo_without_a_trace(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*SANDLOG, "demo", "--keep", "--sandboxes", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    assert demo.stdout is not None
    for line in demo.stdout:
        if "kubectl" in line:
            break
    data = next(tmp_path.glob("sandlog-demo-*")) / "nats"
    shown = run(tmp_path, "get", "--data-dir", str(data))
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=PATIENCE)

    assert len(shown.stdout.splitlines()) == 4, shown.stderr
    assert demo.returncode == 0, errors
    assert errors == ""
    assert not data.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent is gone")
def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [*SANDLOG, "demo", "--keep", "--sandboxes", "3"], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    )
    assert demo.stdout is not None
    told = ""
    for line in demo.stdout:
        told += line
        if "kubectl" in line:
            break
    ports = [int(port) for port in re.findall(r"//127\.0\.0\.1:(\d+)", told)]
    assert len(ports) == 2
    assert all(listens(port) for port in ports)

    demo.kill()
    demo.wait(PATIENCE)
    demo.stdout.close()

    deadline = time.monotonic() + PATIENCE
    while any(listens(port) for port in ports):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """A simulated cluster; the path of its kubeconfig."""
    kubeconfig = tmp_path / "kubeconfig"
    process = subprocess.Popen(
        [sys.executable, "-m", "simcluster", "--port", "0", "--kubelet", "--kubeconfig", str(kubeconfig)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http")
    yield kubeconfig
    process.terminate()
    process.wait(10)
    process.stdout.close()


class Running:
    """`sandlog run` as a process whose JSON log lines can be looked at."""

    def __init__(self, tmp_path: Path, *arguments: str) -> None:
        self._log = tmp_path / f"run-{time.monotonic_ns()}.log"
        with self._log.open("w") as out:
            self.process = subprocess.Popen(
                [*SANDLOG, "run", *arguments], stdout=out, stderr=out, env=environment(tmp_path), text=True
            )

    @property
    def text(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.05)

    def url(self, what: str) -> str:
        """Where it serves `health` or `metrics`."""

        def found() -> list[str]:
            return [
                str(line["url"]) for line in self.lines() if line["event"] == "serving" and what in str(line["what"])
            ]

        self.wait_for(lambda: bool(found()))
        return found()[0]

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(PATIENCE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def make(*arguments: str) -> Running:
        started.append(Running(tmp_path, *arguments))
        return started[-1]

    yield make
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait(PATIENCE)


def answers(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


ALL_LOCAL = ("--health-probe-bind-address=127.0.0.1:0", "--log-format=json")


def test_run_all_becomes_ready_and_sigterm_ends_it_with_0(
    tmp_path: Path, cluster: Path, start: Callable[..., Running]
) -> None:
    data = tmp_path / "data"
    running = start(
        "all",
        f"-kubeconfig={cluster}",
        f"--data-dir={data}",
        "-leader-elect",
        "--metrics-bind-address=127.0.0.1:0",
        "--metrics-secure=false",
        *ALL_LOCAL,
    )
    health, metrics = running.url("health"), running.url("metrics")
    running.wait_for(lambda: answers(f"{health}/readyz")[0] == 200)

    status = run(tmp_path, "status", f"--data-dir={data}")
    figures = answers(f"{metrics}/metrics")[1]
    code = running.end()

    assert status.returncode == 0, status.stdout + status.stderr
    assert "sim watch" in status.stdout
    assert re.search(r'sandlog_role_ready\{role="bridge"\} 1\.0', figures)
    assert re.search(r'sandlog_watch_lists_total\{.*scope="batchsandbox"', figures)
    assert code == 0, running.text
    lines = running.lines()
    assert [line["event"] for line in lines if "no effect" in str(line["event"])] == [
        "--leader-elect has no effect: there is no leader: any number of replicas work at once, the log arbitrates"
    ]
    assert any(
        line["event"] == "no --nats given: using the local server" and line["data"] == str(data) for line in lines
    )
    assert lines[-1]["event"] == "sandlog stopped"
    assert not any(line["level"] in ("error", "critical") for line in lines), running.text
    assert run(tmp_path, "get", f"--data-dir={data}").returncode == 3, "the local server ends with us"


def test_a_second_process_shares_the_local_server(tmp_path: Path, start: Callable[..., Running]) -> None:
    data = f"--data-dir={tmp_path / 'data'}"
    first = start("projector", data, *ALL_LOCAL)
    first.url("health")
    second = start("reconciler", data, *ALL_LOCAL)
    second.url("health")

    told = json.loads(run(tmp_path, "status", data, "-o", "json").stdout)
    groups = [member["group"] for member in told["survey"]["members"]]
    assert second.end() == 0
    assert first.end() == 0

    assert groups == ["projector", "reconciler"]
    begun = [line["started"] for line in second.lines() if line["event"] == "no --nats given: using the local server"]
    assert begun == [False]


def test_run_refuses_beside_the_stock_controller_unless_told(
    tmp_path: Path, cluster: Path, start: Callable[..., Running]
) -> None:
    """controller-behaviour.md §8.3: two controllers would fight."""
    hold_stock_lease(cluster)
    arguments = ("executor", f"--kubeconfig={cluster}", f"--data-dir={tmp_path / 'data'}", *ALL_LOCAL)

    refused = run(tmp_path, "run", *arguments)
    told = start(*arguments, "--ignore-stock-lease")

    assert refused.returncode == 6, refused.stderr
    assert "stock-controller-7" in refused.stderr
    assert "--ignore-stock-lease" in refused.stderr
    told.url("health")
    assert told.end() == 0


def hold_stock_lease(kubeconfig: Path) -> None:
    import yaml

    server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "2fa1c467.opensandbox.io"},
        "spec": {"holderIdentity": "stock-controller-7", "renewTime": now, "leaseDurationSeconds": 300},
    }
    request = urllib.request.Request(
        f"{server}/apis/coordination.k8s.io/v1/namespaces/default/leases",
        data=json.dumps(lease).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer sim-token"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 201


def test_run_without_a_usable_kubeconfig_is_exit_code_4(tmp_path: Path) -> None:
    ran = run(tmp_path, "run", "bridge", f"--kubeconfig={tmp_path / 'none'}", f"--data-dir={tmp_path / 'data'}")

    assert ran.returncode == 4
    assert "--kubeconfig FILE" in ran.stderr


def test_run_without_nats_is_exit_code_3(tmp_path: Path) -> None:
    ran = run(tmp_path, "run", "projector", "--nats=nats://127.0.0.1:1", "--timeout=1s")

    assert ran.returncode == 3
    assert "nats://127.0.0.1:1" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_that_is_taken_is_exit_code_1_with_the_flag_to_change(
    tmp_path: Path, start: Callable[..., Running]
) -> None:
    data = f"--data-dir={tmp_path / 'data'}"
    port = start("projector", data, *ALL_LOCAL).url("health").rpartition(":")[2]

    ran = run(tmp_path, "run", "projector", data, f"--health-probe-bind-address=127.0.0.1:{port}")

    assert ran.returncode == 1
    assert "--health-probe-bind-address" in ran.stderr
