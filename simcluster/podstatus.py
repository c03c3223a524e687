"""Pod statuses as a kubelet writes them. Pure; shared by the HTTP kubelet and the in-process one."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

import msgspec

from simcluster.metadata import timestamp

Json = dict[str, Any]

_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
_UNREADY = ("Ready", "ContainersReady")


def digest(text: str) -> str:
    """A stable made-up digest."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def container_id(pod: Json, name: str, restarts: int) -> str:
    """Changes with every restart, as a real one does."""
    uid = pod["metadata"]["uid"]
    return "containerd://" + digest(f"{uid}/{name}/{restarts}")[7:]


def running(pod: Json, ip: str, now: datetime, ready: bool = True) -> Json:
    """Running, and Ready unless told otherwise."""
    statuses = [_up(pod, container, now, 0, ready) for container in pod["spec"]["containers"]]
    return _status(pod, "Running", ip, now, statuses, ready, "ContainersNotReady")


def waiting(pod: Json, ip: str, now: datetime, reason: str, message: str) -> Json:
    """Pending: the containers cannot start (ErrImagePull, ImagePullBackOff, InvalidImageName, …)."""
    state = {"waiting": {"reason": reason, "message": message}}
    statuses = [_down(container, state, 0) for container in pod["spec"]["containers"]]
    return _status(pod, "Pending", ip, now, statuses, False, "ContainersNotReady")


def crashing(pod: Json, ip: str, now: datetime, restarts: int) -> Json:
    """CrashLoopBackOff: ended with exit code 1, waits for the next try."""
    statuses = []
    for container in pod["spec"]["containers"]:
        name = container["name"]
        message = f"back-off 10s restarting failed container={name} pod={pod['metadata']['name']}"
        status = _down(container, {"waiting": {"reason": "CrashLoopBackOff", "message": message}}, restarts)
        status["lastState"] = {"terminated": _ended(pod, name, now, 1, "Error", restarts - 1)}
        statuses.append(status)
    return _status(pod, "Running", ip, now, statuses, False, "ContainersNotReady")


def restarted(pod: Json, ip: str, now: datetime, restarts: int, reason: str = "OOMKilled") -> Json:
    """Running again after the containers were killed (exit code 137)."""
    statuses = []
    for container in pod["spec"]["containers"]:
        status = _up(pod, container, now, restarts, True)
        status["lastState"] = {"terminated": _ended(pod, container["name"], now, 137, reason, restarts - 1)}
        statuses.append(status)
    return _status(pod, "Running", ip, now, statuses, True, "")


def evicted(pod: Json, now: datetime) -> Json:
    """Failed, reason Evicted: the kubelet drops the container statuses."""
    return {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
        "startTime": (pod.get("status") or {}).get("startTime") or timestamp(now),
        "conditions": None,
        "containerStatuses": None,
    }


def finished(pod: Json, ip: str, now: datetime, exit_code: int, message: str) -> Json:
    """Succeeded or Failed, with a termination message in each container's status."""
    reason = "Completed" if exit_code == 0 else "Error"
    statuses = []
    for container in pod["spec"]["containers"]:
        ended = {**_ended(pod, container["name"], now, exit_code, reason, 0), "message": message}
        statuses.append(_down(container, {"terminated": ended}, 0))
    phase = "Succeeded" if exit_code == 0 else "Failed"
    return _status(pod, phase, ip, now, statuses, False, "PodCompleted")


def commit_message(args: list[str]) -> str:
    """What image-committer leaves as termination message: one digest per `container:uri` argument."""
    if not args or args[0] == "unpause":
        return ""
    pairs = [argument.partition(":") for argument in args[2:]]
    containers = [{"name": name, "image": image, "digest": digest(image)} for name, colon, image in pairs if colon]
    return msgspec.json.encode({"containers": containers}).decode()


def _up(pod: Json, container: Json, now: datetime, restarts: int, ready: bool) -> Json:
    return {
        **_down(container, {"running": {"startedAt": timestamp(now)}}, restarts),
        "containerID": container_id(pod, container["name"], restarts),
        "imageID": f"{container['image'].partition('@')[0]}@{digest(container['image'])}",
        "ready": ready,
        "started": True,
    }


def _down(container: Json, state: Json, restarts: int) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": restarts,
        "state": state,
        "lastState": {},
    }


def _ended(pod: Json, name: str, now: datetime, exit_code: int, reason: str, restarts: int) -> Json:
    return {
        "exitCode": exit_code,
        "reason": reason,
        "startedAt": timestamp(now),
        "finishedAt": timestamp(now),
        "containerID": container_id(pod, name, max(restarts, 0)),
    }


def _status(pod: Json, phase: str, ip: str, now: datetime, statuses: list[Json], ready: bool, why: str) -> Json:
    before = pod.get("status") or {}
    time = timestamp(now)
    return {
        "phase": phase,
        "hostIP": "10.0.0.1",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": before.get("startTime") or time,
        "containerStatuses": statuses,
        "conditions": [_condition(before, kind, ready, why, time) for kind in _CONDITIONS],
    }


def _condition(before: Json, kind: str, ready: bool, why: str, time: str) -> Json:
    up = ready or kind not in _UNREADY
    condition = {"type": kind, "status": "True" if up else "False", "lastProbeTime": None}
    if not up:
        condition["reason"] = why
    old = next((c for c in before.get("conditions") or () if c["type"] == kind), None)
    same = old is not None and old["status"] == condition["status"]
    return {**condition, "lastTransitionTime": old["lastTransitionTime"] if same and old else time}
