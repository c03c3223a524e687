"""Pause, resume and snapshots on a whole sandlog (issue 5): on the simulated and the real API server, and while every role is killed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from support.api import AGAIN, Api, Refused, conditions, endpoints, phase, sandbox
from support.sandlog import SEPARATE, Sandlog
from support.witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kubelet")]
Objects = dict[str, dict[str, Any]]
ORIGINAL = "busybox:1"
SEEDS = int(os.environ.get("SANDLOG_KILL_SEEDS", "2"))
COUNT = 50
KILLS_WITHIN = 8.0
"""Seconds from the first pause on, in which each role is killed once."""
LIMIT = 120.0


def snapshot_image(name: str) -> str:
    return f"registry.test/snap/{name}-main:snap-gen"


def image(o: dict[str, Any]) -> str:
    """Of a sandbox's template, or of a pod."""
    spec = o["spec"].get("template", o)["spec"]
    return str(spec["containers"][0]["image"])


def in_phase(name: str, wanted: str) -> Any:
    return lambda objects: name in objects and phase(objects[name]) == wanted


def said(o: dict[str, Any], kind: str) -> str:
    """The reason of a true condition, '' if there is none."""
    found = conditions(o).get(kind, {})
    return str(found["reason"]) if found.get("status") == "True" else ""


async def pause(api: Api, name: str, value: bool | None = True) -> None:
    await api.patch("BatchSandbox", name, {"spec": {"pause": value}})


@asynccontextmanager
async def course(api: Api, name: str) -> AsyncIterator[list[dict[str, Any]]]:
    """All versions of a sandbox that a watch shows the while."""
    versions: list[dict[str, Any]] = []
    begun = asyncio.Event()

    async def follow() -> None:
        seen: Objects = {}
        while True:
            try:
                async for event in api.changes("BatchSandbox", seen):
                    begun.set()
                    if name in seen and (event is None or event["object"]["metadata"]["name"] == name):
                        versions.append(seen[name])
            except (aiohttp.ClientError, OSError, Refused):
                await asyncio.sleep(AGAIN)

    task = asyncio.create_task(follow())
    try:
        await begun.wait()
        yield versions
        newest = await api.get("BatchSandbox", name)
        assert newest is not None
        async with asyncio.timeout(10):
            while not versions or version_of(versions[-1]) < version_of(newest):
                await asyncio.sleep(AGAIN)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def version_of(o: dict[str, Any]) -> int:
    return int(o["metadata"]["resourceVersion"])


def phases(versions: list[dict[str, Any]]) -> list[str]:
    """Each phase as often as it was entered."""
    found: list[str] = []
    for each in versions:
        now = phase(each) or ""
        if not found or found[-1] != now:
            found.append(now)
    return [each for each in found if each]


async def runs(api: Api, sandlog: Any, name: str, **spec: Any) -> None:
    await api.create("BatchSandbox", sandbox(name, **spec))
    await api.until("it runs", "BatchSandbox", in_phase(name, "Succeed"), trouble=sandlog.trouble)


async def resumed(api: Api, sandlog: Any, name: str) -> dict[str, Any]:
    """Resume, wait until it runs, its snapshot is used up and nothing is left to be written; the pod."""
    await pause(api, name, False)

    def done(objects: Objects) -> bool:
        o = objects[name]
        acknowledged = o["status"]["pauseObservedGeneration"] == o["metadata"]["generation"]
        return phase(o) == "Succeed" and acknowledged and image(o).startswith(snapshot_image(name))

    found = await api.until("it runs again", "BatchSandbox", done, trouble=sandlog.trouble)
    await api.until("its snapshot is used up", "SandboxSnapshot", lambda o: not o, trouble=sandlog.trouble)
    (pod,) = await api.list("Pod", f"batch-sandbox.sandbox.opensandbox.io/name={name}")
    assert image(pod) == image(found[name])
    assert endpoints(found[name]) == [pod["status"]["podIP"]]
    return pod


