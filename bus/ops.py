"""Ops: what a decision asks an executor to do (DESIGN §6). Data that names targets and preconditions, never an object's body.

Every op has an id that follows from the aggregate, the view position it was decided at and its place; a re-issue keeps it.
All targets are in the command's own cluster and namespace.
"""

from __future__ import annotations

import msgspec

from bus.resources import SandboxStatus


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


class RecordEvent(_Op, frozen=True, tag="record-event"):
    """A Kubernetes Event on `target`, named after this op's id so that a repeat is the same Event. Sent when nothing else waits."""

    target: Target
    component: str
    type: str
    reason: str
    message: str
    at: int
    """log time, nanoseconds"""


Op = CreatePods | DeletePod | PatchMetadata | PatchSandboxStatus | DeleteExpired | RecordEvent

UNOBSERVED = (RecordEvent,)
"""Ops with nothing to observe: over with their outcome, and never issued again."""


def touches(op: Op) -> tuple[str, ...]:
    """The objects an op changes, as `kind/name`: until it is over, nothing else is decided about them."""
    match op:
        case CreatePods():
            return tuple(f"pod/{name}" for name in op.names)
        case RecordEvent():
            return ()
        case DeletePod() | PatchMetadata() | PatchSandboxStatus() | DeleteExpired():
            return (str(op.target),)
