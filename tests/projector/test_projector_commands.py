"""DESIGN §5, what is open: how commands, outcomes and observations open and close ops."""

from __future__ import annotations

import pytest
from projector_world import (
    CLUSTER,
    NAMESPACE,
    Story,
    annotate,
    create,
    delete,
    open_ids,
    patch_status,
    pod,
    reloaded,
    sandbox,
)

from bus import messages, ops, scopes, subjects
from bus.messages import Created, Result
from bus.ops import Target
from bus.times import SECOND
from bus.views import Reported, backoff

PODS, SANDBOXES = scopes.SANDBOX_PODS.word, scopes.SANDBOXES.word


@pytest.fixture
def story() -> Story:
    """A sandbox `s`, seen at version 10."""
    told = Story()
    told.seen("batchsandbox", sandbox(10))
    return told


def done(id: str, rv: int = 0, uid: str = "") -> Result:
    return Result(id, messages.DONE, uid, rv)


def created(id: str, **names: Created) -> Result:
    return Result(id, messages.DONE, names={name.replace("_", "-"): made for name, made in names.items()})


# -- Commands


def test_a_command_is_in_flight_and_its_ops_are_open(story: Story) -> None:
    view = story.sandbox().sequence
    at = story.command(create(0, 1), delete("x", "px"))
    after = story.sandbox()
    assert after.last_command == at
    assert after.in_flight is not None
    assert after.in_flight.sequence == at
    assert [(item.op.id, item.since, sorted(item.waits)) for item in after.open] == [
        ("op1", view, ["pod/s-0", "pod/s-1"]),
        ("del1", view, ["pod/x"]),
    ]


def test_an_event_is_never_open(story: Story) -> None:
    event = ops.RecordEvent("ev", Target("batchsandbox", "s", "u1"), "c", "Normal", "R", "m", 1)
    at = story.command(event)
    assert story.sandbox().open == ()
    story.outcome(at, Result("ev", messages.ACCEPTED))
    assert story.sandbox().in_flight is None
    assert story.sandbox().tries == 0


def test_a_reissue_keeps_id_and_since_and_what_was_reported(story: Story) -> None:
    at = story.command(create(0))
    since = story.sandbox().open[0].since
    story.outcome(at, created("op1", s_0=Created(messages.DONE, "p1", 20)))
    waits = story.sandbox().open[0].waits
    again = story.command(create(0))
    (item,) = story.sandbox().open
    assert (item.since, item.waits) == (since, waits)
    assert story.sandbox().last_command == again


@pytest.mark.parametrize("headers", [{messages.SCHEMA_HEADER: "2"}, {messages.SCHEMA_HEADER: "9" * 5000}, None])
def test_the_position_of_a_command_that_cannot_be_read_counts(story: Story, headers: dict[str, str] | None) -> None:
    story.command(create(0))
    folded = story.say(f"log.0.{CLUSTER}.{NAMESPACE}.cmd.sandbox.s", b"[" * 9999, headers=headers)
    assert folded.error
    assert story.sandbox().last_command == story.sequence
    assert story.sandbox().in_flight is None
    assert open_ids(story.sandbox()) == {"op1"}


def test_a_command_makes_its_view_in_any_order() -> None:
    story = Story()
    at = story.command(create(0), view=0)
    assert story.sandbox().last_command == at


# -- Creates


def test_a_create_is_over_when_its_name_is_seen_before_the_outcome(story: Story) -> None:
    at = story.command(create(0, 1))
    story.seen("pod", pod(20))
    assert set(story.sandbox().open[0].waits) == {"pod/s-1"}
    story.seen("pod", pod(21, "s-1", "p2"))
    assert story.sandbox().open == ()
    story.outcome(at, created("op1", s_0=Created(messages.DONE, "p1", 20), s_1=Created(messages.DONE, "p2", 21)))
    assert story.sandbox().open == ()
    assert story.sandbox().in_flight is None


