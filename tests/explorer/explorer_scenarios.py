"""Scenarios: what users do, and what must have come of it at each stage."""

from __future__ import annotations

from typing import Any, Final, Protocol

from explorer_pauses import PAUSES
from explorer_users import change, create, delete, from_now, status
from explorer_world import World


class Scenario(Protocol):
    """`drive` acts and waits; it calls `world.stage(name)` where the objects are compared with those of the undisturbed run."""

    name: str

    async def drive(self, world: World) -> None: ...

    def right(self, stages: dict[str, dict[str, Any]]) -> None:
        """Asserts by hand that the undisturbed run itself came to what it should."""
        ...


class Basic:
    """Create two sandboxes, one of two replicas; scale one out and in; one expires; delete the other."""

    name = "basic"

    async def drive(self, world: World) -> None:
        create(world, "a", replicas=2)
        create(world, "b", expireTime=from_now(world, 3600))
        await world.until("a runs", lambda: status(world, "a").get("phase") == "Succeed")
        change(world, "a", replicas=3)
        await world.until("b runs", lambda: status(world, "b").get("phase") == "Succeed")
        await world.stage("running")
        change(world, "a", replicas=1)
        change(world, "b", expireTime=from_now(world, 2))
        await world.until("b expires", lambda: world.cluster.sandbox("b") is None)
        await world.stage("expired")
        delete(world, "a")
        await world.stage("deleted")

    def right(self, stages: dict[str, dict[str, Any]]) -> None:
        running = stages["running"]
        pods = {f"pods/{name}" for name in ("a-0", "a-1", "a-2", "b-0")}
        assert set(running) == {"batchsandboxes/a", "batchsandboxes/b", *pods}
        assert _shown(running["batchsandboxes/a"]) == ("Succeed", 3, 3, 3, ["a-0", "a-1", "a-2"])
        assert _shown(running["batchsandboxes/b"]) == ("Succeed", 1, 1, 1, ["b-0"])
        assert set(stages["expired"]) == {"batchsandboxes/a", "pods/a-0"}
        assert _shown(stages["expired"]["batchsandboxes/a"]) == ("Succeed", 1, 1, 1, ["a-0"])
        assert stages["deleted"] == {}


def _shown(sandbox: dict[str, Any]) -> tuple[Any, ...]:
    shown = sandbox["status"]
    endpoints = sandbox["metadata"]["annotations"]["sandbox.opensandbox.io/endpoints"]
    return shown["phase"], shown["replicas"], shown["allocated"], shown["ready"], endpoints


SCENARIOS: Final[dict[str, type[Scenario]]] = {each.name: each for each in (Basic, *PAUSES)}
