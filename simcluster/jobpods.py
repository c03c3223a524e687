"""Pure helpers of the Job controller: reading job and pod status, building pods, conditions, events."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

from simcluster import metadata as meta
from simcluster.history import Version

Json = dict[str, Any]

TRACKING = "batch.kubernetes.io/job-tracking"
COUNTS: Json = {"terminating": 0, "uncountedTerminatedPods": {}, "ready": 0}


def job_name(metadata: Json) -> str:
    """The job that a pod was made for; "" for other pods."""
    return str((metadata.get("labels") or {}).get("batch.kubernetes.io/job-name", ""))


def tracked(pod: Json) -> bool:
    return TRACKING in pod["metadata"].get("finalizers", ())


def untracked(pod: Json) -> Json:
    kept = [name for name in pod["metadata"].get("finalizers", ()) if name != TRACKING]
    return {**pod, "metadata": {**pod["metadata"], "finalizers": kept}}


def terminal(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def ended(pod: Json) -> bool:
    """Finished, or being deleted (which counts as a failure)."""
    return terminal(pod) or "deletionTimestamp" in pod["metadata"]


def condition(job: Json, kind: str) -> Json | None:
    """The condition of that type, if True."""
    found = (c for c in job["status"].get("conditions", ()) if c["type"] == kind and c["status"] == "True")
    return next(found, None)


def finished_at(job: Json) -> datetime | None:
    """When the job completed or failed; None while it has not."""
    found = condition(job, "Complete") or condition(job, "Failed")
    return meta.parse_timestamp(found["lastTransitionTime"]) if found else None


def new_condition(kind: str, reason: str, message: str, now: str) -> Json:
    return {
        "type": kind,
        "status": "True",
        "lastProbeTime": now,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }


def counts(job: Json, active: list[Version], failed: int) -> Json:
    """The job's status with these numbers."""
    ready = sum(
        any(c["type"] == "Ready" and c["status"] == "True" for c in pod.obj["status"].get("conditions", ()))
        for pod in active
    )
    return {
        **job["status"],
        **COUNTS,
        "ready": ready,
        "active": len(active) or None,
        "failed": failed or None,
    }


def last_failure(pods: list[Version], otherwise: datetime) -> datetime:
    """When the last failed pod ended, in whole seconds as its status has it; `otherwise` where none says."""
    times = [
        meta.parse_timestamp(state["finishedAt"])
        for pod in pods
        for status in pod.obj["status"].get("containerStatuses", ())
        if (state := status.get("state", {}).get("terminated")) and state.get("finishedAt")
    ]
    return max(times, default=otherwise.replace(microsecond=0))


def build(job: Json) -> Json:
    """The pod of a job's template."""
    metadata, template = job["metadata"], job["spec"]["template"]
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pod_metadata = {
        **template.get("metadata", {}),
        "generateName": f"{metadata['name']}-",
        "ownerReferences": [owner],
        "finalizers": [TRACKING],
    }
    return {"metadata": pod_metadata, "spec": template["spec"]}


def event(job: Json, kind: str, reason: str, message: str, now: str, rng: random.Random) -> Json:
    """An Event of the job controller about the job."""
    metadata = job["metadata"]
    return {
        "metadata": {"name": f"{metadata['name'][:230]}.{rng.getrandbits(64):016x}"},
        "involvedObject": {
            "kind": "Job",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "apiVersion": "batch/v1",
            "resourceVersion": metadata["resourceVersion"],
        },
        "reason": reason,
        "message": message,
        "source": {"component": "job-controller"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": kind,
        "reportingComponent": "job-controller",
    }
