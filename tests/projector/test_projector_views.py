"""DESIGN §5: what views hold, where an object goes, and when a view is let go."""

from __future__ import annotations

from typing import Any

import pytest
from projector_world import NAMESPACE, Story, create, delete, metadata, owner, pod, reloaded, sandbox, stored

from bus import messages, names, scopes, subjects
from bus.messages import Result
from bus.views import PoolView, SandboxView, SnapshotView

PODS = scopes.SANDBOX_PODS.word
LONG = "a" * 70


@pytest.fixture
def story() -> Story:
    return Story()


# -- Pods


def test_a_pod_as_decisions_need_it(story: Story) -> None:
    story.seen("pod", pod(7, "s-3", ready=True))
    found = story.sandbox().pods["s-3"]
    assert (found.version, found.uid, found.owner, found.index) == ((1, 7), "p1", "u1", 3)
    assert (found.ready, found.assigned, found.ip, found.scope) == (True, True, "10.0.0.1", PODS)


@pytest.mark.parametrize(
    ("name", "label", "index"),
    [("s-3", None, 3), ("s-3", "5", 5), ("s-x", None, None), ("s-x", "y", None), ("s-4", "y", 4), ("s", None, None)],
)
def test_a_pods_index_is_its_label_else_its_name(story: Story, name: str, label: str | None, index: int | None) -> None:
    """SCL-06, SCL-07."""
    labels = {names.SANDBOX_NAME: "s"} | ({names.POD_INDEX: label} if label is not None else {})
    story.seen("pod", pod(7, name, labels=labels))
    assert story.sandbox().pods[name].index == index


def test_ready_needs_phase_and_condition(story: Story) -> None:
    condition = [{"type": "Ready", "status": "True"}]
    story.seen("pod", pod(7, status={"phase": "Pending", "conditions": condition}))
    assert not story.sandbox().pods["s-0"].ready
    story.seen("pod", pod(8, status={"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}))
    assert not story.sandbox().pods["s-0"].ready
    story.seen("pod", pod(9, status={"phase": "Running", "conditions": condition}))
    assert story.sandbox().pods["s-0"].ready


def test_since_stands_over_the_reasons_that_may_heal(story: Story) -> None:
    """B84: ErrImagePull and ImagePullBackOff take turns; the grace runs from the first of them."""
    story.seen("pod", pod(7, waiting="ErrImagePull"))
    first = story.time
    story.seen("pod", pod(8, waiting="ImagePullBackOff"))
    story.seen("pod", pod(9, waiting="ErrImagePull"))
    found = story.sandbox().pods["s-0"]
    assert (found.reason, found.terminal, found.since) == ("ErrImagePull", False, first)
    story.seen("pod", pod(10, ready=True))
    assert (story.sandbox().pods["s-0"].reason, story.sandbox().pods["s-0"].since) == ("", 0)
    story.seen("pod", pod(11, waiting="CrashLoopBackOff"))
    assert story.sandbox().pods["s-0"].since == story.time


def test_since_starts_anew_with_another_pod_or_a_reason_that_cannot_heal(story: Story) -> None:
    story.seen("pod", pod(7, waiting="ErrImagePull"))
    story.seen("pod", pod(8, waiting="InvalidImageName"))
    found = story.sandbox().pods["s-0"]
    assert (found.terminal, found.since) == (True, story.time)
    story.seen("pod", pod(9, uid="p2", waiting="InvalidImageName"))
    assert story.sandbox().pods["s-0"].since == story.time


@pytest.mark.parametrize(
    ("status", "reason", "terminal"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted", True),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
            },
            "OOMKilled",
            True,
        ),
        ({"phase": "Failed"}, "PodFailed", True),
        ({"phase": "Succeeded"}, "Completed", True),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
            "",
            False,
        ),
        ({"phase": "Running", "containerStatuses": [{"restartCount": 2, "state": {"running": {}}}]}, "", False),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {"restartCount": 2, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ],
            },
            "",
            False,
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {"state": {"running": {}}},
                    {"state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                ],
            },
            "CrashLoopBackOff",
            False,
        ),
    ],
)
def test_what_is_wrong_with_a_pod(story: Story, status: dict[str, Any], reason: str, terminal: bool) -> None:
    """DESIGN §11: what cannot heal, what may, and what is no trouble at all (a restart)."""
    story.seen("pod", pod(7, status=status))
    found = story.sandbox().pods["s-0"]
    assert (found.reason, found.terminal) == (reason, terminal)


