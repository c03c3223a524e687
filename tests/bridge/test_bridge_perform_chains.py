"""Chains of ops: what a process that slept amid one does not do any more, and the Events of a CreatePods done in part (DESIGN §6, §7)."""

from __future__ import annotations

import asyncio

import pytest
from execute_world import PODS, Fault, World, create_pods, run_virtually, status, target, version

from bridge.awake import LIMIT, Awake
from bus.messages import ACCEPTED, DONE, FAILED, SKIPPED
from bus.ops import CreateSnapshot, PatchMetadata, RecordEvent, Target

SNAPSHOTS = "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/sandboxsnapshots"


def sleep(seconds: float) -> None:
    """As a SIGSTOP does: time goes on, and nothing of this process has run."""
    asyncio.get_running_loop()._now += seconds  # type: ignore[attr-defined]


@pytest.mark.parametrize(("seconds", "then"), [(LIMIT + 1, SKIPPED), (0.5, DONE)])
def test_who_slept_amid_a_chain_gives_up_its_rest(seconds: float, then: str) -> None:
    """Another has had the command since, and the world went on: a snapshot would be made of a pause that is over."""

    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox()
            world.client.faults.append(Fault("PATCH", "/batchsandboxes/a", before=lambda: sleep(seconds)))
            first = PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"})
            second = CreateSnapshot("2", target(sandbox), "a-pause", "2", Target("pod", "a-0", "u"))
            results = await world.results(first, second)
            assert [result.result for result in results] == [DONE, then]
            assert len(world.items(SNAPSHOTS)) == (then == DONE)
            # A sleep of before says nothing of the next command.
            made = await world.results(create_pods(sandbox, 0), create_pods(sandbox, 1, id="op2"))
            assert [result.result for result in made] == [DONE, DONE]

    run_virtually(scenario)


def test_a_slow_api_server_is_no_sleep() -> None:
    """The delivery is kept alive meanwhile."""

    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox()
            world.client.latency = 4 * LIMIT
            results = await world.results(
                PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"}), create_pods(sandbox, 0)
            )
            assert [result.result for result in results] == [DONE, DONE]

    run_virtually(scenario)


def test_a_sleep_is_told_to_those_who_slept_through_it_alone() -> None:
    async def scenario() -> None:
        awake = Awake()
        with awake.watch() as first:
            await asyncio.sleep(10 * LIMIT)
            assert not first()
            sleep(LIMIT + 1)
            with awake.watch() as second:
                assert (first(), second()) == (True, False)
                await asyncio.sleep(10 * LIMIT)
                assert (first(), second()) == (True, False)
        await asyncio.sleep(10 * LIMIT)
        sleep(LIMIT + 1)
        with awake.watch() as third:
            assert not third()

    run_virtually(scenario)


def test_9_2_of_a_create_that_is_done_in_part_the_events_of_that_part_are_recorded() -> None:
    """`SuccessfulCreate` of the pods that are there; the chain is broken all the same."""

    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox(replicas=3)
            posts = 0

            async def refuse_the_second(method: str, path: str) -> None:
                nonlocal posts
                posts += (method, path) == ("POST", PODS)
                if posts == 2:
                    posts += 1
                    world.client.faults.append(Fault("POST", "/pods", status(422, "Invalid")))

            world.client.hold = refuse_the_second
            op = create_pods(sandbox, 0, 1, 2)
            told = [
                RecordEvent(f"op/a-{n}", target(sandbox), "c", "Normal", "SuccessfulCreate", f"a-{n}", world.now())
                for n in range(3)
            ]
            other = RecordEvent("op2/a-0", target(sandbox), "c", "Normal", "SuccessfulCreate", "x", world.now())
            patch = PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"})
            results = await world.results(op, *told, other, patch)
            assert results[0].result == FAILED
            assert {name: made.result for name, made in results[0].names.items()} == {
                "a-0": DONE,
                "a-1": FAILED,
                "a-2": DONE,
            }
            assert [result.result for result in results[1:]] == [ACCEPTED, SKIPPED, ACCEPTED, SKIPPED, SKIPPED]

    run_virtually(scenario)
