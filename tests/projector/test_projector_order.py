"""DESIGN §4: order, lists, completeness, epoch, time."""

from __future__ import annotations

import pytest
from msgspec import Raw
from projector_world import CLUSTER, HEADERS, NAMESPACE, SCOPE_OF, START, Story, encode, pod, reloaded, sandbox

from bus import messages, scopes, subjects
from bus.times import SECOND, format_time

PODS = scopes.SANDBOX_PODS.word


@pytest.fixture
def story() -> Story:
    return Story()


# -- Order


def test_an_older_version_changes_nothing_whatever_its_uid(story: Story) -> None:
    story.seen("pod", pod(7, uid="new", ready=True))
    before = story.sandbox()
    assert not story.seen("pod", pod(5, uid="old")).touched
    assert story.sandbox() == before


def test_a_repeat_changes_nothing(story: Story) -> None:
    story.seen("pod", pod(7))
    before = story.sandbox()
    assert not story.seen("pod", pod(7)).touched
    assert story.sandbox() == before


def test_a_deletion_is_a_version_too(story: Story) -> None:
    story.seen("pod", pod(5))
    story.gone("pod", "s-0", 9)
    story.seen("pod", pod(8))
    assert story.sandbox().pods["s-0"].gone
    story.seen("pod", pod(10, uid="p2"))
    assert story.sandbox().pods["s-0"].uid == "p2"


def test_a_deletion_of_a_newer_object_of_that_name_by_a_straggler_changes_nothing(story: Story) -> None:
    story.seen("pod", pod(5, uid="p1"))
    story.seen("pod", pod(12, uid="p2"))
    story.gone("pod", "s-0", 9, uid="p1")
    assert not story.sandbox().pods["s-0"].gone


def test_a_deletion_comes_before_all_else_of_its_name(story: Story) -> None:
    """Deletions included (DESIGN §4, Order): a straggler must not raise the dead, and a restart must not forget it."""
    story.gone("batchsandbox", "s", 9, uid="u1")
    story.partition = reloaded(story.partition)
    story.seen("batchsandbox", sandbox(5))
    assert story.sandbox().object is None


def test_a_position_at_or_before_the_cursor_is_ignored(story: Story) -> None:
    story.seen("pod", pod(7))
    record = story.records[-1]
    before = story.sandbox()
    assert not story.partition.fold(record).touched
    assert story.sandbox() is before


# -- Lists


def test_absence_removes_what_is_not_newer_than_the_list(story: Story) -> None:
    story.seen("pod", pod(5, "s-0"))
    story.seen("pod", pod(11, "s-1", "p2"))
    story.listed(PODS, 10)
    pods = story.sandbox().pods
    assert "s-0" not in pods or pods["s-0"].gone
    assert not pods["s-1"].gone


def test_a_list_removes_only_what_was_seen_through_its_own_selector(story: Story) -> None:
    story.seen("pod", pod(5))
    story.listed(scopes.POOL_PODS.word, 10)
    story.listed(scopes.COMMIT_PODS.word, 10)
    assert not story.sandbox().pods["s-0"].gone


def test_a_list_of_one_namespace_removes_nothing_elsewhere(story: Story) -> None:
    story.seen("pod", pod(5))
    story.listed(PODS, 10, namespace="elsewhere")
    assert not story.sandbox().pods["s-0"].gone


def test_a_list_of_another_cluster_removes_nothing(story: Story) -> None:
    story.seen("pod", pod(5))
    story.cluster = "c2"
    story.listed(PODS, 10)
    story.cluster = CLUSTER
    assert not story.sandbox().pods["s-0"].gone


def test_only_a_whole_list_counts(story: Story) -> None:
    story.seen("pod", pod(5))
    story.listed(PODS, 10, id="a", chunk=1, chunks=2)
    assert not story.sandbox().pods["s-0"].gone
    story.listed(PODS, 10, {NAMESPACE: [("s-0", "p1", 5)]}, id="a", chunk=2, chunks=2)
    assert not story.sandbox().pods["s-0"].gone
    assert story.scope(PODS).complete == (1, 10)


def test_chunks_of_two_lists_do_not_mix(story: Story) -> None:
    story.seen("pod", pod(5))
    story.listed(PODS, 10, id="a", chunk=1, chunks=2)
    story.listed(PODS, 11, {NAMESPACE: [("s-0", "p1", 5)]}, id="b", chunk=2, chunks=2)
    assert story.scope(PODS).complete is None
    assert not story.sandbox().pods["s-0"].gone


