"""Programs that tests run beside themselves: sandlog's own roles, the kubelet stand-in, the simulated cluster, NATS."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from support.controlplane import free_ports

START_LIMIT = 30.0
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def _die_with_parent() -> None:
    """Run by the child before exec: a pytest that is killed leaves no programs behind (Linux)."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Program:
    """One child process; its output goes to a file, which is shown when it ends unasked."""

    def __init__(
        self, name: str, arguments: list[str], folder: Path, environment: dict[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.output = name, folder / f"{name}.log"
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                arguments,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                preexec_fn=_die_with_parent,
            )

    def trouble(self) -> str | None:
        """None while it runs."""
        code = self.process.poll()
        return None if code is None else f"{self.name} ended with {code}:\n{self.tail()}"

    def tail(self, size: int = 4000) -> str:
        return self.output.read_text(errors="replace")[-size:]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, limit: float = 20.0) -> int:
        """SIGTERM, then SIGKILL; the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.ended(limit)

    def ended(self, limit: float = 20.0) -> int:
        """Wait for the end that was asked for, then SIGKILL; the exit code."""
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
        return int(self.process.returncode)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def python(name: str, module: str, arguments: list[str], folder: Path, **environment: str) -> Program:
    return Program(name, [sys.executable, "-m", module, *arguments], folder, environment)


class Role(Program):
    """`sandlog run <role>`, with its health and metrics on ports of its own."""

    def __init__(self, role: str, number: int, folder: Path, arguments: list[str]) -> None:
        self.health_port, self.metrics_port = free_ports(2)
        super().__init__(
            f"{role}-{number}",
            [
                sys.executable,
                "-m",
                "sandlog",
                "run",
                role,
                f"--health-probe-bind-address=127.0.0.1:{self.health_port}",
                f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
                "--metrics-secure=false",
                *arguments,
            ],
            folder,
        )
        self.role = role

    def until_ready(self) -> None:
        end = time.monotonic() + START_LIMIT
        while True:
            problem = self.trouble()
            if problem:
                raise AssertionError(problem)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > end:
                    body = error.read()[:2000] if isinstance(error, urllib.error.HTTPError) else error
                    raise AssertionError(f"{self.name} is not ready: {body!r}\n{self.tail()}") from error
            time.sleep(0.05)

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
