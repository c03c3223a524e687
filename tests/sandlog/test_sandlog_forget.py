"""A cluster that nobody watches is marked, and `forget` takes it out of log and views without harm to the others."""

from __future__ import annotations

import asyncio
import random

from sandlog_helpers import Cli, Nats
from test_sandlog_reading import READY, TWIN, append, at, seen, store

from bus import messages, scopes, subjects, viewcodec
from bus.clock import LogClock
from bus.connection import Connection, ConnectionSettings
from bus.log_nats import NatsLog
from bus.membership_nats import NatsMemberships
from bus.metrics import NoMetrics
from bus.viewstore import ViewStoreUnavailable
from bus.viewstore_nats import NatsViewStore
from bus.viewstore_shared import SharedViewStore
from projector.service import Projector, ProjectorSettings


def of(cluster: str, name: str, version: int) -> tuple[str, messages.Body]:
    _, body = seen("batchsandbox", name, f"{cluster}-{name}", version, spec={"replicas": 1})
    partition = subjects.partition_of(cluster, "team", 4)
    return subjects.observation(partition, cluster, "team", "batchsandbox", name), body


def with_bridge(nats: Nats, cluster: str, work: object) -> None:
    """Call `work` while a bridge of the cluster is a live member."""

    async def whole() -> None:
        async with await Connection.open(ConnectionSettings(url=nats.url)) as connection:
            membership = await (await NatsMemberships.open(connection)).join(f"bridge.{cluster}", "b-1")
            await asyncio.to_thread(work)  # type: ignore[arg-type]
            await membership.leave()

    asyncio.run(whole())


def held(nats: Nats) -> tuple[set[str], set[str]]:
    """The clusters of which the log holds messages, and those of which there are views or states."""
    logged: set[str] = set()
    stored: set[str] = set()

    async def look(log: NatsLog, views: NatsViewStore) -> None:
        logged.update(subjects.parse(r.subject).cluster for r in await log.read(("log.>",)))
        for entry in await views.list(""):
            _, aggregate, _ = subjects.parse_view_key(entry.key)
            if aggregate is not None:
                stored.add(aggregate.cluster)
            elif entry.data is not None:
                stored.update(viewcodec.decode_fence(entry.data).clusters)

    nats.do(look)
    return logged, stored


def test_get_marks_what_nobody_watches_with_when_it_was_last_seen(cli: Cli, nats: Nats) -> None:
    store(nats, READY, TWIN)
    append(nats, of("c1", "box.one", 9))
    ran: dict[str, object] = {}

    def look() -> None:
        ran["all"], ran["one"] = cli("get", *at(nats)), cli("get", "team/box.one", "--cluster", "c2", *at(nats))

    with_bridge(nats, "c1", look)
    lone = cli("get", "team/box.one", "--cluster", "c1", *at(nats))

    table = ran["all"].out.splitlines()  # type: ignore[attr-defined]
    assert table[0].endswith("LAST SEEN")
    assert [line.split()[0] for line in table[1:]] == ["c1", "c2"]
    assert table[1].endswith("-")
    assert table[2].endswith("long ago")
    assert "no live bridge watches the cluster c2" in ran["all"].err  # type: ignore[attr-defined]
    assert "no live bridge watches" in ran["one"].out  # type: ignore[attr-defined]
    assert "0s ago: no live bridge" in lone.out or "1s ago: no live bridge" in lone.out


def test_get_of_a_cluster_that_is_not_known_names_those_that_are(cli: Cli, nats: Nats) -> None:
    store(nats, READY, TWIN)

    ran = cli("get", "--cluster", "nope", *at(nats))

    assert ran.code == 5
    assert "nope is not known" in ran.err
    assert "c1, c2" in ran.err
    assert cli("get", "--cluster", "c1", "--kind", "pool", *at(nats)).code == 0


def test_forget_asks_for_yes_and_refuses_while_a_bridge_lives(cli: Cli, nats: Nats) -> None:
    store(nats, READY, TWIN)
    append(nats, of("c1", "box.one", 9))

    asked = cli("forget", "c1", *at(nats))
    ran: list[object] = []
    with_bridge(nats, "c1", lambda: ran.append(cli("forget", "c1", "--yes", *at(nats))))

    assert asked.code == 2
    assert "--yes" in asked.err
    assert ran[0].code == 1  # type: ignore[attr-defined]
    assert "bridge b-1" in ran[0].err  # type: ignore[attr-defined]
    assert held(nats) == ({"c1"}, {"c1", "c2"})
    assert cli("forget", "c9", "--yes", *at(nats)).code == 5
    assert cli("forget", "a.b", "--yes", *at(nats)).code == 2


