"""The timeline of one sandbox: what was seen, decided and done about it, in order (DESIGN §10). Pure: records in, entries out.

Questions about one sandbox read that sandbox's subjects, not the log: `own_subjects`, and then `pod_subjects` of the pods it ever had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from bus import messages, names, ops, resources, subjects
from bus.log import Record
from bus.subjects import Aggregate
from history import facts, wording

_OBSERVED: Final[Mapping[str, str]] = {
    subjects.SANDBOX: resources.BATCH_SANDBOX.word,
    subjects.POOL: resources.POOL.word,
    subjects.SNAPSHOT: resources.SANDBOX_SNAPSHOT.word,
}


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `what` is seen, gone, decided, done, tick, dead or unreadable; `about` an object as `kind/name`, or the aggregate.

    `time` is log time in nanoseconds; `cause` the sequence it follows from. `repeat`: it says nothing that was not known.
    """

    sequence: int
    time: int
    what: str
    about: str
    text: str
    why: str = ""
    cause: int | None = None
    by: str = ""
    repeat: bool = False


def _observations(cluster: str, namespace: str, kind: str, name: str) -> str:
    return f"log.*.{cluster}.{namespace}.{subjects.OBSERVATION}.{kind}.{subjects.token(name)}"


def own_subjects(aggregate: Aggregate) -> tuple[str, ...]:
    """What an aggregate's timeline begins with: its object, its commands, outcomes, ticks and dead letters, a pause's snapshot."""
    cluster, namespace, name = aggregate.cluster, aggregate.namespace, aggregate.name
    made = [
        _observations(cluster, namespace, _OBSERVED[aggregate.kind], name),
        *(
            f"log.*.{cluster}.{namespace}.{message}.{aggregate.kind}.{subjects.token(name)}"
            for message in (subjects.COMMAND, subjects.OUTCOME, subjects.TICK, subjects.DEAD)
        ),
    ]
    if aggregate.kind == subjects.SANDBOX:
        snapshot = names.pause_snapshot_name(name)
        made.append(_observations(cluster, namespace, resources.SANDBOX_SNAPSHOT.word, snapshot))
    return tuple(made)


def pod_subjects(aggregate: Aggregate, pods: Iterable[str]) -> tuple[str, ...]:
    """The observations of pods by name."""
    return tuple(_observations(aggregate.cluster, aggregate.namespace, "pod", pod) for pod in sorted(set(pods)))


def pods_named(records: Iterable[Record]) -> set[str]:
    """The pods that an aggregate's own messages name: those created, deleted, or allocated to it."""
    found: set[str] = set()
    for record in records:
        message = subjects.parse(record.subject).message
        if message == subjects.COMMAND:
            command = _decoded(record, messages.Command)
            for op in command.ops if isinstance(command, messages.Command) else ():
                found.update(_pods_of(op))
        elif message == subjects.OBSERVATION:
            found.update(_allocated(record))
    return found


def _pods_of(op: ops.Op) -> Iterator[str]:
    for touched in ops.touches(op):
        kind, _, name = touched.partition("/")
        if kind == "pod":
            yield name


def _allocated(record: Record) -> Iterator[str]:
    """Pods of a pool that the object's annotation names; nothing if it says none, or is malformed."""
    seen = _decoded(record, messages.Observation)
    if not isinstance(seen, messages.Seen):
        return
    try:
        metadata = msgspec.json.decode(seen.object, type=resources.Metadata).metadata
        allocation = msgspec.json.decode((metadata.annotations or {}).get(names.ALLOC_STATUS, "{}"))
    except msgspec.DecodeError:
        return
    pods = allocation.get("pods") if isinstance(allocation, dict) else None
    yield from (pod for pod in pods if isinstance(pod, str)) if isinstance(pods, list) else ()


def _decoded(record: Record, type: Any) -> Any:
    """The body, or the text of why it cannot be read."""
    try:
        return messages.decode(record.data, record.headers, type)
    except messages.NotUnderstood as error:
        return str(error)


class _Known(msgspec.Struct):
    """What the reader of the timeline knows so far: per object its uid, version and facts."""

    objects: dict[str, tuple[str, tuple[int, int], facts.Facts]]
    commands: dict[int, messages.Command]
    wrote: dict[tuple[str, int], int]
    """(uid, resourceVersion) of what an outcome reported → the outcome's sequence"""
    deleted: dict[str, int]
    """uid of what an outcome says was deleted → the outcome's sequence"""


def timeline(records: Sequence[Record]) -> list[Entry]:
    """The entries of these records, by position. An observation's cause is the outcome that reported its uid and version (DESIGN §4, Cause)."""
    ordered = sorted({record.sequence: record for record in records}.values(), key=lambda record: record.sequence)
    known = _Known({}, {}, {}, {})
    for record in ordered:
        _index(record, known)
    return [_entry(record, known) for record in ordered]