def test_only_a_commit_pods_message_is_kept(story: Story) -> None:
    ended = {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "commit", "state": {"terminated": {"exitCode": 0, "message": "x" * 9000}}}],
    }
    story.seen("pod", pod(7, status=ended))
    assert story.sandbox().pods["s-0"].result == ""
    story.seen(
        "pod",
        pod(8, "c", "p9", labels={names.SNAPSHOT_NAME: "snap"}, owners=[], status=ended),
        scope=scopes.COMMIT_PODS.word,
    )
    view = story.view(subjects.SNAPSHOT, "snap")
    assert view is not None
    assert view.pods["c"].result == "x" * 4096
    assert view.pods["c"].exit_code == 0


RUNS: dict[str, Any] = {"running": {}}
FINISHED: dict[str, Any] = {"terminated": {"exitCode": 0}}
BROKEN: dict[str, Any] = {"terminated": {"exitCode": 1, "message": "no"}}
COMMITTED: dict[str, Any] = {"terminated": {"exitCode": 0, "message": "{}"}}


@pytest.mark.parametrize(
    ("phase", "agent", "commit", "expected"),
    [
        pytest.param("Succeeded", FINISHED, COMMITTED, (0, "{}"), id="another container ended before it"),
        pytest.param("Running", RUNS, COMMITTED, (0, "{}"), id="another goes on running"),
        pytest.param("Failed", BROKEN, COMMITTED, (0, "{}"), id="another failed"),
        pytest.param("Running", FINISHED, RUNS, (None, ""), id="another ended, it has not"),
        pytest.param("Running", RUNS, BROKEN, (1, "no"), id="it failed"),
    ],
)
def test_snp_03_of_a_commit_pod_the_container_commit_counts(
    story: Story, phase: str, agent: dict[str, Any], commit: dict[str, Any], expected: tuple[int | None, str]
) -> None:
    """controller-behaviour.md §7.5. A mesh's or an agent's container may have been injected beside it."""
    statuses = [{"name": "agent", "state": agent}, {"name": "commit", "state": commit}]
    made = pod(8, "c", "p9", labels={names.SNAPSHOT_NAME: "snap"}, owners=[])
    made["status"] = {"phase": phase, "containerStatuses": statuses}
    story.seen("pod", made, scope=scopes.COMMIT_PODS.word)
    view = story.view(subjects.SNAPSHOT, "snap")
    assert view is not None
    assert (view.pods["c"].exit_code, view.pods["c"].result) == expected


def test_a_pod_goes_by_its_owner_before_its_label(story: Story) -> None:
    """B106: a label value may be shortened, an owner's name never is."""
    labels = {names.SANDBOX_NAME: names.label_value(LONG)}
    story.seen("pod", pod(7, LONG + "-0", of=LONG, labels=labels))
    assert set(story.partition.views) == {story.sandbox(LONG).aggregate}


def test_a_pool_pod_goes_into_its_pools_view(story: Story) -> None:
    labels = {names.POOL_NAME: "pool", names.SANDBOX_NAME: "s"}
    story.seen("pod", pod(7, "x", labels=labels, owners=owner("Pool", "pool")), scope=scopes.POOL_PODS.word)
    found = story.view(subjects.POOL, "pool")
    assert isinstance(found, PoolView)
    assert set(found.pods) == {"x"}
    assert story.view(subjects.SANDBOX, "s") is None


def test_a_pod_that_moves_to_another_owner_leaves_a_tombstone(story: Story) -> None:
    """DESIGN §8.1: a pod belongs to at most one sandbox."""
    story.seen("pod", pod(7))
    story.seen("pod", pod(8, of="t"))
    assert story.sandbox("s").pods["s-0"].gone
    assert not story.sandbox("t").pods["s-0"].gone


