"""Fold a history again from the views it starts from, and decide again at each recorded command's position (DESIGN §10, replay). Pure.

A view is a function of a log prefix and a decision one of a view, so with the code that wrote the history nothing may differ; with other
code, only what a change explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from bus import messages, subjects, viewcodec
from bus.log import Record
from bus.messages import Command, NotUnderstood
from bus.subjects import Aggregate
from bus.views import Decision, View
from history import explaining, wording
from history.slice import Folder
from reconciler.decide import decide
from reconciler.settings import Settings

KEPT: Final = 4096
"""Versions of one view kept since its last command."""
LINES: Final = 20
"""Most lines that tell one difference."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """`what`: `decision` (a command's ops, uid or reason), `view` (one that was stored is not what its records fold to), or `position` (no
    view is at the position that a command names). `position` is the command's or the stored view's, `view` the one decided from.
    """

    what: str
    position: int
    aggregate: str
    details: tuple[str, ...]
    view: int = 0
    recorded: tuple[str, ...] = ()
    """what was ordered, in words"""
    decided: tuple[str, ...] = ()
    """what is decided now, in words"""
    explained: str = ""
    """the flag with another value of which the command is decided as it was; '' for none"""


class Unchecked(msgspec.Struct, frozen=True):
    """A command that could not be decided again, and why."""

    position: int
    aggregate: str
    why: str


class Report(msgspec.Struct, frozen=True):
    """`commands`: decided again. `views`: stored ones compared. `not_folded`: records that the fold could not take."""

    records: int
    commands: int
    views: int
    not_folded: int
    differences: list[Difference]
    unchecked: list[Unchecked]
    explained: list[Difference]
    """those of decisions that a flag of the time explains: no fault of the code"""


class History(msgspec.Struct, frozen=True):
    """What there is to replay. `start` and `stored` are keys of views and fences; `cursors` says per partition which position `stored` is of."""

    partitions: int
    first_sequence: int
    last_sequence: int
    settings: Settings
    start: Mapping[str, bytes] = {}
    stored: Mapping[str, bytes] = {}
    cursors: Mapping[int, int] = {}
    narrowed: bool = False
    incomplete: bool = False
    """the log was trimmed before it: what is not settled, or not there, is no difference, and stored views are not compared"""
    given: frozenset[str] = frozenset()
    """settings that are to be taken as they are: what they explain is a difference all the same"""


Decide = Callable[[View, Settings], Decision]


def replay(history: History, records: Iterable[Record], *, decide: Decide = decide) -> Report:
    """Raises viewcodec.Unreadable or ValueError where the views it starts from cannot be read; what `decide` raises passes through."""
    check = _Check(history, decide)
    for record in records:
        check.take(record)
    return check.report()


class _Check:
    def __init__(self, history: History, decide: Decide) -> None:
        self._history = history
        self._decide = decide
        self._folder = Folder(history.partitions, history.start, history.first_sequence - 1)
        self._versions: dict[Aggregate, dict[int, View]] = {
            aggregate: {view.sequence: view} for aggregate, view in self._folder.views().items()
        }
        compared = () if history.incomplete else history.cursors
        self._stored: dict[int, dict[Aggregate, View]] = {number: {} for number in compared}
        for aggregate, view in viewcodec.assemble(dict(history.stored)).items():
            number = subjects.partition_of(aggregate.cluster, aggregate.namespace, history.partitions)
            if number in self._stored:
                self._stored[number][aggregate] = view
        self._records = self._commands = self._views = self._not_folded = 0
        self._differences: list[Difference] = []
        self._unchecked: list[Unchecked] = []
        self._explained: list[Difference] = []

    def take(self, record: Record) -> None:
        self._records += 1
        for number in [n for n in self._stored if self._history.cursors.get(n, 0) < record.sequence]:
            self._compare(number)
        subject = subjects.parse(record.subject)
        is_command = subject.message == subjects.COMMAND
        if is_command:
            self._command(subject.aggregate, record)
        for partition, folded in self._folder.fold(record):
            self._not_folded += folded.error is not None
            for aggregate in folded.touched:
                self._note(aggregate, partition.views.get(aggregate))
        if is_command and (versions := self._versions.get(subject.aggregate)):
            # The next one follows from a view that knows this one (DESIGN §6).
            for sequence in [each for each in versions if each < record.sequence]:
                del versions[sequence]

    def report(self) -> Report:
        for number in list(self._stored):
            self._compare(number)
        counts = (self._records, self._commands, self._views, self._not_folded)
        return Report(*counts, self._differences, self._unchecked, self._explained)

    def _note(self, aggregate: Aggregate, view: View | None) -> None:
        if view is None:
            self._versions.pop(aggregate, None)
            return
        versions = self._versions.setdefault(aggregate, {})
        versions[view.sequence] = view
        if len(versions) > KEPT:
            del versions[next(iter(versions))]

    # -- decisions

    def _command(self, aggregate: Aggregate, record: Record) -> None:
        try:
            command: Command = messages.decode(record.data, record.headers, Command)
        except NotUnderstood as error:
            self._unchecked.append(Unchecked(record.sequence, str(aggregate), f"it cannot be read: {error}"))
            return
        view = self._versions.get(aggregate, {}).get(command.view)
        if view is not None and self._history.incomplete and not view.settled:
            unsettled = (
                f"decided at {command.view}, when not everything is known yet of a log that had been trimmed before"
            )
            self._unchecked.append(Unchecked(record.sequence, str(aggregate), unsettled))
        elif view is not None:
            self._again(aggregate, record.sequence, command, view)
        elif (why := self._why_not(aggregate, record, command)) is not None:
            self._unchecked.append(Unchecked(record.sequence, str(aggregate), why))
        else:
            versions = self._versions.get(aggregate, {})
            details = (f"the view changed at {', '.join(map(str, list(versions)[-8:])) or 'no position'}",)
            self._differences.append(
                Difference("position", record.sequence, str(aggregate), details, command.view, _words(command))
            )

    def _why_not(self, aggregate: Aggregate, record: Record, command: Command) -> str | None:
        """Why no view at that position is to be expected; None if there should be one."""
        if command.view < self._history.first_sequence:
            return f"decided at {command.view}, before the history begins"
        if command.view >= record.sequence:
            return f"decided at {command.view}, which lies after it: from views of a log that was lost"
        if self._history.incomplete:
            return f"decided at {command.view}, and the log had been trimmed before: no view is known there"
        versions = self._versions.get(aggregate, {})
        known = next(reversed(versions.values())) if versions else None
        if known is not None and command.view < known.last_command:
            return f"a repeat: decided at {command.view}, before the command {known.last_command}"
        if len(versions) >= KEPT and command.view < next(iter(versions)):
            return f"decided at {command.view}, more than {KEPT} changes ago"
        return None

    def _again(self, aggregate: Aggregate, position: int, command: Command, view: View) -> None:
        self._commands += 1
        try:
            now = self._made(command, view, self._history.settings)
            if now == command:
                return
            flag = self._explanation(command, view)
        except Exception as error:
            error.add_note(f"deciding again about {aggregate} at {command.view}, for the command at {position}")
            raise
        found = Difference(
            "decision",
            position,
            str(aggregate),
            _differing(_builtins(command), _builtins(now)),
            command.view,
            _words(command),
            _words(now),
            flag,
        )
        (self._explained if flag else self._differences).append(found)

    def _made(self, command: Command, view: View, settings: Settings) -> Command:
        """The command as it is decided now."""
        decision = self._decide(view, settings)
        uid = view.object.uid if view.object is not None else ""
        return msgspec.structs.replace(command, ops=decision.ops, reason=decision.reason, uid=uid)

    def _explanation(self, command: Command, view: View) -> str:
        tried = explaining.alternatives(command, view, self._history.settings, self._history.given)
        return next((flag for flag, settings in tried if self._made(command, view, settings) == command), "")

    # -- stored views

    def _compare(self, number: int) -> None:
        """The stored views of a partition, once all at or before its cursor is folded. A later one says nothing of the history's end."""
        stored = self._stored.pop(number)
        found = {
            aggregate: view
            for aggregate, view in self._folder.views().items()
            if subjects.partition_of(aggregate.cluster, aggregate.namespace, self._history.partitions) == number
        }
        last = self._history.last_sequence
        for aggregate, view in sorted(stored.items()):
            if view.sequence > last:
                continue
            self._views += 1
            folded = found.get(aggregate)
            if folded != view:
                details = _differing(_builtins(view), _builtins(folded)) if folded is not None else ("there is none",)
                self._differences.append(Difference("view", view.sequence, str(aggregate), details))
        if not self._history.narrowed and self._history.cursors[number] <= last:
            for aggregate in sorted(found.keys() - stored.keys()):
                details = ("none was stored",)
                self._differences.append(Difference("view", found[aggregate].sequence, str(aggregate), details))


def _words(command: Command) -> tuple[str, ...]:
    said = tuple(map(wording.op_text, command.ops))
    return (*said, f"because {command.reason}") if command.reason else said


def _builtins(value: object) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _differing(recorded: Any, now: Any, path: str = "") -> tuple[str, ...]:
    """Where they differ, as `ops/0/status/phase: 'Paused', now 'Pausing'`."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        keys = [*recorded, *(key for key in now if key not in recorded)]
        pairs = [(str(key), recorded.get(key), now.get(key)) for key in keys]
    elif isinstance(recorded, list | tuple) and isinstance(now, list | tuple):
        longest = max(len(recorded), len(now))
        pairs = [
            (str(n), recorded[n] if n < len(recorded) else None, now[n] if n < len(now) else None)
            for n in range(longest)
        ]
    else:
        return () if recorded == now else (f"{path}: {_short(recorded)}, now {_short(now)}",)
    lines = [line for key, a, b in pairs if a != b for line in _differing(a, b, f"{path}/{key}" if path else key)]
    return tuple(lines[:LINES])


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
