"""Commit and unpause Jobs of a snapshot, in full shape (controller-behaviour.md §7.7, §7.8). Pure.

Two things more than the stock controller's: our labels and the source pod's uid stand on the Job's pod template too (B58), and whether the
registry is insecure is always said, so that nothing is guessed from its name (B53).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bus import names
from bus.ops import CreateJob
from bus.resources import JOB, SANDBOX_SNAPSHOT

COMMIT: Final = "commit"
UNPAUSE: Final = "unpause"
DEFAULT_IMAGE: Final = "image-committer:dev"
DEFAULT_TIMEOUT: Final = 600
_COMMAND: Final = "/usr/local/bin/image-committer"
_SOCKET: Final = "/var/run/containerd/containerd.sock"
"""In the container; the path on the node is a setting."""
_CREDENTIALS: Final = "/var/run/opensandbox/registry"
_BACKOFF_LIMIT: Final = {COMMIT: 3, UNPAUSE: 0}
_SECONDS_AFTER_FINISHED: Final = 300


class CommitSettings(msgspec.Struct, frozen=True):
    """The stock controller's flags of the same names. `timeout` in whole seconds: `--commit-job-timeout`; one that is not positive is 600."""

    committer_image: str = DEFAULT_IMAGE
    containerd_socket: str = _SOCKET
    timeout: int = DEFAULT_TIMEOUT
    registry_insecure: bool = False
    push_secret: str = ""


def build_job(op: CreateJob, namespace: str, settings: CommitSettings) -> dict[str, Any]:
    """The Job as it is sent. Raises ValueError for an action that is none."""
    if op.action not in _BACKOFF_LIMIT:
        raise ValueError("unknown action of a job")
    labels = {names.SNAPSHOT_NAME: names.label_value(op.snapshot.name), names.PRIVILEGED_NODE_ACCESS: "true"}
    annotations = {
        names.SNAPSHOT_NAME: op.snapshot.name,
        names.SOURCE_POD_NAME: op.pod.name,
        names.SOURCE_POD_UID: op.pod.uid,
    }
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": op.name,
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [_owner(op)],
        },
        "spec": {
            "backoffLimit": _BACKOFF_LIMIT[op.action],
            "ttlSecondsAfterFinished": _SECONDS_AFTER_FINISHED,
            "activeDeadlineSeconds": settings.timeout if settings.timeout > 0 else DEFAULT_TIMEOUT,
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod_spec(op, namespace, settings),
            },
        },
    }


def _owner(op: CreateJob) -> dict[str, Any]:
    return {
        "apiVersion": SANDBOX_SNAPSHOT.api_version,
        "kind": SANDBOX_SNAPSHOT.name,
        "name": op.snapshot.name,
        "uid": op.snapshot.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _pod_spec(op: CreateJob, namespace: str, settings: CommitSettings) -> dict[str, Any]:
    with_credentials = op.action == COMMIT and bool(settings.push_secret)
    volumes: list[dict[str, Any]] = [
        {"name": "containerd-sock", "hostPath": {"path": settings.containerd_socket or _SOCKET}}
    ]
    mounts: list[dict[str, Any]] = [{"name": "containerd-sock", "mountPath": _SOCKET}]
    if with_credentials:
        items = [{"key": ".dockerconfigjson", "path": "config.json"}]
        volumes.append(
            {"name": "registry-creds", "secret": {"secretName": settings.push_secret, "items": items}},
        )
        mounts.append({"name": "registry-creds", "mountPath": _CREDENTIALS, "readOnly": True})
    return {
        "restartPolicy": "Never",
        "nodeName": op.node,
        "containers": [
            {
                "name": "commit",
                "image": settings.committer_image or DEFAULT_IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": [_COMMAND],
                "args": _arguments(op, namespace),
                "env": _environment(op, settings),
                "volumeMounts": mounts,
                "securityContext": {
                    "runAsUser": 0,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "volumes": volumes,
    }


def _arguments(op: CreateJob, namespace: str) -> list[str]:
    if op.action == UNPAUSE:
        return [UNPAUSE, op.pod.name, namespace, *op.images]
    return [op.pod.name, namespace, *(f"{container}:{image}" for container, image in op.images.items())]


def _environment(op: CreateJob, settings: CommitSettings) -> list[dict[str, str]]:
    socket = {"name": "CONTAINERD_SOCKET", "value": _SOCKET}
    if op.action == UNPAUSE:
        return [socket]
    insecure = "true" if settings.registry_insecure else "false"
    return [socket, {"name": "SNAPSHOT_REGISTRY_INSECURE", "value": insecure}]
