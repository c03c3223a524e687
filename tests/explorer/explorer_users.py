"""What users do in scenarios, and what they look at."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from explorer_world import World

from bus.log_memory import EPOCH, SECOND
from bus.names import API_VERSION
from bus.times import format_time

PATH: Final = "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/batchsandboxes"


def create(world: World, name: str, *, replicas: int = 1, **spec: Any) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox:1"}]}}
    body = {
        "apiVersion": API_VERSION,
        "kind": "BatchSandbox",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "template": template, **spec},
    }
    world.cluster.ask("POST", PATH, body)


def change(world: World, name: str, **spec: Any) -> None:
    world.cluster.ask("PATCH", f"{PATH}/{name}", {"spec": spec})


def delete(world: World, name: str) -> None:
    world.cluster.ask("DELETE", f"{PATH}/{name}")


def status(world: World, name: str) -> dict[str, Any]:
    return (world.cluster.sandbox(name) or {}).get("status") or {}


def conditions(world: World, name: str) -> dict[str, str]:
    """Type → reason of those that are true."""
    found = status(world, name).get("conditions") or ()
    return {each["type"]: each["reason"] for each in found if each["status"] == "True"}


async def until_phase(world: World, name: str, phase: str) -> None:
    await world.until(f"{name} is {phase}", lambda: status(world, name).get("phase") == phase)


def from_now(world: World, seconds: float) -> str:
    return format_time(EPOCH + int((world.loop.time() + seconds) * SECOND))


def behave(world: World, **changes: Any) -> None:
    """How pods behave from now on (`simcluster.node.Behaviour`)."""
    cluster = world.cluster
    cluster.kubelet.node.set_default(msgspec.structs.replace(cluster.behaviour, **changes), cluster.store.now())


def fail_commits(world: World, fail: bool) -> None:
    """Every commit of a container `main` fails, or none does; what unpauses it is none."""
    cluster = world.cluster
    if fail:
        changed = msgspec.structs.replace(cluster.behaviour, commit_exit_code=1)
        cluster.kubelet.node.set_rule("main:", changed, cluster.store.now())
    else:
        cluster.kubelet.node.clear_rule("main:", cluster.store.now())
