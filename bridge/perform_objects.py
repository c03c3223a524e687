"""Patches of an object's metadata or status, and the deletion of an expired sandbox (DESIGN §6, §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bridge.api_errors import classify
from bridge.calls import Answer, Call, Calls, TimeOver, date_of
from bridge.cluster import MERGE_PATCH
from bridge.lanes import Priority
from bridge.results import (
    DELETING,
    GONE,
    REPLACED,
    STANDS,
    Context,
    conflict,
    done,
    metadata_of,
    refused,
    stored_of,
    version_of,
)
from bus.messages import DONE, EARLY, MISSING, Result
from bus.ops import (
    DeleteExpired,
    DetachFromPool,
    PatchMetadata,
    PatchSandboxStatus,
    PatchSnapshotStatus,
    RewriteTemplate,
)
from bus.resources import KINDS, ObjectMeta, SandboxStatus, SnapshotStatus

_encoder = msgspec.json.Encoder()


class _WithStatus(msgspec.Struct, frozen=True):
    status: SandboxStatus = SandboxStatus()


class _WithSnapshotStatus(msgspec.Struct, frozen=True):
    status: SnapshotStatus = SnapshotStatus()


_status_decoder = msgspec.json.Decoder(_WithStatus)
_snapshot_status_decoder = msgspec.json.Decoder(_WithSnapshotStatus)
Patch = PatchMetadata | PatchSandboxStatus | PatchSnapshotStatus | RewriteTemplate | DetachFromPool
Has = Callable[[ObjectMeta, bytes], bool]


class ObjectPerformer:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def patch_metadata(self, op: PatchMetadata, context: Context) -> Result:
        """Merge patch of annotations and finalizers, locked by uid and resourceVersion. A write that changes nothing is done too."""
        metadata: dict[str, Any] = {}
        if op.annotations:
            metadata["annotations"] = op.annotations
        if op.finalizers is not None:
            metadata["finalizers"] = op.finalizers
        return await self.patch(op, context, "", {"metadata": metadata}, lambda live, _: _has_metadata(live, op))

    async def patch_status(self, op: PatchSandboxStatus, context: Context) -> Result:
        """Merge patch of the whole status; the conditions always, also when there are none (B86)."""
        body = {"status": _status(op.status)}
        return await self.patch(op, context, "status", body, lambda _, body: _has_status(body, op.status))

    async def patch_snapshot_status(self, op: PatchSnapshotStatus, context: Context) -> Result:
        """Merge patch of the whole status; what it leaves out is removed."""
        body = {"status": _status(op.status)}
        return await self.patch(op, context, "status", body, lambda _, body: _has_snapshot_status(body, op.status))

    async def patch(
        self,
        op: Patch,
        context: Context,
        subresource: str,
        body: dict[str, Any],
        has: Has,
        secrets: Iterable[str] = (),
    ) -> Result:
        """Send a merge patch, locked by uid and resourceVersion. `has` tells whether a live object is as the patch wants it.

        `secrets` are values that no text may hold.
        """
        body = {**body, "metadata": {**body.get("metadata", {}), **_lock(op)}}
        call = Call(
            "PATCH",
            KINDS[op.target.kind],
            context.namespace,
            op.target.name,
            subresource,
            _encoder.encode(body),
            MERGE_PATCH,
        )
        answer = await self._calls.make(call, Priority.READY, context.expires, since=context.began)
        match classify(answer.status):
            case "done":
                stored = stored_of(answer.body)
                context.written[op.target.uid] = answer.body
                return done(op, op.target.uid, stored.resource_version + _went_with_it(op, answer.body))
            case "conflict":
                try:
                    return await self._after_conflict(op, context, has, unclear=answer.unclear)
                except TimeOver:
                    if answer.unclear:
                        raise TimeOver(unclear=True) from None
                    return conflict(op, op.target.uid, 0)
        return refused(op, op.target.uid, answer, secrets)

    async def _after_conflict(self, op: Patch, context: Context, has: Has, *, unclear: bool) -> Result:
        """What the live object says of a conflict. An earlier try of ours may have caused it, and then the wish is fulfilled.

        `unclear`: a try of this very call; else one of an earlier delivery, after which anything may have happened (STANDS).
        """
        answer = await self._read(op, context, Priority.READY)
        live = metadata_of(answer.body) if classify(answer.status) == DONE else None
        if classify(answer.status) == MISSING:
            return refused(op, op.target.uid, answer)
        if live is None:
            return conflict(op, op.target.uid, 0)
        if live.uid != op.target.uid:
            return Result(op.id, MISSING, uid=op.target.uid, code=409, reason=REPLACED)
        at = version_of(live.resource_version)
        if (unclear or context.repeated) and has(live, answer.body):
            return done(op, live.uid, at, "" if unclear else STANDS)
        return conflict(op, live.uid, at)

    async def delete_expired(self, op: DeleteExpired, context: Context) -> Result:
        """Delete a sandbox if it is unchanged and its time is over by the API server's own clock (DESIGN §4, Time)."""
        answer = await self._read(op, context, Priority.DELETE)
        stands = self._before_delete(op, answer)
        if stands is not None:
            return stands
        date = date_of(answer.response)
        if date is None or date < op.expire_time:
            return Result(op.id, EARLY, uid=op.target.uid, resource_version=op.resource_version)
        body = {
            "preconditions": {"uid": op.target.uid, "resourceVersion": str(op.resource_version)},
            "propagationPolicy": "Background",
        }
        call = Call("DELETE", KINDS[op.target.kind], context.namespace, op.target.name, body=_encoder.encode(body))
        deleted = await self._calls.make(call, Priority.DELETE, context.expires)
        match classify(deleted.status):
            case "done":
                return done(op, op.target.uid, 0)
            case "missing":
                return done(op, op.target.uid, 0, GONE)
            case "conflict":
                try:
                    stands = self._before_delete(op, await self._read(op, context, Priority.DELETE))
                except TimeOver:
                    stands = None
                return stands or conflict(op, op.target.uid, 0)
        return refused(op, op.target.uid, deleted)

    def _before_delete(self, op: DeleteExpired, answer: Answer) -> Result | None:
        """The result if the live object already settles it: gone, replaced or deleting is what was wanted; changed is a conflict."""
        kind = classify(answer.status)
        if kind == MISSING:
            return done(op, op.target.uid, 0, GONE)
        live = metadata_of(answer.body) if kind == DONE else None
        if live is None:
            return refused(op, op.target.uid, answer) if kind != DONE else conflict(op, op.target.uid, 0)
        if live.uid != op.target.uid:
            return done(op, op.target.uid, 0, REPLACED)
        at = version_of(live.resource_version)
        if live.deletion_timestamp is not None:
            return done(op, live.uid, at, DELETING)
        return None if at == op.resource_version else conflict(op, live.uid, at)

    async def _read(self, op: Patch | DeleteExpired, context: Context, priority: Priority) -> Answer:
        call = Call("GET", KINDS[op.target.kind], context.namespace, op.target.name)
        return await self._calls.make(call, priority, context.expires)


