"""Observed objects made into what views hold of them. Pure: an object, what was known before, and the message's time in; a slot out."""

from __future__ import annotations

from typing import Final

import msgspec

from bus import names, resources
from bus.messages import Seen
from bus.names import parse_pod_index
from bus.resources import SANDBOX_SNAPSHOT
from bus.times import parse_time
from bus.views import Job, Pod, PoolObject, SandboxObject, Snapshot

HEALABLE: Final = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Waiting reasons that may heal by themselves (DESIGN §11, B84)."""
TERMINAL: Final = frozenset({"InvalidImageName"})
"""Waiting reasons that no time heals."""

KEPT_ANNOTATIONS: Final = (
    names.ENDPOINTS,
    names.ALLOC_STATUS,
    names.ALLOC_RELEASE,
    names.ALLOC_RELEASED,
    names.FAILED_SPEC_DIGEST,
)
COMMIT_CONTAINER: Final = "commit"
"""Of commit and unpause Jobs alike (§7.7, §7.8)."""
NO_MESSAGE: Final = "Commit job failed"
"""What a Job that gave up without a word says to users (§7.5)."""
RESULT_LIMIT: Final = 4096
"""A kubelet cuts a termination message at this many bytes (B44)."""


class _Allocated(msgspec.Struct, frozen=True):
    pods: tuple[str, ...] | None = None


_allocated = msgspec.json.Decoder(_Allocated)
_batch_sandbox = msgspec.json.Decoder(resources.BatchSandbox)
_pod = msgspec.json.Decoder(resources.Pod)
_snapshot = msgspec.json.Decoder(resources.SandboxSnapshot)
_job = msgspec.json.Decoder(resources.Job)
_pool = msgspec.json.Decoder(resources.Pool)
_metadata = msgspec.json.Decoder(resources.Metadata)
_template = msgspec.json.Decoder(resources.Template)
_NO_PATCHES: Final = (b"null", b"[]")


class _Present(msgspec.Struct, frozen=True):
    """Whether an object that had to be cut still has a spec; if not, it has its bare metadata alone."""

    spec: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def __bool__(self) -> bool:
        return self.spec is not msgspec.UNSET


_present = msgspec.json.Decoder(_Present)


def _time(text: str | None) -> int:
    return (parse_time(text) or 0) if text else 0


def decode_pod(seen: Seen) -> resources.Pod:
    return _pod.decode(seen.object)


def decode_metadata(seen: Seen) -> resources.ObjectMeta:
    return _metadata.decode(seen.object).metadata


def sandbox_object(seen: Seen) -> SandboxObject:
    read = _batch_sandbox.decode(seen.object)
    meta, spec = read.metadata, read.spec
    annotations = meta.annotations or {}
    allocated, released, malformed = _allocation(annotations)
    return SandboxObject(
        version=(seen.epoch, seen.resource_version),
        uid=meta.uid,
        generation=meta.generation,
        created=_time(meta.creation_timestamp),
        deleting=_time(meta.deletion_timestamp),
        finalizers=meta.finalizers or (),
        annotations={key: annotations[key] for key in KEPT_ANNOTATIONS if key in annotations},
        replicas=spec.replicas,
        pause=spec.pause,
        pool_ref=spec.pool_ref,
        expire_time=parse_time(spec.expire_time) if spec.expire_time else None,
        has_template=bytes(spec.template) != b"null",
        has_tasks=bytes(spec.task_template) != b"null",
        template=seen.facts.get("templateDigest", ""),
        images=_template_images(spec.template),
        patched=bytes(spec.shard_patches) not in _NO_PATCHES,
        spec=seen.facts.get("specDigest", ""),
        reduced=seen.reduced,
        bare=seen.reduced and not _present.decode(seen.object),
        allocated=allocated,
        released=released,
        malformed=malformed,
        status=read.status,
    )


def _template_images(template: msgspec.Raw) -> dict[str, str]:
    """Users may fill a template with anything: {} where it does not say what runs."""
    if bytes(template) == b"null":
        return {}
    try:
        containers = _template.decode(template).spec.containers or ()
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return {each.name: names.short_image(each.image) for each in containers if each.name and each.image}


def _allocation(annotations: dict[str, str]) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    """(pods of `alloc-status` less those of `alloc-release`, whether those are all, keys that cannot be read).

    With such a key nothing is certain, so no pods.
    """
    given: list[tuple[str, ...]] = []
    malformed = []
    for key in (names.ALLOC_STATUS, names.ALLOC_RELEASE):
        text = annotations.get(key)
        try:
            given.append(_allocated.decode(text).pods or () if text else ())
        except (msgspec.DecodeError, RecursionError):
            malformed.append(key)
    if malformed:
        return (), False, tuple(malformed)
    status, release = given
    kept = tuple(name for name in dict.fromkeys(status) if name not in release)
    return kept, bool(status) and not kept, ()


def _trouble(status: resources.PodStatus) -> tuple[str, bool]:
    """(reason, whether no time heals it) of a pod that is not well: its first container that waits for a known reason, or its end."""
    if status.phase == "Failed":
        ended = next((c for c in status.container_statuses or () if c.state and c.state.terminated), None)
        of_container = ended.state.terminated.reason if ended and ended.state and ended.state.terminated else ""
        return status.reason or of_container or "PodFailed", True
    if status.phase == "Succeeded":
        return "Completed", True
    for container in status.container_statuses or ():
        waiting = container.state.waiting if container.state else None
        if waiting is not None and waiting.reason in TERMINAL:
            return waiting.reason, True
        if waiting is not None and waiting.reason in HEALABLE:
            return waiting.reason, False
    return "", False


def _ended(status: resources.PodStatus, *, of_job: bool) -> tuple[int | None, str]:
    """Exit code and message. Of a snapshot's Job's pod the container `commit` alone counts, whatever was injected beside it (§7.5, SNP-03).

    Its pod restarts nothing, so it is over with that container, also while another goes on.
    """
    for container in status.container_statuses or ():
        ended = container.state.terminated if container.state else None
        counts = container.name == COMMIT_CONTAINER if of_job else status.phase in ("Failed", "Succeeded")
        if ended is not None and counts:
            return ended.exit_code, ended.message
    return None, ""


def pod_slot(seen: Seen, read: resources.Pod, before: Pod | None, now: int) -> Pod:
    meta, status = read.metadata, read.status
    labels = meta.labels or {}
    ready = status.phase == "Running" and any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())
    reason, terminal = _trouble(status)
    standing = before is not None and before.uid == meta.uid and before.reason and before.terminal == terminal
    since = (before.since if before is not None and standing else now) if reason else 0
    owner = meta.controller(resources.BATCH_SANDBOX.name) or meta.controller(resources.JOB.name)
    of_job = names.SNAPSHOT_NAME in labels
    containers = read.spec.containers or ()
    restorable = meta.controller(resources.BATCH_SANDBOX.name) is not None
    exit_code, message = _ended(status, of_job=of_job)
    return Pod(
        version=(seen.epoch, seen.resource_version),
        uid=meta.uid,
        scope=seen.scope,
        deleting=meta.deletion_timestamp is not None,
        owner=owner.uid if owner else "",
        index=parse_pod_index(meta.name, labels.get(names.POD_INDEX)) if names.SANDBOX_NAME in labels else None,
        phase=status.phase,
        node=read.spec.node_name,
        ip=status.pod_ip,
        ready=ready,
        reason=reason,
        terminal=terminal,
        since=since,
        template=(meta.annotations or {}).get(names.TEMPLATE_DIGEST, ""),
        exit_code=exit_code,
        result=message[:RESULT_LIMIT] if of_job else "",
        containers=tuple(container.name for container in containers),
        images=tuple(names.short_image(each.image) for each in containers) if restorable else (),
    )


def shown(pod: Pod | None) -> tuple[bool, bool, bool, str, bool]:
    """What of a pod shows in its sandbox's status: (exists, assigned, ready and not leaving, reason, terminal)."""
    if pod is None or pod.gone:
        return (False, False, False, "", False)
    return (True, pod.assigned, pod.ready and not pod.deleting, pod.reason, pod.terminal)