def _index(record: Record, known: _Known) -> None:
    """Commands by position, and what outcomes reported, before anything is told."""
    message = subjects.parse(record.subject).message
    if message == subjects.COMMAND:
        command = _decoded(record, messages.Command)
        if isinstance(command, messages.Command):
            known.commands[record.sequence] = command
    elif message == subjects.OUTCOME:
        outcome = _decoded(record, messages.Outcome)
        if isinstance(outcome, messages.Outcome):
            asked = {op.id: op for op in _ops(known, outcome.command)}
            for result in outcome.results:
                _reported(result, asked.get(result.id), record.sequence, known)


def _ops(known: _Known, command: int) -> tuple[ops.Op, ...]:
    found = known.commands.get(command)
    return found.ops if found is not None else ()


def _reported(result: messages.Result, op: ops.Op | None, sequence: int, known: _Known) -> None:
    if result.uid and result.resource_version:
        known.wrote[result.uid, result.resource_version] = sequence
    for made in result.names.values():
        if made.uid and made.resource_version:
            known.wrote[made.uid, made.resource_version] = sequence
    if result.result == messages.DONE and isinstance(op, ops.DeletePod | ops.DeleteExpired):
        known.deleted[op.target.uid] = sequence


_TYPES: Final[Mapping[str, Any]] = {
    subjects.OBSERVATION: messages.Observation,
    subjects.COMMAND: messages.Command,
    subjects.OUTCOME: messages.Outcome,
    subjects.TICK: messages.Tick,
    subjects.DEAD: messages.Dead,
}


def _cause(record: Record) -> int | None:
    text = record.headers.get(messages.CAUSE_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _entry(record: Record, known: _Known) -> Entry:
    subject = subjects.parse(record.subject)
    about = f"{subject.kind}/{subject.name}"
    time = messages.time_of(record.time, record.headers)
    body = _decoded(record, _TYPES.get(subject.message, messages.Body))

    def entry(
        what: str, text: str, why: str = "", cause: int | None = None, by: str = "", repeat: bool = False
    ) -> Entry:
        return Entry(
            record.sequence, time, what, about, text, why, cause if cause is not None else _cause(record), by, repeat
        )

    match body:
        case messages.Seen() | messages.Gone():
            return _observed(body, subject, about, known, entry)
        case messages.Command():
            return entry("decided", "; ".join(map(wording.op_text, body.ops)) or "nothing", body.reason, body.view)
        case messages.Outcome():
            return entry("done", _outcome_text(body, known), cause=body.command, by=body.by)
        case messages.Tick():
            return entry("tick", "time to look again", cause=body.view)
        case messages.Dead():
            return entry("dead", f"message {body.sequence} was given up", body.error, body.sequence, body.by)
        case str():
            return entry("unreadable", f"a {subject.message} message that cannot be read", body)
        case _:
            return entry("unreadable", f"an unexpected {type(body).__name__} message")


def _outcome_text(outcome: messages.Outcome, known: _Known) -> str:
    asked = {op.id: wording.op_text(op) for op in _ops(known, outcome.command)}
    lines = (f"{asked.get(result.id, result.id)}: {wording.result_text(result)}" for result in outcome.results)
    return "; ".join(lines) or "nothing to do"


def _observed(
    body: messages.Observation, subject: subjects.Subject, about: str, known: _Known, entry: Callable[..., Entry]
) -> Entry:
    version = (body.epoch, body.resource_version)
    before = known.objects.get(about)
    if before is not None and version <= before[1]:
        return entry("seen" if isinstance(body, messages.Seen) else "gone", "the same again", repeat=True)
    if isinstance(body, messages.Gone):
        known.objects[about] = ("", version, {})
        return entry("gone", "gone", cause=known.deleted.get(body.uid))
    try:
        now = facts.facts_of(subject.kind, body.object)
    except (msgspec.DecodeError, ValueError) as error:
        return entry("unreadable", "an object that cannot be read", str(error)[:200])
    known.objects[about] = (body.uid, version, now)
    cause = known.wrote.get((body.uid, body.resource_version))
    if before is None or before[0] != body.uid:
        again = "" if before is None or not before[0] else "another object of that name: "
        return entry("seen", f"{again}{facts.summary(now) or 'first seen'}", cause=cause)
    changed = facts.difference(before[2], now)
    if not changed and "deleting since" in now and body.uid in known.deleted:
        cause = cause or known.deleted[body.uid]
    return entry("seen", changed or "changed in what is not shown here", cause=cause)