def test_forget_takes_one_cluster_and_leaves_the_others(cli: Cli, nats: Nats) -> None:
    store(nats, READY, TWIN)
    listed = messages.encode(messages.Ask("test", ""))
    append(nats, of("c1", "box.one", 9), of("c2", "box.one", 9), (subjects.ask_for("c1", "all"), listed))

    ran = cli("forget", "c1", "--yes", *at(nats))

    assert ran.code == 0
    assert "2 messages, 1 keys" in ran.out
    assert held(nats) == ({"c2"}, {"c2"})
    assert cli("forget", "c1", "--yes", *at(nats)).code == 5


def test_a_running_projector_outlives_it_and_the_cluster_may_come_back(cli: Cli, nats: Nats) -> None:
    """The projector's next commit is fenced: it loads again, without the cluster, and folds a new beginning of it."""

    async def whole() -> None:
        async with await Connection.open(ConnectionSettings(url=nats.url)) as connection:
            views = await NatsViewStore.open(connection)
            shared = SharedViewStore(views)
            mirror: set[subjects.Aggregate] = set()
            follower = asyncio.create_task(follow(shared, mirror))
            log = await NatsLog.open(connection)
            memberships = await NatsMemberships.open(connection)
            settings = ProjectorSettings(idle=0.05, fence_interval=0.1)
            projector = Projector(
                log, shared, memberships, LogClock(), random.Random(1), NoMetrics(), settings, name="p"
            )
            task = asyncio.create_task(projector.run())
            try:
                await until(views, {"c1", "c2"})
                forgot = await asyncio.to_thread(cli, "forget", "c1", "--yes", *at(nats))
                assert forgot.code == 0, forgot.err
                await appended(log, of("c2", "later", 12))
                await until(views, {"c2"}, names={"box", "later"})
                await appended(log, of("c1", "anew", 1))
                await until(views, {"c1", "c2"}, names={"box", "later", "anew"})
                async with asyncio.timeout(20):
                    while {(a.cluster, a.name) for a in mirror} != {("c2", "box"), ("c2", "later"), ("c1", "anew")}:
                        await asyncio.sleep(0.05)
            finally:
                task.cancel()
                follower.cancel()
                await asyncio.gather(task, follower, return_exceptions=True)

    append(nats, of("c1", "box", 9), of("c2", "box", 9))
    asyncio.run(whole())


async def follow(views: SharedViewStore, mirror: set[subjects.Aggregate]) -> None:
    """What a reconciler of the projector's process knows: watched the short way, begun anew whenever the watch ends."""
    while True:
        watch = await views.watch(subjects.VIEW_KEYS)
        mirror.clear()
        try:
            while True:
                for entry in await watch.batch(100):
                    aggregate = subjects.parse_view_key(entry.key)[1]
                    assert aggregate is not None
                    (mirror.discard if entry.data is None else mirror.add)(aggregate)
        except ViewStoreUnavailable:
            await watch.close()


async def appended(log: NatsLog, given: tuple[str, messages.Body]) -> None:
    await log.append(given[0], messages.encode(given[1]), messages.headers("test"))


async def until(views: NatsViewStore, clusters: set[str], names: set[str] | None = None) -> None:
    """Wait for exactly these clusters (and names) among the views."""
    watch = await views.watch(subjects.VIEW_KEYS)
    try:
        async with asyncio.timeout(20):
            while True:
                found = [subjects.parse_view_key(e.key)[1] for e in await views.list("") if "._" not in e.key]
                if {a.cluster for a in found if a} == clusters and names in (None, {a.name for a in found if a}):
                    return
                await watch.batch(100, 0.5)
    finally:
        await watch.close()


def test_every_scope_has_a_subject_that_goes_with_its_cluster() -> None:
    """`forget` purges log.*.CLUSTER.>: the lists of all scopes must lie under it."""
    for scope in scopes.SCOPES:
        assert subjects.list_of("c1", scope.word).split(".")[2] == "c1"
