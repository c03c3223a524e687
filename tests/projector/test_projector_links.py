"""What depends on other views is always as if it had been worked out anew from all of them, whatever came in which order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from projector_world import CLUSTER, NAMESPACE, Story, reloaded, stored
from test_projector_snapshots import COMMIT_PODS, POOL_PODS, job, job_pod, pool_pod, pooled, running, snapshot

from bus import subjects
from bus.subjects import Aggregate
from bus.views import PoolView, SandboxView, SnapshotView
from projector import sources
from projector.fold import Partition

POD_NAMES = ("pp1", "pp2", "pp3")
ALLOCATIONS = (None, '{"pods":["pp1"]}', '{"pods":["pp2","pp1"]}', '{"pods":["pp3","pp2"]}', "{")

sandboxes = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("s", "t")),
        "status": st.sampled_from(ALLOCATIONS),
        "release": st.sampled_from((None, '{"pods":["pp2"]}')),
        "pool_ref": st.sampled_from(("p", "p", "")),
        "uid": st.sampled_from(("u1", "u2")),
    }
)
snapshots = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("a", "b")),
        "of": st.sampled_from(("s", "t")),
        "created": st.integers(0, 1),
        "phase": st.sampled_from(("", "Pending", "Committing", "Succeed", "Failed")),
        "deleting": st.booleans(),
    }
)
steps = st.one_of(
    st.tuples(st.just("sandbox"), sandboxes),
    st.tuples(st.just("sandbox gone"), st.sampled_from(("s", "t"))),
    st.tuples(st.just("pool pod"), st.tuples(st.sampled_from(POD_NAMES), st.booleans())),
    st.tuples(st.just("pool pod gone"), st.sampled_from(POD_NAMES)),
    st.tuples(st.just("pod"), st.tuples(st.sampled_from(("s", "t")), st.booleans())),
    st.tuples(st.just("snapshot"), snapshots),
    st.tuples(st.just("snapshot gone"), st.sampled_from(("a", "b"))),
    st.tuples(st.just("job"), st.tuples(st.sampled_from(("a", "b")), st.integers(0, 1))),
    st.tuples(st.just("job pod"), st.tuples(st.sampled_from(("a", "b")), st.sampled_from(("Running", "Failed")))),
    st.tuples(st.just("list"), st.sampled_from((POOL_PODS, "batchsandbox"))),
)


def tell(story: Story, rv: int, what: str, given: Any) -> None:
    match what:
        case "sandbox":
            given = dict(given)
            story.seen("batchsandbox", pooled(rv, given.pop("status"), given.pop("release"), **given))
        case "sandbox gone":
            story.gone("batchsandbox", given, rv, "u1")
        case "pool pod":
            name, deleting = given
            story.seen("pod", pool_pod(rv, name, f"u-{name}", deleting=deleting), scope=POOL_PODS)
        case "pool pod gone":
            story.gone("pod", given, rv, f"u-{given}", scope=POOL_PODS)
        case "pod":
            of, deleting = given
            story.seen("pod", running(rv, f"{of}-0", f"u-{of}-0", of=of, deleting=deleting))
        case "snapshot":
            given = dict(given)
            phase = given.pop("phase")
            story.seen("sandboxsnapshot", snapshot(rv, phase=phase, sourcePodName="pp1", **given))
        case "snapshot gone":
            story.gone("sandboxsnapshot", given, rv, "sn1")
        case "job":
            name, succeeded = given
            story.seen("job", job(rv, f"{name}-commit", of=name, succeeded=succeeded))
        case "job pod":
            name, phase = given
            story.seen("pod", job_pod(rv, name, f"{name}-commit", phase=phase), scope=COMMIT_PODS)
        case "list":
            story.listed(given, rv, {NAMESPACE: _there(story, given)})


def _there(story: Story, scope: str) -> list[tuple[str, str, int]]:
    """What the cluster still holds of it, but for one that was missed."""
    found = [
        (name.name, entry.uid, entry.version[1])
        for name, entry in story.partition.index.of_scope(CLUSTER, scope, "")
        if not entry.gone
    ]
    return sorted(found)[1:]


def check(partition: Partition) -> None:
    views = partition.views
    pools = [view for view in views.values() if isinstance(view, PoolView)]
    of_pools = {name: pod for pool in pools for name, pod in pool.pods.items()}
    for view in views.values():
        if isinstance(view, SandboxView):
            named = sources.allocated(view)
            held = {name: pod for name, pod in view.pods.items() if name in POD_NAMES}
            assert held == {name: of_pools[name] for name in named if name in of_pools}
        elif isinstance(view, SnapshotView) and view.object is not None and sources.is_open(view):
            of = view.object.sandbox
            all_of_it = {
                other.name: other
                for other in views.values()
                if isinstance(other, SnapshotView) and other.object is not None and other.object.sandbox == of
            }
            sandbox = views.get(Aggregate(CLUSTER, NAMESPACE, subjects.SANDBOX, of))
            assert sandbox is None or isinstance(sandbox, SandboxView)
            assert view.source == sources.sources(sandbox, all_of_it)[view.name]


@given(st.lists(steps, max_size=24), st.integers(0, 24))
@settings(max_examples=300, deadline=None)
def test_links_are_as_if_worked_out_anew(told: list[tuple[str, Any]], restart: int) -> None:
    story, again = Story(), None
    for rv, (what, content) in enumerate(told, 1):
        if rv == restart:
            again = reloaded(story.partition)
        before = len(story.records)
        tell(story, rv, what, content)
        check(story.partition)
        for record in story.records[before:]:
            if again is not None:
                again.fold(record)
    if again is not None:
        check(again)
        assert stored(again) == stored(story.partition)
