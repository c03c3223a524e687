"""What holds for every view (DESIGN §5, §6, §8): generated sandboxes, pods, open ops and failures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from reconciler_model import CREATING, NOW, READY, UID, World, sandbox, status, view

from bus.messages import CONFLICT, DONE
from bus.names import ENDPOINTS, TASK_CLEANUP
from bus.ops import CreatePods, DeletePod, PatchMetadata, PatchSandboxStatus, RecordEvent, Target, touches
from bus.resources import Condition
from bus.times import SECOND
from bus.views import Failure, InFlight, Open, Pod, Reported, SandboxView
from reconciler.decide import decide

encode = msgspec.json.Encoder().encode
times = st.sampled_from([0, NOW - 3600 * SECOND, NOW - 20 * SECOND, NOW - 1, NOW, NOW + 1, NOW + 60 * SECOND])
reasons = st.sampled_from(["", "ErrImagePull", "CrashLoopBackOff", "InvalidImageName", "Evicted"])


@st.composite
def a_pod(draw: st.DrawFn, index: int) -> Pod:
    if draw(st.integers(0, 5)) == 0:
        return Pod((1, 90 + index), gone=True)
    phase = draw(st.sampled_from(["Pending", "Running", "Running", "Failed", "Succeeded"]))
    return Pod(
        (1, 60 + index),
        uid=f"u{index}",
        owner=draw(st.sampled_from([UID, UID, UID, "", "another"])),
        deleting=draw(st.integers(0, 4)) == 0,
        index=draw(st.sampled_from([index, index, index, None])),
        phase=phase,
        node=draw(st.sampled_from(["", "node-1"])),
        ip=draw(st.sampled_from(["", f"10.0.0.{index + 1}"])),
        ready=phase == "Running" and draw(st.booleans()),
        reason=draw(reasons),
        terminal=phase in ("Failed", "Succeeded"),
        since=draw(times),
    )


@st.composite
def a_condition(draw: st.DrawFn) -> Condition:
    failed = Condition("PauseFailed", "True", "SnapshotFailed", "no", "2025-12-31T23:00:00Z")
    old = Condition("PodFailed", "True", "Forbidden", "old", "2025-12-31T23:59:50Z")
    return draw(st.sampled_from([READY, CREATING, failed, old]))


@st.composite
def an_open(draw: st.DrawFn) -> Open:
    me = Target("batchsandbox", "a", UID)
    op = draw(
        st.sampled_from(
            [
                CreatePods("old:1:0", me, 1, "t1", {"a-0": 0, "a-1": 1}),
                DeletePod("old:1:1", Target("pod", "a-2", "u2")),
                PatchMetadata("old:1:2", me, 99, {ENDPOINTS: "[]"}),
                PatchSandboxStatus("old:1:3", me, 99, status()),
            ]
        )
    )
    words = st.sampled_from(["", DONE, CONFLICT])
    return Open(op, 5, {name: Reported(draw(words)) for name in touches(op)})


@st.composite
def views(draw: st.DrawFn, *, quiet: bool = False) -> SandboxView:
    """`quiet`: nothing is in flight, open or refused."""
    phase = draw(st.sampled_from(["", "Pending", "Succeed", "Failed", "Failed", "Paused"]))
    conditions = {each.type: each for each in draw(st.lists(a_condition(), max_size=3))}
    object = sandbox(
        generation=draw(st.integers(1, 3)),
        replicas=draw(st.integers(0, 4)),
        pause=draw(st.sampled_from([None, None, False, True])),
        expire_time=draw(st.one_of(st.none(), times)),
        deleting=draw(st.sampled_from([0, 0, 0, 0, NOW])),
        finalizers=draw(st.sampled_from([(), (), (TASK_CLEANUP,)])),
        annotations=draw(st.sampled_from([{}, {ENDPOINTS: "[]"}, {ENDPOINTS: '["10.0.0.1"]'}, {ENDPOINTS: "x"}])),
        status=status(
            phase, draw(st.sampled_from([(0, 0, 0), (1, 1, 1), (2, 1, 0)])), conditions=tuple(conditions.values())
        ),
        pool_ref=draw(st.sampled_from(["", "", "", "pool"])),
    )
    holds = {f"a-{i}": draw(a_pod(i)) for i in range(5) if draw(st.booleans())}
    fields: dict[str, Any] = {
        "unshown_since": draw(times.filter(lambda at: at <= NOW)),
        "pause_generation": draw(st.sampled_from([None, 0, 1, 2])),
        "settled": draw(st.integers(0, 5)) > 0,
    }
    if not quiet:
        opened = {each.op.id: each for each in draw(st.lists(an_open(), max_size=2))}
        code, reason = draw(st.sampled_from([(422, "Invalid"), (403, "Forbidden"), (0, "NameTaken")]))
        failure = Failure(
            "create-pods", draw(st.sampled_from(["pod/a-0", "batchsandbox/a"])), code, reason, "m", NOW, 1
        )
        fields |= {
            "open": tuple(opened.values()),
            "tries": draw(st.integers(0, 3)),
            "retry_at": draw(times),
            "failure": draw(st.sampled_from([None, failure])),
            "in_flight": draw(st.sampled_from([None, None, None, InFlight(3, NOW), InFlight(3, NOW + 1)])),
        }
    return view(object, holds, **fields)


@given(views())
def test_the_same_view_gives_the_same_bytes(made: SandboxView) -> None:
    again = msgspec.json.decode(encode(made), type=SandboxView)
    assert encode(decide(made)) == encode(decide(again))


@given(views())
def test_no_op_touches_what_an_open_op_touches_but_the_op_itself(made: SandboxView) -> None:
    """DESIGN §5; the finalizer of an object that goes is the exception (§8.6)."""
    assert made.object is not None
    if made.object.deleting:
        return
    known = {each.op.id for each in made.open}
    busy = {name for each in made.open for name in touches(each.op)}
    for op in decide(made).ops:
        assert op.id in known or not busy.intersection(touches(op))


@given(views())
def test_no_pod_is_created_that_exists_and_nothing_while_leaving_or_unknown(made: SandboxView) -> None:
    assert made.object is not None
    known = {each.op.id for each in made.open}
    creates = [op for op in decide(made).ops if isinstance(op, CreatePods) and op.id not in known]
    for op in creates:
        assert made.settled
        assert not made.object.deleting
        assert not made.object.pooled
        assert not set(op.names) & set(made.live_pods())
        assert all(0 <= index < made.object.replicas for index in op.names.values())


@given(views())
def test_only_our_own_surplus_pods_are_deleted(made: SandboxView) -> None:
    assert made.object is not None
    known = {each.op.id for each in made.open}
    for op in decide(made).ops:
        if isinstance(op, DeletePod) and op.id not in known:
            pod = made.pods[op.target.name]
            assert (pod.uid, pod.owner) == (op.target.uid, UID)
            if made.object.status.phase not in ("Pausing", "Paused", "Resuming"):
                assert pod.index is not None
                assert pod.index >= made.object.replicas


@given(views())
def test_endpoints_come_before_the_status_and_both_assume_one_version(made: SandboxView) -> None:
    """DESIGN §8.4."""
    known = {each.op.id for each in made.open}
    mine = [op for op in decide(made).ops if op.id not in known]
    kinds = [type(op) for op in mine if isinstance(op, PatchMetadata | PatchSandboxStatus)]
    assert kinds in ([], [PatchMetadata], [PatchSandboxStatus], [PatchMetadata, PatchSandboxStatus])
    patches = [op for op in mine if isinstance(op, PatchMetadata | PatchSandboxStatus)]
    assert len({op.resource_version for op in patches}) <= 1
    for op in patches:
        if isinstance(op, PatchSandboxStatus):
            before = made.object.status.phase
            after = ("Paused",) if before == "Paused" else ("Pending", "Succeed", "Failed", "Pausing")
            assert op.status.phase in after


@given(views())
def test_a_wake_up_lies_ahead_and_ids_are_one_of_a_kind(made: SandboxView) -> None:
    decision = decide(made)
    assert decision.wake_at is None or decision.wake_at > made.now
    assert len({op.id for op in decision.ops}) == len(decision.ops)


@given(views())
def test_a_command_in_flight_stops_everything(made: SandboxView) -> None:
    if made.in_flight is not None and made.in_flight.expires > made.now:
        decision = decide(made)
        assert (decision.ops, decision.wake_at) == ((), made.in_flight.expires)


@settings(max_examples=200)
@given(views(quiet=True))
def test_what_is_decided_leads_to_rest(made: SandboxView) -> None:
    """Applying its own decisions, waking when asked: soon there is nothing to do, and no write was made twice."""
    world = World(made)
    world.settle()
    written = [encode(op.status) for op in world.done if isinstance(op, PatchSandboxStatus)]
    assert all(one != two for one, two in pairwise(written))
    world.done.clear()
    world.step()
    assert world.done == []


@settings(max_examples=300)
@given(views(quiet=True), st.permutations(range(5)))
def test_a_healthy_end_is_reached_from_anywhere(made: SandboxView, order: list[int]) -> None:
    """Whatever the beginning: when all its pods run, a template-mode sandbox that stays is Succeed, Ready, with all addresses."""
    object = made.object
    assert object is not None
    if object.deleting or object.pooled or object.expire_time is not None or object.status.phase == "Paused":
        return
    made = msgspec.structs.replace(made, object=msgspec.structs.replace(object, pause=None))
    foreign = [name for name, pod in made.pods.items() if not pod.gone and pod.owner != UID]
    world = World(msgspec.structs.replace(made, settled=True))
    for name in foreign:
        world.lose(name)
    world.settle()
    for index in order:
        pod = world.view.pods.get(f"a-{index}")
        if index < object.replicas and pod is not None:
            if pod.deleting or pod.phase in ("Failed", "Succeeded"):
                world.lose(f"a-{index}")
                world.settle()
            world.pod(
                index, phase="Running", ready=True, ip=f"10.0.0.{index + 1}", reason="", terminal=False, index=index
            )
            world.settle()
    assert world.view.object is not None
    made_status = world.view.object.status
    assert made_status.phase == "Succeed"
    assert made_status.condition("Ready") is not None
    assert made_status.condition("PodFailed") is None
    if object.replicas:
        expected = [f"10.0.0.{i + 1}" for i in range(object.replicas)]
        assert msgspec.json.decode(world.view.object.annotations[ENDPOINTS]) == expected


def test_events_alone_are_never_a_command() -> None:
    """They cost a command only beside what they tell of."""

    @given(views())
    def check(made: SandboxView) -> None:
        ops = decide(made).ops
        assert not ops or any(not isinstance(op, RecordEvent) for op in ops)

    check()
