"""A kubelet and scheduler for all nodes, as a pure machine: pods in, API requests out, time passed in.

The shells around it (kubelet.py over HTTP, direct.py's DirectKubelet in process) only carry messages.
"""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta
from typing import Any

import msgspec

from simcluster import podstatus

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
RETRY_SECONDS = 0.5


class Behaviour(msgspec.Struct, frozen=True):
    """What happens to a pod. Delays in seconds; None: never.

    `waiting`: a reason (ErrImagePull, InvalidImageName, CreateContainerConfigError, …) that keeps the
    containers from starting until the rule is changed; ErrImagePull turns into ImagePullBackOff.
    `commit_*`: Job pods; `commit_message` None means digests made up from the arguments.
    """

    start_delay: float = 0.0
    waiting: str | None = None
    backoff_delay: float = 1.0
    ready: bool = True
    crash_after: float | None = None
    evict_after: float | None = None
    oom_after: float | None = None
    stop_delay: float = 0.0
    commit_delay: float = 0.0
    commit_exit_code: int = 0
    commit_message: str | None = None


class Action(msgspec.Struct, frozen=True):
    """One API request."""

    method: str
    path: str
    body: Json
    content_type: str = "application/json"


class Work(msgspec.Struct, frozen=True):
    """Requests about one pod, to be made in order; tell `Node.failed` if one could not be made."""

    uid: str
    step: str
    actions: tuple[Action, ...]


class _Run:
    __slots__ = ("deleting", "ip", "pod", "restarts", "stage")

    def __init__(self, pod: Json, ip: str) -> None:
        self.pod = pod
        self.ip = ip
        self.stage = "new"
        self.restarts = 0
        self.deleting = False


