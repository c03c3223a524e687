"""Bad input (DESIGN §8.7): it harms only itself, and says so where the user looks (condition, Event) and where the operator looks
(`sandlog dead`, metrics); it is tried again with a back-off; and no text of ours holds an object's body."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.api import Api, Refused, conditions, endpoints, phase, sandbox
from support.evidence import commands, jetstream, sandlog_dead, subject, texts, until
from support.sandlog import Sandlog

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("sandlog", ["one"], indirect=True, scope="session"),
    pytest.mark.usefixtures("kubelet"),
]
Objects = dict[str, dict[str, Any]]
MARK = "body-of-an-object-5b1c"
"""Stands in every bad object; found in no text of ours."""
PROMPT = 8.0
"""Seconds in which a healthy sandbox must be ready beside bad ones, on two busy cores."""
MIB = 1024 * 1024


def marked(name: str, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    made = sandbox(name, replicas, **spec)
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "KEY", "value": MARK}]
    container["args"] = [f"--key={MARK}"]
    return made


def with_template(name: str, template: Any) -> dict[str, Any]:
    return sandbox(name, template=template)


def is_ready(o: dict[str, Any], replicas: int = 1) -> bool:
    found = endpoints(o)
    return phase(o) == "Succeed" and len(found) == replicas and all(found) and "Ready" in conditions(o)


@contextlib.asynccontextmanager
async def healthy_neighbour(api: Api, sandlog: Sandlog) -> AsyncIterator[None]:
    """One sandbox of the same namespace and one of another, created with the bad ones: ready promptly."""
    async with Api(api.url, api.token, f"{api.namespace}-beside") as beside:
        await beside.ensure_namespace()
        yield
        for place in (api, beside):
            await place.create("BatchSandbox", sandbox("healthy"))
        for place in (api, beside):
            await place.until(
                "the neighbour is ready",
                "BatchSandbox",
                lambda o: is_ready(o["healthy"]),
                PROMPT,
                sandlog.trouble,
            )


async def told(api: Api, sandlog: Sandlog, reasons: dict[str, str], limit: float = 15.0) -> Objects:
    """Each of these sandboxes says its reason in PodFailed and in an Event that `kubectl describe` shows."""
    found = await api.until(
        "conditions say what is wrong",
        "BatchSandbox",
        lambda o: all(
            name in o and conditions(o[name]).get("PodFailed", {}).get("reason") == reason
            for name, reason in reasons.items()
        ),
        limit,
        sandlog.trouble,
    )

    def events_tell(events: Objects) -> bool:
        about = {e["involvedObject"].get("uid") for e in events.values() if e["type"] == "Warning"}
        return all(found[name]["metadata"]["uid"] in about for name in reasons)

    await api.until("Events say so too", "Event", events_tell, limit, sandlog.trouble)
    return found


async def no_body_in_texts(api: Api, sandlog: Sandlog) -> None:
    for place, text in (await texts(api, sandlog)).items():
        assert MARK not in text, place


async def backs_off(api: Api, sandlog: Sandlog, name: str) -> None:
    """Three tries of creating in a row, each at least about twice as long after the one before (1 s, 2 s; DESIGN §5)."""

    async def tries() -> list[float]:
        found = await commands(sandlog, api.namespace, name)
        return [at for at, body in found if any(op["op"] == "create-pods" for op in body["ops"])]

    async def three() -> list[float]:
        found = await tries()
        return found if len(found) >= 3 else []

    first, second, third, *_ = await until(f"three tries of {name}", three, 15)
    assert second - first >= 0.9
    assert third - second >= 1.8
    everything = await commands(sandlog, api.namespace, name)
    assert len(everything) <= 12


async def test_malformed_annotations_are_put_right(api: Api, sandlog: Sandlog) -> None:
    broken = marked("annotated", 2)
    broken["metadata"]["annotations"] = {
        "sandbox.opensandbox.io/endpoints": "{not json",
        "sandbox.opensandbox.io/alloc-status": '["',
        "sandbox.opensandbox.io/alloc-release": "\x00\x01",
        "sandbox.opensandbox.io/alloc-released": "42",
        "sandbox.opensandbox.io/failed-spec-digest": "x" * 200_000,
        "kubectl.kubernetes.io/last-applied-configuration": MARK,
    }
    async with healthy_neighbour(api, sandlog):
        await api.create("BatchSandbox", broken)

        def right(o: Objects) -> bool:
            try:
                return is_ready(o["annotated"], 2)
            except ValueError:
                return False

        await api.until("endpoints are written anew", "BatchSandbox", right, PROMPT, sandlog.trouble)
    # Spoilt again while it runs.
    await api.patch(
        "BatchSandbox", "annotated", {"metadata": {"annotations": {"sandbox.opensandbox.io/endpoints": "[["}}}
    )
    await api.until("and once more", "BatchSandbox", right, PROMPT, sandlog.trouble)
    await no_body_in_texts(api, sandlog)


UNAPPLIED = "InvalidShardPatch"
BAD_PATCHES: dict[str, tuple[Any, str]] = {
    "not-a-list": ({"spec": {"x": MARK}}, UNAPPLIED),
    "text": (MARK, UNAPPLIED),
    "not-an-object": ([MARK], UNAPPLIED),
    "a-number": ([7], UNAPPLIED),
    "without-merge-key": ([{"spec": {"containers": [{"env": [{"name": "K", "value": MARK}]}]}}], UNAPPLIED),
    "unknown-directive": ([{"spec": {"$patch": MARK}}], UNAPPLIED),
    "spec-gone": ([{"spec": None}], UNAPPLIED),
    # A strategic merge lets it through, as in Go; the API server cannot read the pod.
    "another-shape": ([{"spec": {"containers": MARK}}], "BadRequest"),
}


async def test_shard_patches_that_cannot_apply(api: Api, sandlog: Sandlog) -> None:
    async with healthy_neighbour(api, sandlog):
        for name, (patches, _) in BAD_PATCHES.items():
            await api.create("BatchSandbox", marked(name, shardPatches=patches))
        found = await told(api, sandlog, {name: reason for name, (_, reason) in BAD_PATCHES.items()})
    assert all(phase(found[name]) == "Failed" for name, (_, reason) in BAD_PATCHES.items() if reason == UNAPPLIED)
    await backs_off(api, sandlog, "not-a-list")
    # What is mended is tried at once, whatever the back-off had come to.
    await api.patch("BatchSandbox", "not-a-list", {"spec": {"shardPatches": None}})
    await api.until("mended", "BatchSandbox", lambda o: is_ready(o["not-a-list"]), PROMPT, sandlog.trouble)
    await no_body_in_texts(api, sandlog)


async def test_one_bad_shard_patch_spoils_one_pod(api: Api, sandlog: Sandlog) -> None:
    await api.create("BatchSandbox", marked("partly", 3, shardPatches=[None, MARK, {}]))
    found = await told(api, sandlog, {"partly": "InvalidShardPatch"})
    await api.until(
        "the others run",
        "BatchSandbox",
        lambda o: [bool(e) for e in endpoints(o["partly"])] == [True, False, True],
        PROMPT,
        sandlog.trouble,
    )
    assert "shardPatches[1]" in conditions(found["partly"])["PodFailed"]["message"]
    await no_body_in_texts(api, sandlog)


BAD_TEMPLATES: dict[str, tuple[Any, str]] = {
    "text": (MARK, "InvalidTemplate"),
    "list": ([{"spec": MARK}], "InvalidTemplate"),
    "no-spec": ({"metadata": {"labels": {"a": "b"}}}, "InvalidTemplate"),
    "spec-is-text": ({"spec": MARK}, "InvalidTemplate"),
    "labels-are-a-list": (
        {"metadata": {"labels": [MARK]}, "spec": {"containers": [{"name": "a", "image": "b"}]}},
        "InvalidTemplate",
    ),
    # These are objects that a pod can be made of; the API server refuses it.
    "no-containers": ({"spec": {"volumes": []}}, "Invalid"),
    "empty-containers": ({"spec": {"containers": []}}, "Invalid"),
    "same-name-twice": (
        {"spec": {"containers": [{"name": "a", "image": "b"}, {"name": "a", "image": "b"}]}},
        "Invalid",
    ),
    "bad-name": ({"spec": {"containers": [{"name": "A_b", "image": "b"}]}}, "Invalid"),
    "bad-label": (
        {"metadata": {"labels": {"a b": MARK}}, "spec": {"containers": [{"name": "a", "image": "b"}]}},
        "Invalid",
    ),
    "bad-policy": ({"spec": {"restartPolicy": MARK, "containers": [{"name": "a", "image": "b"}]}}, "Invalid"),
}


async def test_templates_that_no_pod_can_be_made_of(api: Api, sandlog: Sandlog) -> None:
    """Also those that the API server refuses as 422."""
    async with healthy_neighbour(api, sandlog):
        for name, (template, _) in BAD_TEMPLATES.items():
            await api.create("BatchSandbox", with_template(name, template))
        found = await told(api, sandlog, {name: reason for name, (_, reason) in BAD_TEMPLATES.items()})
    assert {name: phase(found[name]) for name in BAD_TEMPLATES} == dict.fromkeys(BAD_TEMPLATES, "Failed")
    await backs_off(api, sandlog, "same-name-twice")
    good = sandbox("x")["spec"]["template"]
    await api.patch("BatchSandbox", "text", {"spec": {"template": good}})
    await api.until("mended", "BatchSandbox", lambda o: is_ready(o["text"]), PROMPT, sandlog.trouble)
    await no_body_in_texts(api, sandlog)


async def test_a_template_that_cannot_be_decoded(api: Api, sandlog: Sandlog) -> None:
    """The API server answers 400 where a field has another type than a pod's has."""
    bad = marked("undecodable")
    bad["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = {"seconds": MARK}
    async with healthy_neighbour(api, sandlog):
        await api.create("BatchSandbox", bad)
        await told(api, sandlog, {"undecodable": "BadRequest"})
    await backs_off(api, sandlog, "undecodable")
    await no_body_in_texts(api, sandlog)


class Quota:
    """No pods in the namespace. The real one by a ResourceQuota (its admission goes by the quota's status, no controller needed)."""

    def __init__(self, api: Api, real: bool) -> None:
        self._api, self._real = api, real

    async def allow(self, pods: int) -> None:
        if not self._real:
            fault = {"do": "fail", "code": 403, "count": 900, "verbs": ["create"], "resource": "pods"}
            await self._api.call("POST", "/sim/faults", {"do": "clear"})
            if not pods:
                await self._api.call("POST", "/sim/faults", {**fault, "namespace": self._api.namespace})
            return
        hard = {"pods": str(pods)}
        if await self._api.get("ResourceQuota", "none") is None:
            await self._api.create("ResourceQuota", {"metadata": {"name": "none"}, "spec": {"hard": hard}})
        await self._api.patch("ResourceQuota", "none", {"spec": {"hard": hard}})
        await self._api.patch("ResourceQuota", "none", {"status": {"hard": hard, "used": {"pods": "0"}}}, "status")


async def enforced(api: Api) -> bool:
    """Whether the quota is: its admission learns of it by a watch of its own."""
    container = {"name": "a", "image": "b"}
    try:
        await api.call(
            "POST", api.path("Pod"), {"metadata": {"name": "x"}, "spec": {"containers": [container]}}, dryRun="All"
        )
    except Refused as refused:
        return refused.status == 403
    return False


async def test_forbidden_by_a_quota_heals_when_there_is_room(api: Api, sandlog: Sandlog, server: Any) -> None:
    quota = Quota(api, server.real)
    await quota.allow(0)
    try:
        await until("the quota holds", lambda: enforced(api))
        async with Api(api.url, api.token, f"{api.namespace}-beside") as beside:
            await beside.ensure_namespace()
            await asyncio.gather(
                api.create("BatchSandbox", marked("forbidden")), beside.create("BatchSandbox", sandbox("healthy"))
            )
            await beside.until("neighbour", "BatchSandbox", lambda o: is_ready(o["healthy"]), PROMPT, sandlog.trouble)
        found = await told(api, sandlog, {"forbidden": "Forbidden"})
        # A quota may make room: not Failed before the grace is over, since the server deletes what is Failed.
        assert phase(found["forbidden"]) == "Pending"
        await backs_off(api, sandlog, "forbidden")
    finally:
        await quota.allow(10)
    await api.until("room", "BatchSandbox", lambda o: is_ready(o["forbidden"]), 25, sandlog.trouble)
    await no_body_in_texts(api, sandlog)


async def test_without_any_rights_nothing_is_tried_in_a_hot_loop(api: Api, sandlog: Sandlog, server: Any) -> None:
    """As for seconds after an API server has started: it denies everything until it has read its roles."""
    if server.real:
        pytest.skip("test_e2e_lost_parts.py restarts the real one")
    fault = {"do": "fail", "code": 403, "count": 900, "agent": "sandlog/", "namespace": api.namespace}
    try:
        await api.create("BatchSandbox", sandbox("powerless", 2))
        for verb in ("create", "patch"):
            await api.call("POST", "/sim/faults", {**fault, "verbs": [verb]})
        await api.patch("BatchSandbox", "powerless", {"spec": {"replicas": 3}})
        await api.patch("BatchSandbox", "powerless", {"spec": {"replicas": 4}})
        begun = (await until("a command", lambda: commands(sandlog, api.namespace, "powerless")))[0][0]

        async def told_for_four_seconds() -> list[Any]:
            found = await commands(sandlog, api.namespace, "powerless")
            return found if found[-1][0] - begun > 4 else []

        found = await until("tries over 4 s", told_for_four_seconds, 15)
        # Tries at about 0, 1, 3 and 7 s, each of at most two commands, and those of the edits.
        assert len(found) <= 12
    finally:
        await api.call("POST", "/sim/faults", {"do": "clear"})
    await api.until("rights", "BatchSandbox", lambda o: is_ready(o["powerless"], 4), 25, sandlog.trouble)


async def test_names_of_250_characters(api: Api, sandlog: Sandlog) -> None:
    """B106: shortened with a hash of the whole, so that two names which begin alike stay apart."""
    names = ["n" * 249 + end for end in "ab"] + ["a." * 124 + "zz"]
    async with healthy_neighbour(api, sandlog):
        for name in names:
            await api.create("BatchSandbox", marked(name, 2))
        await api.until(
            "long names are ready",
            "BatchSandbox",
            lambda o: all(is_ready(o[name], 2) for name in names),
            15,
            sandlog.trouble,
        )
    pods = await api.list("Pod")
    of = {name: [p for p in pods if p["metadata"]["ownerReferences"][0]["name"] == name] for name in names}
    assert all(len(found) == 2 for found in of.values())
    await api.patch("BatchSandbox", names[0], {"spec": {"replicas": 1}})
    await api.delete("BatchSandbox", names[1])
    await api.until(
        "scaled, deleted, and the third untouched",
        "Pod",
        lambda o: (
            sorted(
                p["metadata"]["ownerReferences"][0]["name"]
                for p in o.values()
                if "ownerReferences" in p["metadata"] and p["metadata"]["ownerReferences"][0]["name"] in names
            )
            == sorted([names[0], names[2], names[2]])
        ),
        15,
        sandlog.trouble,
    )


async def test_foreign_pods_on_our_names(api: Api, sandlog: Sandlog) -> None:
    pod = {
        "metadata": {"name": "sat-on-0"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "a", "image": "b", "args": [MARK]}]},
    }
    # One that even bears our labels.
    dressed = {
        **pod,
        "metadata": {
            "name": "dressed-0",
            "labels": {
                "batch-sandbox.sandbox.opensandbox.io/name": "dressed",
                "batch-sandbox.sandbox.opensandbox.io/pod-index": "0",
            },
        },
    }
    strangers = [await api.create("Pod", each) for each in (pod, dressed)]
    async with healthy_neighbour(api, sandlog):
        for name in ("sat-on", "dressed"):
            await api.create("BatchSandbox", marked(name, 2))
        await api.until(
            "the other index runs",
            "BatchSandbox",
            lambda o: all([bool(e) for e in endpoints(o[name])] == [False, True] for name in ("sat-on", "dressed")),
            PROMPT,
            sandlog.trouble,
        )
    await told(api, sandlog, {"sat-on": "NameTaken"})
    # A stranger that is known beforehand is given the grace (20 s) before it is told; it must only be left alone here.
    for stranger in strangers:
        now = await api.get("Pod", stranger["metadata"]["name"])
        assert now is not None
        assert now["metadata"]["uid"] == stranger["metadata"]["uid"]
        assert "deletionTimestamp" not in now["metadata"]
        await api.delete("Pod", stranger["metadata"]["name"])
    await api.until(
        "the names are free",
        "BatchSandbox",
        lambda o: all(is_ready(o[name], 2) for name in ("sat-on", "dressed")),
        20,
        sandlog.trouble,
    )
    await no_body_in_texts(api, sandlog)


