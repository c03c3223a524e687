"""What an executor makes of each op (DESIGN §6, §7), on a simulated API server with faults."""

from __future__ import annotations

import msgspec
import pytest
from execute_world import (
    EVENTS,
    NAMESPACE,
    PODS,
    SANDBOXES,
    SECOND,
    TEMPLATE,
    Fault,
    World,
    create_pods,
    run_virtually,
    status,
    target,
    version,
)

from bridge.cluster import Response
from bridge.execute import ExecuteSettings
from bridge.recent import Whole
from bus import names
from bus.messages import (
    ACCEPTED,
    CONFLICT,
    DONE,
    EARLY,
    EXPIRED,
    FAILED,
    MISSING,
    SKIPPED,
    UNFINISHED,
)
from bus.ops import DeleteExpired, DeletePod, PatchMetadata, PatchSandboxStatus, RecordEvent, Target
from bus.resources import Condition, SandboxStatus

SUCCEED = SandboxStatus(observed_generation=1, replicas=1, allocated=1, ready=1, phase="Succeed")
READY = Condition("Ready", "True", "PodsReady", "Sandbox is running", "2026-01-01T12:00:00Z")


def pod(name: str, **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": TEMPLATE["spec"]}


def ours(world: World, sandbox: dict, name: str = "a-0", **changes: object) -> dict:
    """The pod as a former executor made it."""
    op = create_pods(sandbox, 0)
    metadata = {
        "labels": {names.SANDBOX_NAME: "a", names.POD_INDEX: "0"},
        "annotations": {names.TEMPLATE_DIGEST: op.template},
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": "BatchSandbox",
                "name": "a",
                "uid": sandbox["metadata"]["uid"],
                "controller": True,
            }
        ],
        **changes,
    }
    return world.put(PODS, pod(name, **metadata))


