"""What the fold makes of pause and snapshots: slots, pools' pods that sandboxes name, sources, and when their ops are over (DESIGN §5, §8.2)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace
from projector_world import (
    CLUSTER,
    NAMESPACE,
    START,
    Story,
    metadata,
    open_ids,
    owner,
    pod,
    reloaded,
    sandbox,
    stored,
)

from bus import messages, names, ops, scopes, subjects, viewcodec
from bus.messages import Command, Outcome, Result
from bus.resources import SandboxStatus, SnapshotStatus
from bus.subjects import Aggregate
from bus.times import SECOND, format_time
from bus.views import PoolView, SnapshotView, Source
from projector.fold import Partition

POOL_PODS = scopes.POOL_PODS.word
COMMIT_PODS = scopes.COMMIT_PODS.word
SNAPSHOT_TARGET = ops.Target("sandboxsnapshot", "s-pause", "sn1")
POD_TARGET = ops.Target("pod", "s-0", "p1")


@pytest.fixture
def story() -> Story:
    return Story()


def snapshot(
    rv: int,
    name: str = "s-pause",
    uid: str = "sn1",
    of: str = "s",
    *,
    created: int = 0,
    deleting: bool = False,
    internal: bool = False,
    annotations: dict[str, str] | None = None,
    **status: Any,
) -> dict[str, Any]:
    meta = metadata(name, uid, rv, generation=1, creationTimestamp=format_time(START + created * SECOND))
    meta["annotations"] = annotations or {}
    if internal:
        meta["ownerReferences"] = owner("BatchSandbox", of, "u1")
    if deleting:
        meta["deletionTimestamp"] = format_time(START)
    return {"metadata": meta, "spec": {"sandboxName": of}, "status": status}


def job(rv: int, name: str = "s-pause-commit", uid: str = "j1", of: str = "s-pause", **status: Any) -> dict[str, Any]:
    meta = metadata(name, uid, rv, labels={names.SNAPSHOT_NAME: names.label_value(of)})
    meta["ownerReferences"] = owner("SandboxSnapshot", of, "sn1")
    meta["annotations"] = {names.SNAPSHOT_NAME: of}
    return {"metadata": meta, "status": status}


def job_pod(rv: int, of: str = "s-pause", job_name: str = "s-pause-commit", **status: Any) -> dict[str, Any]:
    made = pod(
        rv,
        f"{job_name}-x",
        "jp1",
        labels={names.SNAPSHOT_NAME: names.label_value(of)},
        owners=owner("Job", job_name, "j1"),
        status={"phase": "Running", **status},
    )
    made["metadata"]["annotations"] = {names.SNAPSHOT_NAME: of}
    return made


def running(
    rv: int, name: str = "s-0", uid: str = "p1", containers: tuple[str, ...] = ("main",), **more: Any
) -> dict[str, Any]:
    made = pod(rv, name, uid, ready=True, **more)
    made["spec"]["containers"] = [{"name": container} for container in containers]
    return made


def pool_pod(rv: int, name: str = "pp1", uid: str = "pu1", **more: Any) -> dict[str, Any]:
    return running(rv, name, uid, labels={names.POOL_NAME: "p"}, owners=owner("Pool", "p", "pool1"), **more)


def pooled(
    rv: int, status: str | None, release: str | None = None, pool_ref: str = "p", name: str = "s", **more: Any
) -> dict[str, Any]:
    made = sandbox(rv, name, **more)
    made["spec"]["poolRef"] = pool_ref
    annotations = {names.ALLOC_STATUS: status, names.ALLOC_RELEASE: release}
    made["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value is not None}
    return made


def of_snapshot(story: Story, name: str = "s-pause") -> SnapshotView:
    found = story.view(subjects.SNAPSHOT, name)
    assert isinstance(found, SnapshotView)
    return found


def source(story: Story, name: str = "s-pause") -> Source:
    return of_snapshot(story, name).source


# -- slots


def test_b52_a_pods_containers_without_its_init_containers(story: Story) -> None:
    made = running(5, containers=("main", "sidecar"))
    made["spec"]["initContainers"] = [{"name": "init"}]
    story.seen("pod", made)
    assert story.sandbox().pods["s-0"].containers == ("main", "sidecar")


def test_a_snapshot_tells_its_intent_and_its_pod(story: Story) -> None:
    """DESIGN §6, §8.2."""
    annotations = {names.PAUSE_GENERATION: "2", names.SOURCE_POD_NAME: "s-0", names.SOURCE_POD_UID: "p1"}
    story.seen("sandboxsnapshot", snapshot(5, internal=True, annotations=annotations, phase="Pending"))
    slot = story.sandbox().snapshot
    assert slot is not None
    assert slot == of_snapshot(story).object
    assert (slot.intent, slot.pod_name, slot.pod_uid, slot.owner) == ("2", "s-0", "p1", "u1")


# -- Jobs and their pods


@pytest.mark.parametrize(("message", "told"), [("over its deadline", "over its deadline"), ("", "Commit job failed")])
def test_snp_06_what_a_job_that_gave_up_says(story: Story, message: str, told: str) -> None:
    """§7.5: the condition's message, never its reason."""
    condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": message}
    story.seen("job", job(5, conditions=[condition]))
    assert of_snapshot(story).jobs["s-pause-commit"].failure == told
    story.seen("job", job(6, conditions=[condition | {"status": "False"}]))
    assert of_snapshot(story).jobs["s-pause-commit"].failure == ""