async def test_pause_renew_resume_and_again(api: Api, sandlog: Any) -> None:
    """PAU-01, RES-01, N-07, N-09: the whole course of a client, twice."""
    await runs(api, sandlog, "a")
    (first,) = await api.list("Pod")
    async with course(api, "a") as versions:
        await pause(api, "a")
        await api.until("paused", "BatchSandbox", in_phase("a", "Paused"), trouble=sandlog.trouble)
        kept = await api.get("SandboxSnapshot", "a-pause")
        assert kept is not None
        assert phase(kept) == "Succeed"
        assert kept["status"]["containers"][0]["imageDigest"].startswith("sha256:")
        await api.until("its pod is gone", "Pod", lambda o: "a-0" not in o, trouble=sandlog.trouble)

        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        renewed = await api.patch("BatchSandbox", "a", {"spec": {"expireTime": later}})
        generation = renewed["metadata"]["generation"]

        def acknowledged(objects: Objects) -> bool:
            return bool(objects["a"]["status"]["pauseObservedGeneration"] == generation)

        found = await api.until("the renewal is acknowledged", "BatchSandbox", acknowledged, trouble=sandlog.trouble)
        assert phase(found["a"]) == "Paused"
        again = await api.get("SandboxSnapshot", "a-pause")
        assert again is not None
        assert again["metadata"]["uid"] == kept["metadata"]["uid"]
        assert "deletionTimestamp" not in again["metadata"]

        pod = await resumed(api, sandlog, "a")
        assert pod["metadata"]["uid"] != first["metadata"]["uid"]
        assert image(pod) == kept["status"]["containers"][0]["imageUri"]
        await pause(api, "a")
        await api.until("paused again", "BatchSandbox", in_phase("a", "Paused"), trouble=sandlog.trouble)
        third = await resumed(api, sandlog, "a")
        assert third["metadata"]["uid"] != pod["metadata"]["uid"]
    cycle = ["Pausing", "Paused", "Resuming", "Succeed"]
    assert phases(versions) == ["Succeed", *cycle, *cycle]
    for each in versions:
        if phase(each) == "Paused":
            assert endpoints(each) == []
        if phase(each) == "Succeed":
            assert all(endpoints(each))


async def test_a_pause_of_two_replicas_is_refused(api: Api, sandlog: Any) -> None:
    """PAU-06, PAU-07: acknowledged and refused in one write."""
    await runs(api, sandlog, "two", replicas=2)
    async with course(api, "two") as versions:
        await pause(api, "two")
        await api.until(
            "refused", "BatchSandbox", lambda o: said(o["two"], "PauseFailed") != "", trouble=sandlog.trouble
        )
    assert phases(versions) == ["Succeed"]
    told = [(each["status"]["pauseObservedGeneration"], said(each, "PauseFailed")) for each in versions]
    assert set(told) == {(1, ""), (2, "UnsupportedReplicas")}
    assert await api.list("SandboxSnapshot") == []


async def test_a_failed_commit_then_null_and_true(api: Api, sandlog: Any) -> None:
    """E2P-09, DESIGN §8.5: `Succeed` with `PauseFailed` and the pod that was there; the retry of a client is recognised."""
    await runs(api, sandlog, "once")
    (before,) = await api.list("Pod")
    await pause(api, "once")
    failed = await api.until(
        "it failed", "BatchSandbox", lambda o: said(o["once"], "PauseFailed") != "", trouble=sandlog.trouble
    )
    assert (phase(failed["once"]), said(failed["once"], "PauseFailed")) == ("Succeed", "SnapshotFailed")
    after = await api.get("Pod", "once-0")
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert endpoints(failed["once"]) == [before["status"]["podIP"]]
    await pause(api, "once", None)
    await pause(api, "once", True)
    found = await api.until("paused", "BatchSandbox", in_phase("once", "Paused"), trouble=sandlog.trouble)
    assert said(found["once"], "PauseFailed") == ""
    await resumed(api, sandlog, "once")


@pytest.mark.parametrize("when", ["asked", "Pausing", "Paused", "Resuming"])
async def test_deleted_in_the_middle(when: str, api: Api, sandlog: Any) -> None:
    """DSP-01, B56: deletion comes before everything else, and takes snapshot, Jobs and pods along."""
    name = "never" if when == "Pausing" else "gone"  # its commit fails for 15 s
    await runs(api, sandlog, name)
    await pause(api, name)
    if when != "asked":
        wanted = "Paused" if when == "Resuming" else when
        await api.until(wanted, "BatchSandbox", in_phase(name, wanted), trouble=sandlog.trouble)
    if when == "Pausing":
        await api.until("a commit runs", "Job", lambda o: bool(o), trouble=sandlog.trouble)
    if when == "Resuming":
        await pause(api, name, False)
    await api.delete("BatchSandbox", name)
    for kind in ("BatchSandbox", "SandboxSnapshot", "Job", "Pod"):
        await api.until(f"no {kind} is left", kind, lambda o: not o, 30, sandlog.trouble)


async def test_paused_at_its_creation(api: Api, sandlog: Any) -> None:
    """N-22: it starts first, then it is paused; the stock controller ends `Failed` for ever (traces.md, pause_before_ready)."""
    async with course(api, "early") as versions:
        await api.create("BatchSandbox", sandbox("early", pause=True))
        await api.until("paused", "BatchSandbox", in_phase("early", "Paused"), trouble=sandlog.trouble)
    assert [each for each in phases(versions) if each != "Pending"] == ["Succeed", "Pausing", "Paused"]
    await resumed(api, sandlog, "early")


# -- kills

NAMES = [f"cycle-{n}" for n in range(COUNT)]
LAST_PAUSED = NAMES[::5]
"""They are paused once more, and stay so."""


async def cycle(api: Api, states: Objects, changed: asyncio.Condition, name: str) -> None:
    """Pause, resume, and for some pause again: each as soon as the one before is seen done."""

    async def until(wanted: str, committed: bool) -> None:
        async with changed:
            await changed.wait_for(
                lambda: (
                    phase(states[name]) == wanted
                    and (not committed or image(states[name]).startswith(snapshot_image(name)))
                )
            )

    await pause(api, name)
    await until("Paused", False)
    await pause(api, name, False)
    await until("Succeed", True)
    if name in LAST_PAUSED:
        await pause(api, name)
        await until("Paused", True)


