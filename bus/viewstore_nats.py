"""Views in the key-value bucket VIEWS, committed as atomic batches with a fence (DESIGN §5, nats.md §4).

The bucket is an ordinary NATS key-value bucket for whoever looks at it (`nats kv`), except that its stream also takes atomic batches.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import nats.errors

from bus.bucket_nats import OPERATION, Bucket, bucket_config
from bus.connection import ApiError, Connection, Unreachable
from bus.pull import OrderedPull
from bus.viewstore import COMMIT_LIMIT, Entry, Fenced, ViewStoreUnavailable

BUCKET = "VIEWS"
MARKER_TTL = 3600
"""Seconds that a deletion stays visible (DESIGN §5)."""
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
BATCH_ID, BATCH_SEQUENCE, BATCH_COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
DELETED = {OPERATION: "DEL", "Nats-TTL": f"{MARKER_TTL}s"}
WRONG_LAST_SEQUENCE = (10071, 10164)
COMMIT_TIMEOUT = 5.0
LOAD_TRIES = 5
FAILURES = (ApiError, Unreachable, nats.errors.Error, OSError)


class ViewStoreSettings(msgspec.Struct, frozen=True):
    """The bucket lives in memory by default: it can always be had again from the log and the API servers."""

    storage: str = "memory"
    replicas: int = 1


class NatsViewWatch:
    """`bus.viewstore.ViewWatch`. After a break it goes on behind the last entry given, without repeats: history is 1, so what
    changed meanwhile comes once, in its last state, deletions within an hour included."""

    def __init__(self, pull: OrderedPull[Entry]) -> None:
        self._pull = pull

    @property
    def initial(self) -> int:
        """Deletions of the last hour count among the present values. Falls if some of them change before they were given."""
        return self._pull.initial

    async def batch(self, limit: int, timeout: float | None = None) -> list[Entry]:
        return await self._pull.batch(limit, timeout)

    async def close(self) -> None:
        await self._pull.close()


class NatsViewStore:
    """`bus.viewstore.ViewStore`."""

    def __init__(self, connection: Connection, settings: ViewStoreSettings) -> None:
        self._connection = connection
        config = bucket_config(BUCKET, storage=settings.storage, replicas=settings.replicas, allow_atomic=True)
        self._bucket = Bucket(connection, BUCKET, config)
        self._batch_prefix = uuid.uuid4().hex[:16]
        self._batches = 0

    @classmethod
    async def open(cls, connection: Connection, settings: ViewStoreSettings | None = None) -> Self:
        """Create the bucket or check it. Raises StreamRefused or ViewStoreUnavailable."""
        self = cls(connection, settings or ViewStoreSettings())
        await self.ensure()
        return self

    async def ensure(self) -> None:
        """Create the bucket if it is not there (any more). Raises StreamRefused or ViewStoreUnavailable."""
        try:
            await self._bucket.ensure()
        except FAILURES as error:
            raise ViewStoreUnavailable(str(error)) from error

    async def commit(self, partition: int, changes: Mapping[str, bytes | None], expected: int) -> int:
        fence = f"{partition}._"
        if len(changes) > COMMIT_LIMIT:
            raise ValueError(f"{len(changes)} keys in one commit, the limit is {COMMIT_LIMIT}")
        if fence not in changes:
            raise ValueError(f"a commit to partition {partition} must hold its fence {fence}")
        try:
            answer = await self._publish(fence, changes, expected)
        except FAILURES as error:
            if isinstance(error, Unreachable) and error.no_responders:
                # A bucket in memory is gone with its server. Make it anew, so that the next load finds it, empty.
                await self.ensure()
            raise ViewStoreUnavailable(f"commit to partition {partition}: {error}") from error
        refused = answer.get("error")
        if refused is None:
            # The messages of a batch have consecutive sequences; the fence is the first.
            return int(answer["seq"]) - len(changes) + 1
        if refused.get("err_code") in WRONG_LAST_SEQUENCE:
            raise Fenced(f"partition {partition}: {refused.get('description')}, expected {expected}")
        raise ViewStoreUnavailable(f"commit to partition {partition}: {refused}")

    async def _publish(self, fence: str, changes: Mapping[str, bytes | None], expected: int) -> dict[str, Any]:
        connection, prefix = self._connection, self._bucket.prefix
        if not connection.connected:
            raise Unreachable("not connected to NATS", sent=False)
        self._batches += 1
        batch = f"{self._batch_prefix}{self._batches}"
        keys = [fence, *(key for key in changes if key != fence)]
        last = len(keys)
        reply, future = connection.expect("commit", COMMIT_TIMEOUT)
        try:
            for number, key in enumerate(keys, 1):
                data = changes[key]
                headers = {} if data is not None else dict(DELETED)
                if number == 1:
                    headers[EXPECTED] = str(expected)
                if last > 1:
                    headers[BATCH_ID] = batch
                    headers[BATCH_SEQUENCE] = str(number)
                    if number == last:
                        headers[BATCH_COMMIT] = "1"
                await connection.nc.publish(prefix + key, data or b"", reply if number == last else "", headers)
        except BaseException:
            future.cancel()
            raise
        answer: dict[str, Any] = msgspec.json.decode((await future).data)
        return answer

    async def get(self, key: str) -> Entry | None:
        try:
            return await self._bucket.last(key)
        except FAILURES as error:
            raise ViewStoreUnavailable(str(error)) from error

    async def load(self, partition: int) -> tuple[dict[str, bytes], int]:
        fence = f"{partition}._"
        entries = await self._present(f"{partition}.>", exact=True)
        revision = entries[fence].revision if fence in entries else 0
        return {key: entry.data for key, entry in entries.items() if entry.data is not None}, revision

    async def list(self, prefix: str) -> list[Entry]:
        entries = await self._present(f"{prefix}>", exact=False)
        return sorted((entry for entry in entries.values() if entry.data is not None), key=lambda entry: entry.key)

    async def _present(self, pattern: str, *, exact: bool) -> dict[str, Entry]:
        try:
            for _ in range(LOAD_TRIES):
                entries = await self._bucket.present(pattern, exact=exact)
                if entries is not None:
                    return entries
        except FAILURES as error:
            raise ViewStoreUnavailable(str(error)) from error
        raise ViewStoreUnavailable(f"{pattern} does not hold still: others commit to it while it is read")

    async def watch(self, patterns: tuple[str, ...] = (">",)) -> NatsViewWatch:
        try:
            return NatsViewWatch(await self._bucket.open(patterns, ViewStoreUnavailable))
        except FAILURES as error:
            raise ViewStoreUnavailable(str(error)) from error
