"""Deletes of pods, snapshots and Jobs by uid (DESIGN §6: a delete of a gone uid is success)."""

from __future__ import annotations

from typing import Any

import msgspec

from bridge.api_errors import classify
from bridge.calls import Answer, Call, Calls, TimeOver
from bridge.lanes import Priority
from bridge.results import GONE, REPLACED, Context, conflict, done, metadata_of, refused, stored_of, version_of
from bus.messages import DONE, MISSING, Result
from bus.ops import DeleteObject, DeletePod
from bus.resources import KINDS

_encoder = msgspec.json.Encoder()
Delete = DeletePod | DeleteObject


class DeletePerformer:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def delete(self, op: Delete, context: Context) -> Result:
        """A delete of this uid: a pod's plain, any other's dependants in the background. Gone already, or another of that name, is success."""
        options: dict[str, Any] = {"preconditions": {"uid": op.target.uid}}
        if isinstance(op, DeleteObject):
            options["propagationPolicy"] = "Background"
        body = _encoder.encode(options)
        call = Call("DELETE", KINDS[op.target.kind], context.namespace, op.target.name, body=body)
        answer = await self._calls.make(call, Priority.DELETE, context.expires)
        match classify(answer.status):
            case "done":
                stored = stored_of(answer.body)
                # What goes at once may be answered with a Status, which tells no version.
                return done(op, op.target.uid, stored.resource_version if stored.uid == op.target.uid else 0)
            case "missing":
                return done(op, op.target.uid, 0, GONE)
            case "conflict":
                return await self._after_conflict(op, context)
        return refused(op, op.target.uid, answer)

    async def _after_conflict(self, op: Delete, context: Context) -> Result:
        try:
            answer = await self._read(op, context)
        except TimeOver:
            return conflict(op, op.target.uid, 0)
        live = metadata_of(answer.body) if classify(answer.status) == DONE else None
        if classify(answer.status) == MISSING:
            return done(op, op.target.uid, 0, GONE)
        if live is not None and live.uid != op.target.uid:
            return done(op, op.target.uid, 0, REPLACED)
        return conflict(op, op.target.uid, 0 if live is None else version_of(live.resource_version))

    async def _read(self, op: Delete, context: Context) -> Answer:
        call = Call("GET", KINDS[op.target.kind], context.namespace, op.target.name)
        return await self._calls.make(call, Priority.DELETE, context.expires)
