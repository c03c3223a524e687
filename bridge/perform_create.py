"""Creates of a pause's snapshot and of snapshots' Jobs, each under a name that follows from its intent (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from bridge.api_errors import classify
from bridge.calls import Answer, Call, Calls, TimeOver, create_settled
from bridge.jobbuild import UNPAUSE, CommitSettings, build_job
from bridge.lanes import Priority
from bridge.results import (
    DELETING,
    REPLACED,
    Context,
    conflict,
    done,
    metadata_of,
    refused,
    stored_of,
    version_of,
)
from bus import names
from bus.messages import DONE, EXPIRED, FAILED, MISSING, UNKNOWN, Result
from bus.ops import CreateJob, CreateSnapshot, Op
from bus.resources import BATCH_SANDBOX, JOB, KINDS, SANDBOX_SNAPSHOT, Kind, ObjectMeta

NAME_TAKEN: Final = "NameTaken"
"""An object of the name is there that another owner made, or none; it is left alone."""
OTHER_INTENT: Final = "OtherIntent"
"""The owner's own object has the name, made for another intent or another pod."""
FORMER_OWNER: Final = "FormerOwner"
"""What has the name belongs to a former owner of the same name, which is gone: to be tried again (DESIGN §8.9)."""

_TRIES_AROUND_A_DELETION: Final = 3
_encoder = msgspec.json.Encoder()
Create = CreateSnapshot | CreateJob
Check = Callable[[], Awaitable[None]]


class _NotAsAssumed(Exception):
    def __init__(self, result: Result) -> None:
        super().__init__(result.reason)
        self.result = result


class CreatePerformer:
    def __init__(self, calls: Calls, settings: CommitSettings) -> None:
        self._calls = calls
        self._settings = settings

    async def create_snapshot(self, op: CreateSnapshot, context: Context) -> Result:
        """The sandbox is looked at live, unless this command has just written it: then the answer told."""

        async def check() -> None:
            answer = await self._read(BATCH_SANDBOX, op.sandbox.name, context)
            kind = classify(answer.status)
            if kind != DONE:
                raise _NotAsAssumed(refused(op, op.sandbox.uid, answer))
            self._check_sandbox(op, metadata_of(answer.body))

        try:
            written = context.written.get(op.sandbox.uid)
            if written is None:
                await check()
            else:
                self._check_sandbox(op, metadata_of(written))
            return await self._create(op, SANDBOX_SNAPSHOT, build_snapshot(op, context.namespace), context, check)
        except _NotAsAssumed as changed:
            return changed.result

    def _check_sandbox(self, op: CreateSnapshot, live: ObjectMeta | None) -> None:
        if live is None:
            raise _NotAsAssumed(conflict(op, op.sandbox.uid, 0, "Unreadable"))
        if live.uid != op.sandbox.uid:
            raise _NotAsAssumed(Result(op.id, MISSING, uid=op.sandbox.uid, code=409, reason=REPLACED))
        if live.deletion_timestamp is not None:
            raise _NotAsAssumed(conflict(op, live.uid, version_of(live.resource_version), DELETING))

    async def create_job(self, op: CreateJob, context: Context) -> Result:
        """What this command wrote before tells that the snapshot is there; repeated, or tried again, it is looked at live."""

        async def check() -> None:
            answer = await self._read(SANDBOX_SNAPSHOT, op.snapshot.name, context)
            kind = classify(answer.status)
            if kind != DONE:
                raise _NotAsAssumed(refused(op, op.snapshot.uid, answer))
            _check_snapshot(op, metadata_of(answer.body))

        try:
            job = build_job(op, context.namespace, self._settings)
        except ValueError:
            return Result(op.id, UNKNOWN, uid=op.snapshot.uid)
        try:
            if context.repeated:
                await check()
            return await self._create(op, JOB, job, context, check)
        except _NotAsAssumed as changed:
            return changed.result

    async def _create(self, op: Create, kind: Kind, body: dict[str, Any], context: Context, check: Check) -> Result:
        call = Call("POST", kind, context.namespace, body=_encoder.encode(body))
        for _ in range(_TRIES_AROUND_A_DELETION):
            answer = await self._calls.make(
                call, Priority.READY, context.expires, before_retry=check, settled=create_settled, since=context.began
            )
            result = await self._created(op, kind, answer, context)
            if result is not None:
                return result
        return conflict(op, "", 0, DELETING)

    async def _created(self, op: Create, kind: Kind, answer: Answer, context: Context) -> Result | None:
        """What one create came to; None if what stood in its way has just gone."""
        match classify(answer.status):
            case "done":
                stored = stored_of(answer.body)
                return done(op, stored.uid, stored.resource_version)
            case "conflict":
                return await self._standing(op, kind, answer, context)
        return refused(op, "", answer)

    async def _standing(self, op: Create, kind: Kind, answer: Answer, context: Context) -> Result | None:
        try:
            found = await self._read(kind, op.name, context)
        except TimeOver:
            raise TimeOver(answer.unclear) from None
        if classify(found.status) == MISSING:
            return None
        live = metadata_of(found.body) if classify(found.status) == DONE else None
        return conflict(op, "", 0, "AlreadyExists") if live is None else _judged(op, live)

    async def _read(self, kind: Kind, name: str, context: Context) -> Answer:
        return await self._calls.make(Call("GET", kind, context.namespace, name), Priority.READY, context.expires)


