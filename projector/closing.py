"""When an open op is over: what was observed shows that it took effect, or no longer can (DESIGN §5). Pure."""

from __future__ import annotations

from typing import Final

from bus import messages, ops
from bus.ops import Op
from bus.views import Reported, Version

Patch = (
    ops.DeleteExpired
    | ops.PatchMetadata
    | ops.PatchSandboxStatus
    | ops.PatchSnapshotStatus
    | ops.RewriteTemplate
    | ops.DetachFromPool
)
Create = ops.CreatePods | ops.CreateSnapshot | ops.CreateJob
Delete = ops.DeletePod | ops.DeleteObject
NEVER: Final[Version] = (0, 0)
UNPAUSE: Final = "unpause"


class Known:
    """What is known of one object, as closing needs it."""

    __slots__ = ("deleting", "gone", "uid", "version")

    def __init__(self, version: Version, uid: str, *, gone: bool, deleting: bool) -> None:
        self.version = version
        self.uid = uid
        self.gone = gone
        self.deleting = deleting


def unwanted(op: Op, own: Known | None) -> bool:
    """Whether a create's owner is leaving, gone, or another one: it is dropped (DESIGN §5), and the executor would refuse it.

    A leaving snapshot may still want its source pod unpaused (B56).
    """
    if own is None or not isinstance(op, Create):
        return False
    owner = op.snapshot if isinstance(op, ops.CreateJob) else op.sandbox
    return own.gone or own.uid != owner.uid or (own.deleting and not outlives(op))


def outlives(op: Op) -> bool:
    """Whether a create is wanted although the aggregate's own object is being deleted."""
    return isinstance(op, ops.CreateJob) and op.action == UNPAUSE


def _create_is_over(op: Create, wait: Reported, known: Known | None, own: Known | None, *, fresh: bool) -> bool:
    if unwanted(op, own):
        return True
    if wait.result == messages.CONFLICT:
        # About the owner or about the name, whichever did not hold: either seen at that version is past it.
        return any(seen is not None and seen.version >= wait.version for seen in (own, known))
    return known is not None and known.version >= wait.version and (fresh or wait.version != NEVER)


def _patch_is_over(op: Patch, wait: Reported, known: Known, epoch: int, *, in_flight: bool) -> bool:
    if known.gone or known.uid != op.target.uid:
        return True
    if wait.result == messages.DONE:
        if isinstance(op, ops.DeleteExpired):
            return known.deleting
        # One decided about an object that was being deleted already is not over because of that.
        return known.version >= wait.version or (known.deleting and known.version > (epoch, op.resource_version))
    if wait.result == messages.CONFLICT and wait.version != NEVER:
        # Not compared with the precondition: after a restored etcd that may be the higher one for a long time.
        return known.version >= wait.version
    # While its command is out, a later version may be an earlier op's of the same chain.
    return not in_flight and known.version > (epoch, op.resource_version) and known.version >= wait.version


def is_over(
    op: Op,
    wait: Reported,
    known: Known | None,
    own: Known | None,
    epoch: int,
    *,
    in_flight: bool = False,
    fresh: bool = False,
) -> bool:
    """Whether what is known of an object shows that the op took effect on it, or no longer can. `own` is the aggregate's own object.

    `fresh`: the observation is newer than the view that the op was decided from.
    """
    if isinstance(op, Create):
        return _create_is_over(op, wait, known, own, fresh=fresh)
    if isinstance(op, ops.RecordEvent):
        return True
    if known is None:
        # A live read found no such object, and none is known that an observation could still tell of.
        return wait.result == messages.MISSING
    if isinstance(op, Delete):
        return known.gone or known.deleting or known.uid != op.target.uid
    return _patch_is_over(op, wait, known, epoch, in_flight=in_flight)


def tag(op: Op) -> str:
    """The word of an op's kind."""
    return str(type(op).__struct_config__.tag)
