"""What a pause and a resume write to a BatchSandbox's spec: one merge patch each, made from live objects, locked by uid and resourceVersion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bridge.api_errors import classify, secrets_of
from bridge.calls import Answer, Call, Calls
from bridge.lanes import Priority
from bridge.perform_objects import ObjectPerformer
from bridge.recent import Recent
from bridge.results import REPLACED, STANDS, Context, conflict, done, metadata_of, refused, version_of
from bridge.templates import INVALID_TEMPLATE, CannotRewrite, detach_patch, rewrite_patch
from bus.messages import DONE, FAILED, MISSING, Result
from bus.ops import DetachFromPool, RewriteTemplate
from bus.resources import BATCH_SANDBOX, POD, Kind, ObjectMeta

Change = RewriteTemplate | DetachFromPool
Patch = Callable[[dict[str, Any]], dict[str, Any]]
"""The merge patch that a live sandbox still needs; raises CannotRewrite."""


class TemplatePerformer:
    def __init__(self, calls: Calls, objects: ObjectPerformer, recent: Recent | None = None) -> None:
        self._calls = calls
        self._objects = objects
        self._recent = recent

    async def rewrite(self, op: RewriteTemplate, context: Context) -> Result:
        return await self._change(op, context, lambda sandbox: rewrite_patch(sandbox, op), ())

    async def detach(self, op: DetachFromPool, context: Context) -> Result:
        """The pod is read live: its template must be of the uid that was committed."""
        answer = await self._read(POD, op.pod.name, context)
        kind = classify(answer.status)
        live = metadata_of(answer.body) if kind == DONE else None
        if kind != DONE:
            return refused(op, op.target.uid, answer)
        if live is None:
            return conflict(op, op.target.uid, 0)
        if live.uid != op.pod.uid:
            return Result(op.id, MISSING, uid=op.target.uid, code=409, reason=REPLACED)
        pod = msgspec.json.decode(answer.body)
        return await self._change(op, context, lambda sandbox: detach_patch(sandbox, pod), secrets_of(pod))

    async def _change(self, op: Change, context: Context, patch: Patch, secrets: Iterable[str]) -> Result:
        found = await self._sandbox(op, context)
        if isinstance(found, Result):
            return found
        live, body = found
        try:
            wanted = patch(msgspec.json.decode(body))
        except (CannotRewrite, RecursionError) as error:
            message = str(error) if isinstance(error, CannotRewrite) else "the object is nested too deeply"
            return Result(op.id, FAILED, uid=op.target.uid, reason=INVALID_TEMPLATE, message=message)
        at = version_of(live.resource_version)
        if at != op.resource_version:
            # Another delivery of this command may have done it already.
            return done(op, live.uid, at, STANDS) if context.repeated and not wanted else conflict(op, live.uid, at)
        if not wanted:
            return done(op, live.uid, at)
        hidden = (*secrets, *_secrets_of_template(body))
        return await self._objects.patch(op, context, "", wanted, lambda _, body: _stands(patch, body), hidden)

    async def _sandbox(self, op: Change, context: Context) -> tuple[ObjectMeta, bytes] | Result:
        """As an earlier op of this command or the watch left it, if that is the version that the patch is locked to; else read live."""
        written = context.written.get(op.target.uid)
        recent = self._recent.get(context.namespace, op.target.name) if self._recent is not None else None
        if written is None and recent is not None and recent.uid == op.target.uid:
            written = recent.body
        live = metadata_of(written) if written is not None else None
        if written is not None and live is not None and version_of(live.resource_version) == op.resource_version:
            return live, written
        answer = await self._read(BATCH_SANDBOX, op.target.name, context)
        kind = classify(answer.status)
        if kind != DONE:
            return refused(op, op.target.uid, answer)
        live = metadata_of(answer.body)
        if live is None:
            return conflict(op, op.target.uid, 0)
        if live.uid != op.target.uid:
            return Result(op.id, MISSING, uid=op.target.uid, code=409, reason=REPLACED)
        return live, answer.body

    async def _read(self, kind: Kind, name: str, context: Context) -> Answer:
        return await self._calls.make(Call("GET", kind, context.namespace, name), Priority.READY, context.expires)


def _stands(patch: Patch, body: bytes) -> bool:
    try:
        return not patch(msgspec.json.decode(body))
    except (CannotRewrite, msgspec.DecodeError, RecursionError):
        return False


def _secrets_of_template(body: bytes) -> list[str]:
    sandbox = msgspec.json.decode(body)
    spec = sandbox.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    return secrets_of(template) if isinstance(template, dict) else []