@pytest.mark.parametrize("name", ["s-pause", "s" * 100 + "-pause"])
@pytest.mark.parametrize("order", list(itertools.permutations(("job", "pod", "snapshot"))))
def test_jobs_and_their_pods_reach_the_snapshot_whatever_comes_first(
    story: Story, name: str, order: tuple[str, ...]
) -> None:
    """B58, B106: a long name is shortened in the label, and whole in the annotation."""
    job_name = names.job_name(name, "commit")
    for what in order:
        if what == "job":
            story.seen("job", job(5, job_name, of=name))
        elif what == "pod":
            story.seen("pod", job_pod(6, name, job_name), scope=COMMIT_PODS)
        else:
            story.seen("sandboxsnapshot", snapshot(7, name))
    (view,) = [found for found in story.partition.views.values() if isinstance(found, SnapshotView)]
    assert view.name == name
    assert set(view.jobs) == {job_name}
    assert view.pods[f"{job_name}-x"].owner == view.jobs[job_name].uid == "j1"


def test_an_annotation_that_does_not_fit_its_label_counts_for_nothing(story: Story) -> None:
    made = job_pod(6)
    made["metadata"]["annotations"] = {names.SNAPSHOT_NAME: "another"}
    story.seen("pod", made, scope=COMMIT_PODS)
    assert set(of_snapshot(story).pods) == {"s-pause-commit-x"}


# -- pools' pods

NAMING = '{"pods":["pp1","pp2"]}'


def test_a_pooled_sandbox_holds_the_pods_it_names_whichever_comes_first(story: Story) -> None:
    def parts() -> list[tuple[str, dict[str, Any], str | None]]:
        return [
            ("batchsandbox", pooled(9, NAMING), None),
            ("pod", pool_pod(5), POOL_PODS),
            ("pod", pool_pod(6, "pp2", "pu2"), POOL_PODS),
            ("pod", pool_pod(7, "pp3", "pu3"), POOL_PODS),
        ]

    for order in itertools.permutations(parts()):
        told = Story()
        for kind, made, scope in order:
            told.seen(kind, made, scope=scope)
        view, pool = told.sandbox(), told.view(subjects.POOL, "p")
        assert isinstance(pool, PoolView)
        assert set(view.pods) == {"pp1", "pp2"}
        assert set(pool.pods) == {"pp1", "pp2", "pp3"}
        assert view.pods["pp1"] == pool.pods["pp1"]
        # And both follow it.
        told.seen("pod", pool_pod(20, deleting=True), scope=POOL_PODS)
        assert told.sandbox().pods["pp1"].deleting
        told.gone("pod", "pp2", 21, "pu2", scope=POOL_PODS)
        assert told.sandbox().pods["pp2"].gone
        assert told.view(subjects.POOL, "p").pods["pp2"].gone  # type: ignore[union-attr]


def test_a_pod_leaves_the_sandbox_that_no_longer_names_it(story: Story) -> None:
    story.seen("pod", pool_pod(5), scope=POOL_PODS)
    story.seen("pod", pool_pod(6, "pp2", "pu2"), scope=POOL_PODS)
    story.seen("batchsandbox", pooled(7, NAMING))
    story.seen("batchsandbox", pooled(8, NAMING, '{"pods":["pp1"]}'))
    assert story.sandbox().object.allocated == ("pp2",)  # type: ignore[union-attr]
    assert set(story.sandbox().pods) == {"pp2"}
    assert set(story.view(subjects.POOL, "p").pods) == {"pp1", "pp2"}  # type: ignore[union-attr]
    # B40: one that was detached names none, whatever its annotations still say.
    story.seen("batchsandbox", pooled(9, NAMING, pool_ref=""))
    assert story.sandbox().pods == {}
    story.seen("pod", pool_pod(10, deleting=True), scope=POOL_PODS)
    assert story.sandbox().pods == {}


