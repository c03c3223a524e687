"""The snapshot controller's decisions (scenarios SNP-*, N-31…N-40; controller-behaviour.md §7; B43, B44, B51, B52, B56, B57, B59, B107)."""

from __future__ import annotations

import hashlib
import re
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from reconciler_model import NOW, UID, kinds, of_kind

from bus.names import SNAPSHOT_CLEANUP, job_name
from bus.ops import CreateJob, DeleteObject, PatchMetadata, PatchSnapshotStatus, RecordEvent, Target
from bus.resources import Condition, SnapshotContainer, SnapshotStatus
from bus.times import SECOND
from bus.views import Decision, Failure, InFlight, Job, Open, Pod, Reported, Snapshot, SnapshotView, Source
from reconciler.committing import digests, tag_of
from reconciler.decide import decide
from reconciler.settings import Settings
from reconciler.snapshot import ROWS, Phase, Situation, Work, row_of
from reconciler.snapshot import Source as SourceState

REGISTRY = "registry.default.svc.cluster.local:5000"
SET = Settings(snapshot_registry=REGISTRY)
ME = Target("sandboxsnapshot", "a-pause", "uid-s")
SOURCE = Source(UID, 2, "a-0", "uid-pod", "node-a", ("main", "side"))
URI = f"{REGISTRY}/a-main:snap-gen2"
CONTAINERS = (SnapshotContainer("main", URI), SnapshotContainer("side", f"{REGISTRY}/a-side:snap-gen2"))


def look(view: SnapshotView, settings: Settings = SET) -> Decision:
    return decide(view, settings)


def snap(phase: str = "", **fields: Any) -> Snapshot:
    begun = phase not in ("", "Pending")
    status = SnapshotStatus(
        phase, CONTAINERS if begun else None, (), "a-0" if begun else "", "node-a" if begun else "", 1
    )
    made: dict[str, Any] = {
        "name": "a-pause",
        "uid": "uid-s",
        "created": NOW,
        "generation": 1,
        "sandbox": "a",
        "owner": UID,
        "finalizers": (SNAPSHOT_CLEANUP,),
        "intent": "2",
        "pod_name": "a-0",
        "pod_uid": "uid-pod",
        "status": status,
    }
    return Snapshot((1, 80), **(made | fields))


def view(object: Snapshot | None, **fields: Any) -> SnapshotView:
    made: dict[str, Any] = {"sequence": 7, "now": NOW, "settled": True, "source": SOURCE}
    return SnapshotView("c1", "default", "a-pause", object=object, **(made | fields))


def committing(job: Job | None = None, pods: dict[str, Pod] | None = None, **fields: Any) -> SnapshotView:
    jobs = {} if job is None else {"a-pause-commit": job}
    return view(snap("Committing"), **({"jobs": jobs, "pods": pods or {}} | fields))


def commit_pod(result: str = "", **fields: Any) -> dict[str, Pod]:
    made = {
        "uid": "uid-cp",
        "owner": "uid-job",
        "phase": "Succeeded",
        "exit_code": 0,
        "result": result,
        "terminal": True,
    }
    return {"a-pause-commit-abcde": Pod((1, 95), **(made | fields))}


RUNNING = Job((1, 90), "uid-job")
DONE = replace(RUNNING, succeeded=1)
MESSAGE = "Job was active longer than specified deadline"
BROKEN = replace(RUNNING, failed=4, failure=MESSAGE)


def status_of(decision: Decision) -> SnapshotStatus:
    (op,) = of_kind(decision, PatchSnapshotStatus)
    made: SnapshotStatus = op.status
    return made


def only(status: SnapshotStatus) -> tuple[str, str, str]:
    (condition,) = status.conditions or ()
    return condition.type, condition.reason, condition.message


def events(decision: Decision) -> list[tuple[str, str, str]]:
    return [(op.type, op.reason, op.message) for op in of_kind(decision, RecordEvent)]


def test_no_situation_is_undefined_and_every_row_is_met() -> None:
    met = {ROWS.index(row_of(Situation(*each))) for each in product(Phase, SourceState, Work)}
    assert met == set(range(len(ROWS)))


# -- Pending


