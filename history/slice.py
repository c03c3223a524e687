"""Which records of the log belong to a slice, and the fold of all its partitions (DESIGN §10, export). Pure.

A slice of some namespaces, or of some sandboxes, is a log of its own: lists name only what is in it, so that folding it settles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from bus import messages, subjects, viewcodec
from bus.log import Record
from bus.messages import Command, Listed, NotUnderstood
from bus.ops import PatchSnapshotStatus, RewriteTemplate
from bus.subjects import Aggregate, Subject
from bus.views import PartitionState, SandboxView, SnapshotView, View
from projector import observe
from projector.fold import Folded, Partition
from projector.index import Name, names_of
from reconciler.settings import Settings

OWN_HEADERS: Final = "Sandlog-"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_VALUE = re.compile(r"[ -~]*")


def is_plain(subject: str) -> bool:
    """Whether a subject or key is made of what names consist of: in a file from elsewhere it might be anything."""
    return _PLAIN.fullmatch(subject) is not None


def are_own(headers: Mapping[str, str]) -> bool:
    """Whether they are ours alone, and printable."""
    return all(name.startswith(OWN_HEADERS) and is_plain(name) and _VALUE.fullmatch(headers[name]) for name in headers)


class Selection(msgspec.Struct, frozen=True):
    """What is taken. None is everything; `objects` and `aggregates` go together."""

    cluster: str | None = None
    namespaces: frozenset[str] | None = None
    objects: frozenset[Name] | None = None
    aggregates: frozenset[Aggregate] | None = None

    @property
    def narrowed(self) -> bool:
        """Whether lists must be narrowed too."""
        return self.namespaces is not None or self.objects is not None

    def patterns(self) -> tuple[str, ...]:
        """The subjects to read, whatever the number of partitions."""
        cluster = self.cluster or "*"
        if self.namespaces is None:
            return (f"log.*.{cluster}.>",)
        per = tuple(f"log.*.{cluster}.{namespace}.>" for namespace in sorted(self.namespaces))
        return (*per, f"log.{subjects.ALL}.{cluster}.{subjects.LIST}.>", f"log.{subjects.ALL}.{cluster}.*")

    def of(self, record: Record) -> Record | None:
        """The record as the slice holds it, with our own headers only; None if it does not belong."""
        try:
            subject = subjects.parse(record.subject)
        except ValueError:
            return None
        if not is_plain(record.subject):
            return None
        if self.cluster not in (None, subject.cluster):
            return None
        data: bytes | None = record.data
        if subject.partition is None:
            if self.narrowed and subject.message == subjects.LIST:
                data = self._narrowed(subject, record)
        elif not self._has(subject):
            return None
        if data is None:
            return None
        own = {name: value for name, value in record.headers.items() if name.startswith(OWN_HEADERS)}
        return replace(record, headers=own, data=data)

    def has_view(self, aggregate: Aggregate) -> bool:
        if self.aggregates is not None:
            return aggregate in self.aggregates
        return self.cluster in (None, aggregate.cluster) and (
            self.namespaces is None or aggregate.namespace in self.namespaces
        )

    def _has(self, subject: Subject) -> bool:
        if self.namespaces is not None and subject.namespace not in self.namespaces:
            return False
        if self.objects is None or self.aggregates is None:
            return True
        if subject.message != subjects.OBSERVATION and subject.aggregate in self.aggregates:
            return True
        name = Name(subject.cluster, subject.kind, subject.namespace, subject.name)
        return subject.message in (subjects.OBSERVATION, subjects.DEAD) and name in self.objects

    def _narrowed(self, subject: Subject, record: Record) -> bytes | None:
        """A list without what is not in the slice; None for one that cannot be read."""
        try:
            listed: Listed = messages.decode(record.data, record.headers, Listed)
            kind = observe.kind_of_scope(listed.scope)
        except (NotUnderstood, ValueError):
            return None
        objects = {
            namespace: entries
            for namespace, all_of_them in listed.objects.items()
            if (entries := [each for each in all_of_them if self._lists(subject.cluster, kind, namespace, each[0])])
        }
        return messages.encode(replace(listed, objects=objects))

    def _lists(self, cluster: str, kind: str, namespace: str, name: str) -> bool:
        if self.namespaces is not None and namespace not in self.namespaces:
            return False
        return self.objects is None or Name(cluster, kind, namespace, name) in self.objects


class Folder:
    """All partitions of a log, folded together. A record that cannot be taken harms only itself."""

    def __init__(self, partitions: int, start: Mapping[str, bytes] | None = None, cursor: int = 0) -> None:
        """`start` as the keys of the views and fences (`bus.viewcodec`). Raises viewcodec.Unreadable or ValueError."""
        self.partitions = partitions
        self._by_number: dict[int, Partition] = {}
        by_number: dict[int, dict[str, bytes]] = {}
        for key, data in (start or {}).items():
            by_number.setdefault(subjects.parse_view_key(key)[0], {})[key] = data
        for number in range(partitions):
            held = by_number.get(number, {})
            fence = held.get(subjects.fence_key(number))
            state = PartitionState() if fence is None else viewcodec.decode_fence(fence)
            views = viewcodec.assemble(held)
            self._by_number[number] = Partition(number, partitions, replace(state, cursor=cursor), views)

    def fold(self, record: Record) -> Iterator[tuple[Partition, Folded]]:
        """Into the partitions it concerns; those it changed."""
        number = record.subject.split(".", 2)[1]
        if number == subjects.ALL:
            concerned = list(self._by_number.values())
        else:
            found = self._by_number.get(int(number)) if number.isascii() and number.isdigit() else None
            concerned = [] if found is None else [found]
        for partition in concerned:
            folded = partition.fold(record)
            if folded.touched or folded.error:
                yield partition, folded

    def views(self) -> dict[Aggregate, View]:
        return {a: view for partition in self._by_number.values() for a, view in partition.views.items()}

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """The views and fences as they are stored, those of partitions that know nothing left out."""
        for number, partition in self._by_number.items():
            if partition.views or partition.state.clusters:
                yield (
                    subjects.fence_key(number),
                    viewcodec.encode_fence(replace(partition.state, log="", cursor_time=0)),
                )
            for aggregate in sorted(partition.views):
                for key, data in viewcodec.encode(number, partition.views[aggregate], None).items():
                    if data is not None:
                        yield key, data


class Related:
    """What belongs to some sandboxes: every object that their views ever held, their snapshots, and those snapshots' objects.

    Fed with all that happens in their namespaces.
    """

    def __init__(self, wanted: frozenset[Aggregate]) -> None:
        self.aggregates = set(wanted)
        self._wanted = wanted
        self.objects: set[Name] = set()

    def look(self, partition: Partition, folded: Folded) -> None:
        for aggregate in sorted(folded.touched):
            view = partition.views.get(aggregate)
            if view is None:
                continue
            if isinstance(view, SnapshotView) and self._is_of_wanted(view):
                self.aggregates.add(aggregate)
            if aggregate in self.aggregates:
                self._take(view)

    def _is_of_wanted(self, view: SnapshotView) -> bool:
        sandbox = view.object.sandbox if view.object is not None else ""
        return Aggregate(view.cluster, view.namespace, subjects.SANDBOX, sandbox) in self._wanted

    def _take(self, view: View) -> None:
        self.objects.update(name for name, _ in names_of(view))
        if isinstance(view, SandboxView) and view.snapshot is not None:
            name = view.snapshot.name
            self.aggregates.add(Aggregate(view.cluster, view.namespace, subjects.SNAPSHOT, name))

    def selection(self, cluster: str | None) -> Selection:
        namespaces = frozenset(aggregate.namespace for aggregate in self._wanted)
        return Selection(cluster, namespaces, frozenset(self.objects), frozenset(self.aggregates))


def settings_shown(record: Record, settings: Settings) -> Settings:
    """What a command shows of the settings it was decided with, where they are not given: the registry and the pull secret's name."""
    try:
        command: Command = messages.decode(record.data, record.headers, Command)
    except NotUnderstood:
        return settings
    for op in command.ops:
        if isinstance(op, RewriteTemplate) and op.pull_secret and not settings.resume_pull_secret:
            settings = replace(settings, resume_pull_secret=op.pull_secret)
        if isinstance(op, PatchSnapshotStatus) and op.status.containers and not settings.snapshot_registry:
            settings = replace(settings, snapshot_registry=op.status.containers[0].image_uri.rpartition("/")[0])
    return settings