async def follow(api: Api, states: Objects, failures: list[str], changed: asyncio.Condition) -> None:
    while True:
        try:
            async for event in api.changes("BatchSandbox", states):
                for o in [event["object"]] if event is not None else list(states.values()):
                    for kind in ("PauseFailed", "ResumeFailed"):
                        if said(o, kind):
                            failures.append(f"{o['metadata']['name']}: {kind} {said(o, kind)}")
                async with changed:
                    changed.notify_all()
        except (aiohttp.ClientError, OSError, Refused):
            await asyncio.sleep(AGAIN)


async def kill_all(sandlog: Sandlog, randomness: random.Random) -> list[str]:
    """Each role once, all its processes, in any order and at any moment; started again at once. What was done."""
    order = randomness.sample(SEPARATE, len(SEPARATE))
    moments = sorted(randomness.uniform(0, KILLS_WITHIN) for _ in order)
    begun = time.monotonic()
    for role, moment in zip(order, moments, strict=True):
        await asyncio.sleep(max(0.0, begun + moment - time.monotonic()))
        sandlog.kill(*sandlog.of(role))
        sandlog.launch(role, role)
    return [f"{role} at {moment:.2f} s" for role, moment in zip(order, moments, strict=True)]


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("server", ["real"], indirect=True, scope="session")
@pytest.mark.parametrize("sandlog", ["two-of-each"], indirect=True, scope="session")
async def test_every_role_is_killed_during_fifty_cycles(seed: int, api: Api, sandlog: Sandlog) -> None:
    """Issue 5, done when 4: all end in the intended phase, no snapshot lost, no pod doubled."""
    await asyncio.gather(*(api.create("BatchSandbox", sandbox(name)) for name in NAMES))
    states = await api.until(
        "all run", "BatchSandbox", lambda o: all(in_phase(name, "Succeed")(o) for name in NAMES), LIMIT, sandlog.trouble
    )
    failures: list[str] = []
    changed = asyncio.Condition()
    async with Witness(api) as witness:
        await witness.until_born(COUNT)
        following = asyncio.create_task(follow(api, states, failures, changed))
        begun = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group:
                killing = group.create_task(kill_all(sandlog, random.Random(seed)))
                for name in NAMES:
                    group.create_task(cycle(api, states, changed, name))
        except TimeoutError:
            left = {name: phase(o) for name, o in states.items()}
            raise AssertionError(f"seed {seed}: not all within {LIMIT:g} s: {left}; {sandlog.trouble()}") from None
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        print(f"measured: seed {seed}: {time.monotonic() - begun:.1f} s; killed {', '.join(killing.result())}")
        await right_in_the_end(api, sandlog)
        assert failures == []
        assert witness.doubled == []
        jobs = {name: uids for name, uids in witness.born.items() if "-pause-commit-" in name}
        # Each sandbox had its first pod and the resumed one, and one commit per pause.
        assert {name: len(uids) for name, uids in witness.born.items() if name not in jobs} == {
            f"{name}-0": 2 for name in NAMES
        }
        commits = Counter(name.partition("-pause-commit-")[0] for name in jobs)
        assert commits == {name: 1 + (name in LAST_PAUSED) for name in NAMES}
    sandlog.until_ready()
    await api.call("DELETE", api.path("BatchSandbox"))
    for kind in ("BatchSandbox", "SandboxSnapshot", "Pod"):
        await api.until(f"no {kind} is left", kind, lambda o: not o, 60, sandlog.trouble)


async def right_in_the_end(api: Api, sandlog: Sandlog) -> None:
    kept = {f"{name}-pause" for name in LAST_PAUSED}
    snapshots = await api.until("used up", "SandboxSnapshot", lambda o: set(o) == kept, 30, sandlog.trouble)
    assert {phase(each) for each in snapshots.values()} == {"Succeed"}
    wanted = {f"{name}-0" for name in NAMES if name not in LAST_PAUSED}

    def only_wanted(pods: Objects) -> bool:
        return {name for name in pods if "-pause-commit-" not in name} == wanted

    pods = await api.until("the pods that are wanted", "Pod", only_wanted, 30, sandlog.trouble)
    for o in await api.list("BatchSandbox"):
        name = o["metadata"]["name"]
        if name in LAST_PAUSED:
            assert (phase(o), endpoints(o)) == ("Paused", [])
            snapshot = snapshots[f"{name}-pause"]
            assert snapshot["metadata"]["ownerReferences"][0]["uid"] == o["metadata"]["uid"]
        else:
            assert (phase(o), endpoints(o)) == ("Succeed", [pods[f"{name}-0"]["status"]["podIP"]])
            assert image(pods[f"{name}-0"]).startswith(snapshot_image(name))