async def test_huge_objects(api: Api, sandlog: Sandlog) -> None:
    """Up to a message's size they are served; past it they say so, and still scale to nothing, expire and go."""
    large, too_large = marked("large"), marked("too-large")
    arguments = large["spec"]["template"]["spec"]["containers"][0]["args"]
    arguments.extend(["x" * 1000] * 850)
    too_large["spec"]["template"]["spec"]["containers"][0]["args"].extend(["x" * 1000] * 1400)
    reduced = sandlog.figure("watch_reduced_total")
    async with healthy_neighbour(api, sandlog):
        await asyncio.gather(*(api.create("BatchSandbox", o) for o in (large, too_large)))
        await api.until("850 kB", "BatchSandbox", lambda o: is_ready(o["large"]), 20, sandlog.trouble)
        await told(api, sandlog, {"too-large": "ObjectTooLarge"}, 20)
    assert sandlog.figure("watch_reduced_total") > reduced
    calls = await commands(sandlog, api.namespace, "too-large")
    assert len(calls) <= 3
    # Made smaller it is served like any other; one that stays too large still expires.
    small = sandbox("x")["spec"]["template"]["spec"]["containers"]
    await api.create("BatchSandbox", {**too_large, "metadata": {"name": "expiring"}})
    await told(api, sandlog, {"expiring": "ObjectTooLarge"}, 20)
    await api.patch("BatchSandbox", "too-large", {"spec": {"template": {"spec": {"containers": small}}}})
    await api.patch("BatchSandbox", "expiring", {"spec": {"expireTime": "2020-01-01T00:00:00Z"}})
    await api.until("made smaller", "BatchSandbox", lambda o: is_ready(o["too-large"]), 20, sandlog.trouble)
    await api.until("expired", "BatchSandbox", lambda o: "expiring" not in o, 20, sandlog.trouble)
    await no_body_in_texts(api, sandlog)