def _check_snapshot(op: CreateJob, live: ObjectMeta | None) -> None:
    """A snapshot that is being deleted is committed no more; its source may still have to be unpaused (B56)."""
    if live is None:
        raise _NotAsAssumed(conflict(op, op.snapshot.uid, 0, "Unreadable"))
    if live.uid != op.snapshot.uid:
        raise _NotAsAssumed(Result(op.id, MISSING, uid=op.snapshot.uid, code=409, reason=REPLACED))
    if live.deletion_timestamp is not None and op.action != UNPAUSE:
        raise _NotAsAssumed(conflict(op, live.uid, version_of(live.resource_version), DELETING))


def build_snapshot(op: CreateSnapshot, namespace: str) -> dict[str, Any]:
    """The internal snapshot of a pause: its finalizer from the first, its intent and its pod in annotations."""
    owner = {
        "apiVersion": BATCH_SANDBOX.api_version,
        "kind": BATCH_SANDBOX.name,
        "name": op.sandbox.name,
        "uid": op.sandbox.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": SANDBOX_SNAPSHOT.api_version,
        "kind": SANDBOX_SNAPSHOT.name,
        "metadata": {
            "name": op.name,
            "namespace": namespace,
            "annotations": _wanted(op),
            "finalizers": [names.SNAPSHOT_CLEANUP],
            "ownerReferences": [owner],
        },
        "spec": {"sandboxName": op.sandbox.name},
    }


def _wanted(op: Create) -> dict[str, str]:
    """The annotations that tell what the object was made for."""
    pod = {names.SOURCE_POD_NAME: op.pod.name, names.SOURCE_POD_UID: op.pod.uid}
    return {names.PAUSE_GENERATION: op.intent, **pod} if isinstance(op, CreateSnapshot) else pod


def _judged(op: Create, live: ObjectMeta) -> Result:
    """What an object that has the name means: success only if owner and intent match and it is not being deleted (DESIGN §6)."""
    wanted = op.sandbox if isinstance(op, CreateSnapshot) else op.snapshot
    at = version_of(live.resource_version)
    if live.deletion_timestamp is not None:
        return conflict(op, live.uid, at, DELETING)
    owner = live.controller(KINDS[wanted.kind].name)
    if owner is not None and owner.uid != wanted.uid and owner.name == wanted.name:
        # The garbage collector is on its way: later the name is free.
        return Result(op.id, EXPIRED, uid=live.uid, code=409, reason=FORMER_OWNER)
    if owner is None or owner.uid != wanted.uid:
        return _taken(op)
    annotations = live.annotations or {}
    if any(annotations.get(key) != value for key, value in _wanted(op).items()):
        return conflict(op, live.uid, at, OTHER_INTENT)
    return done(op, live.uid, at)


def _taken(op: Op) -> Result:
    message = "an object of this name exists that belongs to another owner"
    return Result(op.id, FAILED, code=409, reason=NAME_TAKEN, message=message)