def test_a_create_reported_waits_for_that_version(story: Story) -> None:
    at = story.command(create(0))
    story.outcome(at, created("op1", s_0=Created(messages.DONE, "p1", 20)))
    assert story.sandbox().open[0].waits == {"pod/s-0": Reported(messages.DONE, "p1", (1, 20))}
    story.seen("pod", pod(20))
    assert story.sandbox().open == ()


def test_a_create_ordered_where_the_name_was_seen_gone_is_not_over_by_what_was_known(story: Story) -> None:
    story.seen("pod", pod(11))
    story.gone("pod", "s-0", 12)
    at = story.command(create(0))
    assert open_ids(story.sandbox()) == {"op1"}
    story.outcome(at, created("op1", s_0=Created(messages.DONE, "p2", 20)))
    assert open_ids(story.sandbox()) == {"op1"}
    story.gone("pod", "s-0", 12)
    assert open_ids(story.sandbox()) == {"op1"}


def test_what_a_create_reported_exists_until_a_list_confirms_it_gone(story: Story) -> None:
    at = story.command(create(0))
    story.outcome(at, created("op1", s_0=Created(messages.DONE, "p1", 20)))
    story.listed(PODS, 19)
    assert open_ids(story.sandbox()) == {"op1"}
    story.listed(PODS, 20)
    assert story.sandbox().open == ()


@pytest.mark.parametrize("other", [scopes.POOL_PODS.word, scopes.COMMIT_PODS.word])
def test_a_list_of_other_pods_confirms_nothing(story: Story, other: str) -> None:
    at = story.command(create(0))
    story.outcome(at, created("op1", s_0=Created(messages.DONE, "p1", 20)))
    story.listed(other, 30)
    assert open_ids(story.sandbox()) == {"op1"}


def test_a_create_without_an_outcome_is_not_over_by_a_list(story: Story) -> None:
    """It may still take effect: a stalled executor wakes up."""
    story.command(create(0))
    story.listed(PODS, 50)
    story.tick(story.time, after=60)
    assert story.sandbox().in_flight is None
    story.listed(PODS, 60)
    assert open_ids(story.sandbox()) == {"op1"}


@pytest.mark.parametrize("first", ["outcome", "observation"])
def test_a_create_in_conflict_waits_for_its_sandbox_at_the_live_version(story: Story, first: str) -> None:
    at = story.command(create(0))
    steps = {
        "outcome": lambda: story.outcome(at, Result("op1", messages.CONFLICT, resource_version=15)),
        "observation": lambda: story.seen("batchsandbox", sandbox(15, generation=2)),
    }
    steps.pop(first)()
    assert open_ids(story.sandbox()) == {"op1"}
    steps.popitem()[1]()
    assert story.sandbox().open == ()


def test_a_create_in_conflict_without_a_version_is_planned_afresh(story: Story) -> None:
    at = story.command(create(0))
    story.outcome(at, Result("op1", messages.CONFLICT))
    assert story.sandbox().open == ()


def test_a_create_is_over_name_by_name(story: Story) -> None:
    at = story.command(create(0, 1, 2, 3))
    story.outcome(
        at,
        Result(
            "op1",
            messages.FAILED,
            names={
                "s-0": Created(messages.DONE, "p0", 20),
                "s-1": Created(messages.FAILED, code=403, reason="Forbidden", message="quota"),
                "s-2": Created(messages.UNFINISHED),
                "s-3": Created(messages.SKIPPED),
            },
        ),
    )
    view = story.sandbox()
    assert set(view.open[0].waits) == {"pod/s-0", "pod/s-2"}
    assert view.failure is not None
    assert (view.failure.op, view.failure.object, view.failure.code) == ("create-pods", "pod/s-1", 403)