def test_a_moved_pod_is_still_there_after_a_restart(story: Story) -> None:
    """The index is rebuilt from views, in whatever order they come: the tombstone of the same version must not win."""
    story.seen("pod", pod(7))
    story.seen("pod", pod(8, of="t"))
    for order in (sorted, lambda views: sorted(views, reverse=True)):
        again = reloaded(story.partition)
        again.views = {aggregate: again.views[aggregate] for aggregate in order(again.views)}  # type: ignore[operator]
        again = type(again)(0, 1, again.state, again.views)
        told = Story()
        told.partition, told.sequence, told.time = again, story.sequence, story.time
        told.listed(PODS, 20)
        assert told.view(subjects.SANDBOX, "t") is None, "the list lacks the pod: nothing is left of the view"


# -- Sandboxes


def test_pause_generation_is_that_of_the_last_change_of_pause(story: Story) -> None:
    def p(rv: int, generation: int, pause: bool | None) -> int | None:
        story.seen("batchsandbox", sandbox(rv, generation=generation, pause=pause))
        return story.sandbox().pause_generation

    assert p(1, 1, None) == 0
    assert p(2, 2, None) == 0
    assert p(3, 3, True) == 3
    assert p(4, 3, True) == 3
    assert p(5, 4, None) == 4
    assert p(6, 5, True) == 5
    assert p(7, 6, False) == 6
    assert p(8, 7, False) == 6


def test_pause_set_at_creation_is_an_intent(story: Story) -> None:
    story.seen("batchsandbox", sandbox(1, pause=True))
    assert story.sandbox().pause_generation == 1


def test_without_memory_pause_generation_is_unknown(story: Story) -> None:
    story.seen("batchsandbox", sandbox(1, generation=4, pause=True))
    assert story.sandbox().pause_generation is None
    story.seen("batchsandbox", sandbox(2, generation=5, pause=True))
    assert story.sandbox().pause_generation is None
    story.seen("batchsandbox", sandbox(3, generation=6, pause=False))
    assert story.sandbox().pause_generation == 6


def test_versions_missed_may_have_changed_pause_twice(story: Story) -> None:
    """The server's retry is `null`, then `true` (DESIGN §6, Intent): with both unseen, P is not known any more."""
    story.seen("batchsandbox", sandbox(1, generation=1, pause=True))
    story.seen("batchsandbox", sandbox(9, generation=3, pause=True))
    assert story.sandbox().pause_generation is None


def test_another_uid_starts_afresh(story: Story) -> None:
    story.seen("batchsandbox", sandbox(1, generation=1, pause=True))
    story.seen("batchsandbox", sandbox(9, uid="u2", generation=1))
    assert story.sandbox().pause_generation == 0
    story.gone("batchsandbox", "s", 10, "u2")
    assert story.sandbox().pause_generation is None


def test_unshown_since_is_the_first_change_since_the_status_was_written(story: Story) -> None:
    story.seen("batchsandbox", sandbox(5))
    story.seen("batchsandbox", sandbox(6, phase="Pending"))
    assert story.sandbox().unshown_since == 0
    story.seen("pod", pod(7))
    first = story.time
    story.seen("pod", pod(8, ready=True))
    story.seen("batchsandbox", sandbox(9, generation=2, phase="Pending"))
    assert story.sandbox().unshown_since == first
    story.seen("batchsandbox", sandbox(10, generation=2, phase="Succeed"))
    assert story.sandbox().unshown_since == 0
    story.seen("pod", pod(11, ready=True))
    assert story.sandbox().unshown_since == 0, "nothing that shows has changed"
    story.gone("pod", "s-0", 12)
    assert story.sandbox().unshown_since == story.time


# -- Snapshots, Jobs, pools


def snapshot(rv: int, name: str, of: str = "s", *, internal: bool = False) -> dict[str, Any]:
    meta = metadata(name, f"uid-{name}", rv)
    if internal:
        meta["ownerReferences"] = owner("BatchSandbox", of, "u1")
    return {"metadata": meta, "spec": {"sandboxName": of}, "status": {"phase": "Pending"}}


