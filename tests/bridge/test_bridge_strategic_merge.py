"""Strategic merge patch as Kubernetes does it (k8s.io/apimachinery strategicpatch; k8s.io/api core/v1 patch tags)."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.strategic_merge import POD_TEMPLATE_LISTS, PatchError, apply

CASES = json.loads((Path(__file__).parent / "strategic_merge_cases.json").read_text())
"""What apimachinery v0.36.3 `StrategicMergePatch(original, patch, PodTemplateSpec)` gave for random templates; `merged` null: an error."""


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_agrees_with_the_original(case: dict[str, Any]) -> None:
    if case["merged"] is None:
        with pytest.raises(PatchError):
            apply(case["original"], case["patch"])
    else:
        assert apply(case["original"], case["patch"]) == case["merged"]


def containers(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(items), **more}}


def env(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return containers({"name": "main", "env": list(items), **more})


EXAMPLES = {
    "a scalar is replaced, null removes": (
        {"spec": {"priority": 1, "hostname": "x"}},
        {"spec": {"priority": 2, "hostname": None, "subdomain": None}},
        {"spec": {"priority": 2}},
    ),
    "labels merge": (
        {"metadata": {"labels": {"a": "1", "b": "2"}}},
        {"metadata": {"labels": {"b": "3", "shard": "0"}}},
        {"metadata": {"labels": {"a": "1", "b": "3", "shard": "0"}}},
    ),
    "containers merge by name, command and args are atomic": (
        containers({"name": "main", "image": "i", "command": ["a", "b"], "args": ["c"]}, {"name": "side"}),
        containers({"name": "main", "command": ["z"]}),
        containers({"name": "main", "image": "i", "command": ["z"], "args": ["c"]}, {"name": "side"}),
    ),
    "a new env entry comes first (controller-behaviour.md §4.2)": (
        env({"name": "foo", "value": "1"}),
        env({"name": "hello", "value": "2"}),
        env({"name": "hello", "value": "2"}, {"name": "foo", "value": "1"}),
    ),
    "env entries of one name merge field by field, in the template's order": (
        env({"name": "a", "value": "1"}, {"name": "b", "value": "2"}),
        env({"name": "b", "value": "3"}),
        env({"name": "a", "value": "1"}, {"name": "b", "value": "3"}),
    ),
    "an env entry is deleted by its name": (
        env({"name": "a", "value": "1"}, {"name": "b", "value": "2"}),
        env({"name": "a", "$patch": "delete"}),
        env({"name": "b", "value": "2"}),
    ),
    "a list is replaced": (
        env({"name": "a", "value": "1"}),
        env({"$patch": "replace"}, {"name": "b", "value": "2"}),
        env({"name": "b", "value": "2"}),
    ),
    "an object is replaced": (
        {"spec": {"securityContext": {"runAsUser": 1, "fsGroup": 2}}},
        {"spec": {"securityContext": {"$patch": "replace", "runAsUser": 3}}},
        {"spec": {"securityContext": {"runAsUser": 3}}},
    ),
    "an object is emptied": (
        {"spec": {"securityContext": {"runAsUser": 1}}},
        {"spec": {"securityContext": {"$patch": "delete"}}},
        {"spec": {"securityContext": {}}},
    ),
    "tolerations, node selector terms and envFrom are atomic": (
        {"spec": {"tolerations": [{"key": "a"}], "containers": [{"name": "m", "envFrom": [{"prefix": "a"}]}]}},
        {"spec": {"tolerations": [{"key": "b"}], "containers": [{"name": "m", "envFrom": [{"prefix": "b"}]}]}},
        {"spec": {"tolerations": [{"key": "b"}], "containers": [{"name": "m", "envFrom": [{"prefix": "b"}]}]}},
    ),
    "a volume's other sources go with $retainKeys": (
        {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
        {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}},
        {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}},
    ),
    "finalizers merge as a set": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["b", "c"]}},
        {"metadata": {"finalizers": ["a", "b", "c"]}},
    ),
    "a primitive is deleted": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
        {"metadata": {"finalizers": ["b"]}},
    ),
    "an order is set": (
        env({"name": "a"}, {"name": "b"}),
        containers(
            {
                "name": "main",
                "$setElementOrder/env": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
                "env": [{"name": "c"}],
            }
        ),
        env({"name": "b"}, {"name": "c"}, {"name": "a"}),
    ),
    "ports merge by containerPort, a number": (
        containers({"name": "m", "ports": [{"containerPort": 80, "name": "http"}]}),
        containers({"name": "m", "ports": [{"containerPort": 80, "hostPort": 8080}]}),
        containers({"name": "m", "ports": [{"containerPort": 80, "name": "http", "hostPort": 8080}]}),
    ),
    "merge is the default spelled out": (
        {"spec": {"nodeSelector": {"a": "1"}}},
        {"spec": {"nodeSelector": {"$patch": "merge", "b": "2"}}},
        {"spec": {"nodeSelector": {"a": "1", "b": "2"}}},
    ),
    "what is set whole keeps neither nulls nor directives": (
        {"spec": {}},
        {
            "spec": {
                "volumes": [{"name": "v", "emptyDir": None}, {"$patch": "replace"}, {"name": "w", "$patch": "delete"}]
            }
        },
        {"spec": {"volumes": [{"name": "v"}]}},
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    original, patch, merged = EXAMPLES[name]
    before = copy.deepcopy((original, patch))
    result = apply(original, patch)
    assert json.dumps(result) == json.dumps(merged) or result == merged
    assert (original, patch) == before


BAD = {
    "patch is not an object": "secret-1",
    "spec.containers[0] has no name, by which this list is merged": containers({"image": "secret-1"}),
    "spec.containers[0].env[1] has no name, by which this list is merged": env({"name": "a"}, {"value": "secret-1"}),
    "spec.containers[0] is not an object": {"spec": {"containers": ["secret-1"]}},
    "spec.containers[0] has a name that is not a plain value": containers({"name": ["secret-1"]}),
    "spec.containers[0] has an unknown $patch directive": containers({"name": "main", "$patch": "secret-1"}),
    "spec has an unknown $patch directive": {"spec": {"$patch": "secret-1"}},
    "spec.volumes[0].hostPath is set but not named in $retainKeys": {
        "spec": {"volumes": [{"name": "v", "hostPath": {"path": "secret-1"}, "$retainKeys": ["name"]}]}
    },
    "spec.containers[0].$retainKeys is not a list of plain values": containers(
        {"name": "main", "$retainKeys": "secret-1"}
    ),
    "spec.containers[0].$setElementOrder/env is not a list": containers(
        {"name": "main", "$setElementOrder/env": "secret-1"}
    ),
    "spec.containers[0].env does not match its $setElementOrder list": env(
        {"name": "secret-1"}, **{"$setElementOrder/env": [{"name": "a"}]}
    ),
    "spec.containers[0].env is not a list": containers(
        {"name": "main", "env": "secret-1", "$setElementOrder/env": [{"name": "a"}]}
    ),
    "metadata.finalizers is not a plain value": {"metadata": {"finalizers": [{"secret-1": "x"}]}},
    "spec.containers[0].command is not a list that $deleteFromPrimitiveList can change": containers(
        {"name": "main", "$deleteFromPrimitiveList/command": ["secret-1"]}
    ),
}


@pytest.mark.parametrize("problem", BAD)
def test_what_cannot_be_applied_names_the_place_and_no_value(problem: str) -> None:
    original = {
        "metadata": {"finalizers": ["x"]},
        "spec": {
            "containers": [{"name": "main", "command": ["x"], "env": [{"name": "a", "value": "secret-2"}]}],
            "volumes": [{"name": "v"}],
        },
    }
    with pytest.raises(PatchError) as caught:
        apply(original, BAD[problem])
    assert str(caught.value) == problem


def test_the_table_is_the_apis() -> None:
    """k8s.io/api v0.36 core/v1: every field below PodTemplateSpec with a patchStrategy `merge`, by its patchMergeKey."""
    assert len(POD_TEMPLATE_LISTS) == 25
    assert POD_TEMPLATE_LISTS["spec.initContainers.volumeMounts"] == "mountPath"
    assert POD_TEMPLATE_LISTS["spec.ephemeralContainers.volumeDevices"] == "devicePath"
    assert "spec.tolerations" not in POD_TEMPLATE_LISTS
    assert "spec.containers.envFrom" not in POD_TEMPLATE_LISTS


_names = st.sampled_from(["a", "b", "c"])
_env = st.lists(st.fixed_dictionaries({"name": _names}, optional={"value": _names}), unique_by=lambda e: e["name"])
_container = st.fixed_dictionaries({"name": _names}, optional={"env": _env, "image": _names, "args": st.lists(_names)})
_template = st.fixed_dictionaries(
    {"spec": st.fixed_dictionaries({"containers": st.lists(_container, unique_by=lambda c: c["name"])})},
    optional={"metadata": st.fixed_dictionaries({}, optional={"labels": st.dictionaries(_names, _names)})},
)


@given(_template, _template)
def test_a_patch_without_directives_takes_effect_once(original: dict[str, Any], patch: dict[str, Any]) -> None:
    merged = apply(original, patch)
    assert apply(merged, patch) == merged
    assert apply(original, {}) == original
    wanted = {item["name"] for item in (*original["spec"]["containers"], *patch["spec"]["containers"])}
    assert {item["name"] for item in merged["spec"]["containers"]} == wanted
    mine = [item["name"] for item in patch["spec"]["containers"]]
    assert [item["name"] for item in merged["spec"]["containers"] if item["name"] in mine] == mine