def test_a_list_is_not_spoiled_by_the_rest_of_another_one(story: Story) -> None:
    """Two bridges may watch at once (DESIGN §9): the later of two lists that overlap is whole."""
    story.listed(PODS, 10, id="a", chunk=1, chunks=2)
    story.listed(PODS, 11, id="b", chunk=1, chunks=2)
    story.listed(PODS, 10, id="a", chunk=2, chunks=2)
    story.listed(PODS, 11, id="b", chunk=2, chunks=2)
    assert story.scope(PODS).complete == (1, 11)


def test_repeats_of_chunks_do_not_spoil_a_list(story: Story) -> None:
    for chunk in (1, 1, 2, 1, 2, 3, 3):
        story.listed(PODS, 10, id="a", chunk=chunk, chunks=3)
    assert story.scope(PODS).complete == (1, 10)


def test_a_list_with_a_chunk_lost_does_not_count(story: Story) -> None:
    story.seen("pod", pod(5))
    for chunk in (1, 3):
        story.listed(PODS, 10, id="a", chunk=chunk, chunks=3)
    assert story.scope(PODS).complete is None
    assert not story.sandbox().pods["s-0"].gone


def test_an_unknown_name_at_or_below_the_last_complete_list_is_a_straggler(story: Story) -> None:
    story.listed(PODS, 10)
    story.seen("pod", pod(10))
    assert story.view(subjects.SANDBOX, "s") is None
    story.seen("pod", pod(11))
    assert not story.sandbox().pods["s-0"].gone


def test_a_list_older_than_the_last_complete_one_changes_nothing(story: Story) -> None:
    story.seen("pod", pod(5))
    story.listed(PODS, 10, {NAMESPACE: [("s-0", "p1", 5)]})
    story.listed(PODS, 8)
    assert not story.sandbox().pods["s-0"].gone
    assert story.scope(PODS).complete == (1, 10)


# -- Completeness


def complete(story: Story, rv: int, but: str = "") -> None:
    for scope in scopes.SCOPES:
        if scope.word != but:
            story.listed(scope.word, rv)


@pytest.mark.parametrize("word", scopes.NEEDED[subjects.SANDBOX])
def test_nothing_is_settled_until_every_scope_it_is_folded_from_is_complete(story: Story, word: str) -> None:
    story.seen("batchsandbox", sandbox(20))
    complete(story, 10, but=word)
    assert not story.sandbox().settled
    at = story.sequence
    story.listed(word, 10)
    assert story.sandbox().settled
    assert story.sandbox().sequence > at, "`seq` is the last position that changed the view"


def test_a_new_view_is_settled_where_all_is_complete(story: Story) -> None:
    complete(story, 10)
    story.seen("batchsandbox", sandbox(20))
    assert story.sandbox().settled


def test_a_list_whose_objects_are_not_known_completes_when_they_come(story: Story) -> None:
    story.seen("pod", pod(5))
    story.listed(PODS, 10, {NAMESPACE: [("s-0", "p1", 7), ("s-1", "p2", 6)]})
    assert story.scope(PODS).complete is None
    assert story.partition.incomplete() == [CLUSTER]
    story.seen("pod", pod(6, "s-1", "p2"))
    assert story.scope(PODS).complete is None
    story.seen("pod", pod(8))
    assert story.scope(PODS).complete == (1, 10)


def test_what_a_list_waits_for_is_no_straggler_of_an_earlier_list(story: Story) -> None:
    """An object that could not be read before an upgrade comes again at its old version."""
    story.listed(PODS, 10)
    story.listed(PODS, 20, {NAMESPACE: [("s-0", "p1", 7)]})
    story.seen("pod", pod(7))
    assert story.scope(PODS).complete == (1, 20)
    assert story.sandbox().pods["s-0"].version == (1, 7)


@pytest.mark.parametrize(
    "body", [b"not json", messages.encode(messages.Seen(1, 7, "p1", PODS, Raw(b'{"metadata":3}')))]
)
def test_an_unreadable_object_does_not_keep_its_scope_from_being_complete(story: Story, body: bytes) -> None:
    """Objects are appended before their list (DESIGN §4, Lists), or come after it where it was another bridge's."""
    subject = subjects.observation(0, CLUSTER, NAMESPACE, "pod", "s-0")
    assert story.say(subject, body).error
    story.listed(PODS, 10, {NAMESPACE: [("s-0", "p1", 7)]})
    assert story.scope(PODS).complete == (1, 10)
    story.listed(PODS, 20, {NAMESPACE: [("s-0", "p1", 7), ("s-1", "p2", 7)]})
    story.say(subjects.observation(0, CLUSTER, NAMESPACE, "pod", "s-1"), body)
    assert story.scope(PODS).complete == (1, 20)


