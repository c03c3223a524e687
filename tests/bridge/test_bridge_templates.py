"""What a resume and a pause make of a template (PAU-27…29, N-06, N-15, B40): merge patches, applied as RFC 7386 says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.templates import CannotRewrite, detach_patch, difference, rewrite_patch, template_of
from bus import names
from bus.ops import RewriteTemplate, Target
from simcluster.patch import merge_patch

SECRET = "hunter2-secret"


def rewrite(images: dict[str, str], pull_secret: str = "", *, detach: bool = False) -> RewriteTemplate:
    return RewriteTemplate("op", Target("batchsandbox", "s", "u"), 1, images, pull_secret, detach)


def sandbox(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "s", **metadata}, "spec": spec}


def applied(before: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    return merge_patch(copy.deepcopy(before), patch)  # type: ignore[no-any-return]


TWO = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {
        "initContainers": [{"name": "main", "image": "init:1"}],
        "containers": [{"name": "main", "image": "a:1", "tty": True}, {"name": "side", "image": "b:1"}],
    },
}


def test_n_15_only_what_the_snapshot_names_gets_another_image() -> None:
    before = sandbox({"replicas": 1, "pause": True, "template": TWO})
    patch = rewrite_patch(before, rewrite({"main": "reg/s-main:snap-gen2", "gone": "reg/x"}))
    after = applied(before, patch)
    expected = copy.deepcopy(before)
    expected["spec"]["template"]["spec"]["containers"][0]["image"] = "reg/s-main:snap-gen2"
    assert after == expected
    assert "pause" not in patch["spec"]
    assert rewrite_patch(after, rewrite({"main": "reg/s-main:snap-gen2"})) == {}


def test_the_pull_secret_is_added_once_and_keeps_the_others() -> None:
    spec = {**TWO["spec"], "imagePullSecrets": [{"name": "mine"}]}
    before = sandbox({"template": {"spec": spec}})
    after = applied(before, rewrite_patch(before, rewrite({}, "pull")))
    assert after["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "mine"}, {"name": "pull"}]
    assert rewrite_patch(after, rewrite({}, "pull")) == {}


def test_a_pooled_sandbox_is_detached_in_the_same_patch() -> None:
    annotations = {names.ALLOC_STATUS: "x", names.ALLOC_RELEASE: "y", names.ALLOC_RELEASED: "z", "kept": "1"}
    before = sandbox(
        {"poolRef": "p", "template": TWO}, annotations=annotations, finalizers=[names.POOL_ALLOCATION, "other"]
    )
    after = applied(before, rewrite_patch(before, rewrite({"side": "b:2"}, detach=True)))
    assert "poolRef" not in after["spec"]
    assert after["metadata"]["annotations"] == {"kept": "1"}
    assert after["metadata"]["finalizers"] == ["other"]
    assert after["spec"]["template"]["spec"]["containers"][1]["image"] == "b:2"


@pytest.mark.parametrize(
    "template",
    [
        SECRET,
        {"spec": SECRET},
        {"spec": {"containers": SECRET}},
        {"spec": {"containers": [SECRET]}},
        {"spec": {"containers": [], "imagePullSecrets": SECRET}},
    ],
)
def test_a_template_of_another_shape_says_where_and_no_value(template: Any) -> None:
    with pytest.raises(CannotRewrite, match=r"spec\.template") as caught:
        rewrite_patch(sandbox({"template": template}), rewrite({"main": "x"}, "pull"))
    assert SECRET not in str(caught.value)


def source_pod() -> dict[str, Any]:
    labels = {
        names.POOL_NAME: "test-pool",
        names.POOL_REVISION: "rev-1",
        names.SANDBOX_NAME: "s",
        names.POD_INDEX: "0",
        "app": "demo",
    }
    return {
        "metadata": {"name": "pool-pod-1", "uid": "u", "labels": labels, "annotations": {"note": "n"}},
        "spec": {
            "nodeName": "node-a",
            "hostname": "h",
            "tolerations": [{"key": "k"}],
            "containers": [{"name": "main", "image": "pool-image:latest"}],
        },
        "status": {"podIP": "10.0.0.8"},
    }


def test_pau_27_28_n_06_the_template_is_the_pods_but_for_whose_it_is() -> None:
    assert template_of(source_pod()) == {
        "metadata": {"labels": {"app": "demo"}, "annotations": {"note": "n"}},
        "spec": {
            "hostname": "h",
            "tolerations": [{"key": "k"}],
            "containers": [{"name": "main", "image": "pool-image:latest"}],
        },
    }


def test_what_the_api_server_refuses_at_a_creation_stays_out_of_the_template() -> None:
    """A `kubectl debug` of the source pod, and what admission had computed of classes that may be others by the time of the resume.

    A creation with ephemeral containers is forbidden; one with a priority, preemption policy or overhead that the class of that time does
    not have is refused by admission. With the classes' names, which stay, it puts in what they say then.
    """
    pod = source_pod()
    kept = {
        "priorityClassName": "high",
        "runtimeClassName": "gvisor",
        "serviceAccountName": "default",
        "schedulerName": "default-scheduler",
        "volumes": [{"name": "kube-api-access-abcde", "projected": {"sources": []}}],
    }
    pod["spec"] |= kept | {
        "ephemeralContainers": [{"name": "debugger-1", "image": "busybox"}],
        "priority": 1000,
        "preemptionPolicy": "Never",
        "overhead": {"memory": "64Mi"},
    }
    assert template_of(pod)["spec"] == template_of(source_pod())["spec"] | kept


@pytest.mark.parametrize("template", [None, TWO, {"spec": {"containers": [], "hostPID": True}}])
def test_pau_27_29_b40_nothing_of_the_pool_or_of_a_former_template_stays(template: Any) -> None:
    annotations = {
        names.ALLOC_STATUS: '{"pods":["pool-pod-1"]}',
        names.ALLOC_RELEASE: "{}",
        names.ALLOC_RELEASED: "{}",
        names.ENDPOINTS: '["10.0.0.8"]',
        "kept": "1",
    }
    spec: dict[str, Any] = {"poolRef": "test-pool", "pause": True, "replicas": 1}
    if template is not None:
        spec["template"] = template
    before = sandbox(spec, annotations=annotations, finalizers=[names.POOL_ALLOCATION])
    after = applied(before, detach_patch(before, source_pod()))
    assert after["spec"] == {"pause": True, "replicas": 1, "template": template_of(source_pod())}
    assert after["metadata"]["annotations"] == {"kept": "1", names.ENDPOINTS: "[]"}
    assert after["metadata"]["finalizers"] == []
    assert detach_patch(after, source_pod()) == {}


values = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(objects, objects)
def test_a_difference_applied_gives_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert applied(before, difference(before, after)) == after
    assert difference(after, after) == {}