def test_a_deleted_sandbox_lets_go_and_a_moved_name_moves_the_pod(story: Story) -> None:
    story.seen("pod", pool_pod(5), scope=POOL_PODS)
    story.seen("batchsandbox", pooled(6, '{"pods":["pp1"]}'))
    story.gone("batchsandbox", "s", 7, "u1")
    story.seen("batchsandbox", pooled(8, '{"pods":["pp1"]}', name="t", uid="u2"))
    story.seen("pod", pool_pod(9), scope=POOL_PODS)
    assert story.sandbox().pods == {}
    assert story.sandbox("t").pods["pp1"].version == (1, 9)


def test_only_a_pools_pods_can_be_named(story: Story) -> None:
    """A pod of another sandbox stays that sandbox's, whoever names it (DESIGN §8.1)."""
    story.seen("batchsandbox", pooled(5, '{"pods":["t-0"]}'))
    story.seen("pod", running(6, "t-0", of="t"))
    assert story.sandbox().pods == {}
    assert set(story.sandbox("t").pods) == {"t-0"}


@pytest.mark.parametrize("status", ["{", "[]", '{"pods":"pp1"}', '{"pods":[1]}'])
def test_b05_b06_a_malformed_annotation_harms_only_its_own_sandbox(story: Story, status: str) -> None:
    story.seen("pod", pool_pod(5), scope=POOL_PODS)
    story.seen("pod", pool_pod(6, "pp2", "pu2"), scope=POOL_PODS)
    story.seen("batchsandbox", pooled(7, '{"pods":["pp1"]}'))
    story.seen("batchsandbox", pooled(8, '{"pods":["pp2"]}', name="t", uid="u2"))
    folded = story.seen("batchsandbox", pooled(9, status))
    assert folded.error is None
    object = story.sandbox().object
    assert object is not None
    assert object.malformed == (names.ALLOC_STATUS,)
    # What it was known to hold is no orphan.
    assert set(story.sandbox().pods) == {"pp1"}
    assert set(story.sandbox("t").pods) == {"pp2"}
    story.seen("batchsandbox", pooled(10, NAMING))
    assert story.sandbox().object.malformed == ()  # type: ignore[union-attr]
    assert set(story.sandbox().pods) == {"pp1", "pp2"}


def test_b90_an_allocation_of_which_all_was_given_back(story: Story) -> None:
    """What was never given, or is not all given back, is none."""
    for rv, status, release, expected in (
        (5, '{"pods":["pp1","pp2"]}', '{"pods":["pp2","pp1","pp9"]}', True),
        (6, '{"pods":["pp1","pp2"]}', '{"pods":["pp2"]}', False),
        (7, '{"pods":[]}', '{"pods":["pp2"]}', False),
        (8, None, None, False),
        (9, "{", '{"pods":["pp2"]}', False),
    ):
        story.seen("batchsandbox", pooled(rv, status, release))
        assert story.sandbox().object.released is expected  # type: ignore[union-attr]


def test_what_pods_and_templates_run_is_kept_without_where_it_is_pulled_from(story: Story) -> None:
    """For what was made of a snapshot (DESIGN §8.2); of pods that a BatchSandbox made only."""
    containers = [{"name": "main", "image": "registry:5000/x/a-main:snap-gen2"}, {"name": "side", "image": "busybox"}]
    made = sandbox(5)
    made["spec"]["template"] = {"spec": {"containers": containers}}
    made["spec"]["shardPatches"] = [{}]
    story.seen("batchsandbox", made)
    for rv, name, labels, owners in ((6, "s-0", None, None), (7, "pp1", {names.POOL_NAME: "p"}, [])):
        its = pod(rv, name, name, labels=labels, owners=owners)
        its["spec"]["containers"] = containers
        story.seen("pod", its, scope=POOL_PODS if labels else None)
    view = story.sandbox()
    assert view.object is not None
    assert view.object.images == {"main": "a-main:snap-gen2", "side": "busybox"}
    assert view.object.patched
    assert view.pods["s-0"].images == ("a-main:snap-gen2", "busybox")
    assert story.view(subjects.POOL, "p").pods["pp1"].images == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("template", [None, {}, [], "x", {"spec": {"containers": {}}}, {"spec": {"containers": [1]}}])
