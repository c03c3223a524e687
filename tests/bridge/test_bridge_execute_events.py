"""Kubernetes Events (DESIGN §7: named after the op's id; controller-behaviour.md §9.2)."""

from __future__ import annotations

import asyncio
import random
import re

import msgspec
from execute_world import EVENTS, Client, Fault, Figures, World, run_virtually, status, target, until

from bridge.calls import Calls
from bridge.events import MAX_MESSAGE, EventLane, EventSettings, event_body, event_name
from bridge.lanes import Lanes
from bus.clock import LogClock
from bus.log_memory import EPOCH, SECOND
from bus.ops import RecordEvent, Target

OP = RecordEvent(
    "c1/ns/sandbox/a@7#1",
    Target("batchsandbox", "a", "u-1"),
    "batchsandbox-controller",
    "Normal",
    "SuccessfulCreate",
    "succeed to create pod a-0",
    1_750_000_000 * SECOND,
)


def test_an_event_as_the_api_takes_it() -> None:
    assert msgspec.json.decode(event_body(OP, "ns")) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(OP), "namespace": "ns"},
        "involvedObject": {
            "apiVersion": "sandbox.opensandbox.io/v1alpha1",
            "kind": "BatchSandbox",
            "namespace": "ns",
            "name": "a",
            "uid": "u-1",
        },
        "type": "Normal",
        "reason": "SuccessfulCreate",
        "message": "succeed to create pod a-0",
        "source": {"component": "batchsandbox-controller"},
        "reportingComponent": "batchsandbox-controller",
        "firstTimestamp": "2025-06-15T15:06:40Z",
        "lastTimestamp": "2025-06-15T15:06:40Z",
        "count": 1,
    }


def test_the_name_follows_from_the_op_and_is_legal() -> None:
    long = msgspec.structs.replace(OP, target=Target("batchsandbox", "n" * 253, "u"))
    other = msgspec.structs.replace(OP, id="another")
    assert event_name(OP) == event_name(msgspec.structs.replace(OP, message="told otherwise"))
    assert event_name(OP) != event_name(other)
    for op in (OP, long, other):
        assert len(event_name(op)) <= 253
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", event_name(op))
    assert (
        len(msgspec.json.decode(event_body(msgspec.structs.replace(OP, message="x" * 5000), "ns"))["message"])
        == MAX_MESSAGE
    )


class Lane:
    def __init__(self, world: World, settings: EventSettings) -> None:
        clock = LogClock()
        clock.observe(EPOCH)
        self.metrics = Figures()
        self.client = Client(world.store)
        calls = Calls(self.client, Lanes(), clock, random.Random(1), self.metrics)
        self.lane = EventLane(calls, clock, self.metrics, settings)

    async def send(self, *given: RecordEvent) -> None:
        for op in given:
            self.lane.submit("default", op)
        await self.lane.drain(1000.0)


def ops(count: int) -> list[RecordEvent]:
    return [msgspec.structs.replace(OP, id=f"op-{i}") for i in range(count)]


def test_a_repeat_is_the_same_event() -> None:
    async def scenario() -> None:
        world = World()
        lane = Lane(world, EventSettings())
        await lane.send(OP, OP, OP)
        assert len(world.items(EVENTS)) == 1
        assert lane.metrics.counts["events", "sent", ""] == 3

    run_virtually(scenario)


def test_the_oldest_goes_when_the_queue_is_full() -> None:
    async def scenario() -> None:
        world = World()
        lane = Lane(world, EventSettings(queued=3, at_once=1))
        await lane.send(*ops(5))
        assert {event["metadata"]["name"] for event in world.items(EVENTS)} == {event_name(op) for op in ops(5)[2:]}
        assert lane.metrics.counts["events", "dropped", "full"] == 2

    run_virtually(scenario)


def test_what_is_refused_or_never_answered_is_counted_and_over() -> None:
    async def scenario() -> None:
        world = World()
        lane = Lane(world, EventSettings(at_once=1, patience=30))
        lane.client.faults.append(Fault("POST", "/events", status(403, "Forbidden")))
        lane.client.faults += [Fault("POST", "/events", lost=True) for _ in range(1000)]
        await lane.send(*ops(2))
        assert lane.metrics.counts["events", "refused", ""] == 1
        assert lane.metrics.counts["events", "late", ""] == 1

    run_virtually(scenario)


def test_an_event_on_an_unknown_kind_harms_no_other() -> None:
    async def scenario() -> None:
        world = World()
        lane = Lane(world, EventSettings(at_once=1))
        strange = msgspec.structs.replace(OP, id="s", target=Target("widget", "w", "u"))
        await lane.send(strange, OP)
        assert [event["metadata"]["name"] for event in world.items(EVENTS)] == [event_name(OP)]
        assert lane.metrics.counts["events", "failed", ""] == 1

    run_virtually(scenario)


def test_close_drops_what_waits() -> None:
    async def scenario() -> None:
        world = World()
        lane = Lane(world, EventSettings(at_once=1))
        lane.client.latency = 100.0
        for op in ops(3):
            lane.lane.submit("default", op)
        await asyncio.sleep(1)
        await lane.lane.close()
        assert asyncio.get_running_loop().time() == 1.0
        assert lane.metrics.counts["events", "dropped", "stopping"] == 2
        await asyncio.sleep(1000)
        assert world.items(EVENTS) == []

    run_virtually(scenario)


def test_drain_waits_for_what_was_taken_over_and_no_longer_than_told() -> None:
    async def scenario() -> None:
        world = World()
        lane = Lane(world, EventSettings(at_once=2))
        lane.client.latency = 1.0
        await lane.send(*ops(6))
        assert len(world.items(EVENTS)) == 6
        lane.client.latency = 100.0
        lane.lane.submit("default", OP)
        began = asyncio.get_running_loop().time()
        await lane.lane.drain(5.0)
        assert asyncio.get_running_loop().time() == began + 5.0
        await lane.lane.close()
        await lane.lane.drain(5.0)
        assert asyncio.get_running_loop().time() == began + 5.0

    run_virtually(scenario)


def test_the_executor_records_it_on_its_object() -> None:
    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox()
            await world.results(msgspec.structs.replace(OP, target=target(sandbox)))
            await until(lambda: bool(world.items(EVENTS)))
            (event,) = world.items(EVENTS)
            assert event["involvedObject"]["uid"] == sandbox["metadata"]["uid"]

    run_virtually(scenario)