class TestCreatePods:
    @pytest.mark.parametrize("seen", [False, True])
    def test_creates_each_name_and_tells_uid_and_version(self, seen: bool) -> None:
        async def scenario() -> None:
            async with World(seen=seen) as world:
                sandbox = world.sandbox(replicas=3)
                result = await world.result(create_pods(sandbox, 0, 1, 2))
                assert result.result == DONE
                assert result.uid == sandbox["metadata"]["uid"]
                for index in range(3):
                    made = world.get(f"{PODS}/a-{index}")
                    assert made is not None
                    created = result.names[f"a-{index}"]
                    assert (created.result, created.uid) == (DONE, made["metadata"]["uid"])
                    assert created.resource_version == version(made)
                    assert made["metadata"]["labels"][names.POD_INDEX] == str(index)
                # What a watch of this process has seen needs no read.
                assert ("GET", f"{SANDBOXES}/a") not in world.client.calls or not seen

        run_virtually(scenario)

    def test_scl_05_each_pod_has_its_own_command(self) -> None:
        """SCL-05: shardPatches[i] sets the command of container main."""

        async def scenario() -> None:
            async with World() as world:
                template = {"spec": {"containers": [{"name": "main", "image": "b", "command": ["default-command"]}]}}
                patches = [
                    {"spec": {"containers": [{"name": "main", "command": [f"custom-command-{i}"]}]}} for i in range(3)
                ]
                sandbox = world.sandbox(replicas=3, template=template, shardPatches=patches)
                result = await world.result(create_pods(sandbox, 0, 1, 2))
                assert result.result == DONE
                for made in world.items(PODS):
                    index = made["metadata"]["labels"][names.POD_INDEX]
                    assert made["spec"]["containers"][0]["command"] == [f"custom-command-{index}"]
                    assert made["spec"]["containers"][0]["image"] == "b"

        run_virtually(scenario)

    def test_a_bad_shard_patch_fails_its_own_index_alone(self) -> None:
        """traces.md malformed: the original writes nothing at all, and says so only in its log."""

        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox(replicas=2)
                path = f"{SANDBOXES}/a"
                changed = world.change(path, {"spec": {"shardPatches": [None, {"spec": {"containers": [{}]}}]}})
                result = await world.result(create_pods(changed, 0, 1))
                assert (result.result, result.reason) == (FAILED, "InvalidShardPatch")
                assert result.names["a-0"].result == DONE
                assert result.names["a-1"].message == (
                    "spec.shardPatches[1]: spec.containers[0] has no name, by which this list is merged"
                )
                assert sandbox["metadata"]["uid"] == changed["metadata"]["uid"]

        run_virtually(scenario)

    def test_an_unfit_sandbox_makes_nothing(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                good = create_pods(sandbox, 0)
                other = Target("batchsandbox", "a", "another-uid")
                assert (await world.result(create_pods(sandbox, 0, generation=2))).result == CONFLICT
                moved = await world.result(create_pods(sandbox, 0, template="0" * 16))
                assert (moved.result, moved.reason) == (CONFLICT, "TemplateChanged")
                assert moved.resource_version == version(sandbox)
                assert (await world.result(msgspec.structs.replace(good, sandbox=other))).result == MISSING
                world.change(f"{SANDBOXES}/a", {"metadata": {"finalizers": ["example.com/x"]}})
                world.direct.request("DELETE", f"{SANDBOXES}/a")
                assert (await world.result(good)).reason == "Deleting"
                world.change(f"{SANDBOXES}/a", {"metadata": {"finalizers": None}})
                assert (await world.result(good)).result == MISSING
                assert world.items(PODS) == []

        run_virtually(scenario)

    def test_what_the_watch_saw_is_used_only_if_it_is_this_object_and_new_enough(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                old = {**sandbox, "metadata": {**sandbox["metadata"], "generation": 0}}
                stale = Whole(sandbox["metadata"]["uid"], 1, 0, msgspec.json.encode(old))
                world.recent.put(NAMESPACE, "a", stale)
                assert (await world.result(create_pods(sandbox, 0))).result == DONE
                assert ("GET", f"{SANDBOXES}/a") in world.client.calls

        run_virtually(scenario)

    def test_a_pod_of_ours_that_is_there_is_done(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                made = ours(world, sandbox)
                result = await world.result(create_pods(sandbox, 0))
                assert result.result == DONE
                assert result.names["a-0"].uid == made["metadata"]["uid"]
                assert result.names["a-0"].resource_version == version(made)

        run_virtually(scenario)

    @pytest.mark.parametrize(
        ("changes", "result", "reason"),
        [
            ({"ownerReferences": None}, FAILED, "NameTaken"),
            ({"labels": {}}, FAILED, "NameTaken"),
            ({"annotations": {names.TEMPLATE_DIGEST: "0" * 16}}, CONFLICT, "OtherTemplate"),
        ],
    )
    def test_another_pod_of_the_name_is_left_alone(self, changes: dict, result: str, reason: str) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                made = ours(world, sandbox, **changes)
                found = await world.result(create_pods(sandbox, 0))
                assert (found.result, found.reason, found.code) == (result, reason, 409)
                assert world.get(f"{PODS}/a-0") == made

        run_virtually(scenario)

    def test_a_pod_of_ours_that_is_being_deleted_is_a_conflict(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                ours(world, sandbox, finalizers=["example.com/x"])
                world.direct.request("DELETE", f"{PODS}/a-0")
                found = await world.result(create_pods(sandbox, 0))
                assert (found.result, found.names["a-0"].reason) == (CONFLICT, "Deleting")

        run_virtually(scenario)

    def test_a_name_that_is_free_again_is_used(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.client.faults.append(Fault("POST", "/pods", status(409, "AlreadyExists")))
                assert (await world.result(create_pods(sandbox, 0))).result == DONE

        run_virtually(scenario)

    def test_a_lost_answer_is_found_to_have_been_our_own(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.client.faults.append(Fault("POST", "/pods", lost=True, applied=True))
                result = await world.result(create_pods(sandbox, 0))
                assert result.result == DONE
                assert len(world.items(PODS)) == 1

        run_virtually(scenario)

    def test_a_quotas_own_conflict_is_tried_again(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                raced = status(409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "q"')
                world.client.faults += [Fault("POST", "/pods", raced) for _ in range(5)]
                assert (await world.result(create_pods(sandbox, 0))).result == DONE
                assert world.metrics.counts["api_retries", "POST", "pod", "409"] == 5

        run_virtually(scenario)

    def test_an_exceeded_quota_is_told_as_it_is(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                text = "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
                refused = status(403, "Forbidden", f'pods "a-0" is forbidden: {text}')
                world.client.faults.append(Fault("POST", "/pods", refused))
                result = await world.result(create_pods(sandbox, 0))
                assert (result.result, result.code, result.reason) == (FAILED, 403, "Forbidden")
                assert result.message.endswith(text)

        run_virtually(scenario)

    def test_before_a_retry_the_sandbox_is_looked_at_again(self) -> None:
        """DESIGN §7: before each retry expiry and precondition are looked at again."""

        async def scenario() -> None:
            async with World(seen=True) as world:
                sandbox = world.sandbox()

                def gone() -> None:
                    world.direct.request("DELETE", f"{SANDBOXES}/a")

                world.client.faults.append(Fault("POST", "/pods", status(500, "InternalError"), before=gone))
                result = await world.result(create_pods(sandbox, 0))
                assert result.result == MISSING
                assert world.items(PODS) == []

        run_virtually(scenario)


class TestDeletePod:
    def test_deletes_this_uid(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                made = world.put(PODS, pod("p"))
                assert (await world.result(DeletePod("op", target(made)))).result == DONE
                gone = world.get(f"{PODS}/p")
                assert gone is None or "deletionTimestamp" in gone["metadata"]

        run_virtually(scenario)

    def test_gone_already_is_done_and_another_pod_of_the_name_is_left_alone(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                absent = await world.result(DeletePod("1", Target("pod", "p", "u")))
                assert (absent.result, absent.reason) == (DONE, "Gone")
                made = world.put(PODS, pod("p"))
                other = await world.result(DeletePod("2", Target("pod", "p", "u")))
                assert (other.result, other.reason, other.uid) == (DONE, "Replaced", "u")
                assert world.get(f"{PODS}/p") == made

        run_virtually(scenario)


class TestPatches:
    def test_the_version_produced_is_the_next_ops_precondition(self) -> None:
        """DESIGN §6: endpoints before Succeed, in one command, though the second op names the version before the first."""

        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                at = version(sandbox)
                first, second = await world.results(
                    PatchMetadata("1", target(sandbox), at, annotations={names.ENDPOINTS: '["10.0.0.1"]'}),
                    PatchSandboxStatus("2", target(sandbox), at, msgspec.structs.replace(SUCCEED, conditions=(READY,))),
                )
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert (first.result, second.result) == (DONE, DONE)
                assert at < first.resource_version < second.resource_version == version(live)
                assert live["metadata"]["annotations"][names.ENDPOINTS] == '["10.0.0.1"]'
                assert live["status"]["phase"] == "Succeed"
                assert live["status"]["taskRunning"] == 0

        run_virtually(scenario)

    def test_b86_no_conditions_clear_those_that_stand(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                standing = msgspec.structs.replace(SUCCEED, conditions=(READY,))
                first, second = await world.results(
                    PatchSandboxStatus("1", target(sandbox), version(sandbox), standing),
                    PatchSandboxStatus("2", target(sandbox), version(sandbox), SUCCEED),
                )
                assert (first.result, second.result) == (DONE, DONE)
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert not live["status"].get("conditions")

        run_virtually(scenario)

    def test_a_write_that_changes_nothing_is_done_at_the_same_version(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                first = await world.result(PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"}))
                second = await world.result(PatchMetadata("2", target(sandbox), first.resource_version, {"x": "y"}))
                assert (second.result, second.resource_version) == (DONE, first.resource_version)

        run_virtually(scenario)

    def test_annotations_go_and_finalizers_are_replaced_whole(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                op = PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"}, ("example.com/a",))
                first = await world.result(op)
                second = PatchMetadata("2", target(sandbox), first.resource_version, {"x": None}, ())
                assert (await world.result(second)).result == DONE
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert not live["metadata"].get("annotations")
                assert not live["metadata"].get("finalizers")

        run_virtually(scenario)

    def test_a_changed_object_is_a_conflict_that_tells_the_live_version_and_skips_the_rest(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                live = world.change(f"{SANDBOXES}/a", {"metadata": {"labels": {"x": "y"}}})
                event = RecordEvent("3", target(sandbox), "c", "Normal", "R", "m", world.now())
                results = await world.results(
                    PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"}),
                    PatchSandboxStatus("2", target(sandbox), version(sandbox), SUCCEED),
                    event,
                )
                assert [result.result for result in results] == [CONFLICT, SKIPPED, SKIPPED]
                assert results[0].resource_version == version(live)
                assert world.get(f"{SANDBOXES}/a") == live
                assert world.items(EVENTS) == []

        run_virtually(scenario)

    def test_a_wish_that_stands_by_another_hand_is_still_a_conflict(self) -> None:
        """Only an earlier try of our own makes a conflict a success."""

        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.change(f"{SANDBOXES}/a", {"metadata": {"annotations": {"x": "y"}}})
                result = await world.result(PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"}))
                assert result.result == CONFLICT

        run_virtually(scenario)

    @pytest.mark.parametrize("kind", ["metadata", "status"])
    def test_a_write_of_our_own_whose_answer_was_lost_is_done(self, kind: str) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                at = version(sandbox)
                op: PatchMetadata | PatchSandboxStatus = PatchMetadata("1", target(sandbox), at, {"x": "y"})
                path = "/batchsandboxes/a"
                if kind == "status":
                    op, path = PatchSandboxStatus("1", target(sandbox), at, SUCCEED), f"{path}/status"
                world.client.faults.append(Fault("PATCH", path, lost=True, applied=True))
                result = await world.result(op)
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert (result.result, result.resource_version) == (DONE, version(live))
                assert world.client.calls.count(("PATCH", f"{SANDBOXES}/a" + ("/status" * (kind == "status")))) == 2

        run_virtually(scenario)

    def test_a_missing_object_and_another_of_its_name(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                absent = PatchMetadata("1", Target("batchsandbox", "a", "u"), 5, {"x": "y"})
                assert (await world.result(absent)).result == MISSING
                made = world.sandbox()
                assert (await world.result(absent)).result == MISSING
                assert world.get(f"{SANDBOXES}/a") == made

        run_virtually(scenario)


class TestDeleteExpired:
    def op(self, sandbox: dict, due: int, **changes: int) -> DeleteExpired:
        return DeleteExpired("op", target(sandbox), changes.get("at", version(sandbox)), due)

    def test_deletes_when_the_api_servers_clock_says_so(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                assert (await world.result(self.op(sandbox, world.now()))).result == DONE
                assert world.get(f"{SANDBOXES}/a") is None

        run_virtually(scenario)

    def test_early_by_that_clock_deletes_nothing(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                assert (await world.result(self.op(sandbox, world.now() + 5 * SECOND))).result == EARLY
                assert world.get(f"{SANDBOXES}/a") == sandbox

        run_virtually(scenario)

    def test_an_answer_without_a_date_deletes_nothing(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                answer = Response(200, {}, msgspec.json.encode(sandbox))
                world.client.faults.append(Fault("GET", "/batchsandboxes/a", answer))
                assert (await world.result(self.op(sandbox, 0))).result == EARLY
                assert world.get(f"{SANDBOXES}/a") == sandbox

        run_virtually(scenario)

    def test_a_renewed_sandbox_is_left_alone(self) -> None:
        """EXP: expireTime renewed while the deletion was on its way, before the read or between read and delete."""

        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()

                def renew() -> None:
                    world.change(f"{SANDBOXES}/a", {"spec": {"expireTime": "2030-01-01T00:00:00Z"}})

                world.client.faults.append(Fault("DELETE", "/batchsandboxes/a", before=renew))
                late = await world.result(self.op(sandbox, world.now()))
                live = world.get(f"{SANDBOXES}/a")
                assert live is not None
                assert (late.result, late.resource_version) == (CONFLICT, version(live))
                soon = await world.result(self.op(sandbox, world.now()))
                assert (soon.result, soon.resource_version) == (CONFLICT, version(live))

        run_virtually(scenario)

    def test_gone_replaced_or_deleting_is_what_was_wanted(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.change(f"{SANDBOXES}/a", {"metadata": {"finalizers": ["example.com/x"]}})
                world.direct.request("DELETE", f"{SANDBOXES}/a")
                found = []
                found.append(await world.result(self.op(sandbox, world.now())))
                world.change(f"{SANDBOXES}/a", {"metadata": {"finalizers": None}})
                found.append(await world.result(self.op(sandbox, world.now())))
                world.sandbox()
                found.append(await world.result(self.op(sandbox, world.now())))
                assert [(one.result, one.reason) for one in found] == [
                    (DONE, "Deleting"),
                    (DONE, "Gone"),
                    (DONE, "Replaced"),
                ]
                assert world.get(f"{SANDBOXES}/a") is not None

        run_virtually(scenario)


class TestTime:
    def test_a_command_whose_time_is_over_is_not_begun(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                result = await world.result(create_pods(sandbox, 0), lasts=-1)
                assert result.result == EXPIRED
                assert world.client.calls == []

        run_virtually(scenario)

    def test_a_server_that_never_settles_it_leaves_a_write_unfinished(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.client.faults += [Fault("PATCH", "/batchsandboxes/a", lost=True) for _ in range(100)]
                op = PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"})
                results = await world.results(op, DeletePod("2", Target("pod", "p", "u")), lasts=20)
                assert [result.result for result in results] == [UNFINISHED, SKIPPED]
                assert world.now() <= (await world.records("cmd"))[0].time + 20 * SECOND

        run_virtually(scenario)

    def test_refusals_to_take_work_leave_it_not_begun(self) -> None:
        """429 is a clear answer: nothing was done."""

        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                world.client.faults += [
                    Fault("PATCH", "/batchsandboxes/a", status(429, "TooManyRequests")) for _ in range(100)
                ]
                op = PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"})
                assert (await world.result(op, lasts=20)).result == EXPIRED

        run_virtually(scenario)

    def test_retry_after_is_honoured(self) -> None:
        async def scenario() -> None:
            async with World() as world:
                sandbox = world.sandbox()
                refused = status(429, "TooManyRequests", given={"retry-after": "7"})
                world.client.faults.append(Fault("PATCH", "/batchsandboxes/a", refused))
                began = world.now()
                op = PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"})
                assert (await world.result(op)).result == DONE
                assert 7 * SECOND <= world.now() - began < 8 * SECOND
                assert world.metrics.counts["api_retries", "PATCH", "batchsandbox", "429"] == 1

        run_virtually(scenario)

    @pytest.mark.parametrize("code", [500, 502, 503, 504])
    def test_server_errors_are_tried_again(self, code: int) -> None:
        async def scenario() -> None:
            async with World(ExecuteSettings(by="test")) as world:
                sandbox = world.sandbox()
                world.client.faults += [Fault("PATCH", "/batchsandboxes/a", status(code, "X")) for _ in range(3)]
                op = PatchMetadata("1", target(sandbox), version(sandbox), {"x": "y"})
                assert (await world.result(op)).result == DONE

        run_virtually(scenario)


def test_an_event_is_accepted_and_the_chain_goes_on() -> None:
    async def scenario() -> None:
        async with World() as world:
            sandbox = world.sandbox()
            results = await world.results(
                RecordEvent("1", target(sandbox), "c", "Normal", "R", "m", world.now()),
                PatchMetadata("2", target(sandbox), version(sandbox), {"x": "y"}),
            )
            assert [result.result for result in results] == [ACCEPTED, DONE]

    run_virtually(scenario)