def test_a_template_of_any_shape_is_taken(story: Story, template: Any) -> None:
    made = sandbox(5)
    made["spec"]["template"] = template
    assert story.seen("batchsandbox", made).error is None
    assert (story.sandbox().object.images, story.sandbox().object.patched) == ({}, False)  # type: ignore[union-attr]


@pytest.mark.parametrize("status", [None, "", "{}", '{"pods":null}', '{"pods":[],"more":1}'])
def test_no_pods_is_not_malformed(story: Story, status: str | None) -> None:
    """controller-behaviour.md §2.1."""
    story.seen("batchsandbox", pooled(5, status))
    object = story.sandbox().object
    assert object is not None
    assert (object.allocated, object.malformed) == ((), ())


def test_a_whole_list_takes_the_pod_from_both(story: Story) -> None:
    story.list_all(3)
    story.seen("batchsandbox", pooled(5, '{"pods":["pp1"]}'))
    story.seen("pod", pool_pod(6), scope=POOL_PODS)
    story.listed(POOL_PODS, 9)
    assert "pp1" not in story.sandbox().live_pods()
    pool = story.view(subjects.POOL, "p")
    assert pool is None or not [one for one in pool.pods.values() if not one.gone]  # type: ignore[union-attr]


# -- sources


def test_the_source_of_a_template_mode_snapshot_whatever_comes_first() -> None:
    """§7.4, SNP-12: the running pod of the sandbox's, its node and its containers."""
    parts = [
        ("batchsandbox", sandbox(5, generation=7)),
        ("pod", running(6, containers=("main", "side"))),
        ("sandboxsnapshot", snapshot(7)),
    ]
    for order in itertools.permutations(parts):
        story = Story()
        for kind, made in order:
            story.seen(kind, made)
        assert source(story) == Source("u1", 7, "s-0", "p1", "n1", ("main", "side"))
        assert of_snapshot(story).sequence == 3


def test_snp_09_the_source_of_a_pooled_sandbox_is_what_it_names_in_order(story: Story) -> None:
    story.seen("sandboxsnapshot", snapshot(4))
    story.seen("batchsandbox", pooled(5, '{"pods":["pp2","pp1"]}', '{"pods":["pp3"]}'))
    story.seen("pod", pool_pod(6), scope=POOL_PODS)
    assert source(story).pod == "pp1"
    story.seen("pod", pool_pod(7, "pp2", "pu2"), scope=POOL_PODS)
    assert (source(story).pod, source(story).pod_uid) == ("pp2", "pu2")
    story.seen("batchsandbox", pooled(8, '{"pods":["pp2","pp1"]}', '{"pods":["pp2"]}'))
    assert source(story).pod == "pp1"


def test_b40_a_detached_sandbox_is_not_snapshotted_from_the_pools_pod(story: Story) -> None:
    story.seen("pod", pool_pod(4), scope=POOL_PODS)
    story.seen("batchsandbox", pooled(5, '{"pods":["pp1"]}', pool_ref=""))
    story.seen("sandboxsnapshot", snapshot(6))
    assert source(story) == Source("u1", 1)
    story.seen("pod", running(7))
    assert source(story).pod == "s-0"


def test_only_a_running_pod_of_the_uid_that_is_named_counts(story: Story) -> None:
    """DESIGN §8.2: a snapshot made for another pod never counts."""
    story.seen("batchsandbox", sandbox(4))
    story.seen("sandboxsnapshot", snapshot(5, annotations={names.SOURCE_POD_UID: "p1"}))
    story.seen("pod", pod(6))
    assert source(story).pod == "", "it is pending"
    story.seen("pod", running(7))
    assert source(story).pod_uid == "p1"
    story.seen("pod", running(8, deleting=True))
    assert source(story).pod == "", "it is leaving"
    story.gone("pod", "s-0", 9)
    story.seen("pod", running(10, uid="p2"))
    assert source(story) == Source("u1", 1), "the next pod of that name is another"
    story.seen("sandboxsnapshot", snapshot(11))
    assert source(story).pod_uid == "p2"


def test_a_snapshot_knows_since_when_it_leaves_and_that_its_sandbox_does(story: Story) -> None:
    story.seen("batchsandbox", sandbox(4))
    story.seen("sandboxsnapshot", snapshot(5))
    object = of_snapshot(story).object
    assert object is not None
    assert (object.deletion_time, source(story).leaving) == (0, False)
    leaving = sandbox(6)
    leaving["metadata"]["deletionTimestamp"] = format_time(START)
    story.seen("batchsandbox", leaving)
    assert source(story).leaving
    story.seen("sandboxsnapshot", snapshot(7, deleting=True))
    object = of_snapshot(story).object
    assert object is not None
    assert (object.deleting, object.deletion_time) == (True, START)