class Node:
    """Every node of a cluster. Not thread-safe; as many entries as there are pods."""

    def __init__(
        self, behaviour: Behaviour | None = None, *, node_name: str = "node-1", ip_prefix: str = "10.1"
    ) -> None:
        self.node_name = node_name
        self._default = behaviour or Behaviour()
        self._rules: dict[str, Behaviour] = {}
        self._prefix = [int(part) for part in ip_prefix.split(".")]
        self._addresses = 0
        self._runs: dict[str, _Run] = {}
        self._timers: list[tuple[datetime, int, str, str]] = []
        self._sequence = 0
        self._steps = {
            "start": self._start,
            "backoff": self._back_off,
            "crash": self._crash,
            "evict": self._evict,
            "oom": self._oom,
            "finish": self._finish,
            "stop": self._stop,
        }

    # --- knobs ------------------------------------------------------------------------------------------

    def set_default(self, behaviour: Behaviour, now: datetime) -> None:
        """What holds for pods that no rule names."""
        self._default = behaviour
        self._reconsider(now)

    def set_rule(self, substring: str, behaviour: Behaviour, now: datetime) -> None:
        """For pods with that text in an image or an argument; the first rule that fits holds."""
        self._rules[substring] = behaviour
        self._reconsider(now)

    def clear_rule(self, substring: str, now: datetime) -> None:
        """Pods that waited because of the rule start now."""
        self._rules.pop(substring, None)
        self._reconsider(now)

    def behaviour_of(self, pod: Json) -> Behaviour:
        """The behaviour that holds for a pod."""
        texts = [
            text
            for container in pod["spec"]["containers"]
            for text in (container.get("image", ""), *(container.get("args") or ()))
        ]
        fitting = (b for substring, b in self._rules.items() if any(substring in text for text in texts))
        return next(fitting, self._default)

    def _reconsider(self, now: datetime) -> None:
        for uid, run in self._runs.items():
            if run.stage == "waiting" and self.behaviour_of(run.pod).waiting is None:
                self._at(now, uid, "start")

    # --- input ------------------------------------------------------------------------------------------

    def sync(self, pods: list[Json], now: datetime) -> None:
        """A complete list: pods that are not in it are gone."""
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid in [uid for uid in self._runs if uid not in present]:
            del self._runs[uid]
        for pod in pods:
            self.observe("MODIFIED", pod, now)

    def observe(self, kind: str, pod: Json, now: datetime) -> None:
        """A watch event about a pod."""
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._runs.pop(uid, None)
            return
        run = self._runs.get(uid)
        if run is None:
            run = self._runs[uid] = _Run(pod, self._address(pod))
            self._adopt(uid, run, now)
        run.pod = pod
        if "deletionTimestamp" in pod["metadata"] and not run.deleting:
            run.deleting = True
            self._at(now + timedelta(seconds=self.behaviour_of(pod).stop_delay), uid, "stop")

    def _adopt(self, uid: str, run: _Run, now: datetime) -> None:
        """A pod seen for the first time; one that already runs is left as it is."""
        phase = (run.pod.get("status") or {}).get("phase", "Pending")
        if phase != "Pending":
            run.stage = "running" if phase == "Running" else "done"
            return
        behaviour = self.behaviour_of(run.pod)
        delay = behaviour.commit_delay if _is_job(run.pod) else behaviour.start_delay
        self._at(now + timedelta(seconds=delay), uid, "finish" if _is_job(run.pod) else "start")

    def _address(self, pod: Json) -> str:
        given = (pod.get("status") or {}).get("podIP")
        if given:
            return str(given)
        self._addresses += 1
        rest: list[int] = []
        number = self._addresses
        for _ in range(4 - len(self._prefix)):
            rest.append(number % 250 + 1 if not rest else number % 250)
            number //= 250
        return ".".join(str(part) for part in [*self._prefix, *reversed(rest)])

    # --- output -----------------------------------------------------------------------------------------

    def next_event_at(self) -> datetime | None:
        """When `due` has something next."""
        return self._timers[0][0] if self._timers else None

    def due(self, now: datetime, limit: int = 1000) -> list[Work]:
        """The work whose time has come, oldest first."""
        found: list[Work] = []
        while self._timers and self._timers[0][0] <= now and len(found) < limit:
            _, _, uid, step = heapq.heappop(self._timers)
            run = self._runs.get(uid)
            if run is not None and (actions := self._steps[step](uid, run, now)):
                found.append(Work(uid, step, tuple(actions)))
        return found

    def failed(self, work: Work, now: datetime) -> None:
        """A request could not be made: the step is tried again soon, while the pod exists."""
        self._at(now + timedelta(seconds=RETRY_SECONDS), work.uid, work.step)

    def _at(self, when: datetime, uid: str, step: str) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, uid, step))

    # --- steps ------------------------------------------------------------------------------------------

    def _start(self, uid: str, run: _Run, now: datetime) -> list[Action]:
        if run.deleting:
            return []
        behaviour = self.behaviour_of(run.pod)
        if behaviour.waiting:
            return self._wait(uid, run, behaviour, now)
        run.stage = "running"
        for delay, step in (
            (behaviour.crash_after, "crash"),
            (behaviour.evict_after, "evict"),
            (behaviour.oom_after, "oom"),
        ):
            if delay is not None:
                self._at(now + timedelta(seconds=delay), uid, step)
        return self._bound(run, podstatus.running(run.pod, run.ip, now, behaviour.ready))

    def _wait(self, uid: str, run: _Run, behaviour: Behaviour, now: datetime) -> list[Action]:
        reason = behaviour.waiting or ""
        run.stage = "waiting"
        if reason == "ErrImagePull":
            self._at(now + timedelta(seconds=behaviour.backoff_delay), uid, "backoff")
        text = f"{reason}: the image or its configuration cannot be used"
        return self._bound(run, podstatus.waiting(run.pod, run.ip, now, reason, text))

    def _back_off(self, uid: str, run: _Run, now: datetime) -> list[Action]:
        if run.stage != "waiting" or run.deleting:
            return []
        text = "Back-off pulling image"
        return self._status(run, podstatus.waiting(run.pod, run.ip, now, "ImagePullBackOff", text))

    def _crash(self, uid: str, run: _Run, now: datetime) -> list[Action]:
        if run.stage != "running" or run.deleting:
            return []
        run.restarts += 1
        return self._status(run, podstatus.crashing(run.pod, run.ip, now, run.restarts))

    def _oom(self, uid: str, run: _Run, now: datetime) -> list[Action]:
        if run.stage != "running" or run.deleting:
            return []
        run.restarts += 1
        return self._status(run, podstatus.restarted(run.pod, run.ip, now, run.restarts))

    def _evict(self, uid: str, run: _Run, now: datetime) -> list[Action]:
        if run.stage != "running" or run.deleting:
            return []
        run.stage = "done"
        return self._status(run, podstatus.evicted(run.pod, now))

    def _finish(self, uid: str, run: _Run, now: datetime) -> list[Action]:
        if run.deleting:
            return []
        run.stage = "done"
        behaviour = self.behaviour_of(run.pod)
        args = run.pod["spec"]["containers"][0].get("args") or []
        message = behaviour.commit_message
        if message is None:
            message = podstatus.commit_message(args) if behaviour.commit_exit_code == 0 else ""
        code = behaviour.commit_exit_code
        return self._bound(run, podstatus.finished(run.pod, run.ip, now, code, message))

    def _stop(self, uid: str, run: _Run, now: datetime) -> list[Action]:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        return [Action("DELETE", _path(run.pod), body)]

    def _bound(self, run: _Run, status: Json) -> list[Action]:
        """The status, after a binding if the pod has no node yet."""
        actions = self._status(run, status)
        if run.pod["spec"].get("nodeName"):
            return actions
        metadata = run.pod["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node_name},
        }
        return [Action("POST", f"{_path(run.pod)}/binding", binding), *actions]

    def _status(self, run: _Run, status: Json) -> list[Action]:
        # The uid in the patch makes sure that a namesake is not meant.
        body = {"metadata": {"uid": run.pod["metadata"]["uid"]}, "status": status}
        return [Action("PATCH", f"{_path(run.pod)}/status", body, MERGE_PATCH)]


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _is_job(pod: Json) -> bool:
    return any(owner.get("kind") == "Job" for owner in pod["metadata"].get("ownerReferences") or ())
