"""Views as bytes under keys: a head, and parts by hash of the pod's name where there are many pods (DESIGN §5).

One pod's change rewrites one part. Equal views give equal bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus import subjects
from bus.hashing import fnv1a32
from bus.subjects import Aggregate
from bus.views import PartitionState, Pod, View

WHOLE: Final = 64
"""A view of so many pods (tombstones included) is one document."""
PER_PART: Final = 64
"""Pods a part holds on average: at ≤ 250 bytes each well below 32 KiB."""


class Head(msgspec.Struct, frozen=True):
    """The head of a view in parts: the view without its pods. `parts` 0: the pods are in the view."""

    view: View
    parts: int = 0


class Unreadable(Exception):
    """Bytes of a view that are none of ours, or of a later schema."""


_encoder = msgspec.json.Encoder()
_heads = msgspec.json.Decoder(Head)
_parts = msgspec.json.Decoder(dict[str, Pod])
_fences = msgspec.json.Decoder(PartitionState)


def encode_fence(state: PartitionState) -> bytes:
    return _encoder.encode(state)


def decode_fence(data: bytes) -> PartitionState:
    try:
        return _fences.decode(data)
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error


def part_count(pods: int) -> int:
    """0 for a view kept whole, else a power of two so that growth moves pods between few parts."""
    if pods <= WHOLE:
        return 0
    count = 2
    while count * PER_PART < pods:
        count *= 2
    return count


def _divided(pods: dict[str, Pod], parts: int) -> list[dict[str, Pod]]:
    divided: list[dict[str, Pod]] = [{} for _ in range(parts)]
    for name in sorted(pods):
        divided[fnv1a32(name) % parts][name] = pods[name]
    return divided


def _sorted(view: View) -> View:
    pods = view.pods
    if len(pods) > 1:
        names = list(pods)
        if names != sorted(names):
            return msgspec.structs.replace(view, pods={name: pods[name] for name in sorted(names)})
    return view


def encode(partition: int, view: View, before: View | None) -> dict[str, bytes | None]:
    """The keys to write so that the store, which holds `before`, holds `view`. None deletes a key."""
    key = subjects.view_key(partition, view.aggregate)
    parts = part_count(len(view.pods))
    parts_before = part_count(len(before.pods)) if before is not None else 0
    if parts == 0:
        changes: dict[str, bytes | None] = {f"{key}.{n}": None for n in range(parts_before)}
        changes[key] = _encoder.encode(Head(_sorted(view)))
        return changes
    divided = _divided(view.pods, parts)
    divided_before = _divided(before.pods, parts) if before is not None and parts_before == parts else None
    changes = {f"{key}.{n}": None for n in range(parts, parts_before)}
    for n, part in enumerate(divided):
        if divided_before is None or divided_before[n] != part:
            changes[f"{key}.{n}"] = _encoder.encode(part)
    changes[key] = _encoder.encode(Head(msgspec.structs.replace(view, pods={}), parts))
    return changes


def removed(partition: int, view: View) -> dict[str, bytes | None]:
    """The keys to delete so that the store no longer holds `view`."""
    key = subjects.view_key(partition, view.aggregate)
    changes: dict[str, bytes | None] = {f"{key}.{n}": None for n in range(part_count(len(view.pods)))}
    changes[key] = None
    return changes


class Assembler:
    """Puts views together from keys as they come, in commit order; the head of a view comes after its changed parts."""

    def __init__(self) -> None:
        self._parts: dict[Aggregate, dict[int, dict[str, Pod]]] = {}

    def feed(self, key: str, data: bytes | None) -> tuple[Aggregate, View | None] | None:
        """The view that this key completes (None: it is deleted); None for a part or a fence. Raises Unreadable."""
        _, aggregate, part = subjects.parse_view_key(key)
        if aggregate is None:
            return None
        try:
            if part is not None:
                parts = self._parts.setdefault(aggregate, {})
                if data is None:
                    parts.pop(part, None)
                else:
                    parts[part] = _parts.decode(data)
                return None
            if data is None:
                self._parts.pop(aggregate, None)
                return aggregate, None
            head = _heads.decode(data)
        except msgspec.DecodeError as error:
            raise Unreadable(f"{key}: {error}") from error
        if head.parts == 0:
            self._parts.pop(aggregate, None)
            return aggregate, head.view
        parts = self._parts.get(aggregate, {})
        pods = {name: pod for n in range(head.parts) for name, pod in parts.get(n, {}).items()}
        ordered = {name: pods[name] for name in sorted(pods)}
        return aggregate, msgspec.structs.replace(head.view, pods=ordered)


def assemble(stored: dict[str, bytes]) -> dict[Aggregate, View]:
    """All views that these keys hold (parts before heads, whatever their order). Raises Unreadable."""
    assembler = Assembler()
    views: dict[Aggregate, View] = {}
    for key in sorted(stored, key=lambda key: -key.count(".")):
        made = assembler.feed(key, stored[key])
        if made is not None and made[1] is not None:
            views[made[0]] = made[1]
    return views
