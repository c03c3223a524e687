"""Letting go: tombstones that a whole list has overtaken, and views with nothing left in them (DESIGN §5). Pure."""

from __future__ import annotations

from msgspec.structs import replace

from bus import scopes
from bus.views import ClusterState, SandboxView, SnapshotView, View
from projector.observe import OWN_SCOPE
from projector.scopes import complete_version


def swept(view: View, cluster: ClusterState) -> View | None:
    """The view without tombstones at or before the last whole list; None if nothing is left of it; itself if nothing changes.

    After that list an unknown name that old is a straggler, so the tombstone is needed no longer.
    """

    def overtaken(version: tuple[int, int], word: str) -> bool:
        return version <= complete_version(cluster, word, view.namespace)

    pods = {name: pod for name, pod in view.pods.items() if not (pod.gone and overtaken(pod.version, pod.scope))}
    kept: View = view if len(pods) == len(view.pods) else replace(view, pods=pods)
    held = bool(pods)
    if isinstance(kept, SandboxView) and kept.snapshot is not None:
        if kept.snapshot.gone and overtaken(kept.snapshot.version, scopes.SNAPSHOTS.word):
            kept = replace(kept, snapshot=None)
        else:
            held = True
    if isinstance(kept, SnapshotView):
        jobs = {
            name: job
            for name, job in kept.jobs.items()
            if not (job.gone and overtaken(job.version, scopes.COMMIT_JOBS.word))
        }
        held = held or bool(jobs)
        kept = kept if len(jobs) == len(kept.jobs) else replace(kept, jobs=jobs)
    if held or kept.object is not None or kept.open or kept.in_flight is not None:
        return kept
    return None if overtaken(kept.known, OWN_SCOPE[type(kept)]) else kept
