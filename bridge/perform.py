"""Performs one command: its ops as a chain, each with its precondition, and says what became of each (DESIGN §6, §7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from bridge.awake import Awake
from bridge.calls import Calls, TimeOver
from bridge.jobbuild import CommitSettings
from bridge.perform_create import CreatePerformer
from bridge.perform_delete import DeletePerformer
from bridge.perform_objects import ObjectPerformer
from bridge.perform_pods import PodPerformer
from bridge.perform_templates import TemplatePerformer
from bridge.recent import Recent
from bridge.results import STANDS, Context, time_over
from bridge.sandboxes import Sandboxes
from bus.clock import Clock
from bus.messages import ACCEPTED, DONE, EXPIRED, SKIPPED, UNKNOWN, Command, Result
from bus.ops import (
    CreateJob,
    CreatePods,
    CreateSnapshot,
    DeleteExpired,
    DeleteObject,
    DeletePod,
    DetachFromPool,
    Op,
    PatchMetadata,
    PatchSandboxStatus,
    PatchSnapshotStatus,
    RecordEvent,
    RewriteTemplate,
)

_GOES_ON: Final = (DONE, ACCEPTED)
_LOCKED = PatchMetadata | PatchSandboxStatus | PatchSnapshotStatus | RewriteTemplate | DetachFromPool | DeleteExpired
"""Ops with a resourceVersion as their precondition."""


Accept = Callable[[str, RecordEvent], None]
"""Takes over an Event for a namespace."""


class Performer:
    """Performs the commands of one cluster. Holds no state of a command: calls may overlap."""

    def __init__(self, calls: Calls, recent: Recent | None, commit: CommitSettings, clock: Clock) -> None:
        self._clock = clock
        self._awake = Awake()
        objects, pods = ObjectPerformer(calls), PodPerformer(calls, Sandboxes(calls, recent))
        deletes, creates = DeletePerformer(calls), CreatePerformer(calls, commit)
        templates = TemplatePerformer(calls, objects, recent)
        self._performers: Mapping[type[Any], Callable[[Any, Context], Awaitable[Result]]] = {
            CreatePods: pods.create,
            DeletePod: deletes.delete,
            DeleteObject: deletes.delete,
            PatchMetadata: objects.patch_metadata,
            PatchSandboxStatus: objects.patch_status,
            PatchSnapshotStatus: objects.patch_snapshot_status,
            DeleteExpired: objects.delete_expired,
            CreateSnapshot: creates.create_snapshot,
            CreateJob: creates.create_job,
            RewriteTemplate: templates.rewrite,
            DetachFromPool: templates.detach,
        }

    async def perform(self, command: Command, namespace: str, accept: Accept, *, repeated: bool) -> tuple[Result, ...]:
        """One result per op, in order. Whatever the API server says is a result; raises only for faults of ours.

        If the process has slept amid the chain its rest is skipped: the command may have been another's since, and is planned afresh.
        """
        context = Context(namespace, command.expires, repeated, asyncio.get_running_loop().time())
        produced: dict[str, int] = {}
        results: list[Result] = []
        true: set[str] = set()
        broken = False
        with self._awake.watch() as slept:
            for op in command.ops:
                broken = broken or slept()
                goes = not broken or op.id in true
                result = await self._one(_moved(op, produced), context, accept) if goes else Result(op.id, SKIPPED)
                results.append(result)
                broken = broken or result.result not in _GOES_ON
                true |= _true_events(result)
                # What only stands gives no precondition: others may have written since, and the next op was decided before that.
                if result.result == DONE and result.resource_version and result.reason != STANDS:
                    produced[result.uid] = result.resource_version
        return tuple(results)

    async def _one(self, op: Op, context: Context, accept: Accept) -> Result:
        if isinstance(op, RecordEvent):
            accept(context.namespace, op)
            return Result(op.id, ACCEPTED)
        perform = self._performers.get(type(op))
        if perform is None:
            return Result(op.id, UNKNOWN)
        if self._clock.now() >= context.expires:
            return Result(op.id, EXPIRED)
        try:
            return await perform(op, context)
        except TimeOver as over:
            return time_over(op, _uid_of(op), over)


def _true_events(result: Result) -> set[str]:
    """Ids of the Events of those pods that a CreatePods has made, which are true though others of it failed: `<op>/<pod>`."""
    return {f"{result.id}/{name}" for name, made in result.names.items() if made.result == DONE}


def _uid_of(op: Op) -> str:
    match op:
        case CreatePods() | CreateSnapshot():
            return op.sandbox.uid
        case CreateJob():
            return op.snapshot.uid
    return op.target.uid


def _moved(op: Op, produced: Mapping[str, int]) -> Op:
    """`op` with the resourceVersion that an earlier op of the chain produced as its precondition on that object."""
    if not isinstance(op, _LOCKED):
        return op
    at = produced.get(op.target.uid, op.resource_version)
    return op if at == op.resource_version else msgspec.structs.replace(op, resource_version=at)
