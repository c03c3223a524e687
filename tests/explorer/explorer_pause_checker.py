"""What must hold at every write about pause, resume and snapshots (DESIGN §8.2 to 8.5), judged from the objects alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from bus.names import ENDPOINTS, PAUSE_GENERATION, SOURCE_POD_UID
from simcluster.metadata import parse_timestamp
from simcluster.store import Store, Write

Json = dict[str, Any]
OURS: Final = ("executor-", "bridge-", "projector-", "reconciler-")
MOVES: Final = {
    "": {"Pending", "Succeed", "Failed", "Pausing"},
    "Pending": {"Succeed", "Failed", "Pausing"},
    "Succeed": {"Pending", "Failed", "Pausing"},
    "Failed": {"Pending", "Succeed", "Pausing"},
    "Pausing": {"Paused", "Succeed", "Failed"},
    "Paused": {"Resuming"},
    "Resuming": {"Succeed", "Failed", "Paused"},
}
"""Phase → phases that may follow it: the diagram of docs/phases.md, and `Succeed` never falls back to `Resuming` (N-09)."""


class PauseChecker:
    """Observes the store; `say` is told what does not hold."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self._kinds = {
            plural: next(each for each in store.resources if each.plural == plural)
            for plural in ("batchsandboxes", "pods", "sandboxsnapshots")
        }
        self._jobs: Counter[tuple[str, str]] = Counter()
        self.lost: set[str] = set()
        """Snapshots that a user deletes."""
        store.observers.append(self._observe)

    def _observe(self, write: Write) -> None:
        obj, previous = write.change.version.obj, write.change.previous
        before = None if previous is None else previous.obj
        if not write.caller.agent.startswith(OURS):
            return
        where = f"{write.resource.plural} {write.name} by {write.caller.agent}"
        match write.resource.plural:
            case "batchsandboxes" if before is not None and write.verb != "delete":
                self._spec(where, obj, before)
                self._phase(where, obj, before)
            case "sandboxsnapshots":
                self._snapshot(where, write.verb, obj, before)
            case "pods":
                self._pod(where, write.verb, obj, before)
            case "jobs" if before is None:
                self._job(where, obj)

    # Sandboxes

    def _spec(self, where: str, obj: Json, before: Json) -> None:
        """§8.5. Only a resume rewrites, and only images and pull secrets."""
        new, old = obj["spec"], before["spec"]
        if new == old:
            return
        if new.get("pause") != old.get("pause"):
            self._say(f"{where}: spec.pause was written (§8.5)")
        if phase_of(before) not in ("Paused", "Resuming"):
            self._say(f"{where}: its spec was written while {phase_of(before)!r}")
        if _without_images(new) != _without_images(old):
            self._say(f"{where}: more of its spec was written than the images")
        kept = self._snapshot_of(obj)
        if kept is None or images_of_snapshot(kept) != images(new["template"]):
            self._say(f"{where}: rewritten with images that its snapshot does not hold")

    def _phase(self, where: str, obj: Json, before: Json) -> None:
        old, new = phase_of(before), phase_of(obj)
        if new != old and new not in MOVES[old]:
            self._say(f"{where}: {old!r} → {new!r}")
            return
        self._failures(where, obj, before)
        if new == old:
            return
        if new == "Pausing" and obj["spec"].get("pause") is not True:
            self._say(f"{where}: Pausing, and nobody asked for it")
        elif (old, new) == ("Pausing", "Paused"):
            self._paused(where, obj)
        elif old == "Pausing" and not _true(obj, "PauseFailed"):
            self._say(f"{where}: Pausing → {new} without PauseFailed (§8.5)")
        elif new == "Resuming" and obj["spec"].get("pause") is not False:
            self._say(f"{where}: Resuming, and nobody asked for it")
        elif (old, new) == ("Resuming", "Succeed"):
            self._resumed(where, obj)
        elif old == "Resuming" and not _true(obj, "ResumeFailed"):
            self._say(f"{where}: Resuming → {new} without ResumeFailed (§8.5)")
        if (old, new) == ("Pausing", "Failed") and any(phase_of(pod) != "Failed" for pod in self._live(obj)):
            self._say(f"{where}: a failed pause is Failed although a pod is left (§8.5)")

    def _failures(self, where: str, obj: Json, before: Json) -> None:
        """§8.5: the condition stays until the next intent is taken up, which moves pauseObservedGeneration."""
        for kind in ("PauseFailed", "ResumeFailed"):
            cleared = _true(before, kind) and not _true(obj, kind)
            acknowledged = [(each.get("status") or {}).get("pauseObservedGeneration", 0) for each in (before, obj)]
            recovered = kind == "ResumeFailed" and phase_of(obj) == "Succeed"
            if cleared and acknowledged[0] == acknowledged[1] and not recovered:
                self._say(f"{where}: {kind} went although no other intent was taken up (§8.5)")

    def _paused(self, where: str, obj: Json) -> None:
        """§8.2, §8.3: emptied endpoints and accepted deletions are the other checker's; here, what it can be resumed from."""
        kept = self._snapshot_of(obj)
        usable = kept is not None and good(kept) and "deletionTimestamp" not in kept["metadata"]
        if not usable and f"{obj['metadata']['name']}-pause" not in self.lost:
            self._say(f"{where}: Paused without a good snapshot (§8.2)")

    def _resumed(self, where: str, obj: Json) -> None:
        kept = self._snapshot_of(obj)
        wanted = images(obj["spec"]["template"]) if kept is None else images_of_snapshot(kept)
        if not any(_ready(pod) and images(pod) == wanted for pod in self._live(obj)):
            self._say(f"{where}: resumed, and no ready pod has the images {wanted} (§8.2)")

    # Snapshots

    def _snapshot(self, where: str, verb: str, obj: Json, before: Json | None) -> None:
        if before is None:
            self._snapshot_created(where, obj)
        elif verb == "delete":
            if "deletionTimestamp" not in before["metadata"]:
                self._snapshot_deleted(where, before)
        elif good(before):
            old, new = before["status"], obj["status"]
            if old.get("phase") != new.get("phase") or old.get("containers") != new.get("containers"):
                self._say(f"{where}: a good snapshot was changed")
        elif good(obj) and not self._committed(obj):
            self._say(f"{where}: Succeed, and no commit of it has ended well")

    def _snapshot_created(self, where: str, obj: Json) -> None:
        sandbox = self._sandbox_of(obj)
        if sandbox is None:
            return  # a late executor's; the garbage collector takes it
        intent = obj["metadata"]["annotations"].get(PAUSE_GENERATION)
        if phase_of(sandbox) == "Pausing" and intent != str(sandbox["status"].get("pauseObservedGeneration")):
            self._say(f"{where}: made for intent {intent}, not for the one that is under way")

    def _snapshot_deleted(self, where: str, snapshot: Json) -> None:
        """§8.2. Beside a running sandbox: resumed from it, or not yet paused with it."""
        sandbox = self._sandbox_of(snapshot)
        if not good(snapshot) or sandbox is None or "deletionTimestamp" in sandbox["metadata"]:
            return
        source = snapshot["metadata"]["annotations"].get(SOURCE_POD_UID)
        running = [pod for pod in self._live(sandbox) if _ready(pod)]
        resumed = [pod for pod in running if images(pod) == images_of_snapshot(snapshot)]
        if not resumed and not any(pod["metadata"]["uid"] == source for pod in running):
            self._say(f"{where}: a good snapshot deleted, and no pod runs that was resumed from it (§8.2)")
        elif phase_of(sandbox) not in ("Succeed", "Failed", "Pausing"):
            self._say(f"{where}: a good snapshot deleted while {phase_of(sandbox)} (§8.2)")

    def _committed(self, snapshot: Json) -> bool:
        """Whether a Job of it has a pod that ended with 0."""
        name = f"{snapshot['metadata']['name']}-commit"
        return any(
            version.obj["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == name
            and version.obj["status"].get("phase") == "Succeeded"
            for version in self._store.select(self._kinds["pods"])
        )

    # Jobs and pods

    def _job(self, where: str, obj: Json) -> None:
        owner = obj["metadata"]["ownerReferences"][0]["uid"]
        snapshot = self._by_uid("sandboxsnapshots", owner)
        if snapshot is None:
            return  # a late executor's; the garbage collector takes it
        action = obj["metadata"]["name"].rpartition("-")[2]
        self._jobs[owner, action] += 1
        if self._jobs[owner, action] > 1:
            self._say(f"{where}: {self._jobs[owner, action]} {action} Jobs of one snapshot")
        phase = (snapshot.get("status") or {}).get("phase")
        if action == "commit" and (phase != "Committing" or self._long_deleting(snapshot)):
            self._say(f"{where}: a commit of a snapshot that is {phase}, or being deleted")
        if action == "unpause" and phase != "Failed" and "deletionTimestamp" not in snapshot["metadata"]:
            self._say(f"{where}: an unpause Job of a snapshot that is {phase}")

    def _long_deleting(self, snapshot: Json) -> bool:
        """For longer than a call takes."""
        since = snapshot["metadata"].get("deletionTimestamp")
        return since is not None and (self._store.now() - parse_timestamp(since)).total_seconds() > 2

    def _pod(self, where: str, verb: str, obj: Json, before: Json | None) -> None:
        sandbox = self._sandbox_of(obj)
        if sandbox is None or "deletionTimestamp" in sandbox["metadata"]:
            return
        phase = phase_of(sandbox)
        if before is None:
            if phase in ("Pausing", "Paused"):
                self._say(f"{where}: created while its sandbox is {phase}")
            elif phase == "Resuming" and images(obj) != images(sandbox["spec"]["template"]):
                kept = self._snapshot_of(sandbox)
                # The template may be put back just while its pod is made of it.
                if kept is None or images(obj) != images_of_snapshot(kept):
                    self._say(f"{where}: resumed from another template than the sandbox has")
            return
        if verb == "delete" and phase == "Resuming" and "deletionTimestamp" not in before["metadata"]:
            kept = self._snapshot_of(sandbox)
            if kept is not None and images(before) == images_of_snapshot(kept):
                self._say(f"{where}: deleted while Resuming, although it was made of the snapshot (§8.2)")
        if verb != "delete" or "deletionTimestamp" in before["metadata"] or phase != "Pausing":
            return
        if any(json.loads(sandbox["metadata"].get("annotations", {}).get(ENDPOINTS, "[]"))):
            self._say(f"{where}: deleted before endpoints were emptied (§8.3)")
        kept = self._snapshot_of(sandbox)
        if (
            kept is None
            or not good(kept)
            or kept["metadata"]["annotations"].get(SOURCE_POD_UID) != obj["metadata"]["uid"]
        ):
            self._say(f"{where}: deleted, and no good snapshot of it is there (§8.2)")

    # The store

    def _snapshot_of(self, sandbox: Json) -> Json | None:
        name, uid = f"{sandbox['metadata']['name']}-pause", sandbox["metadata"]["uid"]
        found = (version.obj for version in self._store.select(self._kinds["sandboxsnapshots"]))
        return next((obj for obj in found if obj["metadata"]["name"] == name and _owner_uid(obj) == uid), None)

    def _sandbox_of(self, obj: Json) -> Json | None:
        return self._by_uid("batchsandboxes", _owner_uid(obj))

    def _by_uid(self, plural: str, uid: str) -> Json | None:
        found = (version.obj for version in self._store.select(self._kinds[plural]))
        return next((obj for obj in found if obj["metadata"]["uid"] == uid), None)

    def _live(self, sandbox: Json) -> list[Json]:
        found = (version.obj for version in self._store.select(self._kinds["pods"]))
        uid = sandbox["metadata"]["uid"]
        return [obj for obj in found if _owner_uid(obj) == uid and "deletionTimestamp" not in obj["metadata"]]


def may_lose_pod(sandbox: Json, pod: Json) -> bool:
    """Whether a wanted pod's deletion belongs to a pause or a resume."""
    phase = phase_of(sandbox)
    return phase in ("Pausing", "Paused") or (
        phase == "Resuming" and images(pod) != images(sandbox["spec"]["template"])
    )


def phase_of(obj: Json) -> str:
    return str((obj.get("status") or {}).get("phase", ""))


def images(template: Json) -> list[tuple[str, str]]:
    return [(each["name"], each["image"]) for each in template["spec"]["containers"]]


def images_of_snapshot(snapshot: Json) -> list[tuple[str, str]]:
    return [(each["containerName"], each["imageUri"]) for each in snapshot["status"].get("containers") or ()]


def good(snapshot: Json) -> bool:
    return phase_of(snapshot) == "Succeed" and all(uri for _, uri in images_of_snapshot(snapshot))


def _without_images(spec: Json) -> Json:
    template = spec["template"]
    containers = [{**each, "image": ""} for each in template["spec"]["containers"]]
    rest = {key: value for key, value in template["spec"].items() if key not in ("containers", "imagePullSecrets")}
    return {**spec, "template": {**template, "spec": {**rest, "containers": containers}}}


def _true(obj: Json, kind: str) -> bool:
    found = (obj.get("status") or {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in found)


def _ready(pod: Json) -> bool:
    found = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found)


def _owner_uid(obj: Json) -> str:
    owners = obj["metadata"].get("ownerReferences") or []
    return str(next((owner["uid"] for owner in owners if owner["kind"] == "BatchSandbox"), ""))