def test_snp_09_snp_10_snp_11_n31_pending_to_committing_is_one_status_write_and_the_job() -> None:
    decision = look(view(snap("")))
    assert kinds(decision) == ["PatchSnapshotStatus", "CreateJob"]
    made = status_of(decision)
    assert (made.phase, made.source_pod_name, made.source_node_name) == ("Committing", "a-0", "node-a")
    assert made.containers == CONTAINERS
    assert (made.observed_generation, made.conditions) == (1, ())
    (job,) = of_kind(decision, CreateJob)
    assert (job.name, job.action, job.snapshot, job.node) == ("a-pause-commit", "commit", ME, "node-a")
    assert job.pod == Target("pod", "a-0", "uid-pod")
    assert job.images == {"main": URI, "side": f"{REGISTRY}/a-side:snap-gen2"}
    assert events(decision) == [("Normal", "CreatedJob", "Created commit job: a-pause-commit")]


def test_b52_n36_the_containers_are_those_of_the_pod() -> None:
    """The stock controller prefers the template's; a pod is what is committed."""
    decision = look(view(snap(""), source=replace(SOURCE, containers=("sandbox-container",))))
    (container,) = status_of(decision).containers or ()
    assert container.image_uri == f"{REGISTRY}/a-sandbox-container:snap-gen2"


@pytest.mark.parametrize("registry", [REGISTRY, "r.test/" + "p" * 143])
@pytest.mark.parametrize("containers", [("main", "side"), ("c" * 63, "c" * 62 + "d")])
def test_b106_an_image_name_that_would_be_too_long_is_shortened_with_a_digest(
    registry: str, containers: tuple[str, ...]
) -> None:
    """A reference may have 255 characters up to its tag; `docker`, `nerdctl` and containerd refuse a longer one."""
    long = "a" * 126 + "." + "b" * 126
    made = []
    for sandbox in (long, long[:-1] + "c"):
        begun = view(snap("", sandbox=sandbox), source=replace(SOURCE, containers=containers))
        uris = [
            each.image_uri for each in status_of(look(begun, Settings(snapshot_registry=registry))).containers or ()
        ]
        made += uris
        for uri, container in zip(uris, containers, strict=True):
            repository, _, tag = uri.rpartition(":")
            assert len(repository) == 255
            assert (repository.startswith(registry + "/a"), tag) == (True, "snap-gen2")
            assert re.fullmatch(
                rf"[a-z0-9]+([.-][a-z0-9]+)*-[0-9a-f]{{10}}-{container}", repository[len(registry) + 1 :]
            )
    assert len(set(made)) == 4
    fits = 255 - len(f"{registry}/-{containers[0]}")
    begun = view(snap("", sandbox="a" * fits), source=replace(SOURCE, containers=containers[:1]))
    (whole,) = status_of(look(begun, Settings(snapshot_registry=registry))).containers or ()
    assert whole.image_uri == f"{registry}/{'a' * fits}-{containers[0]}:snap-gen2"


def test_n31_an_unknown_phase_is_pending() -> None:
    for phase in ("Pending", "Unheard"):
        assert kinds(look(view(snap("", status=SnapshotStatus(phase))))) == ["PatchSnapshotStatus", "CreateJob"]


def test_snp_12_a_public_snapshot_gets_its_finalizer_first_and_a_tag_of_its_name() -> None:
    name = "osb-snap-11111111222243338444555555555555"
    public = snap("", name=name, owner="", finalizers=("other",), intent="", pod_name="", pod_uid="")
    decision = look(replace(view(public), name=name))
    assert kinds(decision) == ["PatchMetadata", "PatchSnapshotStatus", "CreateJob"]
    assert decision.ops[0].finalizers == ("other", SNAPSHOT_CLEANUP)  # type: ignore[union-attr]
    assert (status_of(decision).containers or ())[0].image_uri.endswith(":snap-11111111222243338444555555555555")


