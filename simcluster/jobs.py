"""The Job controller, for jobs of one completion: pods, retries with back-off, deadlines, TTL.

Timing follows the real controller as recorded in the project's traces: a finished pod is counted one
second later; a retry comes 10 s × 2^(failures - 1) after the last failure.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from simcluster import jobpods
from simcluster import metadata as meta
from simcluster.caller import INTERNAL
from simcluster.deletion import BACKGROUND, Options
from simcluster.errors import ApiError
from simcluster.history import Key, Version
from simcluster.store import Store, Write

Json = dict[str, Any]


class JobTiming(msgspec.Struct, frozen=True):
    """In seconds: from a pod's end to its being counted; the first retry's delay, and the longest."""

    count_delay: float = 1.0
    backoff: float = 10.0
    backoff_limit: float = 600.0


class JobController:
    """Call `step` when something was written or `next_event_at` has come."""

    def __init__(self, store: Store, timing: JobTiming | None = None) -> None:
        self.timing = timing or JobTiming()
        self._store = store
        self._jobs = store.kind("batch/v1", "Job")
        self._pods = store.kind("v1", "Pod")
        self._dirty: dict[Key, None] = dict.fromkeys(store.table(self._jobs))
        self._due: dict[Key, datetime] = {}
        self._seen: dict[str, datetime] = {}
        self._failed_at: dict[Key, datetime] = {}
        store.observers.append(self._observe)

    def _observe(self, write: Write) -> None:
        if write.resource is self._jobs:
            self._dirty[(write.namespace, write.name)] = None
        elif write.resource is self._pods:
            metadata = write.change.version.obj["metadata"]
            if name := jobpods.job_name(metadata):
                self._dirty[(write.namespace, name)] = None
            if write.change.type == "DELETED":
                self._seen.pop(metadata["uid"], None)

    def next_event_at(self) -> datetime | None:
        """When `step` has something to do next; None: only after a write."""
        if self._dirty:
            return self._store.now()
        return min(self._due.values(), default=None)

    def step(self) -> int:
        """Looks at every job that changed or is due; returns the number of writes."""
        before, now = self._store.resource_version, self._store.now()
        ready = {key for key, due in self._due.items() if due <= now}
        keys = [*self._dirty, *sorted(ready - self._dirty.keys())]
        self._dirty = {}
        for key in keys:
            self._due.pop(key, None)
            self._sync(key, now)
        return self._store.resource_version - before

    # --- one job --------------------------------------------------------------------------------------

    def _sync(self, key: Key, now: datetime) -> None:
        version = self._store.table(self._jobs).get(key)
        if version is None or "deletionTimestamp" in version.obj["metadata"]:
            self._release_all(key)
            self._failed_at.pop(key, None)
            return
        job = version.obj
        if finished := jobpods.finished_at(job):
            self._expire(key, job, finished, now)
            return
        pods = self._owned(version)
        if jobpods.condition(job, "FailureTarget"):
            self._conclude_failure(key, job, pods)
            return
        start = job["status"].get("startTime")
        if start is None:
            self._write(key, {**jobpods.COUNTS, "startTime": meta.timestamp(now)})
            job = self._store.get(self._jobs, *key).obj
            start = job["status"]["startTime"]
        if self._past_deadline(key, job, start, now):
            self._begin_failure(key, job, "DeadlineExceeded", "Job was active longer than specified deadline")
            for pod in pods:
                if not jobpods.ended(pod.obj):
                    self._stop(pod)
            return
        self._count(key, job, pods, now)

    def _past_deadline(self, key: Key, job: Json, start: str, now: datetime) -> bool:
        seconds = job["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return False
        due = meta.parse_timestamp(start) + timedelta(seconds=seconds)
        if now < due:
            self._wake(key, due)
        return now >= due

    def _count(self, key: Key, job: Json, pods: list[Version], now: datetime) -> None:
        """Counts pods that ended, one delay after their end; then ends, retries or waits."""
        ripe, waiting = [], False
        for pod in pods:
            if not jobpods.ended(pod.obj) or not jobpods.tracked(pod.obj):
                continue
            seen = self._seen.setdefault(pod.obj["metadata"]["uid"], now)
            due = seen + timedelta(seconds=self.timing.count_delay)
            if due <= now:
                ripe.append(pod)
            else:
                waiting = True
                self._wake(key, due)
        good = [pod for pod in ripe if pod.obj["status"].get("phase") == "Succeeded"]
        bad = [pod for pod in ripe if pod not in good]
        failed = job["status"].get("failed", 0) + len(bad)
        if bad:
            seen = min(self._seen[pod.obj["metadata"]["uid"]] for pod in bad)
            self._failed_at[key] = jobpods.last_failure(bad, seen)
        if good:
            self._complete(key, job, ripe, good)
        elif failed > job["spec"]["backoffLimit"]:
            text = "Job has reached the specified backoff limit"
            self._begin_failure(key, job, "BackoffLimitExceeded", text)
            self._release(ripe)
            self._conclude_failure(key, self._store.get(self._jobs, *key).obj, pods, failed)
        else:
            self._release(ripe)
            active = [pod for pod in pods if not jobpods.ended(pod.obj)]
            if not active and not waiting:
                active += self._retry(key, job, pods, failed, now)
            self._write(key, jobpods.counts(job, active, failed))

    def _retry(self, key: Key, job: Json, pods: list[Version], failed: int, now: datetime) -> list[Version]:
        if failed:
            pause = min(self.timing.backoff * 2 ** (failed - 1), self.timing.backoff_limit)
            last = self._failed_at.setdefault(key, jobpods.last_failure(pods, now))
            due = last + timedelta(seconds=pause)
            if now < due:
                self._wake(key, due)
                return []
        pod = jobpods.build(job)
        try:
            created = self._store.create(self._pods, key[0], pod, INTERNAL)
        except ApiError as error:
            self._event(job, "Warning", "FailedCreate", f"Error creating: {error.status['message']}")
            self._wake(key, now + timedelta(seconds=self.timing.backoff))
            return []
        self._event(job, "Normal", "SuccessfulCreate", f"Created pod: {created.key[1]}")
        return [created]

    def _complete(self, key: Key, job: Json, ripe: list[Version], good: list[Version]) -> None:
        text = ("CompletionsReached", "Reached expected number of succeeded pods")
        now = self._store.timestamp()
        uncounted = {"succeeded": [pod.obj["metadata"]["uid"] for pod in good]}
        met = jobpods.new_condition("SuccessCriteriaMet", *text, now)
        status = {**job["status"], "active": None, "uncountedTerminatedPods": uncounted, "conditions": [met]}
        self._write(key, status)
        self._release(ripe)
        status = {
            **status,
            "conditions": [met, jobpods.new_condition("Complete", *text, now)],
            "completionTime": now,
            "succeeded": len(good),
            "uncountedTerminatedPods": {},
        }
        self._write(key, status)
        self._event(job, "Normal", "Completed", "Job completed")

    def _begin_failure(self, key: Key, job: Json, reason: str, text: str) -> None:
        target = jobpods.new_condition("FailureTarget", reason, text, self._store.timestamp())
        self._write(key, {**job["status"], "conditions": [target]})

    def _conclude_failure(self, key: Key, job: Json, pods: list[Version], failed: int | None = None) -> None:
        """`Failed` comes when no pod runs any more."""
        if any(not jobpods.terminal(pod.obj) for pod in self._present(pods)):
            return
        target = jobpods.condition(job, "FailureTarget")
        if target is None:
            return
        self._release(pods)
        if failed is None:
            failed = job["status"].get("failed", 0) + job["status"].get("active", 0)
        condition = jobpods.new_condition("Failed", target["reason"], target["message"], self._store.timestamp())
        conditions = [target, condition]
        self._write(key, {**jobpods.counts(job, [], failed), "conditions": conditions})
        self._event(job, "Warning", target["reason"], target["message"])

    def _expire(self, key: Key, job: Json, finished: datetime, now: datetime) -> None:
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return
        due = finished + timedelta(seconds=seconds)
        if now < due:
            self._wake(key, due)
            return
        options = Options(propagation_policy="Foreground", uid=job["metadata"]["uid"])
        self._store.delete(self._jobs, key[0], key[1], options, INTERNAL)

    # --- pods -----------------------------------------------------------------------------------------

    def _owned(self, job: Version) -> list[Version]:
        places = self._store.owners.dependents.get(job.obj["metadata"]["uid"], {})
        keys = sorted(key for (_, key), resource in places.items() if resource is self._pods)
        return [self._store.table(self._pods)[key] for key in keys]

    def _present(self, pods: list[Version]) -> list[Version]:
        table = self._store.table(self._pods)
        return [table[pod.key] for pod in pods if pod.key in table]

    def _release(self, pods: list[Version]) -> None:
        """Takes the tracking finalizer off, so that a deleted pod can go."""
        for pod in self._present(pods):
            if jobpods.tracked(pod.obj):
                self._store.update(self._pods, *pod.key, jobpods.untracked, INTERNAL, patch=True)
                self._seen.pop(pod.obj["metadata"]["uid"], None)

    def _release_all(self, key: Key) -> None:
        pods = [v for v in self._store.select(self._pods, key[0]) if jobpods.job_name(v.obj["metadata"]) == key[1]]
        self._release(pods)

    def _stop(self, pod: Version) -> None:
        self._release([pod])
        if self._present([pod]):
            self._store.delete(self._pods, *pod.key, BACKGROUND, INTERNAL)

    # --- writing --------------------------------------------------------------------------------------

    def _wake(self, key: Key, due: datetime) -> None:
        self._due[key] = min(due, self._due.get(key, due))

    def _write(self, key: Key, status: Json) -> None:
        clean = {name: value for name, value in status.items() if value is not None}
        self._store.update(self._jobs, *key, lambda job: {**job, "status": clean}, INTERNAL, subresource="status")

    def _event(self, job: Json, kind: str, reason: str, message: str) -> None:
        event = jobpods.event(job, kind, reason, message, self._store.timestamp(), self._store.rng)
        namespace = job["metadata"]["namespace"]
        try:
            self._store.create(self._store.kind("v1", "Event"), namespace, event, INTERNAL)
        except ApiError as error:
            if error.code not in (403, 404, 409):
                raise