def _went_with_it(op: Patch, body: bytes) -> int:
    """1 where the write took the last finalizer of an object that is being deleted, so that it is gone.

    The answer may tell the version at which it was last seen: what is to be awaited is its end, which comes at a later one.
    """
    if not isinstance(op, PatchMetadata) or op.finalizers is None:
        return 0
    live = metadata_of(body)
    return int(live is not None and live.deletion_timestamp is not None and not live.finalizers)


def _lock(op: Patch) -> dict[str, Any]:
    return {"uid": op.target.uid, "resourceVersion": str(op.resource_version)}


def _status(status: SandboxStatus | SnapshotStatus) -> dict[str, Any]:
    """As the CRD takes it: no phase is left out, since '' is none of the words it knows."""
    fields: dict[str, Any] = msgspec.to_builtins(status)
    if not status.phase:
        del fields["phase"]
    return fields


def _has_metadata(live: ObjectMeta, op: PatchMetadata) -> bool:
    annotations = live.annotations or {}
    if any(annotations.get(key) != value for key, value in op.annotations.items()):
        return False
    return op.finalizers is None or tuple(live.finalizers or ()) == op.finalizers


def _has_snapshot_status(body: bytes, wanted: SnapshotStatus) -> bool:
    try:
        return _without_empty(_snapshot_status_decoder.decode(body).status) == _without_empty(wanted)
    except msgspec.DecodeError:
        return False


def _without_empty(status: SnapshotStatus) -> SnapshotStatus:
    return msgspec.structs.replace(status, containers=status.containers or None, conditions=status.conditions or None)


def _has_status(body: bytes, wanted: SandboxStatus) -> bool:
    try:
        return _status_decoder.decode(body).status == wanted
    except msgspec.DecodeError:
        return False