@pytest.mark.parametrize("order", ["gone first", "command first"])
@pytest.mark.parametrize("how", ["gone", "deleting", "replaced"])
@pytest.mark.parametrize("end", ["missing", "lost"])
def test_creates_end_with_their_sandbox(story: Story, order: str, how: str, end: str) -> None:
    """Whichever of the command and the sandbox's end is folded first, and whatever became of the outcome."""
    view = story.sandbox().sequence

    def leave() -> None:
        if how == "gone":
            story.gone("batchsandbox", "s", 15, "u1")
        else:
            uid = "u2" if how == "replaced" else "u1"
            story.seen("batchsandbox", sandbox(15, uid=uid, deleting=how == "deleting"))

    if order == "gone first":
        leave()
        at = story.command(create(0), view=view)
    else:
        at = story.command(create(0), view=view)
        leave()
    if end == "missing":
        story.outcome(at, Result("op1", messages.MISSING))
    else:
        story.tick(story.time, after=60)
    assert story.sandbox().open == ()
    assert story.sandbox().in_flight is None


def test_a_create_whose_sandbox_was_never_seen_ends_with_a_list_that_lacks_it() -> None:
    story = Story()
    at = story.command(create(0), view=0)
    story.outcome(at, Result("op1", messages.MISSING))
    assert open_ids(story.sandbox()) == {"op1"}
    story.list_all(30)
    assert story.view(subjects.SANDBOX, "s") is None


# -- Deletes


def test_a_delete_is_over_when_its_uid_is_seen_deleting(story: Story) -> None:
    story.seen("pod", pod(11))
    at = story.command(delete())
    story.seen("pod", pod(12, ready=True))
    assert open_ids(story.sandbox()) == {"del1"}
    story.seen("pod", pod(13, deleting=True))
    assert story.sandbox().open == ()
    story.outcome(at, done("del1", 13))
    assert story.sandbox().in_flight is None


@pytest.mark.parametrize("first", ["outcome", "observation"])
def test_a_delete_is_over_when_its_uid_is_gone(story: Story, first: str) -> None:
    story.seen("pod", pod(11))
    at = story.command(delete())
    steps = {
        "outcome": lambda: story.outcome(at, done("del1", 13)),
        "observation": lambda: story.gone("pod", "s-0", 14),
    }
    steps.pop(first)()
    steps.popitem()[1]()
    assert story.sandbox().open == ()


def test_a_delete_is_over_when_the_name_is_another_objects(story: Story) -> None:
    story.seen("pod", pod(11))
    story.command(delete())
    story.seen("pod", pod(14, uid="p2"))
    assert story.sandbox().open == ()


def test_a_delete_once_ordered_stays_wanted(story: Story) -> None:
    story.seen("pod", pod(11))
    at = story.command(annotate(10), delete())
    story.outcome(at, Result("ann1", messages.CONFLICT, resource_version=12), Result("del1", messages.SKIPPED))
    assert "del1" in open_ids(story.sandbox())


def test_a_delete_of_what_was_gone_and_forgotten_ends_with_the_next_list(story: Story) -> None:
    """Its pod's tombstone is swept between the decision and the command: no observation of it will ever come."""
    story.seen("pod", pod(11))
    view = story.sandbox().sequence
    story.gone("pod", "s-0", 12)
    story.listed(PODS, 13)
    story.command(delete(), view=view)
    story.tick(story.time, after=60)
    assert open_ids(story.sandbox()) == {"del1"}
    story.listed(PODS, 14)
    assert story.sandbox().open == ()


def test_missing_is_final_for_what_is_not_known(story: Story) -> None:
    at = story.command(delete())
    story.outcome(at, Result("del1", messages.MISSING))
    assert story.sandbox().open == ()


def test_missing_waits_for_the_observation_of_what_is_known(story: Story) -> None:
    story.seen("pod", pod(11))
    at = story.command(delete())
    story.outcome(at, Result("del1", messages.MISSING))
    assert open_ids(story.sandbox()) == {"del1"}
    story.gone("pod", "s-0", 12)
    assert story.sandbox().open == ()


def test_a_delete_whose_deletion_was_lost_ends_with_a_list(story: Story) -> None:
    story.seen("pod", pod(11))
    at = story.command(delete())
    story.outcome(at, done("del1", 12))
    story.listed(PODS, 15)
    assert story.sandbox().open == ()


# -- Patches


