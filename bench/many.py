"""A simulated cluster with thousands of ready sandboxes, each a copy of one that sandlog made, and what sandlog needs to take it over:
time until every role is ready, with an empty log and with the views of an earlier run, and memory of each role.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import waiting
from costs import resident_bytes
from support.programs import Role
from support.sandlog import SEPARATE

from bus.connection import Connection, ConnectionSettings
from bus.natsserver import LocalNats
from bus.viewstore_nats import BUCKET
from simcluster.direct import DirectClient

Json = dict[str, Any]
GROUP = "/apis/sandbox.opensandbox.io/v1alpha1"
LIMIT = 300.0
POLL = 0.1
STREAM, SUBJECTS = f"KV_{BUCKET}", f"$KV.{BUCKET}"
SETTLED = 3.0
"""Seconds without a change after which memory is read."""
SYSTEM = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "namespace", "selfLink")


class Memory(msgspec.Struct, frozen=True):
    """Resident megabytes of a role, without sandboxes (None where it was not measured) and with all of them."""

    empty: float | None
    full: float


class TakeOver(msgspec.Struct, frozen=True):
    """Seconds. `cold`: from the start of bridge and executor beside an idle projector and reconciler, everything listed and folded, to
    every role ready and every view there. `warm`: from the start of all roles, views and log kept, to every role ready.
    """

    sandboxes: int
    cold: float
    warm: dict[str, float]
    memory: dict[str, Memory]
    view_bytes: int


class Pattern(msgspec.Struct, frozen=True):
    """A sandbox and its pod as they stand when ready."""

    sandbox: Json
    pod: Json


def pattern(client: DirectClient, namespace: str) -> Pattern:
    """The first of a namespace."""

    def first(path: str) -> Json:
        status, _, body = client.request("GET", f"{path}?limit=1")
        if status != 200:
            raise RuntimeError(f"{path}: {status}")
        found: Json = msgspec.json.decode(body)["items"][0]
        return found

    pod = first(f"/api/v1/namespaces/{namespace}/pods")
    name = pod["metadata"]["ownerReferences"][0]["name"]
    return Pattern(client_get(client, f"{GROUP}/namespaces/{namespace}/batchsandboxes/{name}"), pod)


def client_get(client: DirectClient, path: str) -> Json:
    status, _, body = client.request("GET", path)
    if status != 200:
        raise RuntimeError(f"{path}: {status}")
    found: Json = msgspec.json.decode(body)
    return found


def seed(client: DirectClient, made: Pattern, count: int, namespaces: int) -> None:
    """`count` copies, spread over namespaces `many-0` … . Raises RuntimeError if one is refused."""
    kind = {"apiVersion": made.sandbox["apiVersion"], "kind": made.sandbox["kind"]}
    for number in range(count):
        namespace, name = f"many-{number % namespaces}", f"s{number:06d}"
        sandboxes = f"{GROUP}/namespaces/{namespace}/batchsandboxes"
        pods = f"/api/v1/namespaces/{namespace}/pods"
        sandbox = kind | {"metadata": _metadata(made.sandbox, name), "spec": made.sandbox["spec"]}
        uid = _make(client, sandboxes, sandbox, made.sandbox["status"])
        text = msgspec.json.encode(made.pod).decode().replace(made.sandbox["metadata"]["name"], name)
        pod = msgspec.json.decode(text.replace(made.sandbox["metadata"]["uid"], uid))
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(pod, f"{name}-0"), "spec": pod["spec"]}
        _make(client, pods, body, pod["status"])


def _metadata(obj: Json, name: str) -> Json:
    return {key: value for key, value in obj["metadata"].items() if key not in SYSTEM} | {"name": name}


def _make(client: DirectClient, path: str, body: Json, status: Json) -> str:
    code, _, answer = client.request("POST", path, body)
    if code != 201:
        raise RuntimeError(f"{path}: {code} {answer[:300]!r}")
    name = body["metadata"]["name"]
    code, _, patched = client.request(
        "PATCH", f"{path}/{name}/status", {"status": status}, "application/merge-patch+json"
    )
    if code != 200:
        raise RuntimeError(f"{path}/{name}: {code} {patched[:300]!r}")
    return str(msgspec.json.decode(answer)["metadata"]["uid"])


async def take_over(kubeconfig: Path, folder: Path, sandboxes: int) -> TakeOver:
    """Raises RuntimeError when a role ends, AssertionError when it is not ready in time."""
    async with LocalNats(folder / "nats") as nats:
        arguments = ["--nats", nats.url, "--kubeconfig", str(kubeconfig), "--cluster", "bench"]

        def start(number: int, *roles: str) -> list[Role]:
            return [Role(role, number, folder, arguments) for role in roles]

        thinkers = start(0, "projector", "reconciler")
        running = list(thinkers)
        try:
            await waiting.ready(running)
            empty = {role.role: resident_bytes(role.process.pid) for role in thinkers}
            began = time.monotonic()
            running += start(0, "bridge", "executor")
            views = await _views(nats.url, sandboxes, running)
            await waiting.ready(running)
            cold = time.monotonic() - began
            await asyncio.sleep(SETTLED)
            full = {role.role: resident_bytes(role.process.pid) for role in running}
            assert nats.pid is not None
            full["nats-server"] = resident_bytes(nats.pid)
        finally:
            await waiting.stop(running)
        warm = {
            "all": await _warm(start(1, "all")),
            "four processes": await _warm(start(2, *SEPARATE)),
        }
    memory = {name: Memory(_megabytes(empty.get(name)), round(size / 1e6, 1)) for name, size in full.items()}
    return TakeOver(sandboxes, round(cold, 2), warm, memory, views)


def _megabytes(size: int | None) -> float | None:
    return None if size is None else round(size / 1e6, 1)


async def _warm(roles: list[Role]) -> float:
    began = time.monotonic()
    try:
        await waiting.ready(roles)
        return round(time.monotonic() - began, 2)
    finally:
        await waiting.stop(roles)


async def _views(url: str, wanted: int, roles: list[Role]) -> int:
    """Waits until so many views are stored; the bytes that they take."""
    end = time.monotonic() + LIMIT
    async with await Connection.open(ConnectionSettings(url=url)) as connection:
        while True:
            info = await connection.api(f"STREAM.INFO.{STREAM}", {"subjects_filter": f"{SUBJECTS}.*.*.*.sandbox.*"})
            stored = len(info["state"].get("subjects") or {})
            if stored >= wanted:
                return int(info["state"]["bytes"])
            problem = next((problem for role in roles if (problem := role.trouble())), None)
            if problem or time.monotonic() > end:
                raise RuntimeError(problem or f"{stored} of {wanted} views in {LIMIT:g} s")
            await asyncio.sleep(POLL)
