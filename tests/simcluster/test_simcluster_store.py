"""The store alone: history, determinism, sharing, hooks, and what only a simulator can be asked."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simcluster_api import owner, pod, sandbox
from simcluster_clock import Clock

from simcluster.caller import Caller
from simcluster.direct import DirectClient, WriteCounter
from simcluster.gc import collect_garbage
from simcluster.patch import merge_patch
from simcluster.store import Store
from simcluster.watch import Watch

Json = dict[str, Any]
MERGE = "application/merge-patch+json"
BS = "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/batchsandboxes"
PODS = "/api/v1/namespaces/default/pods"


def decoded(lines: list[bytes]) -> list[tuple[str, Json]]:
    return [(event["type"], event["object"]) for event in map(msgspec.json.decode, lines)]


def watching(client: DirectClient, path: str, **query: str) -> Watch:
    watch = client.watch(path, query)
    assert isinstance(watch, Watch)
    return watch


def script(seed: int) -> list[bytes]:
    store = Store(Clock(), random.Random(seed))
    client = DirectClient(store)
    watch = watching(client, PODS, resourceVersion="0")
    for _ in range(3):
        client.request("POST", PODS, {**pod(""), "metadata": {"generateName": "p-"}})
    client.request("DELETE", PODS)
    return watch.poll()


def test_one_seed_gives_one_history() -> None:
    assert script(7) == script(7)
    assert script(7) != script(8)


def test_a_watch_that_fell_behind_gets_410(clock: Clock) -> None:
    store = Store(clock, random.Random(1), history_limit=4)
    client = DirectClient(store)
    watch = watching(client, BS, resourceVersion=str(store.resource_version))
    for number in range(12):
        client.request("POST", BS, sandbox(f"s{number}"))
    (event,) = decoded(watch.poll())
    assert event[0] == "ERROR"
    assert (event[1]["code"], event[1]["reason"]) == (410, "Expired")
    assert event[1]["message"].startswith("too old resource version: ")
    assert watch.ended
    assert watch.poll() == []


def test_history_is_bounded(clock: Clock) -> None:
    store = Store(clock, random.Random(1), history_limit=10)
    client = DirectClient(store)
    for number in range(100):
        client.request("POST", BS, sandbox(f"s{number}"))
    assert len(store.history(store.kind("sandbox.opensandbox.io/v1alpha1", "BatchSandbox"))) <= 13


def test_an_expired_continue_token_is_410_and_offers_another(clock: Clock) -> None:
    store = Store(clock, random.Random(1), history_limit=2)
    client = DirectClient(store)
    for name in "abc":
        client.request("POST", BS, sandbox(name))
    first = msgspec.json.decode(client.request("GET", BS, query={"limit": "1"})[2])
    for number in range(6):
        client.request("POST", BS, sandbox(f"s{number}"))
    query = {"limit": "50", "continue": first["metadata"]["continue"]}
    status, _, body = client.request("GET", BS, query=query)
    assert status == 410
    again = msgspec.json.decode(body)["metadata"]["continue"]
    status, _, body = client.request("GET", BS, query={"continue": again})
    names = [item["metadata"]["name"] for item in msgspec.json.decode(body)["items"]]
    assert (status, names) == (200, ["b", "c", *(f"s{n}" for n in range(6))])


def test_an_exact_list_older_than_the_history_is_410(clock: Clock) -> None:
    store = Store(clock, random.Random(1), history_limit=2)
    client = DirectClient(store)
    for number in range(9):
        client.request("POST", BS, sandbox(f"s{number}"))
    query = {"resourceVersion": "101", "resourceVersionMatch": "Exact"}
    assert client.request("GET", BS, query=query)[0] == 410


def test_the_cluster_can_be_full(clock: Clock) -> None:
    store = Store(clock, random.Random(1), object_limit=4)
    client = DirectClient(store)
    assert [client.request("POST", BS, sandbox(name))[0] for name in "abc"] == [201, 201, 507]


def test_writes_are_counted_by_agent_verb_and_resource(store: Store) -> None:
    counter = WriteCounter(store)
    client = DirectClient(store, agent="tester/1.0")
    client.request("POST", BS, sandbox("a"))
    client.request("PATCH", BS + "/a", {"spec": {"pause": True}}, MERGE)
    client.request("PATCH", BS + "/a", {"spec": {"pause": True}}, MERGE)
    client.request("DELETE", BS + "/a")
    assert counter.counts == {
        ("tester/1.0", "create", "batchsandboxes"): 1,
        ("tester/1.0", "patch", "batchsandboxes"): 1,
        ("tester/1.0", "delete", "batchsandboxes"): 1,
    }


def test_managers_are_told_apart_and_bounded(store: Store) -> None:
    resource = store.kind("sandbox.opensandbox.io/v1alpha1", "BatchSandbox")
    store.create(resource, "default", sandbox("a"), Caller("first/1"))
    for number in range(30):
        labels = {"metadata": {"labels": {"n": str(number)}}}
        store.update(resource, "default", "a", lambda o, p=labels: merge_patch(o, p), Caller(f"m{number}"), patch=True)
    entries = store.get(resource, "default", "a").obj["metadata"]["managedFields"]
    assert len(entries) == 10
    assert entries[-1]["manager"] == "m29"


def test_old_versions_are_never_changed(store: Store) -> None:
    resource = store.kind("sandbox.opensandbox.io/v1alpha1", "BatchSandbox")
    before = store.create(resource, "default", sandbox("a"), Caller())
    frozen = bytes(before.encoded)
    client = DirectClient(store)
    client.request("PATCH", BS + "/a", {"spec": {"template": {"x": 1}}, "metadata": {"labels": {"a": "b"}}}, MERGE)
    client.request("DELETE", BS + "/a")
    assert msgspec.json.encode(before.obj) == frozen


def test_garbage_collection_is_a_step(store: Store) -> None:
    client = DirectClient(store)
    made = msgspec.json.decode(client.request("POST", BS, sandbox("a"))[2])
    client.request("POST", PODS, pod("p", ownerReferences=[owner(made)]))
    client.request("DELETE", BS + "/a")
    assert client.request("GET", PODS + "/p")[0] == 200
    assert collect_garbage(store) == 2
    assert client.request("GET", PODS + "/p")[0] == 404
    assert collect_garbage(store) == 0


def test_chains_of_owners_fall_together(store: Store) -> None:
    client = DirectClient(store)
    above = msgspec.json.decode(client.request("POST", BS, sandbox("s0"))[2])
    for number in range(1, 5):
        body = sandbox(f"s{number}", ownerReferences=[owner(above)])
        above = msgspec.json.decode(client.request("POST", BS, body)[2])
    client.request("DELETE", BS + "/s0")
    collect_garbage(store)
    assert msgspec.json.decode(client.request("GET", BS)[2])["items"] == []


@pytest.mark.parametrize("version", ["", "0"])
def test_initial_events_come_in_key_order_then_the_news(store: Store, version: str) -> None:
    client = DirectClient(store)
    for name in ("b", "a"):
        client.request("POST", BS, sandbox(name))
    watch = watching(client, BS, resourceVersion=version)
    client.request("POST", BS, sandbox("c"))
    found = [(kind, obj["metadata"]["name"]) for kind, obj in decoded(watch.poll() + watch.poll())]
    assert found == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
    assert not watch.pending()


def test_a_watch_from_the_future_waits_for_it(store: Store) -> None:
    client = DirectClient(store)
    watch = watching(client, BS, resourceVersion=str(store.resource_version + 1))
    client.request("POST", BS, sandbox("a"))
    assert watch.poll() == []
    client.request("POST", BS, sandbox("b"))
    assert [obj["metadata"]["name"] for _, obj in decoded(watch.poll())] == ["b"]


def test_bookmarks_move_on_with_other_kinds_writes(store: Store) -> None:
    client = DirectClient(store)
    watch = watching(client, BS, resourceVersion=str(store.resource_version))
    client.request("POST", PODS, pod("p"))
    assert watch.poll() == []
    (event,) = decoded([watch.bookmark()])
    assert event[1]["metadata"]["resourceVersion"] == str(store.resource_version)


# --- properties -------------------------------------------------------------------------------------

NAMES = st.sampled_from("abcd")
LABEL = st.sampled_from(["1", "2"])
STEP = st.one_of(
    st.tuples(st.just("create"), NAMES, LABEL),
    st.tuples(st.just("label"), NAMES, LABEL),
    st.tuples(st.just("scale"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("delete"), NAMES, st.none()),
    st.tuples(st.just("poll"), st.none(), st.none()),
)


def perform(client: DirectClient, step: tuple[str, Any, Any]) -> None:
    verb, name, value = step
    if verb == "create":
        client.request("POST", BS, sandbox(name, labels={"x": value}))
    elif verb == "label":
        client.request("PATCH", f"{BS}/{name}", {"metadata": {"labels": {"x": value}}}, MERGE)
    elif verb == "scale":
        client.request("PATCH", f"{BS}/{name}", {"spec": {"replicas": value}}, MERGE)
    elif verb == "delete":
        client.request("DELETE", f"{BS}/{name}")


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(STEP, max_size=6),
    after=st.lists(STEP, max_size=25),
    selector=st.sampled_from(["", "x=1", "x!=1"]),
)
def test_a_list_and_its_watch_end_where_a_fresh_list_does(before: list[Any], after: list[Any], selector: str) -> None:
    client = DirectClient(Store(Clock(), random.Random(3)))
    for step in before:
        perform(client, step)
    query = {"labelSelector": selector}
    listed = msgspec.json.decode(client.request("GET", BS, query=query)[2])
    state = {item["metadata"]["name"]: item for item in listed["items"]}
    watch = watching(client, BS, resourceVersion=listed["metadata"]["resourceVersion"], **query)
    for step in [*after, ("poll", None, None)]:
        perform(client, step)
        if step[0] == "poll":
            for kind, obj in decoded(watch.poll()):
                name = obj["metadata"]["name"]
                if kind == "DELETED":
                    del state[name]
                else:
                    assert (kind == "ADDED") == (name not in state)
                    state[name] = obj
    fresh = msgspec.json.decode(client.request("GET", BS, query=query)[2])
    assert state == {item["metadata"]["name"]: item for item in fresh["items"]}


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, max_size=25), cut=st.integers(0, 24))
def test_an_exact_list_is_what_the_list_was(steps: list[Any], cut: int) -> None:
    client = DirectClient(Store(Clock(), random.Random(3)))
    then = b""
    for number, step in enumerate([*steps, ("poll", None, None)]):
        if number == min(cut, len(steps)):
            then = client.request("GET", BS)[2]
        perform(client, step)
    version = msgspec.json.decode(then)["metadata"]["resourceVersion"]
    query = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    assert client.request("GET", BS, query=query)[2] == then


VALUE = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def rfc7386(target: Any, patch: Any) -> Any:
    """The pseudo code of RFC 7386, section 2, word for word."""
    if isinstance(patch, dict):
        if not isinstance(target, dict):
            target = {}
        target = dict(target)
        for name, value in patch.items():
            if value is None:
                if name in target:
                    del target[name]
            else:
                target[name] = rfc7386(target.get(name), value)
        return target
    return patch


@given(target=VALUE, patch=VALUE)
def test_merge_patch_is_rfc_7386_and_changes_nothing_in_place(target: Any, patch: Any) -> None:
    before = msgspec.json.encode([target, patch])
    assert merge_patch(target, patch) == rfc7386(target, patch)
    assert merge_patch(merge_patch(target, patch), patch) == merge_patch(target, patch)
    assert msgspec.json.encode([target, patch]) == before


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result
