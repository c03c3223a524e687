"""What must hold at every write to the API server (DESIGN §8), judged from the objects alone by code that knows nothing of the roles'."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from explorer_pause_checker import may_lose_pod

from bridge.cluster import Response
from bus.names import ENDPOINTS, POD_INDEX, SANDBOX_NAME
from simcluster.store import Store, Write

Json = dict[str, Any]
OURS = ("executor-", "bridge-", "projector-", "reconciler-")


class ApiChecker:
    """`violations`: what did not hold, with where. Observes the store, and the roles' calls through `witness`."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self._sandboxes = store.kind("sandbox.opensandbox.io/v1alpha1", "BatchSandbox")
        self._pods = store.kind("v1", "Pod")
        self._addresses: dict[str, tuple[str, str]] = {}
        """Address → (uid of its sandbox, index), of every pod that ever had one."""
        self._read: dict[tuple[str, str], str] = {}
        """(process, sandbox's name) → uid of the sandbox that its last read found live, '' for none."""
        store.observers.append(self._observe)

    # Calls

    def witness(self, process: str, method: str, path: str, body: bytes | None, response: Response) -> None:
        if "/batchsandboxes/" in path and method == "GET":
            name = path.rsplit("/", 1)[1]
            found = json.loads(response.body) if response.status == 200 else None
            live = found is not None and "deletionTimestamp" not in found["metadata"]
            self._read[process, name] = found["metadata"]["uid"] if found and live else ""
        if method == "PATCH":
            metadata = json.loads(body or b"{}").get("metadata") or {}
            if not metadata.get("uid") or not metadata.get("resourceVersion"):
                self._say(f"{process}: PATCH {path} without the uid and resourceVersion it was decided from (§6)")
        if method == "DELETE" and not (json.loads(body or b"{}").get("preconditions") or {}).get("uid"):
            self._say(f"{process}: DELETE {path} by its bare name (§8.9)")

    # Writes

    def _observe(self, write: Write) -> None:
        obj, previous = write.change.version.obj, write.change.previous
        ours = write.caller.agent.startswith(OURS)
        before = None if previous is None else previous.obj
        if write.resource.plural == "pods":
            self._pod(write, obj, before, ours)
        elif write.resource.plural == "batchsandboxes" and ours:
            self._sandbox(write, obj, before)

    def _pod(self, write: Write, obj: Json, before: Json | None, ours: bool) -> None:
        metadata = obj["metadata"]
        owner = _owner(obj)
        if owner is None:
            return
        index = metadata.get("labels", {}).get(POD_INDEX, "")
        address = (obj.get("status") or {}).get("podIP")
        if address:
            self._addresses[address] = (owner["uid"], index)
        if before is None:
            self._pod_created(write, obj, owner, index, ours)
            return
        if (_owner(before) or {}).get("uid") != owner["uid"]:
            self._say(f"pod {write.name} went from one sandbox to another (§8.1)")
        if ours and write.verb == "delete" and "deletionTimestamp" not in before["metadata"]:
            self._pod_deleted(write, obj, owner, index)

    def _pod_created(self, write: Write, obj: Json, owner: Json, index: str, ours: bool) -> None:
        where = f"pod {write.name} by {write.caller.agent}"
        if obj["metadata"]["labels"].get(SANDBOX_NAME) != owner["name"]:
            self._say(f"{where}: owned by {owner['name']}, labelled for another sandbox (§8.1)")
        alive = [
            version.obj
            for version in self._store.select(self._pods, write.namespace)
            if (_owner(version.obj) or {}).get("uid") == owner["uid"]
            and version.obj["metadata"]["labels"].get(POD_INDEX) == index
            and "deletionTimestamp" not in version.obj["metadata"]
        ]
        if len(alive) != 1:
            self._say(f"{where}: {len(alive)} live pods have index {index} of {owner['name']} (doubled)")
        if ours and self._read.get((write.caller.agent, owner["name"])) != owner["uid"]:
            self._say(
                f"{where}: {owner['name']} was not found live when it was last read (no create on a deleting sandbox)"
            )

    def _pod_deleted(self, write: Write, obj: Json, owner: Json, index: str) -> None:
        sandbox = self._sandbox_of(owner)
        if sandbox is None or "deletionTimestamp" in sandbox["metadata"] or may_lose_pod(sandbox, obj):
            return
        if int(index or 0) < sandbox["spec"].get("replicas", 1):
            self._say(f"pod {write.name} deleted by {write.caller.agent}, and {owner['name']} wants it")

    def _sandbox(self, write: Write, obj: Json, before: Json | None) -> None:
        where = f"batchsandbox {write.name} by {write.caller.agent}"
        if before is None:
            self._say(f"{where}: created by a role")
            return
        if write.verb == "delete":
            self._sandbox_deleted(where, before)
            return
        lost = set(before["metadata"].get("finalizers") or ()) - set(obj["metadata"].get("finalizers") or ())
        if lost and "deletionTimestamp" not in obj["metadata"]:
            self._say(f"{where}: finalizers {sorted(lost)} taken from an object that is not being deleted")
        self._status(where, obj, before)
        self._endpoints(where, obj, before)

    def _sandbox_deleted(self, where: str, before: Json) -> None:
        if "deletionTimestamp" in before["metadata"]:
            return
        expires = before["spec"].get("expireTime")
        if expires is None or datetime.fromisoformat(expires.replace("Z", "+00:00")) > self._store.now():
            self._say(f"{where}: deleted before its time {expires} (§4, Time)")

    def _status(self, where: str, obj: Json, before: Json) -> None:
        status, earlier = obj.get("status") or {}, before.get("status") or {}
        for field in ("observedGeneration", "pauseObservedGeneration"):
            new, old = status.get(field, 0), earlier.get(field, 0)
            if not old <= new <= obj["metadata"]["generation"]:
                self._say(f"{where}: {field} {old} → {new}, generation {obj['metadata']['generation']}")
        if status.get("phase") == "Succeed" and earlier.get("phase") != "Succeed":
            text = obj["metadata"].get("annotations", {}).get(ENDPOINTS, "[]")
            if obj["spec"].get("replicas", 1) and not any(json.loads(text)):
                self._say(f"{where}: Succeed before endpoints (§8.4)")
        if status.get("phase") == "Paused" and earlier.get("phase") != "Paused":
            if any(json.loads(obj["metadata"].get("annotations", {}).get(ENDPOINTS, "[]"))):
                self._say(f"{where}: Paused before endpoints were emptied (§8.3)")
            if self._live_pods(obj["metadata"]["uid"]):
                self._say(f"{where}: Paused before its pods' deletion was accepted (§8.3)")

    def _endpoints(self, where: str, obj: Json, before: Json) -> None:
        text = obj["metadata"].get("annotations", {}).get(ENDPOINTS)
        if text is None or text == before["metadata"].get("annotations", {}).get(ENDPOINTS):
            return
        for index, address in enumerate(json.loads(text)):
            if address and self._addresses.get(address) != (obj["metadata"]["uid"], str(index)):
                self._say(f"{where}: endpoint {index} is {address}, an address that its pod {index} never had")

    # The store

    def _sandbox_of(self, owner: Json) -> Json | None:
        found = [version.obj for version in self._store.select(self._sandboxes)]
        return next((obj for obj in found if obj["metadata"]["uid"] == owner["uid"]), None)

    def _live_pods(self, uid: str) -> list[str]:
        return [
            version.obj["metadata"]["name"]
            for version in self._store.select(self._pods)
            if (_owner(version.obj) or {}).get("uid") == uid and "deletionTimestamp" not in version.obj["metadata"]
        ]


def _owner(pod: Json) -> Json | None:
    owners: list[Json] = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller") and owner["kind"] == "BatchSandbox"), None)
