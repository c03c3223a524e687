"""Views: one small document per aggregate, self-contained enough to decide from (DESIGN §5).

A view is a pure function of a log prefix. Times are log time in nanoseconds, 0 for "never"; resource versions are compared together
with the epoch (`Version`). Structs are frozen and their dicts are never changed in place.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus.ops import Op
from bus.resources import SandboxStatus, SnapshotStatus
from bus.subjects import Aggregate
from bus.times import SECOND

Version = tuple[int, int]
"""(epoch, resourceVersion): the order of what a cluster said of one name (DESIGN §4, Order)."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


class Pod(_Part, frozen=True):
    """A pod as decisions need it. `gone` is a tombstone: the name was deleted at this version."""

    version: Version
    uid: str = ""
    scope: str = ""
    gone: bool = False
    deleting: bool = False
    owner: str = ""
    """uid of the controlling BatchSandbox, or of the Job of a commit or unpause pod; '' for none"""
    index: int | None = None
    phase: str = ""
    node: str = ""
    ip: str = ""
    ready: bool = False
    """phase Running and condition Ready True (controller-behaviour.md §0.4)"""
    reason: str = ""
    """why it is not well: a waiting reason of one of its containers, or of a phase Failed; '' if nothing is wrong"""
    terminal: bool = False
    """it cannot heal: phase Failed or Succeeded, InvalidImageName"""
    since: int = 0
    """since when `reason` stands without a break (over changes among the reasons that may heal)"""
    template: str = ""
    """digest of the template it was built from (annotation)"""
    exit_code: int | None = None
    """of a pod that ended: the first container's; of a snapshot's Job's pod: that of its container `commit`, also while others go on"""
    result: str = ""
    """a commit pod's termination message, bounded; else ''"""
    containers: tuple[str, ...] = ()
    """names of its containers in order, init containers apart: what a snapshot of it commits (B52)"""
    images: tuple[str, ...] = ()
    """of those containers, as `bus.names.short_image`; () where it is no BatchSandbox's, or was seen by a version that did not keep them"""

    @property
    def ended(self) -> bool:
        """Nothing of it will run that matters: its phase says so, or what it is there for has ended."""
        return self.phase in ("Succeeded", "Failed") or self.exit_code is not None

    @property
    def assigned(self) -> bool:
        """Scheduled or with an address (controller-behaviour.md §0.4)."""
        return bool(self.node or self.ip)


class SandboxObject(_Part, frozen=True):
    """The BatchSandbox as decisions need it."""

    version: Version
    uid: str
    generation: int = 0
    created: int = 0
    deleting: int = 0
    finalizers: tuple[str, ...] = ()
    annotations: dict[str, str] = {}
    """those of `bus.names` only"""
    replicas: int = 1
    pause: bool | None = None
    pool_ref: str = ""
    expire_time: int | None = None
    has_template: bool = False
    has_tasks: bool = False
    template: str = ""
    """digest of template and shard patches"""
    images: dict[str, str] = {}
    """container of its template → image, as `bus.names.short_image`; {} where that is not known"""
    patched: bool = False
    """it has shard patches, which may say otherwise than the template"""
    spec: str = ""
    """digest of the spec, `pause` apart"""
    reduced: bool = False
    """the object is too large for a message: what is only in its spec is not known"""
    bare: bool = False
    """it is too large even without: of spec, status and annotations only what was known before"""
    allocated: tuple[str, ...] = ()
    """pods that its annotations give it, in order: `alloc-status` without `alloc-release` (controller-behaviour.md §2.1); where one of them
    cannot be read, those known before. They count while it is pooled (B40)"""
    released: bool = False
    """`alloc-status` names pods, and `alloc-release` each of them: it has none any more, and gets none (B90)"""
    malformed: tuple[str, ...] = ()
    """keys of allocation annotations that cannot be read (B05, B06)"""
    status: SandboxStatus = SandboxStatus()

    @property
    def pooled(self) -> bool:
        return bool(self.pool_ref)


class Snapshot(_Part, frozen=True):
    """A SandboxSnapshot, as its own view and the view of the sandbox it belongs to hold it."""

    version: Version
    name: str = ""
    uid: str = ""
    gone: bool = False
    deleting: bool = False
    deletion_time: int = 0
    """since when it is being deleted; 0: it is not"""
    created: int = 0
    generation: int = 0
    sandbox: str = ""
    owner: str = ""
    """uid of the controlling BatchSandbox: an internal (pause) snapshot; '' for a public one"""
    finalizers: tuple[str, ...] = ()
    intent: str = ""
    """the pause generation it was made for (annotation), '' for none"""
    pod_name: str = ""
    pod_uid: str = ""
    """the pod it commits (annotations), '' where it does not say"""
    status: SnapshotStatus = SnapshotStatus()


class Job(_Part, frozen=True):
    version: Version
    uid: str = ""
    gone: bool = False
    deleting: bool = False
    succeeded: int = 0
    failed: int = 0
    failure: str = ""
    """message of condition Failed=True, or a text in its place; '' while it has not failed for good"""
    owner: str = ""
    """uid of the snapshot that it was made for"""


class Reported(_Part, frozen=True):
    """What an outcome said of one object of an open op: the uid and version to wait for. ('', (0,0)): nothing yet."""

    result: str = ""
    uid: str = ""
    version: Version = (0, 0)


class Open(_Part, frozen=True):
    """An op that was ordered and is not over: no observation shows yet that it took effect or no longer can (DESIGN §5)."""

    op: Op
    since: int
    """log position of the view it was first decided from"""
    waits: dict[str, Reported]
    """the objects (`kind/name`) it is not over for"""