def test_without_its_sandbox_there_is_no_source(story: Story) -> None:
    """E2P-16, E2P-17."""
    story.seen("sandboxsnapshot", snapshot(4, of="nonexistent-sandbox"))
    assert source(story) == Source()
    story.seen("batchsandbox", sandbox(5))
    story.seen("sandboxsnapshot", snapshot(6))
    assert source(story).uid == "u1"
    story.gone("batchsandbox", "s", 7, "u1")
    assert source(story) == Source()


def test_what_concerns_no_open_snapshot_writes_no_snapshot_view(story: Story) -> None:
    story.seen("batchsandbox", sandbox(4))
    story.seen("pod", running(5))
    story.seen("sandboxsnapshot", snapshot(6, phase="Succeed"))
    story.seen("sandboxsnapshot", snapshot(7, "other", "sn2", phase="Pending"))
    before = of_snapshot(story).sequence
    folded = story.seen("pod", running(8, containers=("main", "more")))
    assert {aggregate.kind for aggregate in folded.touched} == {subjects.SANDBOX, subjects.SNAPSHOT}
    assert Aggregate(CLUSTER, NAMESPACE, subjects.SNAPSHOT, "s-pause") not in folded.touched
    assert of_snapshot(story).sequence == before
    # A change that does not touch the source writes none.
    folded = story.seen("pod", running(9, containers=("main", "more")))
    assert {aggregate.kind for aggregate in folded.touched} == {subjects.SANDBOX}


# -- one pod, two snapshots


def busy(story: Story, *named: str) -> list[str]:
    return [source(story, name).busy for name in named]


def test_b57_the_older_of_two_snapshots_of_a_pod_goes_first(story: Story) -> None:
    story.seen("batchsandbox", sandbox(4))
    story.seen("pod", running(5))
    story.seen("sandboxsnapshot", snapshot(6, "young", "sn2", created=20))
    story.seen("sandboxsnapshot", snapshot(7, "old", "sn1", created=10))
    assert busy(story, "old", "young") == ["", "old"]
    story.seen("sandboxsnapshot", snapshot(8, "old", "sn1", created=10, phase="Succeed"))
    assert busy(story, "young") == [""]


def test_b57_who_commits_already_is_not_overtaken(story: Story) -> None:
    story.seen("batchsandbox", sandbox(4))
    story.seen("pod", running(5))
    story.seen("sandboxsnapshot", snapshot(6, "young", "sn2", created=20, phase="Committing", sourcePodName="s-0"))
    story.seen("sandboxsnapshot", snapshot(7, "old", "sn1", created=10, phase="Pending"))
    assert busy(story, "old", "young") == ["young", ""]


def test_b57_a_job_that_still_runs_keeps_the_pod_also_after_a_failure(story: Story) -> None:
    """The unpause Job of one must not thaw the pod under the commit of the next."""
    story.seen("batchsandbox", sandbox(4))
    story.seen("pod", running(5))
    failed = snapshot(6, "old", "sn1", created=10, phase="Failed", sourcePodName="s-0")
    story.seen("sandboxsnapshot", failed)
    story.seen("sandboxsnapshot", snapshot(7, "young", "sn2", created=20))
    assert busy(story, "young") == [""]
    story.seen("job", job(8, "old-unpause", of="old"))
    assert busy(story, "young") == ["old"]
    story.seen("pod", job_pod(9, "old", "old-unpause"), scope=COMMIT_PODS)
    assert busy(story, "young") == ["old"]
    story.seen("pod", job_pod(10, "old", "old-unpause", phase="Succeeded"), scope=COMMIT_PODS)
    assert busy(story, "young") == [""]


def test_b57_a_container_beside_the_commit_does_not_keep_the_pod(story: Story) -> None:
    """The commit is over when its own container has ended; an injected one may never end."""
    story.seen("batchsandbox", sandbox(4))
    story.seen("pod", running(5))
    story.seen("sandboxsnapshot", snapshot(6, phase="Failed", sourcePodName="s-0", containers=[]))
    story.seen("job", job(7))
    story.seen("sandboxsnapshot", snapshot(8, "later", "sn2", created=9))
    assert busy(story, "later") == ["s-pause"]
    statuses = [
        {"name": "agent", "state": {"running": {}}},
        {"name": "commit", "state": {"terminated": {"exitCode": 1}}},
    ]
    story.seen("pod", job_pod(9, containerStatuses=statuses), scope=COMMIT_PODS)
    assert busy(story, "later") == [""]