def test_an_unreadable_object_at_an_older_version_does_not_stand_for_the_newer(story: Story) -> None:
    bad = messages.encode(messages.Seen(1, 7, "p1", PODS, Raw(b'{"metadata":3}')))
    story.listed(PODS, 10, {NAMESPACE: [("s-0", "p1", 9)]})
    story.say(subjects.observation(0, CLUSTER, NAMESPACE, "pod", "s-0"), bad)
    assert story.scope(PODS).complete is None


def test_a_repeat_of_an_unreadable_object_is_no_second_error(story: Story) -> None:
    bad = messages.encode(messages.Seen(1, 7, "p1", PODS, Raw(b'{"metadata":3}')))
    subject = subjects.observation(0, CLUSTER, NAMESPACE, "pod", "s-0")
    assert story.say(subject, bad).error
    assert story.say(subject, bad).error is None


def test_a_pod_that_belongs_to_nobody_does_not_keep_its_scope_from_being_complete(story: Story) -> None:
    """A label selector of existence also takes an empty value."""
    story.seen("pod", pod(5, labels={}, owners=[]))
    story.listed(PODS, 10, {NAMESPACE: [("s-0", "p1", 5)]})
    assert story.scope(PODS).complete == (1, 10)


def test_lists_of_single_namespaces_settle_those_alone(story: Story) -> None:
    story.seen("batchsandbox", sandbox(20))
    for scope in scopes.SCOPES:
        story.listed(scope.word, 10, namespace="elsewhere")
    assert not story.sandbox().settled
    for scope in scopes.SCOPES:
        story.listed(scope.word, 10, namespace=NAMESPACE)
    assert story.sandbox().settled


def test_one_clusters_lists_settle_nothing_of_another(story: Story) -> None:
    story.seen("batchsandbox", sandbox(20))
    story.cluster = "c2"
    story.seen("batchsandbox", sandbox(20))
    complete(story, 10)
    assert story.sandbox().settled
    story.cluster = CLUSTER
    assert not story.sandbox().settled
    assert story.partition.incomplete() == [CLUSTER]


def test_what_lies_in_other_partitions_is_not_missing_here() -> None:
    namespaces = ["a", "b", "c", "d", "e"]
    story = Story(partitions=2)
    mine = [n for n in namespaces if story.part(n) == 0]
    others = [n for n in namespaces if story.part(n) == 1]
    assert mine
    assert others
    story.listed(PODS, 10, {n: [("x", "p", 5)] for n in others})
    assert story.scope(PODS).complete == (1, 10)
    story.listed(PODS, 20, {n: [("x", "p", 5)] for n in namespaces})
    assert set(story.scope(PODS).missing) == {f"{n}/x" for n in mine}


# -- Epoch


def raise_by_message(story: Story) -> None:
    story.raised(2)


def raise_by_observation(story: Story) -> None:
    story.seen("pod", pod(3, "other", "p9", "t"), epoch=2)


def raise_by_list(story: Story) -> None:
    story.listed(scopes.POOLS.word, 3, epoch=2)


@pytest.mark.parametrize("how", [raise_by_message, raise_by_observation, raise_by_list])
def test_a_higher_epoch_makes_everything_incomplete(story: Story, how: object) -> None:
    """A restored etcd: what was complete says nothing of what is there now."""
    story.seen("batchsandbox", sandbox(20))
    complete(story, 25)
    story.seen("batchsandbox", sandbox(30))
    assert story.sandbox().settled
    how(story)  # type: ignore[operator]
    assert not story.sandbox().settled
    assert story.partition.incomplete() == [CLUSTER]


def test_order_is_by_epoch_first(story: Story) -> None:
    story.seen("pod", pod(500, uid="lost"))
    story.raised(2)
    story.seen("pod", pod(100, uid="restored"))
    assert story.sandbox().pods["s-0"].uid == "restored"
    story.seen("pod", pod(600, uid="lost"), epoch=1)
    assert story.sandbox().pods["s-0"].uid == "restored"


def test_a_list_of_an_older_epoch_changes_nothing(story: Story) -> None:
    story.raised(2)
    story.seen("pod", pod(5))
    story.listed(PODS, 900, epoch=1)
    assert not story.sandbox().pods["s-0"].gone


def test_a_list_of_the_new_epoch_removes_what_only_the_old_one_had(story: Story) -> None:
    story.seen("pod", pod(500))
    story.raised(2)
    story.listed(PODS, 100)
    pods = story.view(subjects.SANDBOX, "s")
    assert pods is None or pods.pods == {}


# -- Time