@pytest.mark.parametrize("first", ["outcome", "observation"])
def test_a_patch_is_over_at_the_version_it_reported(story: Story, first: str) -> None:
    at = story.command(annotate(10))
    if first == "observation":
        story.seen("batchsandbox", sandbox(11))
        assert open_ids(story.sandbox()) == {"ann1"}, "while its command is out, that may be another's version"
    story.outcome(at, done("ann1", 11))
    if first == "outcome":
        assert open_ids(story.sandbox()) == {"ann1"}
        story.seen("batchsandbox", sandbox(11))
    assert story.sandbox().open == ()


@pytest.mark.parametrize("order", ["oo12", "1oo2", "12oo"])
def test_of_two_patches_the_firsts_observation_does_not_close_the_second(story: Story, order: str) -> None:
    at = story.command(annotate(10), patch_status(10))
    seen: set[str] = set()
    told = False
    for step in order.replace("oo", "o"):
        if step == "o":
            story.outcome(at, done("ann1", 11), done("st1", 12))
            told = True
        else:
            story.seen("batchsandbox", sandbox(10 + int(step)))
            seen.add(step)
        still = {id for id, mark in (("ann1", "1"), ("st1", "2")) if not (told and mark in seen)}
        if "2" in seen and told:
            still = set()
        assert open_ids(story.sandbox()) == still


def test_an_unfinished_second_patch_is_not_over_by_the_first(story: Story) -> None:
    at = story.command(annotate(10), patch_status(10))
    story.outcome(at, done("ann1", 11), Result("st1", messages.UNFINISHED))
    story.seen("batchsandbox", sandbox(11))
    assert open_ids(story.sandbox()) == {"st1"}
    story.seen("batchsandbox", sandbox(12))
    assert story.sandbox().open == ()


def test_an_unfinished_second_patch_that_never_happened_ends_by_its_reissue(story: Story) -> None:
    at = story.command(annotate(10), patch_status(10))
    story.outcome(at, done("ann1", 11), Result("st1", messages.UNFINISHED))
    story.seen("batchsandbox", sandbox(11))
    at = story.command(patch_status(10))
    story.outcome(at, Result("st1", messages.CONFLICT, resource_version=11))
    assert story.sandbox().open == ()


def test_a_patch_past_its_precondition_is_over_once_its_command_expired(story: Story) -> None:
    story.command(annotate(10))
    story.seen("batchsandbox", sandbox(12))
    story.tick(story.time, after=60)
    assert story.sandbox().open == ()


def test_a_patch_not_past_its_precondition_stays_open_when_its_command_expires(story: Story) -> None:
    story.command(annotate(10))
    story.tick(story.time, after=60)
    assert open_ids(story.sandbox()) == {"ann1"}
    story.seen("batchsandbox", sandbox(11))
    assert story.sandbox().open == ()


@pytest.mark.parametrize("first", ["outcome", "observation"])
def test_a_patch_in_conflict_is_over_at_the_live_version(story: Story, first: str) -> None:
    at = story.command(annotate(10))
    steps = {
        "outcome": lambda: story.outcome(at, Result("ann1", messages.CONFLICT, resource_version=15)),
        "observation": lambda: story.seen("batchsandbox", sandbox(15)),
    }
    steps.pop(first)()
    assert open_ids(story.sandbox()) == {"ann1"}
    steps.popitem()[1]()
    assert story.sandbox().open == ()


def test_a_patch_in_conflict_without_a_version_is_over_past_its_precondition(story: Story) -> None:
    at = story.command(annotate(10))
    story.outcome(at, Result("ann1", messages.CONFLICT))
    assert open_ids(story.sandbox()) == {"ann1"}
    story.seen("batchsandbox", sandbox(11))
    assert story.sandbox().open == ()


def test_a_conflict_after_a_restored_etcd_is_over_below_its_precondition(story: Story) -> None:
    """The precondition is a version of the lost past, which the new one may not reach for a long time."""
    story.seen("batchsandbox", sandbox(1000))
    at = story.command(annotate(1000))
    story.raised(2)
    story.seen("batchsandbox", sandbox(400))
    story.outcome(at, Result("ann1", messages.CONFLICT, resource_version=400))
    assert story.sandbox().open == ()