def test_a_pause_snapshot_is_in_its_own_view_and_its_sandboxs(story: Story) -> None:
    story.seen("sandboxsnapshot", snapshot(7, "s-pause", internal=True))
    own = story.view(subjects.SNAPSHOT, "s-pause")
    assert isinstance(own, SnapshotView)
    assert own.object is not None
    assert story.sandbox().snapshot == own.object
    story.gone("sandboxsnapshot", "s-pause", 9)
    assert story.sandbox().snapshot is not None
    assert story.sandbox().snapshot.gone  # type: ignore[union-attr]
    own = story.view(subjects.SNAPSHOT, "s-pause")
    assert isinstance(own, SnapshotView)
    assert own.object is None


def test_a_pause_snapshot_of_a_long_name_is_found(story: Story) -> None:
    long = "b" * 253
    story.seen("sandboxsnapshot", snapshot(7, names.pause_snapshot_name(long), of=long, internal=True))
    assert story.sandbox(long).snapshot is not None


def test_a_public_snapshot_is_in_no_sandboxs_view(story: Story) -> None:
    story.seen("sandboxsnapshot", snapshot(7, "s-pause"))
    story.seen("sandboxsnapshot", snapshot(7, "other", internal=True))
    assert story.view(subjects.SANDBOX, "s") is None


