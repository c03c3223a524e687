"""The executor's loop: deliveries, outcomes, dead letters, bounds, stopping (DESIGN §7, issue 3 bridge.execute)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import structlog
from execute_world import (
    EVENTS,
    NAMESPACE,
    PODS,
    SANDBOXES,
    SECOND,
    Fault,
    World,
    create_pods,
    run_virtually,
    status,
    target,
    until,
    version,
)

from bridge.execute import ExecuteSettings
from bridge.lanes import LanesSettings
from bridge.outcomes import unreadable
from bridge.perform import Performer
from bus import names
from bus.log import LogUnavailable
from bus.memory import never
from bus.messages import (
    ACCEPTED,
    CAUSE_HEADER,
    CODE_HEADER,
    CONFLICT,
    DONE,
    FAILED,
    SCHEMA_HEADER,
    UNKNOWN,
    Command,
    Dead,
    decode,
    encode,
    headers,
)
from bus.ops import DeleteExpired, Op, PatchMetadata, PatchSandboxStatus, RecordEvent, Target
from bus.resources import SandboxStatus
from bus.subjects import parse
from bus.version import CODE_VERSION

SECRET = "hunter2-secret"
READABLE = headers(CODE_VERSION)
NEWER = {SCHEMA_HEADER: "2", CODE_HEADER: "9.9.9"}
WITH_UNKNOWN_OP = msgspec.json.encode(
    {
        "type": "command",
        "view": 1,
        "expires": 9_000_000_000 * SECOND,
        "reason": "r",
        "ops": [{"op": "fly-to-the-moon", "id": "1"}, {"op": "delete-pod", "id": "2"}],
    }
)


def event(sandbox: dict, id: str = "e") -> RecordEvent:
    return RecordEvent(id, target(sandbox), "batchsandbox-controller", "Normal", "R", "m", 1_750_000_000 * SECOND)


def test_one_outcome_of_one_command_then_it_is_acked() -> None:
    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox()
            sequence = await world.command(create_pods(sandbox, 0, id="c1/default/sandbox/a@1#0"))
            (outcome,) = await world.outcomes()
            assert (outcome.command, outcome.by) == (sequence, "test")
            (result,) = outcome.results
            assert (result.id, result.result) == ("c1/default/sandbox/a@1#0", DONE)
            (record,) = await world.records("out", "a")
            assert record.headers[CAUSE_HEADER] == str(sequence)
            # Nothing comes again: it was acked.
            await asyncio.sleep(100)
            assert len(await world.records("out")) == 1
            assert world.executor.in_flight == 0

    run_virtually(scenario)


async def killed_at(world: World, kind: str, message: str, *ops: Op) -> None:
    """Let an executor take the command, kill it at that step of its outcome, and give the world another."""
    doomed = asyncio.create_task(world.executor.run())

    async def die(step: str, detail: str) -> None:
        if step == kind and message in detail:
            world.log.kill()
            await never()

    world.log._on_step = die
    await world.command(*ops)
    await until(lambda: world.log.killed)
    doomed.cancel()
    world.log = type(world.log)(world.stream)
    world.executor = world.another()


def test_a_kill_before_the_outcome_repeats_harmlessly() -> None:
    """DESIGN §7: a crash between leads to redelivery, which the preconditions absorb."""

    async def scenario() -> None:
        world = World()
        sandbox = world.sandbox()
        at = version(sandbox)
        said = SandboxStatus(observed_generation=1, phase="Succeed")
        patches = (
            PatchMetadata("2", target(sandbox), at, {"x": "y"}),
            PatchSandboxStatus("3", target(sandbox), at, said),
        )
        await killed_at(world, "append.before", ".out.", create_pods(sandbox, 0, id="1"), *patches)
        async with world:
            (outcome,) = await world.outcomes(1)
            # The conflict of the repeated patch is our own first try: the wish stands.
            assert [result.result for result in outcome.results] == [DONE, DONE, DONE]
            assert len(world.items(PODS)) == 1

    run_virtually(scenario)


def test_a_kill_between_the_outcome_and_the_ack_repeats_nothing() -> None:
    """The outcome was folded, and the world went on: what comes again is only acked (the explorer saw a pod made for a paused sandbox)."""

    async def scenario() -> None:
        world = World(ExecuteSettings(by="test", ack_wait=3))
        sandbox = world.sandbox()
        await killed_at(world, "append.after", ".out.", create_pods(sandbox, 0))
        await until(lambda: world.items(PODS) != [])
        world.direct.request("DELETE", f"{PODS}/a-0", {"gracePeriodSeconds": 0})
        async with world:
            await until(lambda: not any(durable.pending for durable in world.stream.durables.values()))
            await asyncio.sleep(100)
            assert len(await world.records("out")) == 1
            assert world.items(PODS) == []

    run_virtually(scenario)


def test_a_repeated_chain_does_not_write_over_what_came_after_it() -> None:
    """What only stands gives no precondition (the explorer saw `Resuming` written over `Succeed`)."""

    async def scenario() -> None:
        world = World()
        sandbox = world.sandbox()
        at = version(sandbox)
        resuming = PatchSandboxStatus("2", target(sandbox), at, SandboxStatus(observed_generation=1, phase="Resuming"))
        await killed_at(world, "append.before", ".out.", PatchMetadata("1", target(sandbox), at, {"x": "y"}), resuming)
        world.change(f"{SANDBOXES}/a/status", {"status": {"phase": "Succeed"}})
        async with world:
            (outcome,) = await world.outcomes(1)
            assert [result.result for result in outcome.results] == [DONE, CONFLICT]
            found = world.get(f"{SANDBOXES}/a")
            assert found is not None
            assert found["status"]["phase"] == "Succeed"

    run_virtually(scenario)


def test_neither_outcome_nor_ack_waits_for_events() -> None:
    """Events are best effort, as everywhere in Kubernetes."""

    async def scenario() -> None:
        async with World(ExecuteSettings(by="test", ack_wait=3)) as world:
            sandbox = world.sandbox()
            go = asyncio.Event()

            async def hold(method: str, path: str) -> None:
                if path == EVENTS:
                    await go.wait()

            world.client.hold = hold
            began = world.now()
            (result,) = await world.results(event(sandbox))
            assert result.result == ACCEPTED
            await until(lambda: not world.executor.in_flight)
            assert world.now() - began < SECOND
            # Far past ack_wait: the delivery was acked, so it did not come again.
            await asyncio.sleep(30)
            assert len(await world.records("out")) == 1
            assert world.items(EVENTS) == []
            go.set()
            await until(lambda: bool(world.items(EVENTS)))
            assert len(world.items(EVENTS)) == 1

    run_virtually(scenario)


def test_stopping_sends_the_events_that_wait() -> None:
    async def scenario() -> None:
        async with World(ExecuteSettings(by="test", lanes=LanesSettings(quiet=0, event_delay_limit=1000))) as world:
            sandbox = world.sandbox()
            await world.results(event(sandbox))
            await until(lambda: not world.executor.in_flight)
            assert world.items(EVENTS) == []
        assert len(world.items(EVENTS)) == 1

    run_virtually(scenario)


def test_an_op_that_nobody_knows_is_left_to_newer_code_for_a_while() -> None:
    async def scenario() -> None:
        async with World(ExecuteSettings(by="test", unknown_patience=60, unknown_delay=5)) as world:
            sandbox = world.sandbox()
            began = world.now()
            sequence = await world.raw(WITH_UNKNOWN_OP, READABLE)
            # It blocks nothing meanwhile.
            assert (await world.result(create_pods(sandbox, 0))).result == DONE
            assert world.now() - began < 5 * SECOND
            outcome = (await world.outcomes(2))[-1]
            assert 60 * SECOND <= world.now() - began < 66 * SECOND
            assert outcome.command == sequence
            assert [(result.id, result.result) for result in outcome.results] == [("1", UNKNOWN), ("2", UNKNOWN)]
            (record,) = await world.records("dead", "a")
            letter: Dead = decode(record.data, record.headers, Dead)
            assert (letter.sequence, letter.by) == (sequence, "test")
            assert parse(letter.subject).message == "cmd"
            await asyncio.sleep(200)
            assert len(await world.records("dead")) == 1

    run_virtually(scenario)


def test_a_newer_schema_is_left_to_newer_code_too() -> None:
    async def scenario() -> None:
        async with World(ExecuteSettings(by="test", unknown_patience=60)) as world:
            await world.raw(b'{"type":"command-of-tomorrow"}', NEWER)
            await asyncio.sleep(50)
            assert await world.records("out") == []
            (outcome,) = await world.outcomes()
            assert outcome.results == ()

    run_virtually(scenario)


@pytest.mark.parametrize(
    "body", [b"garbage " + SECRET.encode(), b"", b"[]", b'{"type":"tick","due":1,"view":1}', b"\xff"]
)
def test_garbage_is_a_dead_letter_at_once(body: bytes) -> None:
    async def scenario() -> None:
        async with World() as world:
            sequence = await world.raw(body, READABLE)
            (outcome,) = await world.outcomes()
            assert (outcome.command, outcome.results) == (sequence, ())
            assert world.now() - (await world.records("cmd"))[0].time < SECOND
            (record,) = await world.records("dead")
            assert SECRET.encode() not in record.data

    run_virtually(scenario)


def test_a_command_at_which_we_fail_again_and_again_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    perform = Performer.perform

    async def fails(self: Performer, command: Command, namespace: str, *rest: object, **more: object) -> object:
        nonlocal tries
        if command.ops[0].id == "bad":
            tries += 1
            raise RuntimeError(SECRET)
        return await perform(self, command, namespace, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Performer, "perform", fails)

    async def scenario() -> None:
        async with World(ExecuteSettings(by="test", deliveries=3)) as world:
            sandbox = world.sandbox()
            await world.command(create_pods(sandbox, 0, id="bad"))
            assert (await world.result(create_pods(sandbox, 0, id="good"))).result == DONE
            outcome = (await world.outcomes(2))[-1]
            assert [(result.id, result.result) for result in outcome.results] == [("bad", UNKNOWN)]
            assert tries == 3
            (record,) = await world.records("dead")
            assert decode(record.data, record.headers, Dead).error == "failed 3 times: RuntimeError"
            assert world.metrics.counts["command_faults", "c1"] == 3

    with structlog.testing.capture_logs() as logs:
        run_virtually(scenario)
    assert SECRET not in repr(logs)
    assert any(entry["error"] == "RuntimeError" for entry in logs)


def test_a_log_that_is_away_for_a_while_loses_no_outcome() -> None:
    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox()
            world.client.latency = 1.0
            await world.command(create_pods(sandbox, 0))
            await asyncio.sleep(0.5)
            world.stream.available = False
            await asyncio.sleep(20)
            world.stream.available = True
            (outcome,) = await world.outcomes()
            assert [result.result for result in outcome.results] == [DONE]

    run_virtually(scenario)


def test_an_outcome_whose_acknowledgement_was_lost_stands_once() -> None:
    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox()
            lost = 0

            async def lose(kind: str, detail: str) -> None:
                nonlocal lost
                if kind == "append.after" and ".out." in detail and lost < 3:
                    lost += 1
                    raise LogUnavailable("no acknowledgement")

            world.log._on_step = lose
            await world.results(create_pods(sandbox, 0))
            await asyncio.sleep(60)
            assert lost == 3
            assert len(await world.records("out")) == 1

    run_virtually(scenario)


def test_an_executor_that_starts_without_a_log_waits_for_it() -> None:
    async def scenario() -> None:
        world = World()
        sandbox = world.sandbox()
        world.stream.available = False
        async with world:
            await asyncio.sleep(20)
            world.stream.available = True
            assert (await world.result(create_pods(sandbox, 0))).result == DONE

    run_virtually(scenario)


def test_a_stale_order_is_known_as_such_from_the_first_moment() -> None:
    """DESIGN §7: a cluster cut off for an hour must not wake to a thousand stale orders."""

    async def scenario() -> None:
        world = World()
        sandbox = world.sandbox()
        await world.command(create_pods(sandbox, 0), lasts=60)
        await asyncio.sleep(3000)
        async with world:
            (outcome,) = await world.outcomes()
            assert [result.result for result in outcome.results] == ["expired"]
            assert world.client.calls == []

    run_virtually(scenario)


def test_creates_are_bounded_and_what_is_waited_for_has_places_of_its_own() -> None:
    """64 creates of one command, then an endpoints patch of another sandbox: it neither queues behind them nor waits for a place of theirs."""

    async def scenario() -> None:
        async with World(ExecuteSettings(by="test", lanes=LanesSettings(limit=12, creates=8, most_creates=8))) as world:
            big, ready = world.sandbox("big", replicas=64), world.sandbox("ready")
            world.client.latency = 0.1
            await world.command(create_pods(big, *range(64)), name="big")
            await asyncio.sleep(0.25)
            assert world.client.running == world.client.most == 8
            began = world.now()
            op = PatchMetadata("1", target(ready), version(ready), {names.ENDPOINTS: "[]"})
            assert (await world.result(op, name="ready")).result == DONE
            # Its one call, and what the test's look at the log takes; a create ends each 0.1 s.
            assert world.now() - began < 0.15 * SECOND
            await world.outcomes(2)
            assert world.client.most == 9
            assert len(world.items(PODS)) == 64

    run_virtually(scenario)


def test_no_more_is_taken_than_may_be_in_flight() -> None:
    async def scenario() -> None:
        async with World(ExecuteSettings(by="test", in_flight=3)) as world:
            sandbox = world.sandbox()
            world.client.latency = 1.0
            for index in range(10):
                await world.command(create_pods(sandbox, index))
            most = 0
            for _ in range(100):
                await asyncio.sleep(0.1)
                most = max(most, world.executor.in_flight)
            assert most == 3
            assert len(await world.outcomes(10)) == 10

    run_virtually(scenario)


def test_two_executors_share_the_commands() -> None:
    async def scenario() -> None:
        async with World() as world:
            other = world.another()
            second = asyncio.create_task(other.run())
            made = [world.sandbox(f"s{i}") for i in range(40)]
            for sandbox in made:
                await world.command(create_pods(sandbox, 0), name=sandbox["metadata"]["name"])
            outcomes = await world.outcomes(40)
            assert sorted(outcome.command for outcome in outcomes) == sorted({outcome.command for outcome in outcomes})
            assert len(world.items(PODS)) == 40
            other.stop()
            await second

    run_virtually(scenario)


def test_stopping_finishes_and_acks_what_is_in_flight() -> None:
    async def scenario() -> None:
        world = World()
        sandbox = world.sandbox()
        world.client.latency = 2.0
        async with world:
            await world.command(create_pods(sandbox, 0, id="1"), event(sandbox))
            await asyncio.sleep(1)
            world.executor.stop()
            late = await world.command(event(sandbox, "late"))
        assert len(world.items(PODS)) == 1
        assert len(world.items(EVENTS)) == 1
        (outcome,) = await world.outcomes()
        assert outcome.command != late
        await asyncio.sleep(100)
        again = world.another()
        task = asyncio.create_task(again.run())
        assert [one.command for one in (await world.outcomes(2))[1:]] == [late]
        again.stop()
        await task

    run_virtually(scenario)


def test_stopping_does_not_wait_for_a_quiet_moment_to_send_events() -> None:
    async def scenario() -> None:
        world = World(ExecuteSettings(by="test", stop_patience=10, lanes=LanesSettings(quiet=1, event_delay_limit=100)))
        sandbox = world.sandbox("slow")

        async def hold(method: str, path: str) -> None:
            await asyncio.sleep(8 if path == PODS else 0)

        world.client.hold = hold
        async with world:
            await world.command(create_pods(sandbox, 0), name="slow")
            await asyncio.sleep(1)
            await world.command(event(sandbox))
            await asyncio.sleep(1)
            assert world.items(EVENTS) == []
            world.executor.stop()
            await asyncio.sleep(1)
            assert len(world.items(EVENTS)) == 1

    run_virtually(scenario)


def test_stopping_has_a_bound_and_hands_back_what_is_left() -> None:
    async def scenario() -> None:
        world = World(ExecuteSettings(by="test", stop_patience=10))
        sandbox = world.sandbox()
        async with world:
            world.client.latency = 1000.0
            await world.command(create_pods(sandbox, 0))
            await asyncio.sleep(1)
        assert asyncio.get_running_loop().time() < 15
        assert await world.records("out") == []
        world.client.latency = 0.0
        world.executor = world.another()
        async with world:
            # Handed back, so it comes at once, not after ack_wait.
            await world.outcomes()
            assert asyncio.get_running_loop().time() < 20

    run_virtually(scenario)


def test_no_secret_is_told_when_the_api_server_refuses_the_pod() -> None:
    """traces.md malformed: the original's FailedCreate Event holds the whole pod, env values included."""

    async def scenario() -> None:
        async with World() as world:
            env = [{"name": "TOKEN", "value": SECRET}]
            template = {"spec": {"containers": [{"name": "main", "image": "b", "env": env}]}}
            patches = [
                None,
                {"spec": {"containers": [{"name": "main", "env": [{"name": "T2", "value": f"2{SECRET}"}]}]}},
            ]
            sandbox = world.sandbox(replicas=2, template=template, shardPatches=patches)
            text = f'Invalid value: "{SECRET}": bad'
            whole = f"Pod is invalid: {text} 2{SECRET}"
            details = {"causes": [{"field": "spec.containers[0].env[0].value", "message": text}]}
            denied = f'admission webhook "w" denied the request: 2{SECRET} is weak'
            world.client.faults += [
                Fault("POST", "/pods", status(422, "Invalid", whole, details=details)),
                Fault("POST", "/pods", status(403, "Forbidden", denied)),
            ]
            result = await world.result(create_pods(sandbox, 0, 1))
            assert result.result == FAILED
            assert result.message == "spec.containers[0].env[0].value: Invalid value: bad"
            assert result.names["a-1"].message == "denied by admission webhook w: … is weak"
            for record in await world.log.read(["log.>"]):
                assert SECRET.encode() not in record.data
            assert SECRET not in repr(world.items(EVENTS))

    with structlog.testing.capture_logs() as logs:
        run_virtually(scenario)
    assert any(entry["event"] == "op not done" for entry in logs)
    assert SECRET not in repr(logs)