def test_b57_snapshots_of_different_pods_do_not_wait(story: Story) -> None:
    story.seen("batchsandbox", sandbox(4))
    story.seen("pod", running(5))
    story.seen("pod", running(6, "s-1", "p2"))
    story.seen("sandboxsnapshot", snapshot(7, "a", "sn1", created=1, annotations={names.SOURCE_POD_UID: "p1"}))
    story.seen("sandboxsnapshot", snapshot(8, "b", "sn2", created=2, annotations={names.SOURCE_POD_UID: "p2"}))
    assert busy(story, "a", "b") == ["", ""]


def test_b57_a_leaving_snapshot_without_jobs_is_no_rival(story: Story) -> None:
    story.seen("batchsandbox", sandbox(4))
    story.seen("pod", running(5))
    story.seen("sandboxsnapshot", snapshot(6, "old", "sn1", created=10, deleting=True))
    story.seen("sandboxsnapshot", snapshot(7, "young", "sn2", created=20))
    assert busy(story, "young") == [""]


# -- settled


def test_a_snapshot_is_settled_by_its_scopes_alone(story: Story) -> None:
    """Its sandbox's among them: that there is none is a failure for good (B43)."""
    story.seen("sandboxsnapshot", snapshot(4))
    needed = scopes.NEEDED[subjects.SNAPSHOT]
    assert scopes.SANDBOXES.word in needed
    assert scopes.POOLS.word not in needed
    for word in needed:
        assert not of_snapshot(story).settled
        story.listed(word, 5, {NAMESPACE: [("s-pause", "sn1", 4)]} if word == scopes.SNAPSHOTS.word else {})
    assert of_snapshot(story).settled


# -- a pure function


def whole_story() -> Story:
    story = Story()
    story.list_all(3)
    story.seen("batchsandbox", pooled(4, NAMING))
    story.seen("pod", pool_pod(5), scope=POOL_PODS)
    story.seen("sandboxsnapshot", snapshot(6, "old", "sn1", created=10))
    story.seen("pod", pool_pod(7, "pp2", "pu2"), scope=POOL_PODS)
    story.seen("sandboxsnapshot", snapshot(8, "young", "sn2", created=20))
    story.seen("job", job(9, "old-commit", of="old"))
    story.seen("pod", job_pod(10, "old", "old-commit"), scope=COMMIT_PODS)
    story.seen("sandboxsnapshot", snapshot(11, "old", "sn1", created=10, phase="Committing", sourcePodName="pp1"))
    story.seen("batchsandbox", pooled(12, NAMING, '{"pods":["pp1"]}'))
    story.seen("pod", pool_pod(13, deleting=True), scope=POOL_PODS)
    story.seen("sandboxsnapshot", snapshot(14, "old", "sn1", created=10, phase="Succeed"))
    story.seen("batchsandbox", pooled(15, "{", pool_ref="p"))
    story.gone("pod", "pp2", 16, "pu2", scope=POOL_PODS)
    story.listed(POOL_PODS, 17, {NAMESPACE: [("pp1", "pu1", 13)]})
    story.gone("batchsandbox", "s", 18, "u1")
    return story


def test_a_restart_anywhere_changes_nothing() -> None:
    story = whole_story()
    for cut in range(1, len(story.records)):
        partition = Partition(0, 1, Story().partition.state)
        for record in story.records[:cut]:
            partition.fold(record)
        again = reloaded(partition)
        for record in story.records[cut:]:
            again.fold(record)
        assert stored(again) == stored(story.partition), cut


def test_a_crash_between_two_commits_ends_at_the_same_views() -> None:
    """Any one view committed ahead of the cursor: what depends on it comes out the same.

    Position and time apart: of a source that came and went while the sandbox's view was ahead, nothing is seen.
    """
    story = whole_story()
    for early in range(1, len(story.records) - 1):
        for late in range(early + 1, len(story.records)):
            before, after = Story().partition, Story().partition
            for record in story.records[:early]:
                before.fold(record)
            for record in story.records[:late]:
                after.fold(record)
            for aggregate, ahead in after.views.items():
                views = {**before.views, aggregate: ahead}
                crashed = Partition(0, 1, before.state, views)
                for record in story.records[early:]:
                    crashed.fold(record)
                ended = {a: _content(v) for a, v in crashed.views.items()}
                assert ended == {a: _content(v) for a, v in story.partition.views.items()}, (early, late, aggregate)


def _content(view: Any) -> bytes:
    keys = viewcodec.encode(0, replace(view, sequence=0, now=0), None)
    return b"".join(data for key, data in sorted(keys.items()) if data is not None)