@pytest.mark.parametrize(
    "name",
    ["s", "osb-snap-", "osb-snap-" + "g" * 32, "osb-snap-" + "A" * 32, "osb-snap-" + "1" * 31, "osb-snap-" + "1" * 33],
)
def test_n38_other_names_are_hashed(name: str) -> None:
    """traces.md public_snapshot: `s` is snap-043a718774c572bd8a25adbeb1bfcd5c."""
    assert tag_of(name, "", 7) == f"snap-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    assert tag_of("s", "", 7) == "snap-043a718774c572bd8a25adbeb1bfcd5c"
    assert tag_of(name, UID, 7) == "snap-gen7"


def test_b51_what_was_resolved_once_is_used_again() -> None:
    resolved = SnapshotStatus("Pending", CONTAINERS, None, "a-0", "node-a", 1)
    decision = look(view(snap("", status=resolved), source=replace(SOURCE, generation=9)))
    assert status_of(decision).containers == CONTAINERS


UNFIT = [
    pytest.param(
        {},
        Settings(),
        "RegistryNotConfigured",
        "snapshot-registry not configured in controller manager",
        id="SNP-08",
    ),
    pytest.param(
        {"source": Source(), "owner": ""},
        SET,
        "BatchSandboxLookupFailed",
        'failed to get BatchSandbox a: BatchSandbox.sandbox.opensandbox.io "a" not found',
        id="E2P-16",
    ),
    pytest.param(
        {"source": replace(SOURCE, uid="uid-another"), "created": NOW - SET.orphan_patience},
        SET,
        "BatchSandboxLookupFailed",
        'failed to get BatchSandbox a: BatchSandbox.sandbox.opensandbox.io "a" not found',
        id="another sandbox of that name",
    ),
    pytest.param(
        {"source": replace(SOURCE, pod="")},
        SET,
        "SourcePodNotFound",
        "source pod not found: no running pod found for BatchSandbox a",
        id="no pod",
    ),
    pytest.param(
        {"source": replace(SOURCE, containers=())},
        SET,
        "NoContainers",
        "no containers found in BatchSandbox a template",
        id="no containers",
    ),
]


@pytest.mark.parametrize(("fields", "given_settings", "reason", "message"), UNFIT)
def test_snp_08_e2p_16_e2p_17_n33_what_cannot_be_committed_fails_without_a_job(
    fields: dict[str, Any], given_settings: Settings, reason: str, message: str
) -> None:
    source = fields.get("source", SOURCE)
    of_object = {key: value for key, value in fields.items() if key != "source"}
    decision = look(view(snap("", **of_object), source=source), given_settings)
    assert kinds(decision) == ["PatchSnapshotStatus"]
    made = status_of(decision)
    assert (made.phase, made.observed_generation) == ("Failed", 1)
    assert only(made) == ("Failed", reason, message)


@pytest.mark.parametrize("phase", ["", "Pending", "Committing"])
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(Source(), id="gone"),
        pytest.param(replace(SOURCE, uid="uid-another"), id="replaced"),
        pytest.param(replace(SOURCE, leaving=True), id="leaving"),
        pytest.param(Source(UID, 2, leaving=True), id="leaving, its pod gone"),
    ],
)
def test_a_snapshot_whose_owner_goes_waits_a_while_for_its_own_deletion(phase: str, source: Source) -> None:
    """traces.md delete_while_pausing: `BatchSandboxLookupFailed` just before the garbage collector comes is noise."""
    orphan = view(snap(phase, created=NOW - SECOND), source=source)
    decision = look(orphan)
    assert (decision.ops, decision.wake_at) == ((), NOW - SECOND + SET.orphan_patience)
    late = look(replace(orphan, now=decision.wake_at or 0))
    assert late.ops != ()
    if not source.leaving:
        assert only(status_of(late))[1] == "BatchSandboxLookupFailed"


def test_a_users_snapshot_does_not_wait_for_a_garbage_collector() -> None:
    public = snap("", owner="", created=NOW)
    assert kinds(look(view(public, source=replace(SOURCE, leaving=True)))) == ["PatchSnapshotStatus", "CreateJob"]


def test_a_commit_that_is_over_is_told_though_its_owner_goes() -> None:
    assert status_of(look(committing(RUNNING, commit_pod(), source=Source()))).phase == "Succeed"
    assert status_of(look(committing(BROKEN, source=Source()))).phase == "Failed"


