"""The watch of a cluster, from an API server's events to the log's messages (DESIGN §4)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
from watch_world import CLUSTER, PODS, SANDBOXES, FakeCluster, World, eventually, virtual

from bus import scopes, subjects
from bus.hashing import spec_digest, template_digest
from bus.log_memory import MemoryStream
from bus.messages import CODE_HEADER, SCHEMA_HEADER, Listed
from bus.names import SANDBOX_NAME


@virtual
async def test_objects_come_before_their_list_and_events_after() -> None:
    cluster = FakeCluster()
    made = cluster.sandbox("s1")
    async with World(cluster) as world:
        await world.ready()
        (listed,) = world.seen("s1")
        (whole,) = world.lists("batchsandbox")
        assert listed.listed
        assert listed.epoch == 1
        assert whole.objects == {"default": [("s1", made["metadata"]["uid"], listed.resource_version)]}
        assert whole.resource_version >= listed.resource_version
        order = [type(body).__name__ for body in world.bodies() if getattr(body, "scope", "") == "batchsandbox"]
        assert order == ["Seen", "Listed"]

        cluster.patch(f"{SANDBOXES}/s1", {"spec": {"replicas": 2}})
        cluster.patch(f"{SANDBOXES}/s1", {"spec": {"replicas": 3}})
        cluster.delete(f"{SANDBOXES}/s1")
        await eventually(lambda: world.gone("s1"))
        bodies = world.bodies("s1")[1:]
        assert [type(body).__name__ for body in bodies] == ["Seen", "Seen", "Gone"]
        assert [msgspec.json.decode(body.object)["spec"]["replicas"] for body in bodies[:2]] == [2, 3]
        versions = [body.resource_version for body in bodies]
        assert versions == sorted(versions)
        assert bodies[2].uid == made["metadata"]["uid"]


@virtual
async def test_every_scope_is_listed_and_its_messages_have_subjects_and_headers() -> None:
    cluster = FakeCluster()
    cluster.sandbox("a.b")
    async with World(cluster) as world:
        await world.ready()
        assert {body.scope for body in world.bodies() if isinstance(body, Listed)} == set(scopes.BY_WORD)
        partition = subjects.partition_of(CLUSTER, "default", 64)
        record = next(r for r in world.records() if ".obs." in r.subject)
        assert record.subject == f"log.{partition}.{CLUSTER}.default.obs.batchsandbox.a_b"
        assert record.headers[SCHEMA_HEADER] == "1"
        assert record.headers[CODE_HEADER]


@virtual
async def test_facts_are_those_of_the_whole_spec_and_a_status_change_keeps_them() -> None:
    cluster = FakeCluster()
    spec = cluster.sandbox("s1")["spec"]
    async with World(cluster) as world:
        await world.ready()
        expected = {"templateDigest": template_digest(spec), "specDigest": spec_digest(spec)}
        assert world.seen("s1")[0].facts == expected
        cluster.patch(f"{SANDBOXES}/s1/status", {"status": _status("Pending")})
        await eventually(lambda: len(world.seen("s1")) == 2)
        assert world.seen("s1")[1].facts == expected
        changed = cluster.patch(f"{SANDBOXES}/s1", {"spec": {"pause": True}})["spec"]
        await eventually(lambda: len(world.seen("s1")) == 3)
        assert world.seen("s1")[2].facts == {**expected, "specDigest": spec_digest(changed)}


def _status(phase: str) -> dict[str, object]:
    zeros = ("taskRunning", "taskSucceed", "taskFailed", "taskPending", "taskUnknown")
    return {"phase": phase, "replicas": 1, "allocated": 0, "ready": 0, **dict.fromkeys(zeros, 0)}


@virtual
async def test_a_dropped_watch_resumes_without_a_list_and_misses_no_version() -> None:
    cluster = FakeCluster()
    cluster.sandbox("s1")
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        cluster.drop()
        for replicas in (2, 3, 4):
            cluster.patch(f"{SANDBOXES}/s1", {"spec": {"replicas": replicas}})
        await eventually(lambda: len(world.seen("s1")) == 4)
        told = [msgspec.json.decode(seen.object)["spec"]["replicas"] for seen in world.seen("s1")]
        assert told == [1, 2, 3, 4]
        assert len(world.lists("batchsandbox")) == 1


@virtual
async def test_410_leads_to_a_fresh_list() -> None:
    cluster = FakeCluster()
    async with World(cluster) as world:
        await world.ready()
        cluster.silent = True
        cluster.sandbox("s1")
        for resource in cluster.store.resources:
            cluster.store.history(resource).compact(cluster.store.resource_version)
        cluster.silent = False
        cluster.drop()
        await eventually(lambda: world.seen("s1"))
        assert world.seen("s1")[0].listed
        assert len(world.lists("batchsandbox")) == 2
        cluster.patch(f"{SANDBOXES}/s1", {"spec": {"replicas": 2}})
        await eventually(lambda: len(world.seen("s1")) == 2)
        assert not world.seen("s1")[1].listed


@virtual
async def test_an_error_event_that_is_not_410_leads_to_a_list_too() -> None:
    cluster = FakeCluster()
    error = b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd event received with PrevKv=nil"}}'
    cluster.injected["/pools"] = [error]
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: len(world.lists("pool")) == 2)
        assert len(world.lists("batchsandbox")) == 1


@virtual
async def test_a_silent_socket_is_noticed_and_replaced() -> None:
    cluster = FakeCluster()
    async with World(cluster, idle_timeout=90.0, relist_interval=100_000.0) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        cluster.silent = True
        cluster.sandbox("s1")
        begun = asyncio.get_running_loop().time()
        await eventually(lambda: len(cluster.watches) > len(scopes.SCOPES))
        assert 85 <= asyncio.get_running_loop().time() - begun <= 95
        cluster.silent = False
        await eventually(lambda: world.seen("s1"))
        assert not world.seen("s1")[0].listed


@virtual
async def test_bookmarks_move_the_position_and_are_told_to_nobody() -> None:
    cluster = FakeCluster()
    bookmark = b'{"type":"BOOKMARK","object":{"kind":"Pool","metadata":{"resourceVersion":"5000"}}}'
    cluster.injected["/pools"] = [bookmark]
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: next(s.resource_version for s in world.watcher.status() if s.scope == "pool") == 5000)
        assert not [r for r in world.records() if ".obs." in r.subject]


@virtual
async def test_who_asks_gets_a_list_of_that_scope_and_lists_keep_a_second_apart() -> None:
    async with World() as world:
        await world.ready()
        for _ in range(50):
            await world.ask("pool")
        await eventually(lambda: len(world.lists("pool")) >= 2)
        await asyncio.sleep(5)
        assert 2 <= len(world.lists("pool")) <= 3
        assert len(world.lists("batchsandbox")) == 1
        times = [r.time for r in world.records() if r.subject == subjects.list_of(CLUSTER, "pool")]
        assert all(b - a >= 0.99e9 for a, b in pairwise(times))


@virtual
async def test_lists_come_periodically() -> None:
    async with World(relist_interval=300.0) as world:
        await world.ready()
        await asyncio.sleep(1000)
        assert 3 <= len(world.lists("job")) <= 5


@virtual
async def test_a_periodic_list_does_not_overtake_versions_that_the_watch_still_brings() -> None:
    """A change of `pause` between two others must not be skipped (DESIGN §6, Intent)."""
    cluster = FakeCluster()
    cluster.sandbox("s1")
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        cluster.silent = True
        for pause in (None, True):
            cluster.patch(f"{SANDBOXES}/s1", {"spec": {"pause": pause, "replicas": 5}})

        def speak(path: str) -> None:
            asyncio.get_running_loop().call_later(0.5, _speak, cluster)

        cluster.before_list = speak
        await world.ask("batchsandbox")
        await eventually(lambda: len(world.lists("batchsandbox")) == 2)
        versions = [seen.resource_version for seen in world.seen("s1")]
        assert versions == sorted(versions)
        assert [seen.listed for seen in world.seen("s1")] == [True, False, False, True]


def _speak(cluster: FakeCluster) -> None:
    cluster.silent = False
    cluster.ring()


@virtual
async def test_leaving_the_selector_is_no_deletion() -> None:
    cluster = FakeCluster()
    cluster.pod("p1")
    cluster.pod("p2")
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        left = cluster.patch(f"{PODS}/p1", {"metadata": {"labels": {SANDBOX_NAME: None}}})
        cluster.delete(f"{PODS}/p2")
        await eventually(lambda: world.gone("p2") and len(world.seen("p1")) == 2)
        assert not world.gone("p1")
        told = world.seen("p1")[1]
        assert told.resource_version == int(left["metadata"]["resourceVersion"])
        assert "labels" not in msgspec.json.decode(told.object)["metadata"] or told.scope == "pod-sandbox"


@virtual
async def test_what_was_being_deleted_is_gone_without_a_read() -> None:
    """A deletion of which the watch saw the deletionTimestamp needs no confirmation: one read less per pod."""
    cluster = FakeCluster()
    cluster.pod("p1")
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        cluster.refused["/pods/p1"] = 500
        cluster.delete(f"{PODS}/p1")
        await eventually(lambda: bool(world.gone("p1")))
        assert len(world.lists("pod-sandbox")) == 1


@virtual
async def test_a_successor_of_the_same_name_does_not_hide_a_deletion() -> None:
    cluster = FakeCluster()
    first = cluster.pod("p1")
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        cluster.delete(f"{PODS}/p1")
        second = cluster.pod("p1")
        await eventually(lambda: world.gone("p1"))
        assert world.gone("p1")[0].uid == first["metadata"]["uid"]
        await eventually(lambda: world.seen("p1")[-1].uid == second["metadata"]["uid"])


@virtual
async def test_leaving_a_selector_that_cannot_be_confirmed_is_left_to_a_list() -> None:
    cluster = FakeCluster()
    cluster.pod("p1")
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        cluster.refused["/pods/p1"] = 500
        cluster.patch(f"{PODS}/p1", {"metadata": {"labels": {SANDBOX_NAME: None}}})
        await eventually(lambda: len(world.lists("pod-sandbox")) == 2)
        assert not world.gone("p1")
        assert world.lists("pod-sandbox")[1].objects == {}


@virtual
async def test_an_object_too_large_is_told_without_what_is_large_in_its_spec() -> None:
    """Its expiry and replicas are still followed."""
    cluster = FakeCluster()
    cluster.sandbox("s1", template={"spec": {"containers": [{"name": "c", "args": ["x" * 50_000]}]}})
    cluster.sandbox("s2")
    async with World(cluster, message_limit=30_000) as world:
        await world.ready()
        (large,), (small,) = world.seen("s1"), world.seen("s2")
        assert large.reduced
        spec = msgspec.json.decode(large.object)["spec"]
        assert "template" not in spec
        assert spec["replicas"] == 1
        assert large.facts["templateDigest"]
        assert not small.reduced
        assert world.metrics.counts["watch_reduced"] == 1
        assert all(len(record.data) <= 30_000 for record in world.records())


@virtual
async def test_an_object_nested_too_deep_to_decode_harms_only_itself() -> None:
    cluster = FakeCluster()
    cluster.sandbox("s1")
    deep = b'{"x":' * 3000 + b'"a secret deep down"' + b"}" * 3000
    meta = b'{"name":"s2","namespace":"default","uid":"u2","resourceVersion":"900"}'
    line = b'{"type":"ADDED","object":{"metadata":' + meta + b',"spec":{"replicas":1,"template":' + deep + b"}}}"
    cluster.injected["/batchsandboxes"] = [line, line.replace(b'"s2"', b'"s3"').replace(b"900", b"901")]
    async with World(cluster) as world:
        await world.ready()
        await eventually(lambda: world.seen("s3"))
        assert msgspec.json.decode(world.seen("s2")[0].object)["spec"]["replicas"] == 1
        assert not [r for r in world.records() if b"deep down" in r.data]


@virtual
async def test_pages_make_one_list_and_its_chunks_share_an_id() -> None:
    cluster = FakeCluster()
    for index in range(120):
        cluster.sandbox(f"s{index}")
    async with World(cluster, page_size=50, message_limit=4096 + 4000) as world:
        await world.ready()
        limits = [query.get("limit") for _, path, query in cluster.calls if "batchsandboxes" in path]
        assert limits[:3] == ["50", "50", "50"]
        chunks = world.lists("batchsandbox")
        assert len(chunks) > 1
        assert {(c.id, c.chunks, c.resource_version) for c in chunks} == {
            (chunks[0].id, len(chunks), chunks[0].resource_version)
        }
        assert [c.chunk for c in chunks] == list(range(1, len(chunks) + 1))
        told = [name for chunk in chunks for name, _, _ in chunk.objects["default"]]
        assert sorted(told) == sorted(f"s{index}" for index in range(120))
        assert len(world.seen("s119")) == 1


@virtual
async def test_named_namespaces_are_watched_singly() -> None:
    cluster = FakeCluster()
    cluster.store.add_namespace("other")
    cluster.sandbox("s1")
    async with World(cluster, namespaces=("default", "team")) as world:
        await world.ready()
        assert {path for _, path, _ in cluster.calls if path.endswith("/pools")} == {
            "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/default/pools",
            "/apis/sandbox.opensandbox.io/v1alpha1/namespaces/team/pools",
        }
        assert sorted(listed.namespace for listed in world.lists("batchsandbox")) == ["default", "team"]


@virtual
async def test_a_refused_kind_is_tried_again_and_stops_no_other() -> None:
    cluster = FakeCluster()
    cluster.refused["sandboxsnapshots"] = 404
    cluster.refused["/jobs"] = 403
    cluster.sandbox("s1")
    async with World(cluster) as world:
        await eventually(lambda: world.seen("s1"))
        await asyncio.sleep(120)
        assert not world.watcher.ready.is_set()
        errors = {status.scope: status.error for status in world.watcher.status()}
        assert "install the CRDs" in errors["sandboxsnapshot"]
        assert "allow get, list and watch on jobs" in errors["job"]
        tries = [path for _, path, _ in cluster.calls if path.endswith("/sandboxsnapshots")]
        assert 4 <= len(tries) <= 20
        cluster.refused.clear()
        await world.ready()
        assert {status.error for status in world.watcher.status()} == {""}


@virtual
async def test_when_the_log_was_unavailable_everything_since_is_told_again() -> None:
    cluster = FakeCluster()
    cluster.sandbox("s1")
    stream = MemoryStream()
    async with World(cluster, stream) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        stream.available = False
        for replicas in (2, 3):
            cluster.patch(f"{SANDBOXES}/s1", {"spec": {"replicas": replicas}})
            await asyncio.sleep(3)
        assert len(world.seen("s1")) == 1
        stream.available = True
        await eventually(lambda: len(world.lists("batchsandbox")) == 2)
        told = [(msgspec.json.decode(seen.object)["spec"]["replicas"], seen.listed) for seen in world.seen("s1")]
        assert told == [(1, True), (2, False), (3, False), (3, True)]


@virtual
async def test_a_lost_log_is_made_again_and_filled_by_lists() -> None:
    cluster = FakeCluster()
    cluster.sandbox("s1")
    stream = MemoryStream()
    async with World(cluster, stream) as world:
        await world.ready()
        stream.wipe(recreate=False)
        await eventually(lambda: {b.scope for b in world.bodies() if isinstance(b, Listed)} == set(scopes.BY_WORD))
        assert world.seen("s1")[0].listed
        assert [epoch.epoch for epoch in world.epochs()] == [1]


@virtual
async def test_the_executor_in_the_process_gets_sandboxes_whole() -> None:
    cluster = FakeCluster()
    cluster.sandbox("s1")
    async with World(cluster) as world:
        await world.ready()
        whole = world.recent.get("default", "s1")
        assert whole is not None
        assert b"hidden" in whole.body
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        cluster.delete(f"{SANDBOXES}/s1")
        await eventually(lambda: world.recent.get("default", "s1") is None)


@virtual
async def test_secrets_reach_no_message() -> None:
    cluster = FakeCluster()
    secret = "geheimnis-4711"
    env = [{"name": "A", "value": secret}]
    cluster.sandbox("s1", shardPatches=[{"spec": {"containers": [{"name": "c", "env": env}]}}])
    cluster.pod("p1", env=env)
    async with World(cluster) as world:
        await world.ready()
        cluster.patch(f"{SANDBOXES}/s1", {"metadata": {"annotations": {"example.com/auth-token": secret}}})
        await eventually(lambda: len(world.seen("s1")) == 2)
        assert world.seen("p1")
        assert not [record for record in world.records() if secret.encode() in record.data]


@virtual
async def test_a_scope_that_fails_for_a_reason_nobody_thought_of_is_started_again() -> None:
    cluster = FakeCluster()

    def fault(path: str) -> None:
        if path.endswith("/pools") and len([c for c in cluster.calls if c[1] == path]) == 1:
            raise RuntimeError("never thought of")

    cluster.before_list = fault
    async with World(cluster) as world:
        await world.ready()
        assert world.metrics.counts["watch_crashes"] == 1


@virtual
async def test_an_unreachable_server_is_waited_for_with_pauses() -> None:
    cluster = FakeCluster()
    cluster.down = True
    async with World(cluster) as world:
        await asyncio.sleep(300)
        lists = [path for _, path, _ in cluster.calls if path.endswith("/pools")]
        assert 8 <= len(lists) <= 40
        cluster.down = False
        await world.ready()


@virtual
async def test_a_log_that_lost_its_tail_is_told_everything_again() -> None:
    """NATS loses acked messages with the power (Jepsen, field.md): only lists make good for it."""
    cluster = FakeCluster()
    stream = MemoryStream()
    async with World(cluster, stream) as world:
        await world.ready()
        await eventually(lambda: len(cluster.watches) == len(scopes.SCOPES))
        cluster.sandbox("s1")
        await eventually(lambda: world.seen("s1"))
        await asyncio.sleep(5)
        stream.lose_tail(stream.last - 1)
        assert not world.seen("s1")
        await eventually(lambda: world.seen("s1"), seconds=10)
        assert world.seen("s1")[0].listed
