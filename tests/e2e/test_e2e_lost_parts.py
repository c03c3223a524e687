"""Lost and doubled parts (DESIGN §1, §8.10): whatever dies, is lost or comes twice, the objects end as in an undisturbed run, and no pod
is ever doubled. All on two of each role, as processes of their own."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from support.api import Api, Refused, conditions, endpoints, phase, sandbox
from support.comparing import final_objects
from support.evidence import jetstream, until
from support.programs import Program
from support.sandlog import SEPARATE, Sandlog
from support.servers import Server
from support.witness import Witness

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("sandlog", ["two-of-each"], indirect=True, scope="session"),
    pytest.mark.usefixtures("kubelet"),
]
Objects = dict[str, dict[str, Any]]
Disturb = Callable[[], Awaitable[None]]
COUNT = 128
MIDDLE = 30
"""So many pods are there when the disturbance comes."""
LIMIT = 60.0


def replicas_of(number: int) -> int:
    return 3 if number % 32 == 0 else 1


BURST = {f"burst-{n}": replicas_of(n) for n in range(COUNT)}


def settled(objects: Objects, wanted: dict[str, int]) -> bool:
    """Ready as asked, and all of it written down."""
    return all(
        name in objects
        and phase(objects[name]) == "Succeed"
        and "Ready" in conditions(objects[name])
        and len(endpoints(objects[name])) == replicas
        and all(endpoints(objects[name]))
        and objects[name]["status"].get("ready", 0) == replicas
        and objects[name]["status"]["observedGeneration"] == objects[name]["metadata"]["generation"]
        for name, replicas in wanted.items()
    )


async def insist(api: Api, o: dict[str, Any]) -> None:
    """Create it although the API server may be away."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await api.create("BatchSandbox", o)
            except Refused as refused:
                if refused.status == 409:
                    return
                if refused.status < 500 and refused.status != 429:
                    raise
            except (aiohttp.ClientError, OSError):
                pass
            else:
                return
            await asyncio.sleep(0.1)


async def burst(api: Api, sandlog: Sandlog, disturb: Disturb) -> tuple[dict[str, Any], Witness, float]:
    """128 creations with a disturbance in the middle: the final objects, who saw the pods, and seconds from the disturbance's beginning."""
    async with Witness(api) as witness:
        creating = asyncio.gather(*(insist(api, sandbox(name, replicas)) for name, replicas in BURST.items()))
        await witness.until_born(MIDDLE)
        begun = time.monotonic()
        await disturb()
        await creating
        await api.until("all ready", "BatchSandbox", lambda o: settled(o, BURST), LIMIT, sandlog.trouble)
        took = time.monotonic() - begun
        return await final_objects(api), witness, took


async def nothing() -> None:
    return


@pytest.fixture(autouse=True)
async def cleared(api: Api) -> AsyncIterator[None]:
    """Nothing of a test is left to be listed in the next one."""
    yield
    await clear(api)


async def clear(api: Api) -> None:
    await api.call("DELETE", api.path("BatchSandbox"))
    await api.until("all sandboxes gone", "BatchSandbox", lambda o: not o, 30)
    await api.until("all pods gone", "Pod", lambda o: not o, 30)


@pytest.fixture(scope="session")
def undisturbed(server: Server, kubelet: Program, sandlog: Sandlog) -> dict[str, Any]:
    """The final objects of a run that nothing disturbs."""

    async def run() -> dict[str, Any]:
        async with Api(server.url, server.tokens["admin"], "undisturbed") as api:
            await api.ensure_namespace()
            objects, witness, took = await burst(api, sandlog, nothing)
            print(f"measured: {server.kind}: undisturbed: {took:.1f} s")
            assert not witness.doubled
            await clear(api)
            return objects

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(run())
    finally:
        loop.close()


async def same_in_the_end(
    case: str, api: Api, server: Server, sandlog: Sandlog, undisturbed: dict[str, Any], disturb: Disturb
) -> None:
    objects, witness, took = await burst(api, sandlog, disturb)
    print(f"measured: {server.kind}: {case}: {took:.1f} s")
    assert objects == undisturbed
    assert not witness.doubled
    assert {name: len(uids) for name, uids in witness.born.items() if len(uids) != 1} == {}
    sandlog.until_ready()
    assert sandlog.trouble() is None