def test_b43_what_was_not_read_is_no_failure() -> None:
    assert look(view(snap(""), source=Source(), settled=False)).ops == ()


def test_b57_the_other_snapshot_of_the_pod_goes_first() -> None:
    busy = view(snap(""), source=replace(SOURCE, busy="osb-snap-1"))
    decision = look(busy)
    assert (kinds(decision), status_of(decision).phase) == (["PatchSnapshotStatus"], "Pending")
    waiting = look(replace(busy, object=snap("Pending")))
    assert (waiting.ops, waiting.wake_at is not None) == ((), True)


@pytest.mark.parametrize(
    "job", [Job((1, 70), "uid-old"), Job((1, 70), "uid-old", succeeded=1), Job((1, 70), "uid-old", failure="m")]
)
def test_a_job_of_a_snapshot_that_had_the_name_before_is_deleted_first(job: Job) -> None:
    """Its success is not ours: the garbage collector may be late."""
    decision = look(view(snap(""), jobs={"a-pause-commit": job}))
    assert [op.target.uid for op in of_kind(decision, DeleteObject)] == ["uid-old"]
    assert kinds(decision) == ["DeleteObject"]
    going = look(view(snap(""), jobs={"a-pause-commit": replace(job, deleting=True, succeeded=0)}))
    assert (going.ops, going.wake_at is not None) == ((), True)


@pytest.mark.parametrize(
    "job", [Job((1, 70), "uid-job", owner="uid-s"), Job((1, 70), "uid-job", succeeded=1, owner="uid-s")]
)
def test_its_own_job_seen_before_the_status_that_went_before_it_is_left_alone(job: Job) -> None:
    """Each kind has a watch of its own: the explorer saw the commit deleted and made again (`pause`, bridge killed)."""
    decision = look(view(snap(""), jobs={"a-pause-commit": job}))
    assert not of_kind(decision, DeleteObject)
    assert status_of(decision).phase == "Committing"


def test_n34_a_job_that_the_stock_controller_made_goes_on() -> None:
    """It writes the images first, then makes the Job, then says Committing."""
    begun = SnapshotStatus("Pending", CONTAINERS, None, "a-0", "node-a", 1)
    decision = look(view(snap("", status=begun), jobs={"a-pause-commit": RUNNING}))
    assert status_of(decision).phase == "Committing"
    assert not of_kind(decision, DeleteObject)


# -- Committing


def test_snp_01_snp_02_a_job_that_succeeded() -> None:
    decision = look(committing(DONE))
    made = status_of(decision)
    assert made.phase == "Succeed"
    assert only(made) == ("Ready", "SnapshotReady", "Snapshot is ready")
    assert (made.conditions or ())[0].last_transition_time
    assert events(decision) == [("Normal", "JobSucceeded", "Commit job succeeded")]


def test_snp_03_digests_by_container_name_and_the_pods_word_counts_before_the_jobs() -> None:
    """The Job controller takes a second more to say so."""
    result = msgspec.json.encode(
        {
            "containers": [
                {"name": "side", "image": "x", "digest": "sha256:side"},
                {"name": "main", "digest": "sha256:main"},
            ]
        }
    ).decode()
    made = status_of(look(committing(RUNNING, commit_pod(result + "\n"))))
    assert made.phase == "Succeed"
    assert [each.image_digest for each in made.containers or ()] == ["sha256:main", "sha256:side"]
    assert [each.image_uri for each in made.containers or ()] == [each.image_uri for each in CONTAINERS]


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_snp_03_a_container_beside_the_commit_neither_holds_it_up_nor_fails_it(phase: str) -> None:
    """§7.5: the container `commit` counts; its exit code is the pod slot's."""
    result = '{"containers":[{"name":"main","digest":"sha256:main"}]}'
    decision = look(committing(RUNNING, commit_pod(result, phase=phase, terminal=phase == "Failed")))
    made = status_of(decision)
    assert made.phase == "Succeed"
    assert (made.containers or ())[0].image_digest == "sha256:main"
    # Else it would run on, or commit what is later there under the same tag.
    assert [op.target.uid for op in of_kind(decision, DeleteObject)] == ["uid-job"]
    assert of_kind(look(committing(RUNNING, commit_pod(result))), DeleteObject) == []


