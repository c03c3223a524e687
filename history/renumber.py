"""A slice as another log holds it: positions, cluster names and partitions changed alike in subjects, causes, bodies and views. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from bus import messages, subjects, viewcodec
from bus.log import Record
from bus.messages import Body, NotUnderstood
from bus.stored import rfc3339
from bus.views import ClusterState, ListState, PartitionState, ScopeState, View
from history.archive import Manifest

_OP_ID = re.compile(rb'"([a-z0-9-]+)(/[^"/:]+/[a-z]+/[^"/:]+:)(\d+)(:)')
"""An op's id as `reconciler.plan` makes it: aggregate, view position, place."""
_BODIES: Mapping[str, type[Body]] = {
    subjects.COMMAND: messages.Command,
    subjects.OUTCOME: messages.Outcome,
    subjects.TICK: messages.Tick,
    subjects.DEAD: messages.Dead,
}


class Positions:
    """Old positions to new ones, kept as runs. What lies before the slice is 0, what was left out of it the one before."""

    def __init__(self) -> None:
        self._olds: list[int] = []
        self._news: list[int] = []
        self._lengths: list[int] = []

    def add(self, old: int, new: int) -> None:
        if self._olds and (old - self._olds[-1], new - self._news[-1]) == (self._lengths[-1],) * 2:
            self._lengths[-1] += 1
        else:
            self._olds.append(old)
            self._news.append(new)
            self._lengths.append(1)

    def __call__(self, old: int) -> int:
        at = bisect_right(self._olds, old) - 1
        return 0 if at < 0 else self._news[at] + min(old - self._olds[at], self._lengths[at] - 1)

    def holds(self, old: int) -> bool:
        at = bisect_right(self._olds, old) - 1
        return at >= 0 and old - self._olds[at] < self._lengths[at]


class Renumber:
    """`clusters`: old name → new name, those not named stay. `partitions` is P of the target."""

    def __init__(self, clusters: Mapping[str, str], partitions: int) -> None:
        self.positions = Positions()
        self._clusters = clusters
        self._partitions = partitions

    def cluster(self, name: str) -> str:
        return self._clusters.get(name, name)

    def partition(self, cluster: str, namespace: str) -> int:
        """`cluster` by its old name."""
        return subjects.partition_of(self.cluster(cluster), namespace, self._partitions)

    def subject(self, text: str) -> str:
        """Raises ValueError for what is no subject of the log."""
        subject, tokens = subjects.parse(text), text.split(".")
        tokens[2] = self.cluster(subject.cluster)
        if subject.partition is not None:
            tokens[1] = str(self.partition(subject.cluster, subject.namespace))
        return ".".join(tokens)

    def record(self, record: Record) -> tuple[str, bytes, dict[str, str]]:
        """Subject, data and headers to append. The message's time goes into its time header."""
        headers = {messages.TIME_HEADER: rfc3339(record.time), **record.headers}
        cause = headers.get(messages.CAUSE_HEADER, "")
        if cause.isascii() and cause.isdigit():
            headers[messages.CAUSE_HEADER] = str(self.positions(int(cause)))
        return self.subject(record.subject), self._data(record), headers

    def _data(self, record: Record) -> bytes:
        type = _BODIES.get(subjects.parse(record.subject).message)
        if type is None:
            return record.data
        try:
            body = messages.decode(record.data, record.headers, type)
        except NotUnderstood:
            return record.data
        return self.ids(messages.encode(self._body(body)))

    def _body(self, body: Body) -> Body:
        match body:
            case messages.Command() | messages.Tick():
                return replace(body, view=self.positions(body.view))
            case messages.Outcome():
                return replace(body, command=self.positions(body.command))
            case messages.Dead():
                try:
                    subject = self.subject(body.subject)
                except ValueError:
                    subject = body.subject  # a view's key, or an aggregate
                return replace(body, subject=subject, sequence=self.positions(body.sequence))
            case _:
                return body

    def ids(self, data: bytes) -> bytes:
        """The ids of ops in encoded bodies and views; a position from before the slice stays, so that they stay different."""

        def renamed(match: re.Match[bytes]) -> bytes:
            old = int(match[3])
            new = self.positions(old) if self.positions.holds(old) else old
            return b'"%b%b%d%b' % (self.cluster(match[1].decode()).encode(), match[2], new, match[4])

        return _OP_ID.sub(renamed, data)

    def view(self, view: View) -> View:
        """A view that the slice starts from: what it knows of positions lies before all that will be appended."""
        flight = view.in_flight
        changed: View = replace(
            view,
            cluster=self.cluster(view.cluster),
            sequence=self.positions(view.sequence),
            last_command=self.positions(view.last_command),
            in_flight=None if flight is None else replace(flight, sequence=self.positions(flight.sequence)),
            open=tuple(replace(each, since=self.positions(each.since)) for each in view.open),
        )
        return msgspec.json.decode(self.ids(msgspec.json.encode(changed)), type=View)


