"""The whole BatchSandbox that pods are built from: from what the watch saw last, else read live; and whether it is still as the op assumes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Final

import msgspec

from bridge.api_errors import classify, refusal
from bridge.calls import Call, Calls
from bridge.lanes import Priority
from bridge.podbuild import INVALID_TEMPLATE, CannotBuild, PodBuilder
from bridge.recent import Recent
from bridge.results import DELETING, REPLACED, Context, metadata_of, version_of
from bus.hashing import template_digest
from bus.messages import CONFLICT, DONE, MISSING
from bus.ops import CreatePods
from bus.resources import BATCH_SANDBOX, ObjectMeta

CHANGED: Final = "TemplateChanged"
NOT_YET: Final = "OlderGeneration"
_RECHECK: Final = 1.0
"""Seconds for which a live look at the sandbox counts for all pods of one command that are tried again."""


class NotAsAssumed(Exception):
    """The sandbox is not as the op assumes: `result` is CONFLICT or MISSING, or what a refused read says."""

    def __init__(self, result: str, reason: str, resource_version: int = 0) -> None:
        super().__init__(reason)
        self.result = result
        self.reason = reason
        self.resource_version = resource_version


class _Built(msgspec.Struct, frozen=True):
    digest: str
    builder: PodBuilder | CannotBuild


class Source:
    """What the pods of one op are built from, and when the sandbox was last looked at live."""

    def __init__(self, builder: PodBuilder | CannotBuild) -> None:
        self.builder = builder
        self.looked: float | None = None
        self.lock = asyncio.Lock()


class Sandboxes:
    """`recent` may be None; builders are kept for the `kept` sandbox generations used last."""

    def __init__(self, calls: Calls, recent: Recent | None, kept: int = 256) -> None:
        self._calls = calls
        self._recent = recent
        self._kept = kept
        self._built: OrderedDict[tuple[str, int], _Built] = OrderedDict()

    async def source(self, op: CreatePods, context: Context) -> Source:
        """Raises NotAsAssumed, TimeOver."""
        seen = self._recent.get(context.namespace, op.sandbox.name) if self._recent is not None else None
        body, live = (seen.body if seen is not None else b""), None
        if seen is not None and seen.uid == op.sandbox.uid and seen.generation >= op.generation:
            live = metadata_of(body)
        if live is None:
            body, live = await self._read(op, context)
        return Source(self._checked(op, body, live).builder)

    async def still(self, op: CreatePods, context: Context, source: Source) -> None:
        """Look at the sandbox live before a create is tried again. Raises NotAsAssumed, TimeOver."""
        loop = asyncio.get_running_loop()
        async with source.lock:
            if source.looked is not None and loop.time() - source.looked < _RECHECK:
                return
            body, live = await self._read(op, context)
            self._checked(op, body, live)
            source.looked = loop.time()

    async def _read(self, op: CreatePods, context: Context) -> tuple[bytes, ObjectMeta]:
        call = Call("GET", BATCH_SANDBOX, context.namespace, op.sandbox.name)
        answer = await self._calls.make(call, Priority.CREATE, context.expires)
        kind = classify(answer.status)
        live = metadata_of(answer.body) if kind == DONE else None
        if live is None:
            reason = refusal(answer.status, answer.body).reason if kind != DONE else "Unreadable"
            raise NotAsAssumed(CONFLICT if kind == DONE else kind, reason)
        return answer.body, live

    def _checked(self, op: CreatePods, body: bytes, live: ObjectMeta) -> _Built:
        version = version_of(live.resource_version)
        if live.uid != op.sandbox.uid:
            raise NotAsAssumed(MISSING, REPLACED, version)
        if live.deletion_timestamp is not None:
            raise NotAsAssumed(CONFLICT, DELETING, version)
        if live.generation < op.generation:
            raise NotAsAssumed(CONFLICT, NOT_YET, version)
        built = self._build(live, body)
        if built.digest != op.template:
            raise NotAsAssumed(CONFLICT, CHANGED, version)
        return built

    def _build(self, live: ObjectMeta, body: bytes) -> _Built:
        key = (live.uid, live.generation)
        built = self._built.get(key)
        if built is None:
            built = self._built[key] = _built(body)
            if len(self._built) > self._kept:
                self._built.popitem(last=False)
        else:
            self._built.move_to_end(key)
        return built


def _built(body: bytes) -> _Built:
    digest = ""
    try:
        sandbox: dict[str, Any] = msgspec.json.decode(body)
        spec = sandbox.get("spec")
        digest = template_digest(spec) if isinstance(spec, dict) else ""
        return _Built(digest, PodBuilder(sandbox, digest))
    except CannotBuild as error:
        return _Built(digest, error)
    except (KeyError, TypeError, RecursionError):
        return _Built(digest, CannotBuild(INVALID_TEMPLATE, "the sandbox cannot be read"))