async def test_objects_edited_by_others_all_the_while(api: Api, sandlog: Sandlog) -> None:
    """Labels, annotations and spec patched as fast as the API server takes it, while pods are made and while it scales."""
    stop = asyncio.Event()
    edits = 0
    names = [f"edited-{n}" for n in range(4)]

    async def edit() -> None:
        nonlocal edits
        while not stop.is_set():
            for name in names:
                edits += 1
                note = {"labels": {"editor": str(edits)}, "annotations": {"editor/note": str(edits)}}
                await api.patch("BatchSandbox", name, {"metadata": note, "spec": {"unknown": edits}})

    for name in names:
        await api.create("BatchSandbox", marked(name, 2))
    editor = asyncio.create_task(edit())
    try:
        async with healthy_neighbour(api, sandlog):
            for replicas in (2, 4, 1):
                for name in names:
                    await api.patch("BatchSandbox", name, {"spec": {"replicas": replicas}})
                await api.until(
                    f"{replicas} each, under edits",
                    "BatchSandbox",
                    lambda o, replicas=replicas: all(is_ready(o[name], replicas) for name in names),  # type: ignore[misc]
                    30,
                    sandlog.trouble,
                )
    finally:
        stop.set()
        await editor
    assert edits > 20
    await api.until(
        "quiet",
        "BatchSandbox",
        lambda o: all(
            o[name]["status"]["observedGeneration"] == o[name]["metadata"]["generation"]
            and o[name]["status"]["replicas"] == 1
            for name in names
        ),
        15,
        sandlog.trouble,
    )