class Start(msgspec.Struct, frozen=True):
    """What one partition of the target begins with."""

    clusters: dict[str, ClusterState]
    views: list[View]


def starts(manifest: Manifest, keys: Mapping[str, bytes], renumber: Renumber) -> dict[int, Start]:
    """The views that a slice starts from, by partition of the target. Raises viewcodec.Unreadable or ValueError."""
    fences: dict[int, PartitionState] = {}
    heads: dict[str, bytes] = {}
    for key, data in keys.items():
        number, aggregate, _ = subjects.parse_view_key(key)
        if aggregate is None:
            fences[number] = viewcodec.decode_fence(data)
        else:
            heads[key] = data
    made: dict[int, Start] = {}
    for cluster, namespaces in manifest.clusters.items():
        known: dict[int, dict[int, set[str]]] = {}
        for namespace in namespaces:
            old = subjects.partition_of(cluster, namespace, manifest.partitions)
            known.setdefault(renumber.partition(cluster, namespace), {}).setdefault(old, set()).add(namespace)
        for number, olds in known.items():
            states = [_narrowed(state, olds[old]) for old in sorted(olds) if (state := _of(fences, old, cluster))]
            if states:
                begun = made.setdefault(number, Start({}, []))
                begun.clusters[renumber.cluster(cluster)] = _merged(states)
    for aggregate, view in sorted(viewcodec.assemble(heads).items()):
        number = renumber.partition(aggregate.cluster, aggregate.namespace)
        if view.aggregate != aggregate:
            raise ValueError(f"the view under the key of {aggregate} is another one's")
        made.setdefault(number, Start({}, [])).views.append(renumber.view(view))
    return made


def _of(fences: Mapping[int, PartitionState], number: int, cluster: str) -> ClusterState | None:
    state = fences.get(number)
    return None if state is None else state.clusters.get(cluster)


def _narrowed(state: ClusterState, namespaces: set[str]) -> ClusterState:
    """Without what other namespaces of the old partition still wait for."""
    return replace(state, scopes={key: _scope(scope, namespaces) for key, scope in state.scopes.items()})


def _scope(scope: ScopeState, namespaces: set[str]) -> ScopeState:
    missing = {name: at for name, at in scope.missing.items() if name.partition("/")[0] in namespaces}
    listing: ListState | None = scope.listing
    if listing is not None:
        listing = replace(listing, objects={ns: of for ns, of in listing.objects.items() if ns in namespaces})
    if scope.missing and not missing:
        return ScopeState(complete=scope.awaited, listing=listing)
    return replace(scope, missing=missing, listing=listing)


def _merged(states: Iterable[ClusterState]) -> ClusterState:
    """Of namespaces that share a partition only now: complete only where all are. A half-read list is given up, another one comes."""
    first, *rest = states
    for other in rest:
        keys = {*first.scopes, *other.scopes}
        both = {key: (first.scopes.get(key, ScopeState()), other.scopes.get(key, ScopeState())) for key in keys}
        first = ClusterState(
            epoch=max(first.epoch, other.epoch),
            uid=first.uid or other.uid,
            scopes={key: _both(a, b) for key, (a, b) in sorted(both.items())},
        )
    return first


def _both(a: ScopeState, b: ScopeState) -> ScopeState:
    complete = min(a.complete, b.complete) if a.complete is not None and b.complete is not None else None
    awaited = max((each for each in (a.awaited, b.awaited) if each is not None), default=None)
    return ScopeState(complete=complete, missing={**a.missing, **b.missing}, awaited=awaited)
