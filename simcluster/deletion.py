"""Deletes: preconditions, grace for pods, finalizers, propagation."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from simcluster import metadata as meta
from simcluster.errors import Cause, bad_request, invalid_options, precondition
from simcluster.history import MODIFIED, Version
from simcluster.podrules import DEFAULT_GRACE_SECONDS
from simcluster.resources import Resource

if TYPE_CHECKING:
    from simcluster.caller import Caller
    from simcluster.store import Store

Json = dict[str, Any]

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
_POLICIES = ("Foreground", "Background", "Orphan")


class Options(msgspec.Struct, frozen=True):
    """DeleteOptions: grace in seconds, propagation, preconditions. None: not given."""

    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False

    @classmethod
    def read(cls, body: Json, query: dict[str, str]) -> Options:
        """From the body and the query (which holds where the body says nothing); 400 or 422."""
        grace: Any = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        try:
            grace = None if grace is None else int(grace)
        except (TypeError, ValueError):
            raise bad_request(f'strconv.ParseInt: parsing "{grace}": invalid syntax') from None
        policy = body.get("propagationPolicy", query.get("propagationPolicy"))
        if policy is not None and policy not in _POLICIES:
            cause = Cause.unsupported("propagationPolicy", f'"{policy}"', [*_POLICIES, "nil"])
            raise invalid_options("DeleteOptions", [cause])
        if body.get("orphanDependents"):
            policy = "Orphan"
        conditions = body.get("preconditions") or {}
        dry_run = bool(body.get("dryRun") or query.get("dryRun"))
        return cls(grace, policy, conditions.get("uid"), conditions.get("resourceVersion"), dry_run)


BACKGROUND = Options(propagation_policy="Background")


def may_go(metadata: Json) -> bool:
    """A deleted object with neither finalizers nor grace left is removed."""
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and "deletionGracePeriodSeconds" in metadata
    )


def delete(
    store: Store, resource: Resource, current: Version, options: Options, caller: Caller
) -> tuple[Version, bool]:
    """The version that results, and whether the object is gone."""
    _check(resource, current, options)
    if options.dry_run:
        return current, not current.obj["metadata"].get("finalizers")
    if resource.plural == "namespaces":
        return _end_namespace(store, resource, current, caller), False
    if resource.plural == "pods":
        return _delete_pod(store, resource, current, options, caller)
    metadata = current.obj["metadata"]
    finalizers = _finalizers(resource, metadata, options)
    if not finalizers:
        return store.remove(resource, current, current.obj, "delete", caller), True
    if "deletionTimestamp" in metadata and finalizers == metadata.get("finalizers", []):
        return current, False
    obj = _marked(store, resource, current.obj, 0, finalizers, store.timestamp())
    return store.commit(MODIFIED, resource, current.key, obj, "delete", "", caller), False


def _check(resource: Resource, current: Version, options: Options) -> None:
    name, uid = current.key[1], current.obj["metadata"]["uid"]
    if options.uid is not None and options.uid != uid:
        text = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({uid}). "
            "The object might have been deleted and then recreated"
        )
        raise precondition(resource, name, text)
    version = str(current.resource_version)
    if options.resource_version is not None and options.resource_version != version:
        text = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the "
            f"ResourceVersion in record ({version}). The object might have been modified"
        )
        raise precondition(resource, name, text)


def _finalizers(resource: Resource, metadata: Json, options: Options) -> list[str]:
    before = list(metadata.get("finalizers", []))
    policy = options.propagation_policy
    if policy is None:
        if "deletionTimestamp" in metadata or any(f in before for f in _FINALIZERS.values()):
            return before
        # Jobs keep the default of their first API version: their pods are orphaned.
        policy = "Orphan" if resource.plural == "jobs" else "Background"
    kept = [f for f in before if f not in _FINALIZERS.values()]
    return [*kept, _FINALIZERS[policy]] if policy in _FINALIZERS else kept


def _marked(store: Store, resource: Resource, obj: Json, grace: int, finalizers: list[str], when: str) -> Json:
    before = obj["metadata"]
    metadata: Json = {**before, "deletionTimestamp": when, "deletionGracePeriodSeconds": grace}
    metadata.pop("finalizers", None)
    if finalizers:
        metadata["finalizers"] = finalizers
    if resource.has_generation and "deletionTimestamp" not in before:
        metadata["generation"] = before["generation"] + 1
    return {**obj, "metadata": metadata}


def _delete_pod(
    store: Store, resource: Resource, current: Version, options: Options, caller: Caller
) -> tuple[Version, bool]:
    metadata = current.obj["metadata"]
    finalizers = _finalizers(resource, metadata, options)
    grace = _grace(current.obj, options)
    if "deletionTimestamp" in metadata:
        held = metadata["deletionGracePeriodSeconds"]
        if options.grace_period_seconds is None or grace >= held:
            return current, False
        when = meta.parse_timestamp(metadata["deletionTimestamp"]) - timedelta(seconds=held - grace)
    else:
        when = store.now() + timedelta(seconds=grace)
    obj = _marked(store, resource, current.obj, grace, finalizers, meta.timestamp(when))
    version = store.commit(MODIFIED, resource, current.key, obj, "delete", "", caller)
    if grace or finalizers:
        return version, False
    return store.remove(resource, version, version.obj, "delete", caller), True


def _grace(pod: Json, options: Options) -> int:
    """A pod that runs nowhere, or runs no more, has nothing to wait for."""
    if options.grace_period_seconds is not None:
        wanted = max(options.grace_period_seconds, 0)
    else:
        wanted = pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS)
    ended = pod["status"].get("phase") in ("Succeeded", "Failed")
    return 0 if ended or not pod["spec"].get("nodeName") else int(wanted)


def _end_namespace(store: Store, resource: Resource, current: Version, caller: Caller) -> Version:
    """A namespace is emptied by the garbage collection step, then goes."""
    if "deletionTimestamp" in current.obj["metadata"]:
        return current
    obj = {
        **current.obj,
        "metadata": {**current.obj["metadata"], "deletionTimestamp": store.timestamp()},
        "status": {**current.obj["status"], "phase": "Terminating"},
    }
    return store.commit(MODIFIED, resource, current.key, obj, "delete", "", caller)
