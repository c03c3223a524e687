"""No secret value leaves the bridge, and equal secrets stay recognisable as equal (DESIGN §4, Observations)."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.redact import LAST_APPLIED, Redactor, facts
from bus import names
from bus.hashing import spec_digest, template_digest

KEY = b"key of the tests"
SECRET = "hunter2-is-not-a-good-password"
MARK = re.compile(r"sha256-hmac:[0-9a-f]{16}")

redactor = Redactor(KEY)


def redacted(obj: Any, kind: str = "batchsandbox", by: Redactor = redactor) -> Any:
    return msgspec.json.decode(by.redacted(msgspec.json.encode(obj), kind))


def pod(env: Any, **metadata: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "args": ["--flag"], "env": env}
    return {
        "kind": "Pod",
        "metadata": {"name": "p", **metadata},
        "spec": {"containers": [container]},
        "status": {"phase": "Running"},
    }


def sandbox(**spec: Any) -> dict[str, Any]:
    return {"kind": "BatchSandbox", "metadata": {"name": "s"}, "spec": {"replicas": 1, **spec}, "status": {"ready": 0}}


def env(value: Any) -> list[dict[str, Any]]:
    return [{"name": "A", "value": value}]


PLACES: dict[str, tuple[str, Any]] = {
    "pod": ("pod", lambda s: pod(env(s))),
    "pod, init container": ("pod", lambda s: {"spec": {"initContainers": [{"env": env(s)}]}}),
    "pod, ephemeral container": ("pod", lambda s: {"spec": {"ephemeralContainers": [{"env": env(s)}]}}),
    "pod, probe header": (
        "pod",
        lambda s: {"spec": {"containers": [{"readinessProbe": {"httpGet": {"httpHeaders": [{"name": "X", "value": s}]}}}]}},
    ),
    "pod, annotation": ("pod", lambda s: pod([], annotations={"opensandbox.io/egress-auth-token": s})),
    "pod, last applied": ("pod", lambda s: pod([], annotations={LAST_APPLIED: '{"env":"' + s + '"}'})),
    "job": ("job", lambda s: {"spec": {"template": pod(env(s))}}),
    "pool": ("pool", lambda s: {"spec": {"template": pod(env(s))}}),
    "template": ("batchsandbox", lambda s: sandbox(template=pod(env(s)))),
    "template's annotation": ("batchsandbox", lambda s: sandbox(template={"metadata": {"annotations": {"my-token": s}}})),
    "template, a text": ("batchsandbox", lambda s: sandbox(template='{"spec":"' + s + '"}')),
    "template's spec, a text": ("batchsandbox", lambda s: sandbox(template={"spec": s})),
    "containers, texts": ("batchsandbox", lambda s: sandbox(template={"spec": {"containers": [s]}})),
    "shard patch": ("batchsandbox", lambda s: sandbox(shardPatches=[{"spec": {"containers": [{"name": "c", "env": env(s)}]}}])),
    "shard patch, a text": ("batchsandbox", lambda s: sandbox(shardPatches=[s])),
    "shard patches, a text": ("batchsandbox", lambda s: sandbox(shardPatches=s)),
    "shard patch, a JSON patch": (
        "batchsandbox",
        lambda s: sandbox(shardPatches=[[{"op": "add", "path": "/spec/containers/0/env/-", "value": env(s)[0]}]]),
    ),
    "shard patch, one op": ("batchsandbox", lambda s: sandbox(shardPatches=[{"op": "add", "path": "/x", "value": [s]}])),
    "shard patch, order list": ("batchsandbox", lambda s: sandbox(shardPatches=[{"$setElementOrder/env": [{"name": "A", "x": s}]}])),
    "task template": ("batchsandbox", lambda s: sandbox(taskTemplate={"spec": {"process": {"env": env(s)}}})),
    "task process, a text": ("batchsandbox", lambda s: sandbox(taskTemplate={"spec": {"process": s}})),
    "shard task patch": ("batchsandbox", lambda s: sandbox(shardTaskPatches=[{"spec": {"process": {"env": env(s)}}}])),
    "env, a map": ("batchsandbox", lambda s: sandbox(template={"spec": {"containers": [{"env": {"A": s}}]}})),
    "env, a text": ("batchsandbox", lambda s: sandbox(template={"env": s})),
    "env, texts": ("batchsandbox", lambda s: sandbox(template={"env": [s]})),
    "env, lists": ("batchsandbox", lambda s: sandbox(template={"env": [[{"value": s}]]})),
    "env, other case": ("batchsandbox", lambda s: sandbox(template={"Env": env(s)})),
    "value, a map": ("batchsandbox", lambda s: sandbox(template={"env": env({"deep": [s]})})),
    "name, a map": ("batchsandbox", lambda s: sandbox(template={"env": [{"name": {"x": s}}]})),
    "valueFrom, odd": ("batchsandbox", lambda s: sandbox(template={"env": [{"name": "A", "valueFrom": {"literal": s}}]})),
    "valueFrom, odder": (
        "batchsandbox",
        lambda s: sandbox(template={"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": [s]}}}]}),
    ),
    "annotations, a text": ("batchsandbox", lambda s: sandbox(template={"metadata": {"annotations": s}})),
    "annotation, a map": ("batchsandbox", lambda s: sandbox(template={"metadata": {"annotations": {"x": {"y": s}}}})),
    "metadata, a text": ("batchsandbox", lambda s: {"metadata": s, "spec": {}}),
    "spec, a text": ("batchsandbox", lambda s: {"metadata": {}, "spec": s}),
    "deep": ("batchsandbox", lambda s: sandbox(template=nested(s, 200))),
    "env in status": ("batchsandbox", lambda s: {"status": {"x": {"env": env(s)}}}),
    "unknown member": ("batchsandbox", lambda s: {"data": {"env": env(s)}}),
}  # fmt: skip


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = {"x": [value]}
    return value


secrets = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=6, max_size=40),
    st.from_regex(r"[A-Za-z0-9+/=]{8,40}", fullmatch=True),
)


@pytest.mark.parametrize("place", PLACES)
@given(secret=secrets)
@settings(max_examples=25, deadline=None)
def test_a_secret_at_any_place_is_not_in_the_output(place: str, secret: str) -> None:
    secret = "§" + secret
    kind, build = PLACES[place]
    out = redactor.redacted(msgspec.json.encode(build(secret)), kind)
    assert secret not in out.decode()
    assert secret not in repr(msgspec.json.decode(out))
    assert MARK.search(out.decode())


@given(value=st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.just(SECRET),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "value", "valueFrom", "env", "x"]), inner, max_size=3),
    max_leaves=12,
))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_env_of_any_shape_leaks_no_value_and_raises_nothing(value: Any) -> None:
    told = redacted(sandbox(template={"spec": {"containers": [{"env": value}]}}))
    # A name may stay: it is no value.
    assert all(path[-1] == "name" for path in paths_of(told, SECRET))


def paths_of(value: Any, wanted: str, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(value, dict):
        return [found for key, child in value.items() for found in paths_of(child, wanted, (*path, key))]
    if isinstance(value, list):
        return [found for child in value for found in paths_of(child, wanted, (*path, "[]"))]
    return [path] if value == wanted else []


def test_equal_secrets_give_equal_digests_wherever_they_stand() -> None:
    one = redacted(pod(env(SECRET), annotations={"a-token": SECRET}), "pod")
    other = redacted(sandbox(template=pod(env(SECRET))))
    digest = one["spec"]["containers"][0]["env"][0]["value"]
    assert MARK.fullmatch(digest)
    assert one["metadata"]["annotations"]["a-token"] == digest
    assert other["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] == digest
    assert redacted(pod(env(SECRET + "!")), "pod")["spec"]["containers"][0]["env"][0]["value"] != digest
    another_key = redacted(pod(env(SECRET)), "pod", Redactor(b"another"))
    assert another_key["spec"]["containers"][0]["env"][0]["value"] != digest


def test_the_digest_is_hmac_sha256() -> None:
    """printf 'shunter2' | openssl dgst -sha256 -hmac 'key of the tests' (the 's' marks a text)."""
    assert redactor.digest("hunter2") == "sha256-hmac:" + OPENSSL


OPENSSL = "a3b12d3e52c1bb19"


def test_what_is_no_secret_stays() -> None:
    reference = {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}}
    obj = pod(
        [*env("x"), reference, {"name": "C", "$patch": "delete"}], labels={"a": "b"}, annotations={"note": "text"}
    )
    told = redacted(obj, "pod")
    expected = msgspec.json.decode(msgspec.json.encode(obj))
    expected["spec"]["containers"][0]["env"][0]["value"] = redactor.digest("x")
    assert told == expected


def test_our_own_annotations_are_never_digested() -> None:
    own = {names.ENDPOINTS: "[]", names.ALLOC_STATUS: "{}", names.TEMPLATE_DIGEST: "0123"}
    everything = Redactor(KEY, ["sandbox", "."])
    told = redacted({"metadata": {"annotations": {**own, "other.io/x": "y"}}}, "batchsandbox", everything)
    assert told["metadata"]["annotations"] == {**own, "other.io/x": everything.digest("y")}


def test_configured_annotations_are_digested() -> None:
    told = redacted(pod([], annotations={"corp.io/LICENSE": SECRET}), "pod", Redactor(KEY, ["license"]))
    assert told["metadata"]["annotations"]["corp.io/LICENSE"] == redactor.digest(SECRET)


def test_of_managed_fields_manager_operation_and_time_stay() -> None:
    entry = {
        "manager": "m",
        "operation": "Update",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {}},
    }
    told = redacted(pod([], managedFields=[entry, "odd"]), "pod")
    assert told["metadata"]["managedFields"] == []
    told = redacted(pod([], managedFields=[entry]), "pod")
    assert told["metadata"]["managedFields"] == [{key: entry[key] for key in ("manager", "operation", "time")}]


def test_an_escaped_key_of_a_typed_kind_hides_nothing() -> None:
    raw = b'{"spec":{"containers":[{"\\u0065nv":[{"name":"A","value":"' + SECRET.encode() + b'"}]}]}}'
    assert SECRET.encode() not in redactor.redacted(raw, "pod")


@pytest.mark.parametrize("levels", [100, 900, 5000])
def test_a_deep_template_takes_nothing_else_along(levels: int) -> None:
    deep = b'{"a":' * levels + msgspec.json.encode(SECRET) + b"}" * levels
    raw = b'{"metadata":{"name":"s"},"spec":{"replicas":7,"template":' + deep + b'},"status":{"ready":1}}'
    out = redactor.redacted(raw, "batchsandbox")
    assert SECRET.encode() not in out
    told = msgspec.json.decode(out)
    assert told["spec"]["replicas"] == 7
    assert told["metadata"] == {"name": "s"}
    assert told["status"] == {"ready": 1}


def test_numbers_that_cannot_be_decoded_are_digested_with_what_they_stand_in() -> None:
    out = redactor.redacted(
        b'{"spec":{"replicas":2,"template":{"x":1e999,"env":"' + SECRET.encode() + b'"}}}', "batchsandbox"
    )
    assert SECRET.encode() not in out
    assert msgspec.json.decode(out)["spec"]["replicas"] == 2


def test_what_needs_no_change_stays_byte_for_byte() -> None:
    raw = b'{"kind":"Pod","metadata":{"name":"p","x":1.0},"spec":{"nodeName":"n",  "y":1e2},"status":{"z":10000000000000000000000}}'
    assert redactor.redacted(raw, "pod") == raw.replace(b",  ", b",  ")


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ValueError, match="key"):
        Redactor(b"")


def test_facts_are_of_the_spec_as_it_is() -> None:
    spec = sandbox(template=pod(env(SECRET)))["spec"]
    assert facts("batchsandbox", spec) == {"templateDigest": template_digest(spec), "specDigest": spec_digest(spec)}
    other = sandbox(template=pod(env("else")))["spec"]
    assert facts("batchsandbox", other)["templateDigest"] != facts("batchsandbox", spec)["templateDigest"]
    assert facts("pod", spec) == {}
    assert facts("batchsandbox", "text") == {}
