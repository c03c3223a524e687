"""Objects without what differs from run to run (uids, times, addresses), so that two runs can be compared."""

from __future__ import annotations

from typing import Any

from support.api import ENDPOINTS, Api, endpoints

OF_A_RUN = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "namespace", "selfLink")


async def final_objects(api: Api) -> dict[str, Any]:
    """All sandboxes and pods of the namespace: name → what is the same in every run that ends the same."""
    pods, sandboxes = await api.list("Pod"), await api.list("BatchSandbox")
    names = {pod["status"].get("podIP"): pod["metadata"]["name"] for pod in pods}
    found: dict[str, Any] = {f"pod/{pod['metadata']['name']}": _pod(pod) for pod in pods}
    found.update({f"sandbox/{o['metadata']['name']}": _sandbox(o, names) for o in sandboxes})
    return found


def _metadata(o: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in o["metadata"].items() if key not in OF_A_RUN}
    owners = kept.get("ownerReferences") or []
    return {**kept, "ownerReferences": [{k: v for k, v in owner.items() if k != "uid"} for owner in owners]}


def _pod(pod: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": _metadata(pod), "spec": pod["spec"], "phase": pod["status"]["phase"]}


def _sandbox(o: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    metadata = _metadata(o)
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != ENDPOINTS}
    status = dict(o["status"])
    said = [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in status.pop("conditions", [])]
    return {
        "metadata": {**metadata, "annotations": annotations},
        "endpoints": [names.get(address, address) for address in endpoints(o)],
        "spec": o["spec"],
        "status": status,
        "conditions": sorted(said, key=lambda c: str(c["type"])),
    }