def test_snp_03_the_pod_that_left_a_result_counts_before_one_without() -> None:
    silent = commit_pod()
    told = {"a-pause-commit-later": commit_pod('{"containers":[{"name":"main","digest":"sha256:main"}]}').popitem()[1]}
    made = status_of(look(committing(DONE, silent | told)))
    assert (made.containers or ())[0].image_digest == "sha256:main"


@pytest.mark.parametrize(
    "result", ["", "not json", '{"containers":[{"name":"main","digest":"sha', "[]", '{"containers":1}']
)
def test_n37_b44_a_result_that_cannot_be_read_is_success_without_digests(result: str) -> None:
    made = status_of(look(committing(RUNNING, commit_pod(result))))
    assert (made.phase, made.containers) == ("Succeed", CONTAINERS)
    assert digests(result) == {}


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param(commit_pod(phase="Failed", exit_code=1), id="a failed try"),
        pytest.param(commit_pod(owner="uid-old-job"), id="the pod of an earlier Job of that name"),
        pytest.param(commit_pod(exit_code=1), id="non-zero"),
        pytest.param(commit_pod(phase="Running", exit_code=None), id="running"),
    ],
)
def test_snp_05_n37_other_pods_do_not_end_a_commit(pods: dict[str, Pod]) -> None:
    decision = look(committing(replace(RUNNING, failed=1), pods))
    assert (decision.ops, decision.wake_at is not None) == ((), True)


def test_snp_06_snp_07_n35_b56_a_job_that_gave_up() -> None:
    decision = look(committing(BROKEN))
    assert kinds(decision) == ["PatchSnapshotStatus", "CreateJob"]
    made = status_of(decision)
    assert made.phase == "Failed"
    assert only(made) == ("Failed", "CommitJobFailed", MESSAGE)
    (job,) = of_kind(decision, CreateJob)
    assert (job.name, job.action, job.node) == ("a-pause-unpause", "unpause", "node-a")
    assert (job.pod, job.images) == (Target("pod", "a-0", "uid-pod"), {"main": "", "side": ""})
    assert events(decision) == [("Warning", "JobFailed", "Commit job failed")]


def test_n40_no_unpause_job_without_the_data_or_beside_another() -> None:
    bare = replace(snap("Committing"), status=SnapshotStatus("Committing", CONTAINERS))
    assert kinds(look(replace(committing(BROKEN), object=bare))) == ["PatchSnapshotStatus"]
    both = {"a-pause-commit": BROKEN, "a-pause-unpause": Job((1, 92), "uid-u")}
    assert kinds(look(committing(jobs=both))) == ["PatchSnapshotStatus"]


def test_the_unpause_job_follows_where_the_chain_was_cut() -> None:
    failed = snap("Failed")
    assert kinds(look(view(failed, jobs={"a-pause-commit": BROKEN}))) == ["CreateJob"]
    made = {"a-pause-commit": BROKEN, "a-pause-unpause": Job((1, 92), gone=True)}
    assert look(view(failed, jobs=made)).ops == ()
    assert look(view(failed)).ops == ()


@pytest.mark.parametrize("job", [None, Job((1, 91), "uid-job", gone=True)])
def test_n34_b51_a_missing_job_is_made_again_of_the_same_images(job: Job | None) -> None:
    decision = look(committing(job, source=replace(SOURCE, generation=9, containers=("other",))))
    assert kinds(decision) == ["CreateJob"]
    (made,) = of_kind(decision, CreateJob)
    assert (made.images["main"], made.node, made.pod.uid) == (URI, "node-a", "uid-pod")


def test_a_missing_job_whose_source_is_gone_fails() -> None:
    decision = look(committing(None, source=replace(SOURCE, pod="")))
    assert only(status_of(decision))[1] == "SourcePodNotFound"


def test_a_job_that_goes_is_waited_for() -> None:
    assert look(committing(replace(RUNNING, deleting=True))).ops == ()


def refused(code: int, reason: str = "Forbidden") -> Failure:
    return Failure("create-job", "job/a-pause-commit", code, reason, "exceeded quota", NOW - SECOND)


