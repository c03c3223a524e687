"""What must hold of the log and the views, whatever the roles do: judged at each append and commit, and when all is quiet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bus import messages, scopes, subjects, viewcodec
from bus.log_memory import MemoryStream
from bus.messages import Command, Outcome
from bus.views import PartitionState, View
from bus.viewstore_memory import MemoryBucket
from projector.fold import Partition
from simcluster.store import Store

Say = Callable[[str], None]


class CheckedStream(MemoryStream):
    """A command follows from a view that knows the one before, which has an outcome by then or expired (DESIGN §6)."""

    def __init__(self, partitions: int, say: Say) -> None:
        super().__init__(partitions=partitions)
        self._say = say
        self._pending: dict[str, tuple[int, int]] = {}
        self._last_command: dict[str, int] = {}
        self.whole = True
        """Nothing was trimmed or lost: the views must be what a fold of it gives."""
        self.news = 0
        """Sequence of the last record that does not come of a list."""

    def store(
        self, subject: str, data: bytes, headers: Mapping[str, str], *, expected: int | None, message_id: str | None
    ) -> int:
        before = self.last
        sequence = super().store(subject, data, headers, expected=expected, message_id=message_id)
        if sequence <= before:
            return sequence  # told before, by its message id
        parsed = subjects.parse(subject)
        if parsed.message == subjects.COMMAND:
            self._command(subject, sequence, messages.decode(data, headers, Command))
        elif parsed.message == subjects.OUTCOME:
            self._outcome(subject, messages.decode(data, headers, Outcome))
        if not of_lists(subject, data):
            self.news = sequence
        return sequence

    @property
    def unacked(self) -> bool:
        return any(durable.pending for durable in self.durables.values())

    def _command(self, subject: str, sequence: int, command: Command) -> None:
        before = self._pending.get(subject)
        if before is not None and before[1] > self.now():
            self._say(f"command {sequence} on {subject} while {before[0]} is in flight (§6)")
        last = self._last_command.get(subject, 0)
        if self.whole and not last <= command.view < sequence:
            self._say(f"command {sequence} from view {command.view}, which does not know command {last} (§6)")
        self._last_command[subject] = sequence
        self._pending[subject] = (sequence, command.expires)

    def _outcome(self, subject: str, outcome: Outcome) -> None:
        place = subject.replace(f".{subjects.OUTCOME}.", f".{subjects.COMMAND}.")
        if self._pending.get(place, (0, 0))[0] == outcome.command:
            del self._pending[place]

    def trim(self, to_sequence: int) -> None:
        self.whole = False
        # Whoever folds anew does not know of them any more.
        self._pending = {place: each for place, each in self._pending.items() if each[0] > to_sequence}
        super().trim(to_sequence)

    def wipe(self, *, recreate: bool = True) -> None:
        self.whole = False
        self.news = 0
        self._pending.clear()
        self._last_command.clear()
        super().wipe(recreate=recreate)


def of_lists(subject: str, data: bytes) -> bool:
    """Whether it comes of a list, as they are taken every few minutes whatever happens."""
    message = subjects.parse(subject).message
    return message in (subjects.LIST, subjects.EPOCH) or (message == subjects.OBSERVATION and b'"listed":true' in data)


class CheckedBucket(MemoryBucket):
    """A partition's cursor and a view's position never go back while log and views are what they were (DESIGN §5)."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say
        self._positions: dict[str, tuple[str, int]] = {}
        self.changes = 0
        self.strict = True
        """False once the log was trimmed or lost: folding anew begins again."""

    def put(self, key: str, data: bytes | None) -> int:
        if self.strict:
            self._look(key, data)
        if not key.endswith("._"):
            self.changes += 1
        return super().put(key, data)

    def _look(self, key: str, data: bytes | None) -> None:
        if data is None:
            self._positions.pop(key, None)
            return
        if key.endswith("._"):
            state = viewcodec.decode_fence(data)
            position = (state.log, state.cursor)
        else:
            made = viewcodec.Assembler().feed(key, data)
            if made is None or made[1] is None:
                return
            position = ("", made[1].sequence)
        before = self._positions.get(key)
        if before is not None and before[0] == position[0] and position[1] < before[1]:
            self._say(
                f"{key} went back from {before[1]} to {position[1]}: a commit that the fence should have refused (§5)"
            )
        self._positions[key] = position

    def wipe(self) -> None:
        self._positions.clear()
        super().wipe()

    def views(self) -> dict[str, View]:
        stored = {entry.key: entry.data for entry in self.matching((">",)) if entry.data is not None}
        return {str(aggregate): view for aggregate, view in viewcodec.assemble(stored).items()}


