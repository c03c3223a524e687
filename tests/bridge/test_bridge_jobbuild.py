"""Commit and unpause Jobs in full shape (controller-behaviour.md §7.7, §7.8; SNP-07, SNP-13…16, N-39; B53, B58, B106)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bridge.jobbuild import CommitSettings, build_job
from bus import names
from bus.ops import CreateJob, Target

SNAPSHOT = Target("sandboxsnapshot", "s-pause", "u-snap")
POD = Target("pod", "s-0", "u-pod")
IMAGES = {"main": "registry.example.com/s-main:snap-gen2", "sidecar": "registry.example.com/s-sidecar:snap-gen2"}
ANNOTATIONS = {
    "sandbox.opensandbox.io/sandbox-snapshot-name": "s-pause",
    "sandbox.opensandbox.io/source-pod-name": "s-0",
    "sandbox.opensandbox.io/source-pod-uid": "u-pod",
}
LABELS = {
    "sandbox.opensandbox.io/sandbox-snapshot-name": "s-pause",
    "sandbox.opensandbox.io/privileged-node-access": "true",
}


def commit(**changes: Any) -> CreateJob:
    op = CreateJob("op", SNAPSHOT, "s-pause-commit", "commit", POD, "node-a", IMAGES)
    return msgspec.structs.replace(op, **changes)


def unpause(**changes: Any) -> CreateJob:
    return commit(name="s-pause-unpause", action="unpause", images=dict.fromkeys(IMAGES, ""), **changes)


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return only  # type: ignore[no-any-return]


def environment(job: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(job)["env"]}


def test_n_39_the_commit_job_is_exactly_this() -> None:
    settings = CommitSettings("committer:1", "/run/k3s/containerd.sock", 900, True, "push-secret")
    assert build_job(commit(), "team-a", settings) == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "s-pause-commit",
            "namespace": "team-a",
            "labels": LABELS,
            "annotations": ANNOTATIONS,
            "ownerReferences": [
                {
                    "apiVersion": "sandbox.opensandbox.io/v1alpha1",
                    "kind": "SandboxSnapshot",
                    "name": "s-pause",
                    "uid": "u-snap",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "backoffLimit": 3,
            "ttlSecondsAfterFinished": 300,
            "activeDeadlineSeconds": 900,
            "template": {
                "metadata": {"labels": LABELS, "annotations": ANNOTATIONS},
                "spec": {
                    "restartPolicy": "Never",
                    "nodeName": "node-a",
                    "containers": [
                        {
                            "name": "commit",
                            "image": "committer:1",
                            "imagePullPolicy": "IfNotPresent",
                            "command": ["/usr/local/bin/image-committer"],
                            "args": [
                                "s-0",
                                "team-a",
                                "main:registry.example.com/s-main:snap-gen2",
                                "sidecar:registry.example.com/s-sidecar:snap-gen2",
                            ],
                            "env": [
                                {"name": "CONTAINERD_SOCKET", "value": "/var/run/containerd/containerd.sock"},
                                {"name": "SNAPSHOT_REGISTRY_INSECURE", "value": "true"},
                            ],
                            "volumeMounts": [
                                {"name": "containerd-sock", "mountPath": "/var/run/containerd/containerd.sock"},
                                {
                                    "name": "registry-creds",
                                    "mountPath": "/var/run/opensandbox/registry",
                                    "readOnly": True,
                                },
                            ],
                            "securityContext": {
                                "runAsUser": 0,
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                    "volumes": [
                        {"name": "containerd-sock", "hostPath": {"path": "/run/k3s/containerd.sock"}},
                        {
                            "name": "registry-creds",
                            "secret": {
                                "secretName": "push-secret",
                                "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
                            },
                        },
                    ],
                },
            },
        },
    }


def test_snp_13_bounded_retries_and_the_name() -> None:
    job = build_job(commit(), "default", CommitSettings(push_secret="registry-snapshot-push-secret"))
    assert job["spec"]["backoffLimit"] == 3
    assert job["metadata"]["name"] == "s-pause-commit"


def test_snp_14_15_16_each_value_is_an_argument_of_its_own() -> None:
    op = commit(
        pod=Target("pod", "pod-with-shell-chars-$(touch /tmp/nope)", "u"),
        images={"main;echo nope": "registry.example.com/test:tag"},
    )
    job = build_job(op, "default", CommitSettings(registry_insecure=True))
    made = container(job)
    assert made["command"] == ["/usr/local/bin/image-committer"]
    assert made["args"] == [
        "pod-with-shell-chars-$(touch /tmp/nope)",
        "default",
        "main;echo nope:registry.example.com/test:tag",
    ]
    assert environment(job)["SNAPSHOT_REGISTRY_INSECURE"] == "true"
    assert made["securityContext"]["allowPrivilegeEscalation"] is False
    assert made["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_snp_07_the_unpause_job_has_no_retry_no_credentials_and_one_container() -> None:
    job = build_job(unpause(), "default", CommitSettings(registry_insecure=True, push_secret="push-secret"))
    assert job["metadata"]["name"] == "s-pause-unpause"
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["template"]["spec"]["nodeName"] == "node-a"
    assert container(job)["command"] == ["/usr/local/bin/image-committer"]
    assert container(job)["args"] == ["unpause", "s-0", "default", "main", "sidecar"]
    assert environment(job) == {"CONTAINERD_SOCKET": "/var/run/containerd/containerd.sock"}
    assert [volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]] == ["containerd-sock"]
    assert [mount["name"] for mount in container(job)["volumeMounts"]] == ["containerd-sock"]


def test_b53_whether_the_registry_is_insecure_is_always_said() -> None:
    assert environment(build_job(commit(), "default", CommitSettings()))["SNAPSHOT_REGISTRY_INSECURE"] == "false"


def test_b58_the_labels_are_on_the_pods_too() -> None:
    for op in (commit(), unpause()):
        template = build_job(op, "default", CommitSettings())["spec"]["template"]
        assert template["metadata"]["labels"] == LABELS
        assert template["metadata"]["annotations"][names.SOURCE_POD_UID] == "u-pod"


@pytest.mark.parametrize("settings", [CommitSettings(), CommitSettings("", "", 0), CommitSettings("", "", -5)])
def test_n_39_defaults_also_where_a_flag_is_empty(settings: CommitSettings) -> None:
    job = build_job(commit(), "default", settings)
    assert container(job)["image"] == "image-committer:dev"
    assert job["spec"]["activeDeadlineSeconds"] == 600
    (volume,) = job["spec"]["template"]["spec"]["volumes"]
    assert volume["hostPath"] == {"path": "/var/run/containerd/containerd.sock"}


def test_b106_long_names_fit_labels_and_stay_apart() -> None:
    long = "a" * 200 + "-pause"
    made = {names.job_name(long, action) for action in ("commit", "unpause")}
    made |= {names.job_name("a" * 201 + "-pause", action) for action in ("commit", "unpause")}
    assert len(made) == 4
    assert all(len(name) <= 63 for name in made)
    assert names.job_name("s-pause", "commit") == "s-pause-commit"
    op = commit(snapshot=Target("sandboxsnapshot", long, "u-snap"), name=names.job_name(long, "commit"))
    job = build_job(op, "default", CommitSettings())
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert len(metadata["labels"][names.SNAPSHOT_NAME]) <= 63
        assert metadata["annotations"][names.SNAPSHOT_NAME] == long


def test_an_unknown_action_is_none() -> None:
    with pytest.raises(ValueError, match="unknown action"):
        build_job(commit(action="erase"), "default", CommitSettings())