async def test_unknown_fields_do_no_harm(api: Api, sandlog: Sandlog) -> None:
    odd = marked("unknown-fields")
    odd["spec"]["fromTheFuture"] = {"x": [MARK]}
    odd["spec"]["template"]["fromTheFuture"] = MARK
    odd["spec"]["template"]["spec"]["fromTheFuture"] = {"deep": {"x": MARK}}
    odd["spec"]["template"]["spec"]["containers"][0]["fromTheFuture"] = [1, 2]
    odd["spec"]["template"]["metadata"] = {"labels": {"team": "a"}, "fromTheFuture": True}
    async with healthy_neighbour(api, sandlog):
        await api.create("BatchSandbox", odd)
        await api.until("ready", "BatchSandbox", lambda o: is_ready(o["unknown-fields"]), PROMPT, sandlog.trouble)
    pod = await api.get("Pod", "unknown-fields-0")
    assert pod is not None
    assert pod["metadata"]["labels"]["team"] == "a"
    await no_body_in_texts(api, sandlog)


async def test_messages_of_a_later_schema_in_the_log(api: Api, sandlog: Sandlog) -> None:
    """They are dead letters, never guesses; what they are about goes on."""
    await api.create("BatchSandbox", sandbox("later"))
    await api.until("ready", "BatchSandbox", lambda o: is_ready(o["later"]), PROMPT, sandlog.trouble)
    place = api.namespace
    kinds = (
        ("obs", "batchsandbox", "later"),
        ("obs", "pod", "later-0"),
        ("cmd", "sandbox", "later"),
        ("out", "sandbox", "later"),
    )
    written = {}
    async with jetstream(sandlog) as stream, healthy_neighbour(api, sandlog):
        for message, kind, name in kinds:
            to = subject(place, message, kind, name)
            body = b'{"type":"from-the-future","secret":"' + MARK.encode() + b'"}'
            written[(await stream.publish(to, body, headers={"Sandlog-Schema": "99"})).seq] = to

        async def all_dead() -> bool:
            return {letter["of"] for letter in await sandlog_dead(sandlog)} >= set(written)

        await until("dead letters of all", all_dead, 20)
    await api.patch("BatchSandbox", "later", {"spec": {"replicas": 2}})
    await api.until("it still scales", "BatchSandbox", lambda o: is_ready(o["later"], 2), PROMPT, sandlog.trouble)
    assert sandlog.figure("dead_letters_total") >= len(written)
    await no_body_in_texts(api, sandlog)