def test_a_delete_of_an_expired_sandbox_is_over_when_it_leaves(story: Story) -> None:
    op = ops.DeleteExpired("exp1", Target("batchsandbox", "s", "u1"), 10, 5)
    at = story.command(op)
    story.outcome(at, done("exp1", 11))
    story.seen("batchsandbox", sandbox(11))
    assert open_ids(story.sandbox()) == {"exp1"}
    story.seen("batchsandbox", sandbox(12, deleting=True))
    assert story.sandbox().open == ()


def test_early_ends_the_op_and_waits(story: Story) -> None:
    op = ops.DeleteExpired("exp1", Target("batchsandbox", "s", "u1"), 10, 5)
    at = story.command(op)
    story.outcome(at, Result("exp1", messages.EARLY))
    view = story.sandbox()
    assert view.open == ()
    assert view.failure is None
    assert view.retry_at == view.now + backoff(1)


# -- Tries and failures


@pytest.mark.parametrize("word", [messages.FAILED, messages.UNKNOWN])
def test_a_refusal_ends_the_op_counts_a_try_and_is_kept(story: Story, word: str) -> None:
    at = story.command(create(0))
    story.outcome(at, Result("op1", word, code=422, reason="Invalid", message="no"))
    view = story.sandbox()
    assert view.open == ()
    assert view.failure is not None
    assert (view.failure.code, view.failure.reason, view.failure.generation, view.failure.at) == (
        422,
        "Invalid",
        1,
        view.now,
    )
    assert (view.tries, view.retry_at) == (1, view.now + 1 * SECOND)


def test_tries_back_off(story: Story) -> None:
    for n, wait in enumerate((1, 2, 4, 8), start=1):
        at = story.command(create(0, id=f"op{n}"))
        story.outcome(at, Result(f"op{n}", messages.FAILED, code=403))
        assert (story.sandbox().tries, story.sandbox().retry_at - story.sandbox().now) == (n, wait * SECOND)


def test_kinds_that_are_refused_in_turn_all_back_off_until_they_work(story: Story) -> None:
    """With no rights at all (an API server that has just started) creates and status writes would else be tried in turn without a pause."""
    at = story.command(patch_status(10))
    story.outcome(at, Result("st1", messages.FAILED, code=403))
    at = story.command(create(0))
    story.outcome(at, Result("op1", messages.FAILED, code=403))
    view = story.sandbox()
    assert view.failure is not None
    assert (view.failure.object, view.failure.also, view.tries) == ("pod/s-0", ("batchsandbox",), 2)
    at = story.command(patch_status(10))
    story.outcome(at, done("st1", 11))
    view = story.sandbox()
    assert view.failure is not None
    assert (view.failure.object, view.failure.also) == ("pod/s-0", ())


def test_writing_a_failure_down_does_not_mend_it(story: Story) -> None:
    at = story.command(create(0))
    story.outcome(at, Result("op1", messages.FAILED, code=403))
    at = story.command(patch_status(10))
    story.outcome(at, done("st1", 11))
    assert story.sandbox().failure is not None
    assert story.sandbox().tries == 1


@pytest.mark.parametrize("first", ["outcome", "observation"])
def test_a_failure_is_over_when_an_op_of_its_kind_succeeds(story: Story, first: str) -> None:
    at = story.command(create(0))
    story.outcome(at, Result("op1", messages.FAILED, code=403))
    at = story.command(create(0, id="op2"))
    if first == "observation":
        story.seen("pod", pod(20))
    story.outcome(at, created("op2", s_0=Created(messages.DONE, "p1", 20)))
    if first == "outcome":
        story.seen("pod", pod(20))
    view = story.sandbox()
    assert (view.failure, view.tries, view.retry_at, view.open) == (None, 0, 0, ())


def test_a_failure_is_not_over_by_the_names_that_did_succeed_with_it(story: Story) -> None:
    at = story.command(create(0, 1))
    names = {"s-0": Created(messages.DONE, "p1", 20), "s-1": Created(messages.FAILED, code=403)}
    story.outcome(at, Result("op1", messages.FAILED, names=names))
    story.seen("pod", pod(20))
    assert story.sandbox().failure is not None


