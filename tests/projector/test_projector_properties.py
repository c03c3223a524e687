"""What holds of the fold for every history: order does not matter, loss is mended by lists, bytes are a function of the prefix."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from projector_truth import THINGS, Message, Truth, held, tell, timeless
from projector_world import CLUSTER, HEADERS, NAMESPACE, START, Story, reloaded, stored

from bus import messages, names, scopes, subjects
from bus.log import Record
from bus.times import SECOND
from bus.views import SandboxView

changes = st.lists(st.tuples(st.sampled_from(THINGS), st.integers(0, 5)), max_size=25)
quick = settings(max_examples=150, deadline=None)


def history(made: list[tuple[tuple[str, str], int]]) -> Truth:
    truth = Truth()
    for thing, what in made:
        truth.change(thing, what)
    return truth


@quick
@given(changes, st.data())
def test_views_are_the_same_for_every_interleaving(made: list[Any], data: st.DataObject) -> None:
    """Per-object order kept, objects reordered, any message repeated at any later time (DESIGN §4, Order)."""
    truth = history(made)
    straight = tell([message for _, message in truth.told] + truth.list_messages())

    queues: dict[Any, list[Message]] = {}
    for thing, message in truth.told:
        queues.setdefault(thing, []).append(message)
    told: list[Message] = []
    while any(queues.values()):
        thing = data.draw(st.sampled_from([t for t, q in queues.items() if q]))
        told.append(queues[thing].pop(0))
        if data.draw(st.booleans()):
            told.append(data.draw(st.sampled_from(told)))
    stragglers = data.draw(st.lists(st.sampled_from(told), max_size=4)) if told else []
    shuffled = tell(told + truth.list_messages() + stragglers)

    assert {a: timeless(v) for a, v in shuffled.partition.views.items()} == {
        a: timeless(v) for a, v in straight.partition.views.items()
    }
    assert {a: held(v) for a, v in shuffled.partition.views.items()} == truth.expected()
    assert all(view.settled for view in shuffled.partition.views.values())


@quick
@given(changes, st.data())
def test_loss_is_mended_by_lists(made: list[Any], data: st.DataObject) -> None:
    """Any observations lost, late, or repeated; lists on the way, late ones too; in the end one whole list of each scope."""
    truth = Truth()
    kept: list[Message] = []
    lists: list[Message] = []
    for thing, what in made:
        truth.change(thing, what)
        if data.draw(st.booleans()):
            word = data.draw(st.sampled_from([s.word for s in scopes.SCOPES]))
            lists.append(truth.list_message(word))
    for _, message in truth.told:
        if data.draw(st.booleans()):
            kept.append(message)
    told = data.draw(st.permutations(kept + lists))
    story = tell(told)
    tell(truth.list_messages(), story)
    tell(data.draw(st.lists(st.sampled_from(told), max_size=4)) if told else [], story)
    assert {a: held(v) for a, v in story.partition.views.items()} == truth.expected()
    straight = tell([message for _, message in truth.told] + truth.list_messages())
    assert {a: timeless(v, memory=False) for a, v in story.partition.views.items()} == {
        a: timeless(v, memory=False) for a, v in straight.partition.views.items()
    }


def alive(views: dict[Any, Any]) -> dict[Any, Any]:
    """All that a decision sees."""
    found = {}
    for aggregate, view in views.items():
        pods = {name: slot for name, slot in view.pods.items() if not slot.gone}
        if held(view) or view.open or view.in_flight:
            found[aggregate] = msgspec.structs.replace(view, sequence=0, now=0, pods=pods, known=(0, 0))
            if isinstance(view, SandboxView) and view.snapshot is not None and view.snapshot.gone:
                found[aggregate] = msgspec.structs.replace(found[aggregate], snapshot=None)
    return found


RESULTS = (
    messages.DONE,
    messages.CONFLICT,
    messages.MISSING,
    messages.FAILED,
    messages.SKIPPED,
    messages.EXPIRED,
    messages.UNFINISHED,
    messages.UNKNOWN,
    messages.EARLY,
)


@st.composite
def logs(draw: st.DrawFn) -> list[Message]:
    """Messages of every kind, of a history that makes some sense."""
    from projector_world import annotate, create, delete, patch_status

    truth = Truth()
    told: list[Message] = []
    epoch = 1
    wanted = [
        create(0, 1),
        delete(),
        annotate(12),
        patch_status(12),
        delete("s-1", "u14", "del2"),
        create(0, id="op2", uid="u11"),
    ]
    for _ in range(draw(st.integers(0, 30))):
        kind = draw(
            st.sampled_from(["change"] * 5 + ["command", "outcome", "tick", "list", "lists", "epoch", "repeat"])
        )
        if kind == "change":
            before = len(truth.told)
            truth.change(draw(st.sampled_from(THINGS)), draw(st.integers(0, 5)))
            told += [message for _, message in truth.told[before:]]
        elif kind == "command":
            ops = tuple(draw(st.lists(st.sampled_from(wanted), max_size=3, unique_by=lambda op: op.id)))
            body: Any = messages.Command(len(told), START + draw(st.integers(1, 60)) * SECOND, "r", ops)
            told.append((f"log.0.{CLUSTER}.{NAMESPACE}.cmd.sandbox.s", messages.encode(body)))
        elif kind == "outcome":
            results = [
                messages.Result(
                    op.id, draw(st.sampled_from(RESULTS)), "u", draw(st.sampled_from([0, truth.rv, truth.rv + 1]))
                )
                for op in wanted
            ]
            at = [n for n, (subject, _) in enumerate(told, start=1) if ".cmd." in subject]
            body = messages.Outcome(draw(st.sampled_from(at)) if at else 0, tuple(draw(st.permutations(results))[:3]))
            told.append((f"log.0.{CLUSTER}.{NAMESPACE}.out.sandbox.s", messages.encode(body)))
        elif kind == "tick":
            body = messages.Tick(START + draw(st.integers(0, 90)) * SECOND, 0)
            told.append((f"log.0.{CLUSTER}.{NAMESPACE}.tick.sandbox.s", messages.encode(body)))
        elif kind == "list":
            told.append(truth.list_message(draw(st.sampled_from([s.word for s in scopes.SCOPES]))))
        elif kind == "lists":
            told += truth.list_messages()
        elif kind == "epoch":
            epoch += draw(st.booleans())
            told.append((subjects.epoch_of(CLUSTER), messages.encode(messages.Epoch(epoch, "ks", ""))))
        elif told:
            told.append(draw(st.sampled_from(told)))
    return told


@quick
@given(logs(), st.data())
def test_bytes_are_a_function_of_the_prefix(told: list[Message], data: st.DataObject) -> None:
    """Folding twice gives equal bytes, and so does a restart from bytes at any point (what the index knew included)."""
    story = tell(told)
    assert stored(tell(told).partition) == stored(story.partition)
    cuts = data.draw(st.sets(st.integers(0, len(told)), max_size=3))
    again = Story()
    for position, record in enumerate(story.records):
        if position in cuts:
            again.partition = reloaded(again.partition)
        again.partition.fold(record)
    assert stored(again.partition) == stored(story.partition)


@quick
@given(logs(), st.data())
def test_a_crash_between_the_commits_of_one_batch_loses_nothing(told: list[Message], data: st.DataObject) -> None:
    """Some views were committed, the cursor was not: folding again from the cursor ends in the same state, tombstones apart (DESIGN §5)."""
    cursor = data.draw(st.integers(0, len(told)))
    end = data.draw(st.integers(cursor, len(told)))
    behind, ahead = tell(told[:cursor]), tell(told[:end])
    views = dict(behind.partition.views)
    for aggregate in sorted({*views, *ahead.partition.views}):
        if data.draw(st.booleans()):
            views.pop(aggregate, None)
            if aggregate in ahead.partition.views:
                views[aggregate] = ahead.partition.views[aggregate]
    whole = tell(told)
    partly = type(whole.partition)(0, 1, behind.partition.state, views)
    for record in whole.records[cursor:]:
        partly.fold(record)
    assert partly.state == whole.partition.state
    assert alive(partly.views) == alive(whole.partition.views)


# -- Arbitrary bytes

token = st.one_of(
    st.sampled_from([
        "log", "all", "0", "1", CLUSTER, NAMESPACE, "obs", "cmd", "out", "tick", "list", "epoch", "dead", "ask",
        "pod", "job", "pool", "sandbox", "snapshot", "batchsandbox", "sandboxsnapshot", "pod-sandbox", "s", "s-0", "²", "-1", "",
    ]),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters=". "), max_size=5),
)  # fmt: skip
number = st.one_of(st.integers(-2, 30), st.sampled_from([2**31, 2**63, 2**64, 10**30, -(10**30)]))
scalar = st.one_of(st.none(), st.booleans(), number, st.floats(allow_nan=False), st.text(max_size=5))
junk = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
meta = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["s", "s-0", "s-99999999999999999999999"]) | junk,
        "uid": st.sampled_from(["u1", "u2"]) | junk,
        "generation": number | junk,
        "labels": st.dictionaries(st.sampled_from([names.SANDBOX_NAME, names.POD_INDEX, names.SNAPSHOT_NAME, names.POOL_NAME]), st.sampled_from(["s", "", "9" * 63]) | junk, max_size=3) | junk,
        "annotations": junk,
        "finalizers": junk,
        "deletionTimestamp": st.sampled_from(["2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59"]) | junk,
        "ownerReferences": st.lists(st.fixed_dictionaries({}, optional={"kind": st.sampled_from(["BatchSandbox", "Job", "Pool"]) | junk, "name": junk, "controller": junk}), max_size=2) | junk,
    },
)  # fmt: skip
body = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["seen", "gone", "list", "epoch", "command", "outcome", "tick"]) | junk,
        "epoch": st.integers(0, 3) | number,
        "resource_version": st.integers(0, 9) | number,
        "uid": st.sampled_from(["u1", "u2"]),
        "scope": st.sampled_from([s.word for s in scopes.SCOPES]) | junk,
        "object": st.fixed_dictionaries({"metadata": meta | junk}, optional={"spec": junk | st.fixed_dictionaries({"expireTime": st.sampled_from(["9999-12-31T23:59:59Z", "x"])}), "status": junk}) | junk,
        "facts": junk,
        "id": st.sampled_from(["a", "b"]) | junk,
        "objects": st.dictionaries(st.sampled_from([NAMESPACE, "x"]), st.lists(st.tuples(st.sampled_from(["s", "s-0"]), st.just("u1"), number) | junk, max_size=3), max_size=2) | junk,
        "chunk": number,
        "chunks": number,
        "view": number,
        "expires": number,
        "reason": st.text(max_size=3),
        "cluster_uid": st.text(max_size=3),
        "ops": st.lists(st.fixed_dictionaries({"op": st.sampled_from(["create-pods", "delete-pod", "patch-metadata", "frog"]), "id": st.sampled_from(["o1", "o2"])}, optional={"target": st.fixed_dictionaries({"kind": st.sampled_from(["pod", "batchsandbox", "frog"]), "name": st.sampled_from(["s", "s-0", ""]), "uid": st.just("u1")}), "sandbox": st.fixed_dictionaries({"kind": st.just("batchsandbox"), "name": st.just("s"), "uid": st.just("u1")}), "generation": number, "template": st.just("t"), "names": st.dictionaries(st.sampled_from(["s-0", "s-1"]), number, max_size=2), "resource_version": number}), max_size=3) | junk,
        "command": st.integers(0, 9) | number,
        "results": st.lists(st.fixed_dictionaries({"id": st.sampled_from(["o1", "o2"]), "result": st.sampled_from(RESULTS) | st.text(max_size=4)}, optional={"resource_version": number, "names": st.dictionaries(st.sampled_from(["s-0", "s-1"]), st.fixed_dictionaries({"result": st.sampled_from(RESULTS)}), max_size=2)}), max_size=3) | junk,
        "due": number,
    },
)  # fmt: skip
data_of = st.one_of(st.binary(max_size=30), body.map(msgspec.json.encode), body.map(msgspec.json.encode))
subject_of = st.one_of(
    st.builds(
        "log.0.{}.{}.{}.{}.{}".format,
        st.just(CLUSTER),
        st.sampled_from([NAMESPACE, "x"]),
        st.sampled_from(["obs", "cmd", "out", "tick"]),
        st.sampled_from(["pod", "job", "pool", "batchsandbox", "sandboxsnapshot", "sandbox", "snapshot", "frog"]),
        st.sampled_from(["s", "s-0"]),
    ),
    st.builds("log.all.{}.{}".format, st.just(CLUSTER), st.sampled_from(["list.pod-sandbox", "list.x", "epoch"])),
    st.lists(token, max_size=8).map(".".join),
)
header_of = st.one_of(
    st.just(HEADERS),
    st.just(HEADERS),
    st.dictionaries(
        st.sampled_from([messages.SCHEMA_HEADER, messages.TIME_HEADER]),
        st.sampled_from(["1", "0", "2", "²", "9" * 5000, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "x"]),
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(subject_of, data_of, header_of), max_size=15))
def test_the_fold_never_raises(told: list[tuple[str, bytes, dict[str, str]]]) -> None:
    """Nor makes it anything that cannot be stored and read again; the position advances, whatever comes."""
    story = Story()
    for position, (subject, data, headers) in enumerate(told, start=1):
        story.partition.fold(Record(subject, position, START + position, headers, data))
        assert story.partition.state.cursor == position
    assert stored(reloaded(story.partition)) == stored(story.partition)