def unfinished(bucket: CheckedBucket) -> list[str]:
    """What is still open or in flight in the views."""
    found = []
    for name, view in bucket.views().items():
        if view.in_flight is not None:
            found.append(f"{name}: command {view.in_flight.sequence} is in flight")
        found += [f"{name}: op {each.op.id} is open" for each in view.open]
    return found


def folded_wrongly(stream: CheckedStream, bucket: CheckedBucket) -> list[str]:
    """Views must be what one fold of the whole log gives, whoever folded it and however often (§5)."""
    if not stream.whole:
        return []
    expected: dict[str, View] = {}
    for number in range(stream.partitions):
        partition = Partition(number, stream.partitions, PartitionState(log=stream.identity))
        for record in stream.after(0):
            partition.fold(record)
        expected |= {str(aggregate): view for aggregate, view in partition.views.items()}
    found = bucket.views()
    return [
        f"view {name} is not what the log folds to: {_told(found.get(name))} instead of {_told(expected.get(name))}"
        for name in sorted(set(expected) | set(found))
        if expected.get(name) != found.get(name)
    ]


def _told(view: View | None) -> str:
    return "none" if view is None else str(view)[:600]


def untold(stream: CheckedStream, store: Store, cluster: str) -> list[str]:
    """Objects of which the log's newest word is not the API server's (§4): what was lost on the way is told again by a list at the latest."""
    last: dict[tuple[str, str, str], messages.Observation] = {}
    for record in stream.after(0):
        subject = subjects.parse(record.subject)
        if subject.message == subjects.OBSERVATION:
            body = messages.decode(record.data, record.headers, messages.Seen | messages.Gone)
            key = (subject.kind, subject.namespace, subject.name)
            if key not in last or last[key].resource_version <= body.resource_version:
                last[key] = body  # a straggler from a list changes nothing (§4, Order)
        elif subject.message == subjects.LIST:
            _end_absent(last, messages.decode(record.data, record.headers, messages.Listed))
    found = []
    present: set[tuple[str, str, str]] = set()
    for scope in scopes.SCOPES:
        kind = scope.kind
        resource = next(each for each in store.resources if each.plural == kind.plural)
        for version in store.select(resource):
            if scope.selector and scope.selector not in (version.obj["metadata"].get("labels") or {}):
                continue
            key = (kind.word, version.key[0], version.key[1])
            present.add(key)
            told = last.get(key)
            if not isinstance(told, messages.Seen) or told.resource_version != version.resource_version:
                found.append(f"{key}: the log does not know version {version.resource_version}")
    gone = [key for key, told in last.items() if isinstance(told, messages.Seen) and key not in present]
    return found + [f"{key}: the log does not know that it is gone" for key in gone]


def _end_absent(last: dict[tuple[str, str, str], messages.Observation], told: messages.Listed) -> None:
    """A whole list says of what it does not name that it is gone. (Lists of more than one chunk are not needed here.)"""
    assert told.chunks == 1
    named = {(namespace, name) for namespace, objects in told.objects.items() for name, _, _ in objects}
    for key, body in list(last.items()):
        of_scope = body.scope == told.scope and body.resource_version <= told.resource_version
        if of_scope and (key[1], key[2]) not in named:
            last[key] = messages.Gone(told.epoch, told.resource_version, body.uid, body.scope)