@pytest.mark.parametrize("role", SEPARATE)
async def test_a_role_is_killed_in_the_middle(
    role: str, api: Api, server: Server, sandlog: Sandlog, undisturbed: dict[str, Any]
) -> None:
    """All processes of that role: nobody is there to take over until they are started again."""

    async def disturb() -> None:
        sandlog.kill(*sandlog.of(role))
        sandlog.launch(role, role)

    await same_in_the_end(f"SIGKILL of every {role}", api, server, sandlog, undisturbed, disturb)


async def test_all_data_of_nats_are_lost_in_the_middle(
    api: Api, server: Server, sandlog: Sandlog, undisturbed: dict[str, Any]
) -> None:
    async def disturb() -> None:
        sandlog.nats.kill()
        sandlog.nats.wipe()
        sandlog.nats.start()

    await same_in_the_end("NATS loses everything", api, server, sandlog, undisturbed, disturb)


async def test_the_views_are_deleted_in_the_middle(
    api: Api, server: Server, sandlog: Sandlog, undisturbed: dict[str, Any]
) -> None:
    async def disturb() -> None:
        async with jetstream(sandlog) as stream:
            await stream.delete_stream("KV_VIEWS")

    await same_in_the_end("views deleted", api, server, sandlog, undisturbed, disturb)


async def test_a_log_trimmed_past_a_sandboxs_last_command(api: Api, server: Server, sandlog: Sandlog) -> None:
    """It still expires, scales, heals and goes (DESIGN §6, the trimmed-log rule)."""
    soon = (datetime.now(UTC) + timedelta(seconds=4)).isoformat()
    made = {"expiring": sandbox("expiring", expireTime=soon), "scaled": sandbox("scaled", 2), "lost": sandbox("lost")}
    for o in made.values():
        await api.create("BatchSandbox", o)
    wanted = {"expiring": 1, "scaled": 2, "lost": 1}
    await api.until("ready", "BatchSandbox", lambda o: settled(o, wanted), 20, sandlog.trouble)
    async with jetstream(sandlog) as stream:
        await stream.purge_stream("LOG")
    begun = time.monotonic()
    await api.patch("BatchSandbox", "scaled", {"spec": {"replicas": 4}})
    await api.delete("Pod", "lost-0")
    after = {"scaled": 4, "lost": 1}
    await api.until("scaled, healed", "BatchSandbox", lambda o: settled(o, after), 20, sandlog.trouble)
    print(f"measured: {server.kind}: log trimmed: {time.monotonic() - begun:.1f} s")
    await api.until("expired", "BatchSandbox", lambda o: "expiring" not in o, 20, sandlog.trouble)
    assert datetime.now(UTC) >= datetime.fromisoformat(soon)
    await api.patch("BatchSandbox", "scaled", {"spec": {"replicas": 1}})
    await api.until("scaled in", "BatchSandbox", lambda o: settled(o, {"scaled": 1}), 20, sandlog.trouble)


async def test_the_api_server_is_started_again_in_the_middle(
    api: Api, server: Server, sandlog: Sandlog, undisturbed: dict[str, Any]
) -> None:
    """The simulated one drops all connections, has forgotten its history (410) and fails for a while."""

    async def disturb() -> None:
        if server.plane is not None:
            await asyncio.to_thread(server.plane.stop_one, "kube-apiserver", signal.SIGKILL)
            server.plane.start_api_server()
            return
        for fault in ({"do": "compact"}, {"do": "fail", "code": 503, "count": 300}, {"do": "drop_watches"}):
            await api.call("POST", "/sim/faults", fault)

    await same_in_the_end("API server restarted", api, server, sandlog, undisturbed, disturb)


