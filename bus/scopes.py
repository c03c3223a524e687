"""What a bridge lists and watches: a kind, narrowed by a label where not all of it is ours. The words are those of `list` subjects."""

from __future__ import annotations

from typing import Final

import msgspec

from bus import names, resources, subjects


class Scope(msgspec.Struct, frozen=True):
    """One list+watch. `selector` is a label selector (existence of one key), '' for all objects of the kind."""

    word: str
    kind: resources.Kind
    selector: str = ""
    folded_into: tuple[str, ...] = ()


SANDBOXES: Final = Scope(
    "batchsandbox", resources.BATCH_SANDBOX, folded_into=(subjects.SANDBOX, subjects.POOL, subjects.SNAPSHOT)
)
POOLS: Final = Scope("pool", resources.POOL, folded_into=(subjects.POOL,))
SNAPSHOTS: Final = Scope(
    "sandboxsnapshot", resources.SANDBOX_SNAPSHOT, folded_into=(subjects.SANDBOX, subjects.SNAPSHOT)
)
SANDBOX_PODS: Final = Scope("pod-sandbox", resources.POD, names.SANDBOX_NAME, (subjects.SANDBOX, subjects.SNAPSHOT))
POOL_PODS: Final = Scope(
    "pod-pool", resources.POD, names.POOL_NAME, (subjects.SANDBOX, subjects.POOL, subjects.SNAPSHOT)
)
COMMIT_PODS: Final = Scope("pod-snapshot", resources.POD, names.SNAPSHOT_NAME, (subjects.SNAPSHOT,))
COMMIT_JOBS: Final = Scope("job", resources.JOB, names.SNAPSHOT_NAME, (subjects.SNAPSHOT,))

SCOPES: Final = (SANDBOXES, POOLS, SNAPSHOTS, SANDBOX_PODS, POOL_PODS, COMMIT_PODS, COMMIT_JOBS)
BY_WORD: Final = {scope.word: scope for scope in SCOPES}
NEEDED: Final = {
    aggregate: tuple(scope.word for scope in SCOPES if aggregate in scope.folded_into)
    for aggregate in subjects.AGGREGATES
}
"""The scopes that must be complete before anything is decided about an aggregate of this kind (DESIGN §4, Completeness)."""
