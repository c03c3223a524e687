"""The Kubernetes objects as far as we read them: partial structs, decoded straight from the API server's JSON.

What is not named here is not decoded. A field that users may fill with anything (templates, patches) stays `msgspec.Raw`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus.names import API_VERSION


class Kind(msgspec.Struct, frozen=True):
    """Where a kind lives in the API, and the word for it in subjects and views."""

    name: str
    plural: str
    api_version: str

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def path(self) -> str:
        return f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"


BATCH_SANDBOX: Final = Kind("BatchSandbox", "batchsandboxes", API_VERSION)
POOL: Final = Kind("Pool", "pools", API_VERSION)
SANDBOX_SNAPSHOT: Final = Kind("SandboxSnapshot", "sandboxsnapshots", API_VERSION)
POD: Final = Kind("Pod", "pods", "v1")
JOB: Final = Kind("Job", "jobs", "batch/v1")
EVENT: Final = Kind("Event", "events", "v1")
KINDS: Final = {kind.word: kind for kind in (BATCH_SANDBOX, POOL, SANDBOX_SNAPSHOT, POD, JOB, EVENT)}


class _Partial(msgspec.Struct, frozen=True, rename="camel"):
    pass


class OwnerReference(_Partial, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(_Partial, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None

    def controller(self, kind: str) -> OwnerReference | None:
        """The controlling owner, if it is of this kind."""
        for owner in self.owner_references or ():
            if owner.controller and owner.kind == kind:
                return owner
        return None


class Metadata(_Partial, frozen=True):
    """Any object, its metadata alone."""

    metadata: ObjectMeta


class Condition(_Partial, frozen=True, omit_defaults=True):
    """A BatchSandbox's condition; only `True` ones are ever stored (controller-behaviour.md §6.4)."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class SandboxStatus(_Partial, frozen=True):
    """status of a BatchSandbox: all counters are required by the CRD, so none is ever left out."""

    observed_generation: int = 0
    replicas: int = 0
    allocated: int = 0
    ready: int = 0
    task_running: int = 0
    task_succeed: int = 0
    task_failed: int = 0
    task_pending: int = 0
    task_unknown: int = 0
    phase: str = ""
    pause_observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()

    def condition(self, type: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == type), None)


class SandboxSpec(_Partial, frozen=True):
    replicas: int = 1
    pause: bool | None = None
    pool_ref: str = ""
    expire_time: str | None = None
    template: msgspec.Raw = msgspec.Raw(b"null")
    shard_patches: msgspec.Raw = msgspec.Raw(b"null")
    task_template: msgspec.Raw = msgspec.Raw(b"null")


class Template(_Partial, frozen=True):
    """A pod template, as far as it says what runs."""

    spec: PodSpec


class BatchSandbox(_Partial, frozen=True):
    metadata: ObjectMeta
    spec: SandboxSpec = SandboxSpec()
    status: SandboxStatus = SandboxStatus()


class ContainerStateWaiting(_Partial, frozen=True):
    reason: str = ""


class ContainerStateTerminated(_Partial, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(_Partial, frozen=True):
    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None
    running: msgspec.Raw = msgspec.Raw(b"null")


class ContainerStatus(_Partial, frozen=True):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState | None = None


class PodCondition(_Partial, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""


class PodStatus(_Partial, frozen=True):
    phase: str = ""
    reason: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: tuple[ContainerStatus, ...] | None = None


class Container(_Partial, frozen=True):
    name: str = ""
    image: str = ""


class PodSpec(_Partial, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] | None = None


class Pod(_Partial, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class JobCondition(_Partial, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class JobStatus(_Partial, frozen=True):
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[JobCondition, ...] | None = None


class Job(_Partial, frozen=True):
    metadata: ObjectMeta
    status: JobStatus = JobStatus()


class SnapshotContainer(_Partial, frozen=True, omit_defaults=True):
    container_name: str = ""
    image_uri: str = ""
    image_digest: str = ""


class SnapshotStatus(_Partial, frozen=True):
    phase: str = ""
    containers: tuple[SnapshotContainer, ...] | None = None
    conditions: tuple[Condition, ...] | None = None
    source_pod_name: str = ""
    source_node_name: str = ""
    observed_generation: int = 0


class SnapshotSpec(_Partial, frozen=True):
    sandbox_name: str = ""


class SandboxSnapshot(_Partial, frozen=True):
    metadata: ObjectMeta
    spec: SnapshotSpec = SnapshotSpec()
    status: SnapshotStatus = SnapshotStatus()


class PoolStatus(_Partial, frozen=True):
    observed_generation: int = 0
    revision: str = ""
    total: int = 0
    allocated: int = 0
    available: int = 0
    updated: int = 0


class Pool(_Partial, frozen=True):
    metadata: ObjectMeta
    status: PoolStatus = PoolStatus()