async def test_a_third_of_each_that_sleeps_and_wakes(
    api: Api, server: Server, sandlog: Sandlog, undisturbed: dict[str, Any]
) -> None:
    """Stopped (SIGSTOP) in the middle of the burst and woken ten seconds later, into a world that went on without it."""
    thirds = sandlog.start(*SEPARATE)
    slept = 0.0

    async def disturb() -> None:
        nonlocal slept
        for third in thirds:
            third.signal(signal.SIGSTOP)
        slept = time.monotonic()

    try:
        objects, witness, took = await burst(api, sandlog, disturb)
        print(f"measured: {server.kind}: a third of each stopped: {took:.1f} s")
        assert objects == undisturbed
        # The world goes on while they sleep.
        await api.delete("Pod", "burst-1-0")
        changed = {"burst-0": 1, "burst-1": 1, "burst-2": 4}
        for name in ("burst-0", "burst-2"):
            await api.patch("BatchSandbox", name, {"spec": {"replicas": changed[name]}})
        await api.delete("BatchSandbox", "burst-3")
        await api.until("changed", "BatchSandbox", lambda o: settled(o, changed) and "burst-3" not in o, 30)
        async with Witness(api) as again:
            await asyncio.sleep(max(0.0, slept + 10 - time.monotonic()))
            for third in thirds:
                third.signal(signal.SIGCONT)
            for third in thirds:
                await asyncio.to_thread(third.until_ready)
            await api.create("BatchSandbox", sandbox("afterwards"))
            await api.until("afterwards", "BatchSandbox", lambda o: settled(o, {"afterwards": 1}), 30)
            assert not again.doubled
            assert {name: len(uids) for name, uids in again.born.items() if len(uids) != 1} == {}
        assert not witness.doubled
        alive = sorted(pod["metadata"]["name"] for pod in await api.list("Pod"))
        wanted = {**BURST, **changed, "afterwards": 1}
        del wanted["burst-3"]
        assert alive == sorted(f"{name}-{n}" for name, replicas in wanted.items() for n in range(replicas))
    finally:
        for third in thirds:
            third.signal(signal.SIGCONT)
        for third in thirds:
            sandlog.end(third)


async def test_a_restored_etcd(api: Api, server: Server, sandlog: Sandlog) -> None:
    """resourceVersions go back, later objects were never there, and names are used again with other uids."""
    plane = server.plane
    if plane is None:
        pytest.skip("the simulator has no etcd; tests/bridge/test_bridge_watch_epochs.py has this case for its store")
    kept = {f"kept-{n}": 2 for n in range(16)}
    later = {f"later-{n}": 1 for n in range(16)}
    for name, replicas in kept.items():
        await api.create("BatchSandbox", sandbox(name, replicas))
    await api.until("kept", "BatchSandbox", lambda o: settled(o, kept), 30, sandlog.trouble)
    before = await final_objects(api)
    backup = plane.folder / "etcd-backup"

    def stopped() -> None:
        for name in ("kube-controller-manager", "kube-apiserver"):
            plane.stop_one(name, signal.SIGKILL)
        plane.stop_one("etcd")

    def started() -> None:
        plane.start_etcd()
        plane.start_api_server()
        plane.start_controller_manager()

    def back_up() -> None:
        stopped()
        shutil.copytree(plane.folder / "etcd", backup)
        started()

    def restore() -> None:
        stopped()
        shutil.rmtree(plane.folder / "etcd")
        backup.rename(plane.folder / "etcd")
        started()

    await asyncio.to_thread(back_up)
    for name, replicas in later.items():
        await api.create("BatchSandbox", sandbox(name, replicas))
    for name in kept:
        await api.patch("BatchSandbox", name, {"spec": {"replicas": 3}})
    grown = {**dict.fromkeys(kept, 3), **later}
    await api.until("later", "BatchSandbox", lambda o: settled(o, grown), 30, sandlog.trouble)
    await asyncio.to_thread(restore)
    begun = time.monotonic()
    async with Witness(api) as witness:
        for name in later:
            await api.create("BatchSandbox", sandbox(name, 2))
        wanted = {**kept, **dict.fromkeys(later, 2)}
        await api.until("as it was, and anew", "BatchSandbox", lambda o: settled(o, wanted), LIMIT, sandlog.trouble)
        print(f"measured: {server.kind}: restored etcd: {time.monotonic() - begun:.1f} s")
        await api.patch("BatchSandbox", "kept-0", {"spec": {"replicas": 1}})
        await api.until("still followed", "BatchSandbox", lambda o: settled(o, {"kept-0": 1}), 30, sandlog.trouble)
        await api.patch("BatchSandbox", "kept-0", {"spec": {"replicas": 2}})
        await api.until("both ways", "BatchSandbox", lambda o: settled(o, kept), 30, sandlog.trouble)
        assert not witness.doubled
    after = await final_objects(api)
    # One sandbox was edited since, so its generation is another one.
    for o in (before, after):
        o["sandbox/kept-0"]["metadata"].pop("generation")
        for field in ("observedGeneration", "pauseObservedGeneration"):
            o["sandbox/kept-0"]["status"].pop(field)
    assert {key: o for key, o in after.items() if "kept" in key} == before
    await until("the epoch was raised", lambda: sandlog.figure("watch_epoch") >= 4, 10)
