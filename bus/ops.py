"""Ops: what a decision asks an executor to do (DESIGN §6). Data that names targets and preconditions, never an object's body.

Every op has an id that follows from the aggregate, the view position it was decided at and its place; a re-issue keeps it.
All targets are in the command's own cluster and namespace.
"""

from __future__ import annotations

import msgspec

from bus.resources import SandboxStatus, SnapshotStatus


class Target(msgspec.Struct, frozen=True):
    """An object as identity: its kind (as in `bus.resources.KINDS`), name and uid."""

    kind: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class _Op(msgspec.Struct, frozen=True, tag_field="op", omit_defaults=True):
    id: str


class CreatePods(_Op, frozen=True, tag="create-pods"):
    """Create the pods of these indices from the sandbox's template and shard patches.

    Precondition: the sandbox has this uid, is not being deleted, and its template has this digest
    (`bus.hashing.template_digest`). A pod of the name that already exists is success if it is controlled by this uid, was built
    from this digest and is not being deleted; else the name is taken.
    """

    sandbox: Target
    generation: int
    template: str
    names: dict[str, int]
    """pod name → index"""


class DeletePod(_Op, frozen=True, tag="delete-pod"):
    """Delete the pod of this uid (a plain delete: its own grace period). Gone already is success."""

    target: Target


class PatchMetadata(_Op, frozen=True, tag="patch-metadata"):
    """Merge patch of annotations (None removes) and, if given, of the whole list of finalizers; fails as a conflict unless at `resource_version`."""

    target: Target
    resource_version: int
    annotations: dict[str, str | None] = {}
    finalizers: tuple[str, ...] | None = None


class PatchSandboxStatus(_Op, frozen=True, tag="patch-sandbox-status"):
    """Merge patch of a BatchSandbox's whole status, `conditions` always included (B86); fails as a conflict unless at `resource_version`."""

    target: Target
    resource_version: int
    status: SandboxStatus


class DeleteExpired(_Op, frozen=True, tag="delete-expired"):
    """Delete a BatchSandbox whose expireTime has passed.

    Precondition, read live: this uid and resourceVersion, and the API server's `Date` not before `expire_time` (nanoseconds). A
    `Date` that is earlier is the result `early`, and nothing is deleted (DESIGN §4, Time).
    """

    target: Target
    resource_version: int
    expire_time: int


class CreateSnapshot(_Op, frozen=True, tag="create-snapshot"):
    """Create the internal snapshot of a pause, its finalizer with it.

    Precondition: the sandbox has this uid and is not being deleted. `intent` is the pause generation it is made for, `pod` the pod to commit: both
    stand in annotations of the snapshot, and a snapshot of the name that exists is success only if owner and both are equal
    and it is not being deleted.
    """

    sandbox: Target
    name: str
    intent: str
    pod: Target


class CreateJob(_Op, frozen=True, tag="create-job"):
    """Create a snapshot's commit or unpause Job (controller-behaviour.md §7.7, §7.8), our label also on its pod template (B58).

    `images`: container → image URI to commit it to; for `unpause` the values are empty. `pod` is the source pod, its uid stands in an
    annotation of Job and pod template. A Job of the name that exists is success if owner and pod are equal and it is not being deleted.
    """

    snapshot: Target
    name: str
    action: str
    """`commit` or `unpause`"""
    pod: Target
    node: str
    images: dict[str, str]


class PatchSnapshotStatus(_Op, frozen=True, tag="patch-snapshot-status"):
    """Merge patch of a SandboxSnapshot's whole status; fails as a conflict unless at `resource_version`."""

    target: Target
    resource_version: int
    status: SnapshotStatus


class DeleteObject(_Op, frozen=True, tag="delete-object"):
    """Delete a snapshot or a Job of this uid, its dependants in the background. Gone already is success."""

    target: Target


class RewriteTemplate(_Op, frozen=True, tag="rewrite-template"):
    """Put a snapshot's images into a BatchSandbox's template, for a resume; fails as a conflict unless at `resource_version`.

    Containers that `images` does not name keep their image (N-15). `pull_secret` is added to imagePullSecrets once, if not empty. `detach`: the pool
    reference, its finalizer and the allocation annotations go in the same patch. Nothing else of the spec is written, spec.pause never.
    """

    target: Target
    resource_version: int
    images: dict[str, str]
    pull_secret: str = ""
    detach: bool = False


class DetachFromPool(_Op, frozen=True, tag="detach-from-pool"):
    """Make a pooled BatchSandbox one with a template of its own, taken live from its source pod (controller-behaviour.md PAU-27…29, N-06).

    In one patch: template, no pool reference, no pool-allocation finalizer, no allocation annotations (B40), `endpoints` emptied. Fails as a conflict
    unless the sandbox is at `resource_version`, as missing unless the pod has this uid.
    """

    target: Target
    resource_version: int
    pod: Target


class RecordEvent(_Op, frozen=True, tag="record-event"):
    """A Kubernetes Event on `target`, named after this op's id so that a repeat is the same Event. Sent when nothing else waits."""

    target: Target
    component: str
    type: str
    reason: str
    message: str
    at: int
    """log time, nanoseconds"""


Op = (
    CreatePods
    | DeletePod
    | PatchMetadata
    | PatchSandboxStatus
    | DeleteExpired
    | CreateSnapshot
    | CreateJob
    | PatchSnapshotStatus
    | DeleteObject
    | RewriteTemplate
    | DetachFromPool
    | RecordEvent
)

UNOBSERVED = (RecordEvent,)
"""Ops with nothing to observe: over with their outcome, and never issued again."""


def touches(op: Op) -> tuple[str, ...]:
    """The objects an op changes, as `kind/name`: until it is over, nothing else is decided about them."""
    match op:
        case CreatePods():
            return tuple(f"pod/{name}" for name in op.names)
        case CreateSnapshot():
            return (f"sandboxsnapshot/{op.name}",)
        case CreateJob():
            return (f"job/{op.name}",)
        case RecordEvent():
            return ()
        case _:
            return (str(op.target),)