def test_now_is_the_greatest_of_the_times_folded(story: Story) -> None:
    story.seen("batchsandbox", sandbox(5))
    at = story.time
    story.time -= 100 * SECOND
    story.seen("batchsandbox", sandbox(6))
    assert story.sandbox().now == at


def test_a_ticks_due_time_counts_up_to_a_second_past_its_own(story: Story) -> None:
    story.seen("batchsandbox", sandbox(5))
    story.tick(story.time + 1 * SECOND + SECOND // 2)
    assert story.sandbox().now == story.time + SECOND // 2
    story.tick(story.time + 3600 * SECOND)
    assert story.sandbox().now == story.time + 1 * SECOND


def test_a_tick_before_its_time_does_not_turn_back_the_clock(story: Story) -> None:
    story.seen("batchsandbox", sandbox(5))
    story.tick(START)
    assert story.sandbox().now == story.time


def test_a_tick_makes_no_view(story: Story) -> None:
    story.tick(START)
    assert story.view(subjects.SANDBOX, "s") is None


def test_the_time_header_of_an_imported_message_wins(story: Story) -> None:
    headers = {**HEADERS, messages.TIME_HEADER: format_time(START - 3600 * SECOND)}
    body = messages.Seen(1, 5, "u1", SCOPE_OF["batchsandbox"], Raw(encode(sandbox(5))))
    story.say(subjects.observation(0, CLUSTER, NAMESPACE, "batchsandbox", "s"), messages.encode(body), headers=headers)
    assert story.sandbox().now == START - 3600 * SECOND


# -- What cannot be taken


@pytest.mark.parametrize(
    ("subject", "data"),
    [
        ("log.0.c1.default.obs.pod.s-1", b"\xff\xfe"),
        ("log.0.c1.default.obs.pod.s-1", b"{}"),
        (
            "log.0.c1.default.obs.pod.s-1",
            b'{"type":"seen","epoch":1,"resource_version":9,"uid":"","scope":"pod-sandbox","object":'
            + b"[" * 9999
            + b"]" * 9999
            + b"}",
        ),
        (
            "log.0.c1.default.obs.pod.s-1",
            b'{"type":"seen","epoch":99999999999999999999,"resource_version":9,"uid":"","scope":"pod-sandbox","object":{"metadata":{}}}',
        ),
        (
            "log.0.c1.default.obs.frog.s-1",
            b'{"type":"seen","epoch":1,"resource_version":9,"uid":"","scope":"frog","object":{}}',
        ),
        ("log.0.c1.default.cmd.frog.s", messages.encode(messages.Command(1, 2, "", ()))),
        ("log.0.c1.default.out.frog.s", messages.encode(messages.Outcome(1, ()))),
        ("log.0.c1.default.tick.frog.s", messages.encode(messages.Tick(1, 1))),
        ("log.all.c1.list.frog", messages.encode(messages.Listed("a", 1, "frog", 9, {}))),
        ("log.all.c1.list.pod-sandbox", messages.encode(messages.Listed("a", 1, "pod-sandbox", 9, {}, "", 3, 2))),
        ("log.all.c1.epoch", messages.encode(messages.Epoch(10**30, "", ""))),
        ("log", b""),
        ("log.x.c1.default.obs.pod.s-1", b""),
    ],
)
def test_garbage_is_reported_and_harms_only_itself(story: Story, subject: str, data: bytes) -> None:
    story.seen("batchsandbox", sandbox(5))
    story.seen("pod", pod(6))
    before = dict(story.partition.views)
    folded = story.say(subject, data)
    assert folded.error
    assert story.partition.views == before
    assert story.partition.state.cursor == story.sequence
    story.seen("pod", pod(7, ready=True))
    assert story.sandbox().pods["s-0"].ready


@pytest.mark.parametrize(
    "headers", [{}, {messages.SCHEMA_HEADER: "2"}, {messages.SCHEMA_HEADER: "9" * 5000}, {messages.SCHEMA_HEADER: "²"}]
)
def test_a_message_of_a_later_schema_is_never_guessed_at(story: Story, headers: dict[str, str]) -> None:
    body = messages.Seen(1, 5, "u1", SCOPE_OF["batchsandbox"], Raw(encode(sandbox(5))))
    data = messages.encode(body)
    assert story.say(subjects.observation(0, CLUSTER, NAMESPACE, "batchsandbox", "s"), data, headers=headers).error
    assert story.partition.views == {}


def test_a_message_of_another_partition_is_ignored_but_counted() -> None:
    story = Story(number=1, partitions=2)
    story.say("log.0.c1.default.obs.pod.s-1", b"garbage")
    assert story.partition.state.cursor == 1
    assert story.partition.views == {}
