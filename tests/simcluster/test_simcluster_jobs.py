"""The Job controller and the in-process kubelet under virtual time; times are those of the recorded traces
(a pod's end is counted after 1 s, retries after 10, 20 and 40 s)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest
from simcluster_api import job, pod
from simcluster_clock import Clock

from simcluster.controllers import Controllers
from simcluster.direct import DirectClient, DirectKubelet
from simcluster.jobs import JobTiming
from simcluster.node import Behaviour, Node
from simcluster.podstatus import digest
from simcluster.store import Store

Json = dict[str, Any]
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


class World:
    """A store, its controllers and a kubelet, run from event to event."""

    def __init__(self, store: Store, clock: Clock, node: Node, timing: JobTiming | None = None) -> None:
        self.clock, self.store = clock, store
        self.client = DirectClient(store)
        self.controllers = Controllers(store, timing)
        self.kubelet = DirectKubelet(store, node)
        self.start = clock.time

    def settle(self) -> None:
        while self.controllers.step() + self.kubelet.step():
            pass

    def run(self, seconds: float) -> None:
        """Lets so much time pass, stopping at every timer."""
        end = self.clock.time.timestamp() + seconds
        self.settle()
        for _ in range(1000):
            due = [at for part in (self.controllers, self.kubelet) if (at := part.next_event_at())]
            if not due or min(due).timestamp() > end:
                break
            self.clock.time = max(self.clock.time, min(due))
            self.settle()
        self.clock.time = datetime.fromtimestamp(end, self.clock.time.tzinfo)
        self.settle()

    def get(self, path: str) -> Any:
        return msgspec.json.decode(self.client.request("GET", path)[2])

    def pods(self) -> list[Json]:
        return self.get(PODS)["items"]

    def job(self, name: str = "j") -> Json:
        return self.get(f"{JOBS}/{name}")


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def world(store: Store, clock: Clock, node: Node) -> World:
    return World(store, clock, node)


def commit_job(*args: str, **spec: Any) -> Json:
    body = job("j", **spec)
    body["spec"]["template"]["spec"]["containers"][0]["args"] = list(args)
    return body


def test_a_commit_job_reports_digests(world: World) -> None:
    uri = "registry.test/snap/a-main:snap-gen2"
    world.client.request("POST", JOBS, commit_job("a-0", "default", f"main:{uri}"))
    world.run(0.9)
    assert "succeeded" not in world.job()["status"]
    world.run(0.2)
    assert world.job()["status"]["succeeded"] == 1
    (found,) = world.pods()
    ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (found["status"]["phase"], ended["exitCode"]) == ("Succeeded", 0)
    assert msgspec.json.decode(ended["message"]) == {
        "containers": [{"name": "main", "image": uri, "digest": digest(uri)}]
    }


def test_an_unpause_job_says_nothing(world: World) -> None:
    world.client.request("POST", JOBS, commit_job("unpause", "a-0", "default", "main"))
    world.run(2)
    assert world.pods()[0]["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == ""


def test_retries_come_after_10_20_and_40_seconds(world: World, node: Node) -> None:
    node.set_rule("broken", Behaviour(commit_exit_code=1), world.clock())
    world.client.request("POST", JOBS, commit_job("a-0", "default", "main:broken", backoffLimit=3))
    counts = []
    for until in (9.9, 10.1, 29.9, 30.1, 69.9, 70.1):
        world.run(until - (world.clock.time - world.start).total_seconds())
        counts.append(len(world.pods()))
    assert counts == [1, 2, 2, 3, 3, 4]
    assert world.job()["status"]["failed"] == 3
    world.run(1)
    status = world.job()["status"]
    assert status["failed"] == 4
    assert [(c["type"], c["reason"]) for c in status["conditions"]] == [
        ("FailureTarget", "BackoffLimitExceeded"),
        ("Failed", "BackoffLimitExceeded"),
    ]
    world.run(1000)
    assert len(world.pods()) == 4


def test_a_retry_may_succeed(world: World, node: Node) -> None:
    node.set_rule("broken", Behaviour(commit_exit_code=1), world.clock())
    world.client.request("POST", JOBS, commit_job("a-0", "default", "main:broken"))
    world.run(2)
    node.clear_rule("broken", world.clock())
    world.run(20)
    status = world.job()["status"]
    assert (status["failed"], status["succeeded"]) == (1, 1)


def test_timing_can_be_set(store: Store, clock: Clock, node: Node) -> None:
    world = World(store, clock, node, JobTiming(count_delay=0.0))
    world.client.request("POST", JOBS, commit_job("a-0", "default", "main:x"))
    world.run(0)
    assert world.job()["status"]["succeeded"] == 1


def test_a_job_past_its_deadline_stops_its_pod(world: World, node: Node) -> None:
    node.set_default(Behaviour(commit_delay=1000), world.clock())
    world.client.request("POST", JOBS, commit_job("a-0", "default", "main:x", activeDeadlineSeconds=600))
    world.run(599)
    assert len(world.pods()) == 1
    world.run(2)
    assert world.pods() == []
    assert world.job()["status"]["conditions"][1]["reason"] == "DeadlineExceeded"


def test_ttl_takes_the_job_and_its_pods(world: World) -> None:
    world.client.request("POST", JOBS, commit_job("a-0", "default", "main:x", ttlSecondsAfterFinished=300))
    world.run(300)
    assert world.job()["status"]["succeeded"] == 1
    world.run(2)
    assert world.job()["code"] == 404
    assert world.pods() == []


def test_a_deleted_pod_counts_as_failed_and_is_replaced(world: World, node: Node) -> None:
    node.set_default(Behaviour(commit_delay=100), world.clock())
    world.client.request("POST", JOBS, commit_job("a-0", "default", "main:x"))
    world.run(1)
    first = world.pods()[0]["metadata"]["name"]
    world.client.request("DELETE", f"{PODS}/{first}")
    world.run(15)
    (second,) = world.pods()
    assert second["metadata"]["name"] != first
    assert world.job()["status"]["failed"] == 1


def test_deleting_a_job_in_the_background_takes_its_pod(world: World, node: Node) -> None:
    node.set_default(Behaviour(commit_delay=100), world.clock())
    world.client.request("POST", JOBS, commit_job("a-0", "default", "main:x"))
    world.run(1)
    world.client.request("DELETE", f"{JOBS}/j", {"propagationPolicy": "Background"})
    world.run(0)
    assert world.pods() == []


def test_the_controller_says_what_it_does(world: World) -> None:
    world.client.request("POST", JOBS, commit_job("a-0", "default", "main:x"))
    world.run(2)
    events = world.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind=Job")["items"]
    assert {event["reason"] for event in events} == {"SuccessfulCreate", "Completed"}


# --- the kubelet ------------------------------------------------------------------------------------------


def only(world: World) -> Json:
    (found,) = world.pods()
    return found


def ready(found: Json) -> str:
    return next(c["status"] for c in found["status"]["conditions"] if c["type"] == "Ready")


def container(found: Json) -> Json:
    return found["status"]["containerStatuses"][0]


def test_a_pod_is_bound_and_runs_after_its_delay(world: World, node: Node) -> None:
    node.set_default(Behaviour(start_delay=5), world.clock())
    world.client.request("POST", PODS, pod("p"))
    world.run(4)
    assert only(world)["status"]["phase"] == "Pending"
    world.run(2)
    found = only(world)
    assert (found["spec"]["nodeName"], found["status"]["phase"], ready(found)) == ("node-1", "Running", "True")
    assert found["status"]["podIP"] == "10.1.0.2"
    assert (container(found)["restartCount"], container(found)["started"]) == (0, True)


def test_addresses_are_unique(world: World) -> None:
    for number in range(600):
        world.client.request("POST", PODS, pod(f"p{number}"))
    world.run(0)
    addresses = {found["status"]["podIP"] for found in world.pods()}
    assert len(addresses) == 600


def test_loopback_addresses(store: Store, clock: Clock) -> None:
    world = World(store, clock, Node(ip_prefix="127"))
    world.client.request("POST", PODS, pod("p"))
    world.run(0)
    assert only(world)["status"]["podIP"] == "127.0.0.2"


def test_a_failed_pull_backs_off_and_heals(world: World, node: Node) -> None:
    node.set_rule("registry.test/a", Behaviour(waiting="ErrImagePull"), world.clock())
    world.client.request("POST", PODS, pod("p"))
    world.run(0.5)
    assert container(only(world))["state"]["waiting"]["reason"] == "ErrImagePull"
    world.run(1)
    assert container(only(world))["state"]["waiting"]["reason"] == "ImagePullBackOff"
    assert (only(world)["status"]["phase"], ready(only(world))) == ("Pending", "False")
    node.clear_rule("registry.test/a", world.clock())
    world.run(0)
    assert (only(world)["status"]["phase"], ready(only(world))) == ("Running", "True")


@pytest.mark.parametrize("reason", ["InvalidImageName", "CreateContainerConfigError"])
def test_other_reasons_to_wait(world: World, node: Node, reason: str) -> None:
    node.set_default(Behaviour(waiting=reason), world.clock())
    world.client.request("POST", PODS, pod("p"))
    world.run(10)
    assert container(only(world))["state"]["waiting"]["reason"] == reason


def test_a_crash_loop(world: World, node: Node) -> None:
    node.set_default(Behaviour(crash_after=3), world.clock())
    world.client.request("POST", PODS, pod("p"))
    world.run(2)
    assert ready(only(world)) == "True"
    world.run(2)
    found = only(world)
    assert (found["status"]["phase"], ready(found)) == ("Running", "False")
    assert container(found)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert container(found)["restartCount"] == 1


def test_an_eviction(world: World, node: Node) -> None:
    node.set_default(Behaviour(evict_after=3), world.clock())
    world.client.request("POST", PODS, pod("p"))
    world.run(4)
    status = only(world)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert "containerStatuses" not in status


def test_an_oom_restart_has_a_new_container_id(world: World, node: Node) -> None:
    node.set_default(Behaviour(oom_after=3), world.clock())
    world.client.request("POST", PODS, pod("p"))
    world.run(1)
    before = container(only(world))["containerID"]
    world.run(3)
    after = container(only(world))
    assert (after["restartCount"], after["ready"]) == (1, True)
    assert after["containerID"] != before
    assert after["lastState"]["terminated"]["reason"] == "OOMKilled"
    assert after["lastState"]["terminated"]["containerID"] == before


def test_a_deleted_pod_is_confirmed_after_the_stop_delay(world: World, node: Node) -> None:
    node.set_default(Behaviour(stop_delay=5), world.clock())
    world.client.request("POST", PODS, pod("p"))
    world.run(0)
    world.client.request("DELETE", f"{PODS}/p")
    world.run(4)
    assert only(world)["metadata"]["deletionTimestamp"]
    world.run(2)
    assert world.pods() == []


def test_a_kubelet_started_late_adopts_what_runs(world: World, store: Store) -> None:
    world.client.request("POST", PODS, pod("p"))
    world.run(0)
    before = only(world)
    late = DirectKubelet(store, Node())
    late.step()
    assert only(world) == before
