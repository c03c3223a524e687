"""Pods as the executor builds them (controller-behaviour.md §0.3, traces.md shard_patches, DESIGN §6)."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from bridge.podbuild import CannotBuild, PodBuilder, build_pod
from bus import names

SPEC = {"containers": [{"name": "main", "image": "busybox:1", "env": [{"name": "TOKEN", "value": "hunter2-secret"}]}]}


def sandbox(template: Any = None, patches: Any = None, name: str = "a") -> dict[str, Any]:
    given = {"metadata": {"labels": {"team": "x"}}, "spec": SPEC} if template is None else template
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": "u-1", "generation": 1},
        "spec": {"replicas": 3, "template": given, "shardPatches": patches},
    }


def test_a_pod_has_owner_index_name_and_intent() -> None:
    assert build_pod(sandbox(), "a-2", 2, "d1") == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "a-2",
            "namespace": "ns",
            "labels": {
                "team": "x",
                "batch-sandbox.sandbox.opensandbox.io/pod-index": "2",
                "batch-sandbox.sandbox.opensandbox.io/name": "a",
            },
            "annotations": {"sandbox.opensandbox.io/template-digest": "d1"},
            "ownerReferences": [
                {
                    "apiVersion": "sandbox.opensandbox.io/v1alpha1",
                    "kind": "BatchSandbox",
                    "name": "a",
                    "uid": "u-1",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": SPEC,
    }


def test_the_templates_metadata_is_kept_and_ours_wins() -> None:
    template = {
        "metadata": {
            "name": "ignored",
            "labels": {names.POD_INDEX: "9"},
            "annotations": {"x": "y", names.TEMPLATE_DIGEST: "forged"},
            "finalizers": ["example.com/x"],
        },
        "spec": SPEC,
    }
    metadata = build_pod(sandbox(template), "a-0", 0, "d1")["metadata"]
    assert metadata["name"] == "a-0"
    assert metadata["labels"][names.POD_INDEX] == "0"
    assert metadata["annotations"] == {"x": "y", names.TEMPLATE_DIGEST: "d1"}
    assert metadata["finalizers"] == ["example.com/x"]


def test_a_shard_patch_changes_its_index_alone() -> None:
    patches = [
        {"metadata": {"labels": {"shard": "0"}}},
        None,
        {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}},
    ]
    whole = sandbox(patches=patches)
    before = copy.deepcopy(whole)
    pods = [build_pod(whole, f"a-{i}", i, "d") for i in range(4)]
    assert [pod["metadata"]["labels"].get("shard") for pod in pods] == ["0", None, None, None]
    assert [pod["spec"]["containers"][0]["image"] for pod in pods] == [
        "busybox:1",
        "busybox:1",
        "busybox:2",
        "busybox:1",
    ]
    assert pods[2]["spec"]["containers"][0]["env"] == SPEC["containers"][0]["env"]
    assert whole == before


def test_encoded_and_built_are_the_same_pod() -> None:
    builder = PodBuilder(sandbox(patches=[None, {"spec": {"hostname": "h"}}]), "d")
    for index in range(3):
        assert msgspec.json.decode(builder.encode(f"a-{index}", index)) == builder.build(f"a-{index}", index)


def test_b106_a_long_name_is_a_short_label() -> None:
    long = "n" * 250
    label = build_pod(sandbox(name=long), "n-0", 0, "d")["metadata"]["labels"][names.SANDBOX_NAME]
    assert label == names.label_value(long)
    assert len(label) <= 63


@pytest.mark.parametrize(
    ("template", "patches", "reason", "message"),
    [
        ("hunter2-secret", None, "InvalidTemplate", "spec.template is not an object"),
        ({"metadata": {}}, None, "InvalidTemplate", "spec.template.spec is missing"),
        ({"spec": ["hunter2-secret"]}, None, "InvalidTemplate", "spec.template.spec is not an object"),
        (
            {"spec": SPEC, "metadata": {"labels": ["hunter2-secret"]}},
            None,
            "InvalidTemplate",
            "spec.template.metadata.labels is not an object",
        ),
        (None, {"hunter2-secret": 1}, "InvalidShardPatch", "spec.shardPatches is not a list"),
        (None, ["hunter2-secret"], "InvalidShardPatch", "spec.shardPatches[0]: patch is not an object"),
        (
            None,
            [{"spec": None}],
            "InvalidShardPatch",
            "spec.shardPatches[0]: the patched template.spec is missing",
        ),
        (
            None,
            [{"spec": {"containers": [{"image": "hunter2-secret"}]}}],
            "InvalidShardPatch",
            "spec.shardPatches[0]: spec.containers[0] has no name, by which this list is merged",
        ),
    ],
)
def test_what_cannot_be_built_says_where_and_no_value(template: Any, patches: Any, reason: str, message: str) -> None:
    with pytest.raises(CannotBuild) as caught:
        PodBuilder(sandbox(template, patches), "d").encode("a-0", 0)
    assert (caught.value.reason, caught.value.message) == (reason, message)


def test_no_template_is_told() -> None:
    whole = sandbox()
    del whole["spec"]["template"]
    with pytest.raises(CannotBuild, match="missing"):
        PodBuilder(whole, "d")