def test_figures_are_kept() -> None:
    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox()
            await world.results(create_pods(sandbox, 0), PatchMetadata("2", Target("pod", "x", "u"), 1, {"a": "b"}))
            counts = world.metrics.counts
            assert counts["ops", "c1", "create-pods", "done"] == 1
            assert counts["ops", "c1", "patch-metadata", "missing"] == 1
            assert counts["api_call_seconds", "POST", "pod", "201"] == 1
            assert counts["api_call_seconds", "PATCH", "pod", "404"] == 1
            assert "commands_in_flight" in world.metrics.names

    run_virtually(scenario)


def test_nothing_that_destroys_is_decided_from_what_the_watch_saw() -> None:
    """DESIGN §7: destructive acts are confirmed against the live object, never a cache."""

    async def scenario() -> None:
        async with World(seen=True) as world:
            sandbox = world.sandbox()
            await world.result(DeleteExpired("1", target(sandbox), version(sandbox), world.now()))
            assert world.client.calls == [("GET", f"{SANDBOXES}/a"), ("DELETE", f"{SANDBOXES}/a")]
            assert world.recent.get(NAMESPACE, "a") is not None

    run_virtually(scenario)


def test_encoding_of_commands_is_the_buses() -> None:
    """The loose look at a command agrees with the real one."""
    ops = (RecordEvent("7", Target("pod", "p", "u"), "c", "Normal", "R", "m", 1),)
    found = unreadable(encode(Command(view=1, expires=1, reason="r", ops=ops)), READABLE)
    assert (found.ids, found.newer) == (("7",), True)
