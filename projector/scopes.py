"""Completeness: what whole lists say of a scope (DESIGN §4, Lists, Completeness, Epoch). Pure functions over ScopeState."""

from __future__ import annotations

from msgspec.structs import replace

from bus.messages import Listed
from bus.scopes import NEEDED
from bus.views import ClusterState, ListState, ScopeState, Version

Objects = dict[str, dict[str, tuple[str, int]]]
"""namespace → name → (uid, resourceVersion)"""


def scope_key(word: str, namespace: str) -> str:
    """How a scope stands in ClusterState: its word and the namespace it is narrowed to ('' for all)."""
    return f"{word}/{namespace}"


def is_complete(cluster: ClusterState | None, aggregate_kind: str, namespace: str) -> bool:
    """Whether absence means something for an aggregate of this kind in this namespace."""
    if cluster is None:
        return False
    scopes = cluster.scopes
    return all(
        any(
            (state := scopes.get(scope_key(word, narrowed))) is not None and state.complete is not None
            for narrowed in ("", namespace)
        )
        for word in NEEDED[aggregate_kind]
    )


def complete_version(cluster: ClusterState | None, word: str, namespace: str) -> Version:
    """The newest whole list that covers this scope of a namespace; (0, 0) for none."""
    if cluster is None:
        return (0, 0)
    versions = [
        state.complete
        for narrowed in ("", namespace)
        if (state := cluster.scopes.get(scope_key(word, narrowed))) is not None and state.complete is not None
    ]
    return max(versions, default=(0, 0))


def chunk(state: ScopeState, listed: Listed) -> tuple[ScopeState, Objects | None]:
    """Take one chunk; the objects of the whole list once all its chunks have come, else None.

    Chunks of two lists do not mix: the first chunk of a list starts afresh, one of a list given up is ignored, and a gap spoils the list.
    """
    pending = state.listing
    if pending is not None and pending.id == listed.id and listed.chunk <= pending.seen:
        return state, None
    if listed.chunk == 1:
        pending = ListState(listed.id, listed.epoch, listed.resource_version, listed.chunks, 0, {})
    if pending is None or not _is_of(pending, listed):
        return state, None
    if pending.seen != listed.chunk - 1 or listed.chunk > pending.chunks:
        return replace(state, listing=None), None
    objects = dict(pending.objects)
    for namespace, entries in listed.objects.items():
        objects[namespace] = {
            **objects.get(namespace, {}),
            **{name: (uid, version) for name, uid, version in entries},
        }
    if listed.chunk < listed.chunks:
        return replace(state, listing=replace(pending, seen=listed.chunk, objects=objects)), None
    return replace(state, listing=None), objects


def _is_of(pending: ListState, listed: Listed) -> bool:
    return (pending.id, pending.epoch, pending.resource_version, pending.chunks) == (
        listed.id,
        listed.epoch,
        listed.resource_version,
        listed.chunks,
    )


def whole(state: ScopeState, version: Version, missing: dict[str, int]) -> ScopeState:
    """A whole list was folded; the scope is complete once nothing that it named is missing."""
    if not missing:
        return ScopeState(complete=version)
    return replace(state, missing=missing, awaited=version)


def is_awaited(cluster: ClusterState | None, word: str, namespace: str, name: str, version: Version) -> bool:
    """Whether a whole list named this object at `version` or an older one, and it has not come yet."""
    if cluster is None:
        return False
    for narrowed in ("", namespace):
        state = cluster.scopes.get(scope_key(word, narrowed))
        if state is not None and state.awaited is not None:
            wanted = state.missing.get(f"{namespace}/{name}")
            if wanted is not None and version >= (state.awaited[0], wanted):
                return True
    return False


def arrived(state: ScopeState, name: str, version: Version | None) -> ScopeState:
    """An object (`namespace/name`) became known at `version`, or (None) known to be unreadable."""
    wanted = state.missing.get(name)
    if wanted is None or state.awaited is None:
        return state
    if version is not None and version < (state.awaited[0], wanted):
        return state
    missing = {other: at for other, at in state.missing.items() if other != name}
    return replace(state, missing=missing) if missing else ScopeState(complete=state.awaited, listing=state.listing)


def raised(cluster: ClusterState, epoch: int, uid: str) -> ClusterState:
    """A higher epoch: nothing is complete any more."""
    return ClusterState(epoch=epoch, uid=uid, scopes={key: ScopeState() for key in cluster.scopes})