def garbage(namespace: str) -> list[tuple[str, bytes]]:
    """Random bytes, and JSON of the wrong shape, where messages are expected and where none are."""
    chance = random.Random(4)
    kinds = [
        ("obs", "pod", "garbage-0"),
        ("obs", "batchsandbox", "garbage"),
        ("obs", "nonsense", "garbage"),
        ("cmd", "sandbox", "garbage"),
        ("cmd", "nonsense", "garbage"),
        ("out", "sandbox", "garbage"),
        ("tick", "sandbox", "garbage"),
        ("dead", "sandbox", "garbage"),
        ("nonsense", "sandbox", "garbage"),
    ]
    places = [subject(namespace, *kind) for kind in kinds]
    places += [
        "log.all.test.list.batchsandbox",
        "log.all.test.list.nonsense",
        "log.all.test.ask.all",
        "log.all.test.epoch",
    ]
    places += [
        "log.x",
        "log.all",
        "log.99999.test.ns.obs.pod.a",
        "log.-1.test.ns.obs.pod.a",
        "log.x.test.ns.cmd.sandbox.a",
    ]
    places += [f"{places[0]}.and.more", "log.all.test.list", "log.1.test.ns.obs.pod", "log.all.nobody.epoch"]
    bodies = [
        chance.randbytes(200),
        b"",
        b"null",
        b'{"type":"seen"}',
        b"[" * 5000,
        b'{"type":"command","ops":[{"op":"?"}]}',
    ]
    return [(place, body) for place in places for body in bodies]


