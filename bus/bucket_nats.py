"""A key-value bucket by hand: what nats-py's own lacks or does wrongly (TTLs, markers, batches: nats.md §4.1) and our fast reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nats.aio.msg import Msg

from bus.connection import ApiError, Connection
from bus.log import MAX_MESSAGE_BYTES
from bus.patterns import without_covered
from bus.pull import LostFactory, OrderedPull, Source
from bus.stored import SECOND, Position, record
from bus.streams import STREAM_NOT_FOUND, ensure_stream, stream_state
from bus.viewstore import Entry

OPERATION = "KV-Operation"
GONE_OPERATIONS = ("DEL", "PURGE")
MARKER_REASON = "Nats-Marker-Reason"
NO_MESSAGE = 10037
READ = 1024
READ_SILENCE = 2.0


def bucket_config(name: str, *, storage: str, replicas: int, **more: Any) -> dict[str, Any]:
    """The stream of a key-value bucket of history 1, as NATS clients make it (ADR-8)."""
    return {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "retention": "limits",
        "discard": "new",
        "storage": storage,
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "max_msg_size": MAX_MESSAGE_BYTES,
        "duplicate_window": 120 * SECOND,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
    } | more


def is_gone(headers: Mapping[str, str] | None) -> bool:
    """Whether a message of a bucket stands for a deletion: ours, a client's, or the server's marker of an expiry."""
    return headers is not None and (headers.get(OPERATION) in GONE_OPERATIONS or MARKER_REASON in headers)


class Bucket:
    """Its methods raise ApiError and Unreachable. A bucket that is not there (any more) is made anew by whatever meets that."""

    def __init__(self, connection: Connection, name: str, config: dict[str, Any]) -> None:
        self.connection = connection
        self.stream = f"KV_{name}"
        self._plain = f"$KV.{name}."
        self._config = config
        # With a domain, writes go through its API prefix, which the server maps (ADR-8).
        domain = connection.settings.domain
        self.prefix = f"{connection.api_prefix}.{self._plain}" if domain else self._plain

    async def ensure(self) -> None:
        """Also raises StreamRefused."""
        await ensure_stream(self.connection, self._config)

    def _convert(self, message: Msg, at: Position) -> Entry:
        key = message.subject[len(self._plain) :]
        return Entry(key, None if is_gone(message.headers) else message.data, at.sequence)

    async def last(self, pattern: str) -> Entry | None:
        """The last entry of a key or pattern, from the leader."""
        try:
            answer = await self.connection.api(
                f"STREAM.MSG.GET.{self.stream}", {"last_by_subj": f"{self._plain}{pattern}"}
            )
        except ApiError as error:
            if error.error_code == NO_MESSAGE:
                return None
            if error.error_code == STREAM_NOT_FOUND:
                await self.ensure()
                return None
            raise
        message = record(answer["message"])
        data = None if is_gone(message.headers) else message.data
        return Entry(message.subject.removeprefix(self._plain), data, message.sequence)

    async def present(self, pattern: str, *, exact: bool) -> dict[str, Entry] | None:
        """Entries by key up to the leader's last of the pattern at the time of the call, and if `exact` to nothing beyond; None if
        that did not come out. `exact` makes it the state after a whole commit, whichever replica the consumer sits on: commits are
        atomic at the leader, and a consumer gives everything in order (nats.md §6.1)."""
        last = await self.last(pattern)
        if last is None:
            return {}
        pull = await self.open((pattern,), RuntimeError)
        entries: dict[str, Entry] = {}
        read = 0
        try:
            while True:
                while read < last.revision:
                    batch = await pull.batch(READ, READ_SILENCE)
                    if not batch:
                        return None
                    entries.update((entry.key, entry) for entry in batch)
                    read = batch[-1].revision
                if not exact:
                    return entries
                again = await self.last(pattern)
                if again is None or again.revision < read:
                    return None
                if again.revision == read:
                    return entries
                last = again
        except RuntimeError:
            return None
        finally:
            await pull.close()

    async def open(self, patterns: tuple[str, ...], lost: LostFactory) -> OrderedPull[Entry]:
        """Present values, then changes; `lost` makes what the reader raises when the bucket was lost."""
        subjects = without_covered([f"{self._plain}{pattern}" for pattern in patterns])
        source = Source(stream=self.stream, subjects=subjects, latest=True, trims=False)
        try:
            state = await stream_state(self.connection, self.stream)
        except ApiError as error:
            if error.error_code != STREAM_NOT_FOUND:
                raise
            await self.ensure()
            state = await stream_state(self.connection, self.stream)
        pull: OrderedPull[Entry] = OrderedPull(self.connection, source, self._convert, lost)
        await pull.open(state)
        return pull