def test_n34_a_refusal_that_may_pass_is_told_with_the_next_try() -> None:
    held = committing(None, failure=refused(403), tries=2, retry_at=NOW + SECOND)
    assert (look(held).ops, look(held).wake_at) == ((), NOW + SECOND)
    decision = look(replace(held, now=NOW + SECOND))
    assert kinds(decision) == ["CreateJob"]
    assert events(decision)[0] == ("Warning", "FailedCreateJob", "Failed to create commit job: exceeded quota")


def test_n33_a_job_that_will_never_be_taken_fails_the_snapshot() -> None:
    decision = look(committing(None, failure=refused(422, "Invalid"), tries=2, retry_at=NOW + SECOND))
    assert only(status_of(decision)) == ("Failed", "BuildCommitJobFailed", "failed to build commit job: exceeded quota")
    assert events(decision) == [("Warning", "FailedCreateJob", "Failed to create commit job: exceeded quota")]


def test_an_old_job_of_the_name_is_not_taken_for_the_new_one() -> None:
    """Its deletion is ordered and not seen: what is known of it says nothing."""
    op = DeleteObject("old:1:0", Target("job", "a-pause-commit", "uid-job"))
    opened = (Open(op, 5, {"job/a-pause-commit": Reported("done")}),)
    assert look(committing(DONE, open=opened)).ops == ()


def test_a_commit_that_is_over_at_once_does_not_wait_for_its_own_create_to_close() -> None:
    op = CreateJob("old:1:0", ME, "a-pause-commit", "commit", Target("pod", "a-0", "uid-pod"), "node-a", {})
    opened = (Open(op, 5, {"job/a-pause-commit": Reported("done", "uid-job", (1, 99))}),)
    assert status_of(look(committing(RUNNING, commit_pod(), open=opened))).phase == "Succeed"


# -- over


@pytest.mark.parametrize("phase", ["Succeed", "Failed"])
def test_snp_04_n31_a_terminal_phase_never_changes(phase: str) -> None:
    for job in (RUNNING, DONE, replace(BROKEN, failure="late")):
        decision = look(view(snap(phase), jobs={"a-pause-commit": job, "a-pause-unpause": DONE}, source=Source()))
        assert decision.ops == ()


def test_b59_an_edit_is_acknowledged_and_the_conditions_stay() -> None:
    why = Condition("Failed", "True", "CommitJobFailed", "m", "2025-12-31T23:50:00Z")
    edited = snap("Failed", generation=2, status=replace(snap("Failed").status, conditions=(why,)))
    made = status_of(look(view(edited)))
    assert (made.observed_generation, made.conditions, made.phase) == (2, (why,), "Failed")
    again = look(view(replace(edited, status=made)))
    assert again.ops == ()


# -- deletion


def leaving(phase: str, **fields: Any) -> SnapshotView:
    return view(snap(phase, deleting=True), **fields)


def test_n32_the_jobs_then_the_finalizer_in_one_chain() -> None:
    both = {"a-pause-commit": DONE, "a-pause-unpause": replace(DONE, uid="uid-u")}
    decision = look(leaving("Succeed", jobs=both))
    assert kinds(decision) == ["DeleteObject", "DeleteObject", "PatchMetadata"]
    assert [op.target for op in of_kind(decision, DeleteObject)] == [
        Target("job", "a-pause-commit", "uid-job"),
        Target("job", "a-pause-unpause", "uid-u"),
    ]
    assert of_kind(decision, PatchMetadata)[0].finalizers == ()


@pytest.mark.parametrize("phase", ["", "Pending", "Succeed", "Failed"])
@pytest.mark.parametrize("settled", [True, False])
def test_a_snapshot_without_jobs_goes_at_once(phase: str, settled: bool) -> None:
    assert kinds(look(leaving(phase, settled=settled))) == ["PatchMetadata"]


