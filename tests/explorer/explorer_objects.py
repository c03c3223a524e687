"""A cluster's objects without what differs from run to run: identities, versions, times and addresses."""

from __future__ import annotations

import json
import re
from typing import Any

from explorer_cluster import SimulatedCluster

from bus.names import FAILED_SPEC_DIGEST, SOURCE_POD_UID, TEMPLATE_DIGEST

Json = dict[str, Any]
JOB_POD = "batch.kubernetes.io/job-name"
PASSING = frozenset(
    (
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "managedFields",
        "lastTransitionTime",
        "startTime",
        "startedAt",
        "finishedAt",
        "containerID",
        "expireTime",
        "podIPs",
        "imageID",
        SOURCE_POD_UID,
        TEMPLATE_DIGEST,
        FAILED_SPEC_DIGEST,
    )
)
COMMITTED = re.compile(r":snap-gen\d+")
"""An image's tag: of the generation that the sandbox had when its commit began, so edits in that moment show in it, and in the digests of templates; those of specs hold times."""
COMPARED = ("batchsandboxes", "pods", "sandboxsnapshots")
"""Jobs and their pods go some minutes after their end, whatever stage it is; the checker of calls judges them."""


def normalised(cluster: SimulatedCluster) -> dict[str, Json]:
    """Every object that is compared, by `plural/name`; an address stands as the name of the pod that has it."""
    addresses = {
        pod["status"]["podIP"]: pod["metadata"]["name"]
        for pod in cluster.objects("pods")
        if (pod.get("status") or {}).get("podIP")
    }
    return {
        f"{plural}/{obj['metadata']['name']}": _without(obj, addresses)
        for plural in COMPARED
        for obj in cluster.objects(plural)
        if JOB_POD not in (obj["metadata"].get("labels") or {})
    }


def _without(value: Any, addresses: dict[str, str]) -> Any:
    if isinstance(value, dict):
        kept = {key: _without(each, addresses) for key, each in value.items() if key not in PASSING}
        if "deletionTimestamp" in value:
            kept["deleting"] = True
        return kept
    if isinstance(value, list):
        return [_without(each, addresses) for each in value]
    if isinstance(value, str):
        if value in addresses:
            return addresses[value]
        if value.startswith("["):
            return _addresses(value, addresses)
        return COMMITTED.sub(":snap", value)
    return value


def _addresses(text: str, addresses: dict[str, str]) -> Any:
    try:
        return [addresses.get(each, each) if isinstance(each, str) else each for each in json.loads(text)]
    except ValueError:
        return text


def difference(expected: Any, found: Any, path: str = "") -> list[str]:
    """Where two normalised states differ, at most some lines."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = []
        for key in sorted(set(expected) | set(found)):
            here = f"{path}/{key}"
            if key not in found:
                lines.append(f"{here}: is missing")
            elif key not in expected:
                lines.append(f"{here}: should not be there: {str(found[key])[:120]}")
            else:
                lines += difference(expected[key], found[key], here)
        return lines[:20]
    return [] if expected == found else [f"{path}: {str(found)[:300]} instead of {str(expected)[:300]}"]