# -- when ops are over


def order(story: Story, *wanted: ops.Op, kind: str = subjects.SANDBOX, name: str = "s") -> int:
    view = story.view(kind, name)
    assert view is not None
    body = Command(view.sequence, story.time + 30 * SECOND, "test", wanted)
    story.say(story._of(subjects.COMMAND, name, kind), messages.encode(body))
    return story.sequence


def answer(story: Story, command: int, *results: Result, kind: str = subjects.SANDBOX, name: str = "s") -> None:
    story.say(story._of(subjects.OUTCOME, name, kind), messages.encode(Outcome(command, results)))


def create_snapshot() -> ops.CreateSnapshot:
    return ops.CreateSnapshot("c", ops.Target("batchsandbox", "s", "u1"), "s-pause", "2", POD_TARGET)


def create_job(action: str = "commit") -> ops.CreateJob:
    name = f"s-pause-{action}"
    return ops.CreateJob("j", SNAPSHOT_TARGET, name, action, POD_TARGET, "n1", {"main": "x"})


class TestCreateSnapshot:
    def test_over_when_seen_and_not_before(self, story: Story) -> None:
        story.seen("batchsandbox", sandbox(4))
        command = order(story, create_snapshot())
        answer(story, command, Result("c", messages.DONE, "sn1", 9))
        assert open_ids(story.sandbox()) == {"c"}, "what a create reported counts as existing until observed"
        story.seen("sandboxsnapshot", snapshot(9, internal=True))
        assert open_ids(story.sandbox()) == set()

    def test_over_by_a_list_without_it(self, story: Story) -> None:
        story.list_all(3)
        story.seen("batchsandbox", sandbox(4))
        answer(story, order(story, create_snapshot()), Result("c", messages.DONE, "sn1", 9))
        story.listed(scopes.SNAPSHOTS.word, 8)
        assert open_ids(story.sandbox()) == {"c"}
        story.listed(scopes.SNAPSHOTS.word, 10)
        assert open_ids(story.sandbox()) == set()

    def test_b83_dropped_when_its_sandbox_leaves(self, story: Story) -> None:
        story.seen("batchsandbox", sandbox(4))
        order(story, create_snapshot())
        story.seen("batchsandbox", sandbox(5, deleting=True))
        assert open_ids(story.sandbox()) == set()

    def test_a_conflict_is_over_with_the_version_that_it_was_about(self, story: Story) -> None:
        story.seen("batchsandbox", sandbox(4))
        command = order(story, create_snapshot())
        answer(story, command, Result("c", messages.CONFLICT, "sn0", 9, 409, "OtherIntent"))
        assert open_ids(story.sandbox()) == {"c"}
        story.seen("sandboxsnapshot", snapshot(9, uid="sn0", internal=True))
        assert open_ids(story.sandbox()) == set()

    def test_a_refusal_is_remembered(self, story: Story) -> None:
        story.seen("batchsandbox", sandbox(4))
        answer(story, order(story, create_snapshot()), Result("c", messages.FAILED, code=403, reason="Forbidden"))
        failure = story.sandbox().failure
        assert failure is not None
        assert (failure.op, failure.object) == ("create-snapshot", "sandboxsnapshot/s-pause")


class TestCreateJob:
    def test_over_when_seen(self, story: Story) -> None:
        story.seen("sandboxsnapshot", snapshot(4))
        command = order(story, create_job(), kind=subjects.SNAPSHOT, name="s-pause")
        answer(story, command, Result("j", messages.DONE, "j1", 9), kind=subjects.SNAPSHOT, name="s-pause")
        assert open_ids(of_snapshot(story)) == {"j"}
        story.seen("job", job(9))
        assert open_ids(of_snapshot(story)) == set()

    @pytest.mark.parametrize(("action", "left"), [("commit", set()), ("unpause", {"j"})])
    def test_b56_a_leaving_snapshot_still_wants_its_pod_unpaused(
        self, story: Story, action: str, left: set[str]
    ) -> None:
        story.seen("sandboxsnapshot", snapshot(4))
        order(story, create_job(action), kind=subjects.SNAPSHOT, name="s-pause")
        story.seen("sandboxsnapshot", snapshot(5, deleting=True))
        assert open_ids(of_snapshot(story)) == left
        story.gone("sandboxsnapshot", "s-pause", 6, "sn1")
        assert open_ids(of_snapshot(story)) == set()