class InFlight(_Part, frozen=True):
    """The aggregate's command that has no folded outcome yet. A command that cannot be read has no ops and expires at once."""

    sequence: int
    expires: int


class Failure(_Part, frozen=True):
    """The latest op that was refused for good: what the user reads in a condition."""

    op: str
    object: str
    code: int
    reason: str
    message: str
    at: int
    generation: int = 0
    also: tuple[str, ...] = ()
    """words of other kinds that were refused before it and have not worked since: the back-off is theirs too"""


BACKOFF_FIRST: Final = 1 * SECOND
BACKOFF_LIMIT: Final = 300 * SECOND


def backoff(tries: int) -> int:
    """How long to wait after so many failed tries in a row, in nanoseconds: 1 s, doubling, at most 5 min."""
    return min(BACKOFF_LIMIT, BACKOFF_FIRST << min(max(tries - 1, 0), 16))


class _View(_Part, frozen=True):
    cluster: str
    namespace: str
    name: str
    sequence: int = 0
    """last log position that changed the view"""
    now: int = 0
    """the greatest of the times folded into it"""
    settled: bool = False
    """every scope it is folded from is complete: absence means something (DESIGN §4, Completeness)"""
    known: Version = (0, 0)
    """newest version of the aggregate's own object, its deletion included"""
    last_command: int = 0
    """sequence of the last command folded: the next one expects it"""
    in_flight: InFlight | None = None
    open: tuple[Open, ...] = ()
    tries: int = 0
    """failed tries in a row"""
    retry_at: int = 0
    """what was refused or expired is not tried again before (log time)"""
    failure: Failure | None = None


class SandboxView(_View, frozen=True, tag="sandbox"):
    object: SandboxObject | None = None
    pods: dict[str, Pod] = {}
    """by name, tombstones included"""
    snapshot: Snapshot | None = None
    """its pause snapshot (`<name>-pause`), a tombstone included"""
    pause_generation: int | None = None
    """P of DESIGN §6: the generation at which spec.pause last changed; None if that was not seen"""
    unshown_since: int = 0
    """first change of generation, counts or failures since the status was last seen written; 0 if none"""
    unshown_last: int = 0
    """the latest such change"""

    @property
    def aggregate(self) -> Aggregate:
        return Aggregate(self.cluster, self.namespace, "sandbox", self.name)

    def live_pods(self) -> dict[str, Pod]:
        """Pods that exist, terminating ones included."""
        return {name: pod for name, pod in self.pods.items() if not pod.gone}


class PoolObject(_Part, frozen=True):
    version: Version
    uid: str
    generation: int = 0
    created: int = 0
    deleting: int = 0


class PoolView(_View, frozen=True, tag="pool"):
    object: PoolObject | None = None
    pods: dict[str, Pod] = {}

    @property
    def aggregate(self) -> Aggregate:
        return Aggregate(self.cluster, self.namespace, "pool", self.name)


class Source(_Part, frozen=True):
    """What a snapshot is taken of: its sandbox, and the pod that is the source, as the same partition knows them. Empty once the snapshot
    has succeeded or failed: nothing is taken any more."""

    uid: str = ""
    """the BatchSandbox's uid; '': there is none of that name"""
    generation: int = 0
    pod: str = ""
    """name of the source pod (controller-behaviour.md §7.4, with B40): running, and of the uid that the snapshot names, if it names one; '' for none"""
    pod_uid: str = ""
    node: str = ""
    containers: tuple[str, ...] = ()
    leaving: bool = False
    """that BatchSandbox is being deleted"""
    busy: str = ""
    """another snapshot that is committing the same pod and was created before this one (B57); '' for none"""


NO_SOURCE: Final = Source()
"""The one that is left out of a view's bytes."""


class SnapshotView(_View, frozen=True, tag="snapshot"):
    object: Snapshot | None = None
    source: Source = NO_SOURCE
    jobs: dict[str, Job] = {}
    pods: dict[str, Pod] = {}
    """pods of its Jobs, by name"""

    @property
    def aggregate(self) -> Aggregate:
        return Aggregate(self.cluster, self.namespace, "snapshot", self.name)


View = SandboxView | PoolView | SnapshotView


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to do about a view now: ops in order, and when to look again without any change (log time, ns; None: never)."""

    ops: tuple[Op, ...] = ()
    wake_at: int | None = None
    reason: str = ""


class ListState(_Part, frozen=True):
    """A list of which not all chunks have come: namespace → name → (uid, resourceVersion)."""

    id: str
    epoch: int
    resource_version: int
    chunks: int
    seen: int
    objects: dict[str, dict[str, tuple[str, int]]]


class ScopeState(_Part, frozen=True):
    """What a partition knows of one scope of a cluster (`<scope word>/<namespace or ''>`)."""

    complete: Version | None = None
    """(epoch, L) of the last whole list by which all objects are known; None: not complete"""
    missing: dict[str, int] = {}
    """`namespace/name` → resourceVersion of objects that a whole list named and that are not known that new"""
    awaited: Version | None = None
    """the list that `missing` belongs to"""
    listing: ListState | None = None


class ClusterState(_Part, frozen=True):
    epoch: int = 0
    uid: str = ""
    scopes: dict[str, ScopeState] = {}


class PartitionState(_Part, frozen=True):
    """What belongs to no view: the fence's document. `cursor` is the last position folded, `cursor_time` its message's server time."""

    log: str = ""
    """identity of the log that was folded"""
    cursor: int = 0
    cursor_time: int = 0
    clusters: dict[str, ClusterState] = {}