def test_b56_a_commit_that_is_cut_short_is_unpaused_before_the_finalizer_goes() -> None:
    first = look(leaving("Committing", jobs={"a-pause-commit": RUNNING}))
    assert kinds(first) == ["DeleteObject", "CreateJob"]
    assert of_kind(first, CreateJob)[0].action == "unpause"
    gone = replace(RUNNING, gone=True)
    running = {"a-pause-commit": gone, "a-pause-unpause": Job((1, 92), "uid-u")}
    waiting = look(leaving("Committing", jobs=running))
    assert (waiting.ops, waiting.wake_at is not None) == ((), True)
    for over in ({"succeeded": 1}, {"failure": "m"}, {"gone": True}):
        ended = running | {"a-pause-unpause": replace(running["a-pause-unpause"], **over)}
        assert kinds(look(leaving("Committing", jobs=ended)))[-1] == "PatchMetadata"
    by_pod = {"a-pause-unpause-x": Pod((1, 95), "uid-up", owner="uid-u", phase="Failed", exit_code=1)}
    assert kinds(look(leaving("Committing", jobs=running, pods=by_pod))) == ["DeleteObject", "PatchMetadata"]
    beside = {"a-pause-unpause-x": replace(by_pod["a-pause-unpause-x"], phase="Running", exit_code=0)}
    assert kinds(look(leaving("Committing", jobs=running, pods=beside))) == ["DeleteObject", "PatchMetadata"]


@pytest.mark.parametrize("job", [Job((1, 92), "uid-u"), None])
def test_8_6_8_8_the_wait_for_the_unpause_job_has_a_bound_of_ours(job: Job | None) -> None:
    """That Job's own deadline is kept by another, and may be hours; also where its creation gets no answer."""
    jobs = {"a-pause-commit": replace(RUNNING, gone=True)} | ({"a-pause-unpause": job} if job else {})
    op = CreateJob("old:1:0", ME, "a-pause-unpause", "unpause", Target("pod", "a-0", "uid-pod"), "node-a", {})
    opened = () if job else (Open(op, 5, {"job/a-pause-unpause": Reported()}),)
    object = snap("Committing", deleting=True, deletion_time=NOW - 10 * SECOND)
    waiting = view(object, jobs=jobs, open=opened, retry_at=NOW + SECOND)
    end = object.deletion_time + SET.unpause_patience
    for now in (NOW, end - SECOND):
        decision = look(replace(waiting, now=now))
        assert not of_kind(decision, PatchMetadata)
        assert decision.ops or decision.wake_at is not None
        assert decision.wake_at is None or decision.wake_at <= end
    assert kinds(look(replace(waiting, now=end)))[-1] == "PatchMetadata"


def test_8_6_nothing_keeps_the_finalizer() -> None:
    """No source left, an unpause Job that is refused, Jobs that cannot be deleted, ops that are open: it goes."""
    jobs = {"a-pause-commit": RUNNING}
    no_pod = look(leaving("Committing", jobs=jobs, source=replace(SOURCE, pod="")))
    assert kinds(no_pod) == ["DeleteObject", "PatchMetadata"]
    no_job = Failure("create-job", "job/a-pause-unpause", 403, "Forbidden", "m", NOW - SECOND)
    assert kinds(look(leaving("Committing", jobs=jobs, failure=no_job))) == ["DeleteObject", "PatchMetadata"]
    no_delete = Failure("delete-object", "job/a-pause-commit", 403, "Forbidden", "m", NOW - SECOND)
    assert kinds(look(leaving("Succeed", jobs=jobs, failure=no_delete))) == ["PatchMetadata"]
    op = PatchSnapshotStatus("old:1:0", ME, 79, SnapshotStatus("Committing"))
    opened = (Open(op, 5, {"sandboxsnapshot/a-pause": Reported()}),)
    assert kinds(look(leaving("Succeed", open=opened))) == ["PatchMetadata"]


def test_n32_a_finalizer_that_is_being_dropped_is_not_dropped_twice_nor_anothers() -> None:
    op = PatchMetadata("old:1:0", ME, 79, finalizers=())
    assert look(leaving("Succeed", open=(Open(op, 5, {"sandboxsnapshot/a-pause": Reported("done")}),))).ops == ()
    lost = look(leaving("Succeed", open=(Open(op, 5, {"sandboxsnapshot/a-pause": Reported()}),)))
    assert lost.ops == (op,)
    others = snap("Succeed", deleting=True, finalizers=("other",))
    assert look(view(others)).ops == ()