async def test_garbage_in_the_log(api: Api, sandlog: Sandlog) -> None:
    await api.create("BatchSandbox", marked("garbage"))
    await api.until("ready", "BatchSandbox", lambda o: is_ready(o["garbage"]), PROMPT, sandlog.trouble)
    written = []
    async with jetstream(sandlog) as stream, healthy_neighbour(api, sandlog):
        for number, (place, body) in enumerate(garbage(api.namespace)):
            headers = ({"Sandlog-Schema": "1"}, {}, {"Sandlog-Schema": "x", "Sandlog-Time": "never"})[number % 3]
            written.append((place, (await stream.publish(place, body, headers=headers)).seq))
        about_us = {seq for place, seq in written if ".obs.batchsandbox." in place or ".cmd.sandbox.garbage" in place}

        async def all_dead() -> bool:
            return {letter["of"] for letter in await sandlog_dead(sandlog)} >= about_us

        await until("dead letters", all_dead, 30)
    await api.patch("BatchSandbox", "garbage", {"spec": {"replicas": 3}})
    await api.until("it still scales", "BatchSandbox", lambda o: is_ready(o["garbage"], 3), PROMPT, sandlog.trouble)
    await api.patch("BatchSandbox", "garbage", {"spec": {"replicas": 1}})
    await api.until("both ways", "BatchSandbox", lambda o: is_ready(o["garbage"], 1), PROMPT, sandlog.trouble)
    # A list is asked for, so that a poisoned epoch or list would show.
    async with jetstream(sandlog) as stream:
        lists = sandlog.figure("watch_lists_total")
        body = b'{"type":"ask","by":"a test","reason":"looks whether lists still work"}'
        await stream.publish("log.all.test.ask.all", body, headers={"Sandlog-Schema": "1"})
        await until("lists still work", lambda: sandlog.figure("watch_lists_total") >= lists + 7, 20)
    assert sandlog.figure("role_restarts_total") == 0
    sandlog.until_ready()
    await no_body_in_texts(api, sandlog)
