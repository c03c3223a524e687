"""Pods of template-mode sandboxes: create them by name (DESIGN §6, §7)."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from bridge.api_errors import classify, refusal, secrets_of
from bridge.calls import Answer, Call, Calls, TimeOver, create_settled
from bridge.lanes import Priority
from bridge.podbuild import CannotBuild
from bridge.results import (
    DELETING,
    Context,
    metadata_of,
    stored_of,
    version_of,
)
from bridge.sandboxes import NotAsAssumed, Sandboxes, Source
from bus import names
from bus.messages import CONFLICT, DONE, EXPIRED, FAILED, MISSING, UNFINISHED, Created, Result
from bus.ops import CreatePods
from bus.resources import BATCH_SANDBOX, POD, ObjectMeta

NAME_TAKEN: Final = "NameTaken"
"""A pod of the name is there and is not ours; it is left alone."""
OTHER_TEMPLATE: Final = "OtherTemplate"
"""A pod of the sandbox has the name, built from another template."""

_WORST_FIRST: Final = (FAILED, MISSING, CONFLICT, UNFINISHED, EXPIRED)
_TRIES_AROUND_A_DELETION: Final = 3
_encoder = msgspec.json.Encoder()


class PodPerformer:
    def __init__(self, calls: Calls, sandboxes: Sandboxes) -> None:
        self._calls = calls
        self._sandboxes = sandboxes

    async def create(self, op: CreatePods, context: Context) -> Result:
        """Create the pods of these names from the sandbox's template; each name has a result of its own, the op the worst of them."""
        uid = op.sandbox.uid
        try:
            source = await self._sandboxes.source(op, context)
            if isinstance(source.builder, CannotBuild):
                failed = Created(FAILED, reason=source.builder.reason, message=source.builder.message)
                return _summary(op, dict.fromkeys(op.names, failed))
            created = await self._create_all(op, context, source)
        except NotAsAssumed as changed:
            return Result(
                op.id, changed.result, uid=uid, resource_version=changed.resource_version, reason=changed.reason
            )
        return _summary(op, created)

    async def _create_all(self, op: CreatePods, context: Context, source: Source) -> dict[str, Created]:
        ordered = sorted(op.names.items(), key=lambda item: item[1])
        if len(ordered) == 1:
            ((name, index),) = ordered
            return {name: await self._create(op, context, source, name, index)}
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(self._create(op, context, source, name, index)) for name, index in ordered}
        return {name: task.result() for name, task in tasks.items()}

    async def _create(self, op: CreatePods, context: Context, source: Source, name: str, index: int) -> Created:
        assert not isinstance(source.builder, CannotBuild)
        try:
            body = source.builder.encode(name, index)
        except CannotBuild as error:
            return Created(FAILED, reason=error.reason, message=error.message)
        call = Call("POST", POD, context.namespace, body=body)

        async def check() -> None:
            await self._sandboxes.still(op, context, source)

        try:
            for _ in range(_TRIES_AROUND_A_DELETION):
                answer = await self._calls.make(
                    call, Priority.CREATE, context.expires, before_retry=check, settled=create_settled
                )
                created = await self._created(op, context, name, answer, body)
                if created is not None:
                    return created
        except TimeOver as over:
            return Created(UNFINISHED if over.unclear else EXPIRED)
        except NotAsAssumed as changed:
            return Created(changed.result, reason=changed.reason, resource_version=changed.resource_version)
        return Created(CONFLICT, code=409, reason=DELETING)

    async def _created(
        self, op: CreatePods, context: Context, name: str, answer: Answer, body: bytes
    ) -> Created | None:
        """What one create came to; None if the pod that stood in its way has just gone."""
        kind = classify(answer.status)
        if kind == DONE:
            stored = stored_of(answer.body)
            return Created(DONE, stored.uid, stored.resource_version)
        if kind != CONFLICT:
            told = refusal(answer.status, answer.body, secrets_of(msgspec.json.decode(body)))
            return Created(kind, code=told.code, reason=told.reason, message=told.message)
        try:
            found = await self._read(context, name, Priority.CREATE)
        except TimeOver:
            raise TimeOver(answer.unclear) from None
        kind = classify(found.status)
        if kind == MISSING:
            return None
        live = metadata_of(found.body) if kind == DONE else None
        if live is None:
            return Created(CONFLICT, code=409, reason="AlreadyExists")
        return _standing(op, live)

    async def _read(self, context: Context, name: str, priority: Priority) -> Answer:
        return await self._calls.make(Call("GET", POD, context.namespace, name), priority, context.expires)


def _standing(op: CreatePods, live: ObjectMeta) -> Created:
    """What a pod that has the name already means (DESIGN §6: success only if owner and intent match and it is not being deleted)."""
    version = version_of(live.resource_version)
    owner = live.controller(BATCH_SANDBOX.name)
    labelled = (live.labels or {}).get(names.SANDBOX_NAME) == names.label_value(op.sandbox.name)
    if owner is None or owner.uid != op.sandbox.uid or not labelled:
        message = "a pod of this name exists that is not this sandbox's"
        return Created(FAILED, code=409, reason=NAME_TAKEN, message=message)
    if live.deletion_timestamp is not None:
        return Created(CONFLICT, live.uid, version, 409, DELETING)
    if (live.annotations or {}).get(names.TEMPLATE_DIGEST) != op.template:
        return Created(CONFLICT, live.uid, version, 409, OTHER_TEMPLATE)
    return Created(DONE, live.uid, version)


def _summary(op: CreatePods, created: dict[str, Created]) -> Result:
    """Done if every name is; else as the worst of them, told by the first name of that kind in order of index."""
    uid = op.sandbox.uid
    for word in _WORST_FIRST:
        for name in sorted(created, key=op.names.__getitem__):
            one = created[name]
            if one.result == word:
                return Result(
                    op.id, word, uid=uid, code=one.code, reason=one.reason, message=one.message, names=created
                )
    return Result(op.id, DONE, uid=uid, names=created)