PATCHES: list[ops.Op] = [
    ops.RewriteTemplate("x", ops.Target("batchsandbox", "s", "u1"), 4, {"main": "i"}),
    ops.DetachFromPool("x", ops.Target("batchsandbox", "s", "u1"), 4, POD_TARGET),
    ops.PatchSandboxStatus("x", ops.Target("batchsandbox", "s", "u1"), 4, SandboxStatus()),
]


@pytest.mark.parametrize("op", PATCHES, ids=lambda op: type(op).__name__)
def test_patches_of_the_sandbox_are_over_with_their_version(story: Story, op: ops.Op) -> None:
    story.seen("batchsandbox", sandbox(4))
    answer(story, order(story, op), Result("x", messages.DONE, "u1", 9))
    story.seen("batchsandbox", sandbox(8))
    assert open_ids(story.sandbox()) == {"x"}
    story.seen("batchsandbox", sandbox(9))
    assert open_ids(story.sandbox()) == set()


def test_a_detach_whose_pod_is_missing_is_over_and_not_tried_at_once(story: Story) -> None:
    """Nothing of the sandbox would ever change: without that it stayed open for ever."""
    story.seen("batchsandbox", sandbox(4))
    answer(story, order(story, PATCHES[1]), Result("x", messages.MISSING, "u1", code=404))
    assert open_ids(story.sandbox()) == set()
    assert story.sandbox().retry_at > story.sandbox().now


def test_a_snapshots_status_is_over_with_its_version(story: Story) -> None:
    story.seen("sandboxsnapshot", snapshot(4))
    op = ops.PatchSnapshotStatus("x", SNAPSHOT_TARGET, 4, SnapshotStatus("Pending"))
    command = order(story, op, kind=subjects.SNAPSHOT, name="s-pause")
    answer(story, command, Result("x", messages.DONE, "sn1", 9), kind=subjects.SNAPSHOT, name="s-pause")
    assert open_ids(of_snapshot(story)) == {"x"}
    story.seen("sandboxsnapshot", snapshot(9, phase="Pending"))
    assert open_ids(of_snapshot(story)) == set()


def test_the_last_finalizer_of_a_leaving_snapshot_goes_once(story: Story) -> None:
    """That it is being deleted was known before: only its end shows that the patch took effect."""
    story.seen("sandboxsnapshot", snapshot(4, deleting=True))
    op = ops.PatchMetadata("x", SNAPSHOT_TARGET, 4, finalizers=())
    command = order(story, op, kind=subjects.SNAPSHOT, name="s-pause")
    answer(story, command, Result("x", messages.DONE, "sn1", 5), kind=subjects.SNAPSHOT, name="s-pause")
    assert open_ids(of_snapshot(story)) == {"x"}
    story.gone("sandboxsnapshot", "s-pause", 6, "sn1")
    assert open_ids(of_snapshot(story)) == set()


@pytest.mark.parametrize("seen", ["deleting", "gone", "another"])
def test_a_delete_of_a_snapshot_is_over_when_it_leaves(story: Story, seen: str) -> None:
    story.seen("batchsandbox", sandbox(4))
    story.seen("sandboxsnapshot", snapshot(5, internal=True))
    order(story, ops.DeleteObject("d", SNAPSHOT_TARGET))
    story.seen("sandboxsnapshot", snapshot(6, internal=True, phase="Pending"))
    assert open_ids(story.sandbox()) == {"d"}
    if seen == "deleting":
        story.seen("sandboxsnapshot", snapshot(7, internal=True, deleting=True))
    elif seen == "gone":
        story.gone("sandboxsnapshot", "s-pause", 7, "sn1")
    else:
        story.seen("sandboxsnapshot", snapshot(7, uid="sn2", internal=True))
    assert open_ids(story.sandbox()) == set()


def test_a_skipped_delete_stays_wanted(story: Story) -> None:
    story.seen("batchsandbox", sandbox(4))
    story.seen("sandboxsnapshot", snapshot(5, internal=True))
    command = order(story, PATCHES[2], ops.DeleteObject("d", SNAPSHOT_TARGET))
    answer(story, command, Result("x", messages.CONFLICT, "u1", 4), Result("d", messages.SKIPPED))
    assert "d" in open_ids(story.sandbox())


def test_a_job_is_deleted_when_it_is_gone(story: Story) -> None:
    story.seen("sandboxsnapshot", snapshot(4))
    story.seen("job", job(5))
    target = ops.Target("job", "s-pause-commit", "j1")
    order(story, ops.DeleteObject("d", target), kind=subjects.SNAPSHOT, name="s-pause")
    story.gone("job", "s-pause-commit", 6, "j1")
    assert open_ids(of_snapshot(story)) == set()
    assert of_snapshot(story).jobs["s-pause-commit"].gone