def snapshot_slot(seen: Seen) -> Snapshot:
    read = _snapshot.decode(seen.object)
    meta = read.metadata
    owner = meta.controller(resources.BATCH_SANDBOX.name)
    annotations = meta.annotations or {}
    return Snapshot(
        version=(seen.epoch, seen.resource_version),
        name=meta.name,
        uid=meta.uid,
        deleting=meta.deletion_timestamp is not None,
        deletion_time=_time(meta.deletion_timestamp),
        created=_time(meta.creation_timestamp),
        generation=meta.generation,
        sandbox=read.spec.sandbox_name,
        owner=owner.uid if owner else "",
        finalizers=meta.finalizers or (),
        intent=annotations.get(names.PAUSE_GENERATION, ""),
        pod_name=annotations.get(names.SOURCE_POD_NAME, ""),
        pod_uid=annotations.get(names.SOURCE_POD_UID, ""),
        status=read.status,
    )


def job_slot(seen: Seen) -> Job:
    read = _job.decode(seen.object)
    failed = next((c for c in read.status.conditions or () if c.type == "Failed" and c.status == "True"), None)
    owner = read.metadata.controller(SANDBOX_SNAPSHOT.name)
    return Job(
        version=(seen.epoch, seen.resource_version),
        uid=read.metadata.uid,
        deleting=read.metadata.deletion_timestamp is not None,
        succeeded=read.status.succeeded,
        failed=read.status.failed,
        failure=(failed.message or NO_MESSAGE) if failed else "",
        owner=owner.uid if owner is not None else "",
    )


def pool_object(seen: Seen) -> PoolObject:
    meta = _pool.decode(seen.object).metadata
    return PoolObject(
        version=(seen.epoch, seen.resource_version),
        uid=meta.uid,
        generation=meta.generation,
        created=_time(meta.creation_timestamp),
        deleting=_time(meta.deletion_timestamp),
    )