# -- always


def test_b107_events_are_named_by_the_op_they_follow() -> None:
    decision = look(committing(DONE))
    (op,) = of_kind(decision, PatchSnapshotStatus)
    (event,) = of_kind(decision, RecordEvent)
    assert event.id == f"{op.id}/event"
    begun = look(view(snap("")))
    lost = tuple(Open(each, 5, {f"job/{each.name}": Reported()}) for each in of_kind(begun, CreateJob))
    again = look(view(snap("Committing"), open=lost))
    assert [op.id for op in of_kind(again, RecordEvent)] == [op.id for op in of_kind(begun, RecordEvent)]


def test_a_command_in_flight_is_waited_for() -> None:
    flying = look(view(snap(""), in_flight=InFlight(3, NOW + 30 * SECOND)))
    assert (flying.ops, flying.wake_at) == ((), NOW + 30 * SECOND)


def test_b106_long_names_keep_their_jobs_within_a_label() -> None:
    name = "a" * 250
    decision = look(replace(view(snap("", name=name)), name=name))
    assert [len(op.name) <= 63 for op in of_kind(decision, CreateJob)] == [True]


@st.composite
def views(draw: st.DrawFn) -> SnapshotView:
    def a_job(uid: str) -> Job | None:
        return draw(
            st.sampled_from(
                [None, Job((1, 90), uid), Job((1, 90), uid, succeeded=1), Job((1, 90), uid, failure="m"),
                 Job((1, 90), uid, deleting=True), Job((1, 90), uid, gone=True)]
            )
        )  # fmt: skip

    jobs = {"a-pause-commit": a_job("uid-job"), "a-pause-unpause": a_job("uid-u")}
    object = snap(
        draw(st.sampled_from(["", "Pending", "Committing", "Committing", "Succeed", "Failed"])),
        created=NOW - draw(st.sampled_from([0, 3600])) * SECOND,
        deletion_time=draw(st.sampled_from([0, NOW, NOW - 3600 * SECOND])),
        owner=draw(st.sampled_from([UID, UID, ""])),
        deleting=draw(st.integers(0, 2)) == 0,
        generation=draw(st.sampled_from([1, 2])),
        finalizers=draw(st.sampled_from([(), (SNAPSHOT_CLEANUP,)])),
    )
    return view(
        object,
        jobs={name: job for name, job in jobs.items() if job is not None},
        pods=draw(st.sampled_from([{}, commit_pod(), commit_pod(phase="Failed", exit_code=1)])),
        source=draw(
            st.sampled_from(
                [
                    SOURCE,
                    SOURCE,
                    Source(),
                    replace(SOURCE, leaving=True),
                    replace(SOURCE, pod=""),
                    replace(SOURCE, busy="x"),
                ]
            )
        ),
        failure=draw(st.sampled_from([None, None, refused(403), refused(422)])),
        settled=draw(st.integers(0, 4)) > 0,
    )


@settings(max_examples=500, deadline=None)
@given(views())
def test_every_snapshot_acts_waits_with_a_timer_or_is_over(made: SnapshotView) -> None:
    decision = look(made)
    assert made.object is not None
    if decision.ops or decision.wake_at is not None or not made.settled:
        return
    if made.object.deleting:
        assert SNAPSHOT_CLEANUP not in made.object.finalizers
    else:
        assert made.object.status.phase in ("Succeed", "Failed")


@settings(max_examples=500, deadline=None)
@given(views())
def test_a_terminal_phase_and_resolved_images_stay_in_every_write(made: SnapshotView) -> None:
    assert made.object is not None
    before = made.object.status
    for op in look(made).ops:
        if isinstance(op, PatchSnapshotStatus):
            if before.phase in ("Succeed", "Failed"):
                assert op.status.phase == before.phase
            if before.containers:
                assert [each.image_uri for each in op.status.containers or ()] == [
                    each.image_uri for each in before.containers
                ]
        if isinstance(op, CreateJob) and op.action == "commit":
            assert not made.object.deleting
            assert made.source.busy == ""
            assert op.name == job_name("a-pause", "commit")
