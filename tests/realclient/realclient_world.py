"""The published opensandbox server and SDK as child processes of a test."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.controlplane import free_ports
from support.programs import Program

EXECD_PORT = 44772
KEY = "test-key"
CALL_LIMIT = 120.0
POLL = 0.1

CONFIG = """
[server]
host = "127.0.0.1"
port = {port}
api_key = "{key}"

[log]
level = "INFO"

[runtime]
type = "kubernetes"
execd_image = "opensandbox/execd:v1.1.0"

[egress]
image = "opensandbox/egress:v1.1.7"

[store]
type = "sqlite"
path = "{folder}/opensandbox.db"

[kubernetes]
kubeconfig_path = "{kubeconfig}"
namespace = "{namespace}"
workload_provider = "batchsandbox"
sandbox_create_timeout_seconds = 30
"""


class OpenSandboxServer:
    """`opensandbox-server` over one namespace. It needs to be allowed to list sandboxes.sandbox.fast.io, which need not exist."""

    def __init__(self, environment: Path, folder: Path, kubeconfig: Path, namespace: str) -> None:
        folder.mkdir(parents=True)
        (port,) = free_ports(1)
        self.domain = f"127.0.0.1:{port}"
        config = folder / "server.toml"
        config.write_text(CONFIG.format(port=port, key=KEY, folder=folder, kubeconfig=kubeconfig, namespace=namespace))
        command = [str(environment / "bin" / "opensandbox-server"), "--config", str(config)]
        self.program = Program("opensandbox-server", command, folder, own_environment(folder))

    def until_healthy(self, limit: float = 40.0) -> None:
        end = time.monotonic() + limit
        while True:
            assert (problem := self.program.trouble()) is None, problem
            try:
                with urllib.request.urlopen(f"http://{self.domain}/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < end, self.program.tail()
            time.sleep(0.1)


def own_environment(folder: Path) -> dict[str, str]:
    """What keeps a program of the other environment from seeing ours, or its user's settings."""
    return {
        "PYTHONPATH": "",
        "PYTHONHOME": "",
        "VIRTUAL_ENV": "",
        "HOME": str(folder),
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


class SdkRefused(Exception):
    """The SDK raised; its exception's name and text."""


class Sdk:
    """The SDK in a process of its own (sdk.py), one call at a time. `trouble` names what else ended."""

    def __init__(self, trouble: Callable[[], str | None]) -> None:
        self._trouble = trouble
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, environment: Path, server: OpenSandboxServer) -> None:
        script = Path(__file__).with_name("sdk.py")
        variables = {**os.environ, **own_environment(server.program.output.parent)}
        with server.program.output.with_name("sdk.log").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                str(environment / "bin" / "python"),
                str(script),
                server.domain,
                KEY,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=variables,
            )

    async def stop(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def call(self, verb: str, **arguments: Any) -> Any:
        """Raises SdkRefused with what the SDK raised."""
        assert self._process is not None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
        await stdin.drain()
        line = await asyncio.wait_for(stdout.readline(), CALL_LIMIT)
        assert line, f"the SDK's process ended in {verb}; {self._trouble()}"
        answer = json.loads(line)
        if "error" in answer:
            raise SdkRefused(f"{verb}: {answer['error']}; {self._trouble() or 'all processes run'}")
        return answer["result"]

    async def until_state(self, id: str, state: str, limit: float = 30.0) -> dict[str, Any]:
        """Ask until the server says so, as a client has to."""
        end = time.monotonic() + limit
        while True:
            info: dict[str, Any] = await self.call("info", id=id)
            if info["state"] == state:
                return info
            assert time.monotonic() < end, f"not {state} within {limit:g} s: {info}; {self._trouble()}"
            await asyncio.sleep(POLL)

    async def until_gone(self, id: str, limit: float = 30.0) -> None:
        end = time.monotonic() + limit
        while True:
            try:
                info = await self.call("info", id=id)
            except SdkRefused as refused:
                if "NOT_FOUND" in str(refused) or "not found" in str(refused):
                    return
                raise
            assert time.monotonic() < end, f"not gone within {limit:g} s: {info}; {self._trouble()}"
            await asyncio.sleep(POLL)


class CommandLine:
    """`osb`, one process a command."""

    def __init__(self, environment: Path, server: OpenSandboxServer) -> None:
        self._command = [str(environment / "bin" / "osb"), "--domain", server.domain, "--api-key", KEY, "--no-color"]
        self._variables = {**os.environ, **own_environment(server.program.output.parent)}

    async def run(self, *arguments: str) -> Any:
        """What it prints, as JSON. Raises AssertionError with what it said when it fails."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            "--output",
            "json",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._variables,
        )
        output, errors = await asyncio.wait_for(process.communicate(), CALL_LIMIT)
        assert process.returncode == 0, f"osb {' '.join(arguments)}: {errors.decode()}{output.decode()}"
        return json.loads(output)
