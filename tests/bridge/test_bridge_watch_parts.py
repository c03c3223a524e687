"""The small parts of the watch: chunks of lists, JSON taken apart without recursion, pauses, and the stock controller's lease."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watch_world import FakeCluster, virtual

from bridge import jsonscan
from bridge.lease import held, stock_controller_holds
from bridge.listing import Objects, chunks
from bridge.observe import NotAnObject, meta_of
from bridge.pace import Backoff
from bus.names import STOCK_LEASE
from bus.times import SECOND, format_micro_time, parse_time

names = st.text("abcdefghijklmnopqrstuvwxyz-.", min_size=1, max_size=253)
entries = st.lists(st.tuples(names, st.just("0" * 36), st.integers(1, 2**62)), max_size=20)


@given(st.dictionaries(names, entries, max_size=4), st.integers(700, 4000))
def test_chunks_hold_everything_once_and_in_order_and_fit(objects: Objects, limit: int) -> None:
    parts = chunks(objects, limit)
    assert parts
    assert all(len(msgspec.json.encode(part)) <= limit for part in parts)
    together: Objects = {}
    for part in parts:
        for namespace, found in part.items():
            together.setdefault(namespace, []).extend(found)
    assert together == {namespace: found for namespace, found in objects.items() if found}


def test_an_empty_list_is_one_chunk() -> None:
    assert chunks({}, 1000) == [{}]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_members_are_those_of_the_json(value: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1).encode(errors="surrogatepass")
    assert {key: json.loads(part) for key, part in jsonscan.members(text).items()} == value


@given(st.lists(json_values), st.booleans())
def test_elements_are_those_of_the_json(value: list[Any], spaced: bool) -> None:
    text = json.dumps(value, indent=2 if spaced else None).encode()
    assert [json.loads(part) for part in jsonscan.elements(text)] == value


@pytest.mark.parametrize(
    "text", [b"", b"{", b"}", b"[]", b'{"a":1}}', b'{"a":1', b"{a:1}", b'{"a"}', b'{"a":{}', b"null"]
)
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(jsonscan.NotJson):
        jsonscan.members(text)


def test_metadata_of_an_object_nested_100_000_deep() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    meta = meta_of(b'{"spec":' + deep + b',"metadata":{"name":"n","resourceVersion":"12"}}')
    assert (meta.name, meta.version) == ("n", 12)


@pytest.mark.parametrize("version", ["", "abc", "-1", "1.5", "\u0661"])
def test_a_resource_version_that_is_no_number_is_refused(version: str) -> None:
    meta = meta_of(msgspec.json.encode({"metadata": {"name": "n", "resourceVersion": version}}))
    with pytest.raises(NotAnObject):
        _ = meta.version


def test_pauses_double_with_jitter_up_to_a_bound_and_start_again() -> None:
    backoff = Backoff(random.Random(1), first=1.0, longest=8.0)
    pauses = [backoff.pause() for _ in range(6)]
    for pause, base in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True):
        assert base / 2 <= pause <= base
    backoff.reset()
    assert backoff.pause() <= 1


def lease(holder: str, renewed: int, seconds: int = 15) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "renewTime": format_micro_time(renewed), "leaseDurationSeconds": seconds}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": STOCK_LEASE, "namespace": "opensandbox-system"},
        "spec": spec,
    }


NOW = parse_time("2026-01-01T00:00:00Z") or 0


class Leases(FakeCluster):
    """Answers for leases, which the store may not know."""

    def __init__(self, *leases: dict[str, Any]) -> None:
        super().__init__()
        self.leases = leases

    async def request(self, method: str, path: str, **rest: Any) -> Any:
        from bridge.cluster import Response

        headers = {"date": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if status := self._status(path):
            return Response(status, {}, b"{}")
        if path.endswith("/leases"):
            assert rest["query"] == {"fieldSelector": f"metadata.name={STOCK_LEASE}"}
            return Response(200, headers, msgspec.json.encode({"items": self.leases}))
        found = [each for each in self.leases if f"/{each['metadata']['namespace']}/" in path]
        return Response(200, headers, msgspec.json.encode(found[0])) if found else Response(404, headers, b"{}")


@virtual
async def test_the_stock_controllers_lease_is_found_in_any_namespace() -> None:
    cluster = Leases(lease("manager-0_abc", NOW - 5 * SECOND))
    assert await stock_controller_holds(cluster) == "manager-0_abc"
    assert await stock_controller_holds(cluster, "opensandbox-system") == "manager-0_abc"
    assert await stock_controller_holds(cluster, "elsewhere") == "manager-0_abc"


@virtual
async def test_a_lease_that_is_over_or_was_given_back_is_not_held() -> None:
    assert await stock_controller_holds(Leases(lease("manager-0", NOW - 16 * SECOND))) is None
    assert await stock_controller_holds(Leases(lease("", NOW))) is None
    assert await stock_controller_holds(Leases()) is None


@virtual
async def test_where_leases_cannot_be_read_nobody_is_said_to_hold_it() -> None:
    cluster = Leases(lease("manager-0", NOW))
    cluster.refused["leases"] = 403
    assert await stock_controller_holds(cluster, "opensandbox-system") is None


def test_a_holder_without_times_holds() -> None:
    from bridge.lease import _LeaseSpec

    assert held(_LeaseSpec(holder_identity="x"), NOW)
    assert held(_LeaseSpec(holder_identity="x", renew_time=format_micro_time(NOW - 100 * SECOND)), None)
    assert not held(_LeaseSpec(), NOW)
