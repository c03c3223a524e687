"""Performs one command: its ops as a chain, each with its precondition, and says what became of each (DESIGN §6, §7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from bridge.calls import TimeOver
from bridge.perform_objects import ObjectPerformer
from bridge.perform_pods import PodPerformer
from bridge.results import Context, time_over
from bus.clock import Clock
from bus.messages import ACCEPTED, DONE, EXPIRED, SKIPPED, UNKNOWN, Command, Result
from bus.ops import (
    CreatePods,
    DeleteExpired,
    DeletePod,
    Op,
    PatchMetadata,
    PatchSandboxStatus,
    RecordEvent,
)

_GOES_ON: Final = (DONE, ACCEPTED)


Accept = Callable[[str, RecordEvent], None]
"""Takes over an Event for a namespace."""


class Performer:
    """Performs the commands of one cluster. Holds no state of a command: calls may overlap."""

    def __init__(self, objects: ObjectPerformer, pods: PodPerformer, clock: Clock) -> None:
        self._clock = clock
        self._performers: Mapping[type[Any], Callable[[Any, Context], Awaitable[Result]]] = {
            CreatePods: pods.create,
            DeletePod: pods.delete,
            PatchMetadata: objects.patch_metadata,
            PatchSandboxStatus: objects.patch_status,
            DeleteExpired: objects.delete_expired,
        }

    async def perform(self, command: Command, namespace: str, accept: Accept, *, repeated: bool) -> tuple[Result, ...]:
        """One result per op, in order. Whatever the API server says is a result; raises only for faults of ours."""
        context = Context(namespace, command.expires, repeated)
        produced: dict[str, int] = {}
        results: list[Result] = []
        broken = False
        for op in command.ops:
            result = Result(op.id, SKIPPED) if broken else await self._one(_moved(op, produced), context, accept)
            results.append(result)
            broken = broken or result.result not in _GOES_ON
            if result.result == DONE and result.resource_version:
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


def _uid_of(op: Op) -> str:
    return op.sandbox.uid if isinstance(op, CreatePods) else op.target.uid


def _moved(op: Op, produced: Mapping[str, int]) -> Op:
    """`op` with the resourceVersion that an earlier op of the chain produced as its precondition on that object."""
    if not isinstance(op, PatchMetadata | PatchSandboxStatus | DeleteExpired):
        return op
    at = produced.get(op.target.uid, op.resource_version)
    return op if at == op.resource_version else msgspec.structs.replace(op, resource_version=at)