def test_another_sandbox_of_that_name_starts_without_the_formers_failures(story: Story) -> None:
    """Identity is uid (DESIGN §8.9)."""
    at = story.command(create(0))
    story.outcome(at, Result("op1", messages.FAILED, code=403))
    story.seen("batchsandbox", sandbox(30, uid="u2"))
    view = story.sandbox()
    assert (view.failure, view.tries, view.retry_at) == (None, 0, 0)


@pytest.mark.parametrize("word", [messages.EXPIRED, messages.UNFINISHED])
def test_what_had_no_time_stays_open_and_backs_off(story: Story, word: str) -> None:
    at = story.command(create(0))
    story.outcome(at, Result("op1", word))
    view = story.sandbox()
    assert open_ids(view) == {"op1"}
    assert (view.in_flight, view.tries) == (None, 1)
    assert view.failure is None


def test_skipped_ops_are_planned_afresh(story: Story) -> None:
    at = story.command(annotate(10), create(0), patch_status(10))
    story.outcome(
        at,
        Result("ann1", messages.CONFLICT, resource_version=12),
        Result("op1", messages.SKIPPED),
        Result("st1", messages.SKIPPED),
    )
    assert open_ids(story.sandbox()) == {"ann1"}


def test_an_outcome_that_says_nothing_is_no_success(story: Story) -> None:
    at = story.command(create(0))
    story.outcome(at, Result("op1", messages.UNFINISHED))
    at = story.command(create(0))
    story.outcome(at)
    assert story.sandbox().tries == 1
    assert story.sandbox().in_flight is None


# -- Late, repeated, expired


def test_a_late_outcome_of_an_older_command_only_tells_what_was_done(story: Story) -> None:
    first = story.command(create(0), delete("x", "px"))
    second = story.command(create(0), delete("x", "px"))
    story.outcome(
        first, created("op1", s_0=Created(messages.DONE, "p1", 20)), Result("del1", messages.FAILED, code=403)
    )
    view = story.sandbox()
    assert view.in_flight is not None
    assert view.in_flight.sequence == second
    assert (view.tries, view.failure) == (0, None)
    by_id = {item.op.id: item.waits for item in view.open}
    assert by_id == {
        "op1": {"pod/s-0": Reported(messages.DONE, "p1", (1, 20))},
        "del1": {"pod/x": Reported()},
    }


def test_an_outcome_told_twice_counts_once(story: Story) -> None:
    at = story.command(create(0))
    story.outcome(at, Result("op1", messages.FAILED, code=403))
    story.outcome(at, Result("op1", messages.FAILED, code=403))
    assert story.sandbox().tries == 1


def test_a_command_expires_by_the_views_own_clock(story: Story) -> None:
    story.command(create(0), lasts=30)
    story.tick(story.time, after=29)
    assert story.sandbox().in_flight is not None
    story.tick(story.time, after=1)
    view = story.sandbox()
    assert view.in_flight is None
    assert (view.tries, view.retry_at) == (1, view.now + 1 * SECOND)
    assert open_ids(view) == {"op1"}


def test_nothing_open_is_forgotten_by_a_restart(story: Story) -> None:
    at = story.command(create(0, 1), annotate(10))
    story.outcome(
        at, created("op1", s_0=Created(messages.DONE, "p1", 20), s_1=Created(messages.UNFINISHED)), done("ann1", 11)
    )
    before = story.sandbox()
    story.partition = reloaded(story.partition)
    assert story.sandbox() == before


def test_open_creates_are_dropped_when_the_sandbox_is_being_deleted(story: Story) -> None:
    story.seen("pod", pod(11, "x", "px"))
    story.command(create(0), delete("x", "px"))
    story.seen("batchsandbox", sandbox(15, deleting=True))
    assert open_ids(story.sandbox()) == {"del1"}


def test_patches_end_with_their_object(story: Story) -> None:
    story.command(annotate(10), patch_status(10))
    story.gone("batchsandbox", "s", 15, "u1")
    assert story.sandbox().open == ()