def test_commit_jobs_and_their_pods_are_in_the_snapshots_view(story: Story) -> None:
    job = {
        "metadata": metadata(
            "j",
            "uj",
            7,
            ownerReferences=owner("SandboxSnapshot", LONG),
            labels={names.SNAPSHOT_NAME: names.label_value(LONG)},
        ),
        "status": {"failed": 1, "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]},
    }
    story.seen("job", job)
    labels = {names.SNAPSHOT_NAME: names.label_value(LONG)}
    story.seen("pod", pod(8, "j-x", labels=labels, owners=owner("Job", "j", "uj")), scope=scopes.COMMIT_PODS.word)
    view = story.view(subjects.SNAPSHOT, LONG)
    assert isinstance(view, SnapshotView)
    assert (view.jobs["j"].failed, view.jobs["j"].failure) == (1, "Commit job failed")
    assert set(view.pods) == {"j-x"}
    assert len(story.partition.views) == 1


def test_a_pool_has_a_view(story: Story) -> None:
    story.seen("pool", {"metadata": metadata("p", "up", 7, generation=2)})
    view = story.view(subjects.POOL, "p")
    assert isinstance(view, PoolView)
    assert view.object is not None
    assert (view.object.uid, view.object.generation) == ("up", 2)


# -- Letting go


def test_a_dead_view_is_swept_only_once_a_list_has_overtaken_it(story: Story) -> None:
    story.seen("batchsandbox", sandbox(5))
    story.seen("pod", pod(6))
    story.gone("batchsandbox", "s", 20, "u1")
    story.gone("pod", "s-0", 25)
    story.list_all(19)
    assert isinstance(story.sandbox(), SandboxView)
    story.list_all(22)
    assert set(story.sandbox().pods) == {"s-0"}
    story.list_all(25)
    assert story.view(subjects.SANDBOX, "s") is None
    story.seen("pod", pod(24))
    assert story.view(subjects.SANDBOX, "s") is None


def test_a_view_with_something_open_is_kept(story: Story) -> None:
    story.seen("batchsandbox", sandbox(5))
    story.seen("pod", pod(6))
    at = story.command(delete())
    story.gone("batchsandbox", "s", 20, "u1")
    story.list_all(30, pod=[("s-0", "p1", 6)])
    assert story.sandbox().in_flight is not None
    story.outcome(at, Result("del1", messages.DONE))
    story.list_all(40)
    assert story.view(subjects.SANDBOX, "s") is None


def test_tombstones_of_a_living_view_are_swept(story: Story) -> None:
    story.seen("batchsandbox", sandbox(5))
    story.seen("pod", pod(6))
    story.gone("pod", "s-0", 7)
    at = story.sequence
    story.list_all(10, batchsandbox=[("s", "u1", 5)])
    assert story.sandbox().pods == {}
    assert story.sandbox().sequence > at


def test_a_view_made_by_a_command_alone_is_let_go(story: Story) -> None:
    at = story.command(create(0), view=0)
    story.outcome(at, Result("op1", messages.FAILED))
    story.list_all(10)
    assert story.partition.views == {}


def test_the_index_keeps_nothing_of_what_was_let_go(story: Story) -> None:
    for n in range(20):
        story.seen("batchsandbox", sandbox(100 + n, f"s{n}"))
        story.seen("pod", pod(200 + n, f"s{n}-0", of=f"s{n}"))
        story.gone("pod", f"s{n}-0", 300 + n)
        story.gone("batchsandbox", f"s{n}", 400 + n)
    story.list_all(1000)
    assert story.partition.views == {}
    assert story.partition.index._entries == {}
    assert stored(story.partition).keys() == {"0._"}


def test_a_namespace_narrowed_list_sweeps_only_there(story: Story) -> None:
    story.gone("batchsandbox", "s", 20, "u1")
    story.gone("batchsandbox", "s", 20, "u1", namespace="elsewhere")
    for scope in scopes.SCOPES:
        story.listed(scope.word, 30, namespace="elsewhere")
    assert [a.namespace for a in story.partition.views] == [NAMESPACE]


# -- objects too large to be observed with their spec


def bare(rv: int, generation: int) -> dict[str, Any]:
    """As the bridge observes it where not even small members of its spec, and no status, fit a message."""
    return {"metadata": metadata("s", "u1", rv, generation=generation)}


def test_an_object_seen_bare_keeps_what_was_known_of_it(story: Story) -> None:
    """Else its pause would seem to have changed, its status to be empty, and its pods to be nobody's."""
    story.seen("batchsandbox", sandbox(5, generation=3, pause=True, phase="Paused", pauseObservedGeneration=3))
    before = story.sandbox()
    story.seen("batchsandbox", bare(6, 3), reduced=True)
    object = story.sandbox().object
    assert object is not None
    assert (object.reduced, object.bare, object.version) == (True, True, (1, 6))
    assert (object.pause, object.status.phase) == (True, "Paused")
    assert story.sandbox().pause_generation == before.pause_generation
    story.seen("batchsandbox", sandbox(7, generation=3, pause=True, phase="Paused", pauseObservedGeneration=3))
    assert story.sandbox().pause_generation == before.pause_generation
    assert story.sandbox().object.bare is False  # type: ignore[union-attr]


def test_what_changed_while_an_object_was_seen_bare_is_not_known(story: Story) -> None:
    story.seen("batchsandbox", sandbox(5, generation=1, pause=True))
    assert story.sandbox().pause_generation == 1
    story.seen("batchsandbox", bare(6, 2), reduced=True)
    assert story.sandbox().pause_generation is None
    story.seen("batchsandbox", sandbox(7, generation=3, pause=True))
    assert story.sandbox().pause_generation is None
    story.seen("batchsandbox", sandbox(8, generation=4, pause=False))
    assert story.sandbox().pause_generation == 4


def test_an_object_first_seen_bare_has_no_pause_to_compare_with(story: Story) -> None:
    """A `true` of long ago would else be a new one."""
    story.seen("batchsandbox", bare(5, 1), reduced=True)
    assert story.sandbox().pause_generation is None
    story.seen("batchsandbox", sandbox(6, generation=2, pause=True, pauseObservedGeneration=1))
    assert story.sandbox().pause_generation is None


def test_an_object_without_the_large_part_of_its_spec_tells_its_pause_as_ever(story: Story) -> None:
    """Small members stay (bridge.observe)."""
    story.seen("batchsandbox", sandbox(5, generation=1))
    story.seen("batchsandbox", sandbox(6, generation=2, pause=True), reduced=True)
    assert story.sandbox().pause_generation == 2
    assert story.sandbox().object.bare is False  # type: ignore[union-attr]


def test_an_expiry_that_may_have_been_renewed_unseen_is_none(story: Story) -> None:
    made = sandbox(5, generation=1)
    made["spec"]["expireTime"] = "2026-01-01T00:00:00Z"
    story.seen("batchsandbox", made)
    story.seen("batchsandbox", bare(6, 1), reduced=True)
    assert story.sandbox().object.expire_time is not None  # type: ignore[union-attr]
    story.seen("batchsandbox", bare(7, 2), reduced=True)
    assert story.sandbox().object.expire_time is None  # type: ignore[union-attr]
