"""Kubernetes' strategic merge patch, for what `spec.shardPatches` hold: patches of a PodTemplateSpec. Pure.

The semantics are apimachinery's (`strategicpatch`, as the API server applies a patch): objects merge recursively, null removes, a list
either merges by its key or is replaced whole, and `$patch`, `$retainKeys`, `$setElementOrder/x`, `$deleteFromPrimitiveList/x` direct it.
Deliberate kindnesses where the original fails, leaves rubbish or depends on where a directive stands: `$patch: merge` is the default
spelled out, `$patch: replace` of what is not there sets it, directives and nulls never stay in what is set whole, an unknown field
merges as an object of atomic lists, and an order given to empty lists is no error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

_CONTAINER_LISTS: Final = {
    "env": "name",
    "ports": "containerPort",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
}

POD_TEMPLATE_LISTS: Final[Mapping[str, str]] = {
    "metadata.finalizers": "",
    "metadata.ownerReferences": "uid",
    "spec.containers": "name",
    "spec.initContainers": "name",
    "spec.ephemeralContainers": "name",
    **{
        f"spec.{containers}.{field}": key
        for containers in ("containers", "initContainers", "ephemeralContainers")
        for field, key in _CONTAINER_LISTS.items()
    },
    "spec.hostAliases": "ip",
    "spec.imagePullSecrets": "name",
    "spec.resourceClaims": "name",
    "spec.schedulingGates": "name",
    "spec.topologySpreadConstraints": "topologyKey",
    "spec.volumes": "name",
    "spec.volumes.ephemeral.volumeClaimTemplate.metadata.finalizers": "",
    "spec.volumes.ephemeral.volumeClaimTemplate.metadata.ownerReferences": "uid",
}
"""The lists of a PodTemplateSpec that merge: path → merge key, '' for a list of primitives that merges as a set.

These are the `patchStrategy`/`patchMergeKey` tags of k8s.io/api v0.36 core/v1; every list not named is atomic.
"""

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder/"
_DELETE: Final = "$deleteFromPrimitiveList/"
_ABSENT: Final = object()


class PatchError(Exception):
    """The patch cannot be applied. The text names the place in it, never a value."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path or 'patch'} {problem}")
        self.path = path


class _At(NamedTuple):
    """A place in the patch: as the table of lists names it, and as an error shows it."""

    lists: Mapping[str, str]
    rule: str = ""
    shown: str = ""

    def field(self, name: str) -> _At:
        return _At(
            self.lists,
            f"{self.rule}.{name}" if self.rule else name,
            f"{self.shown}.{name}" if self.shown else name,
        )

    def item(self, index: int) -> _At:
        return self._replace(shown=f"{self.shown}[{index}]")

    @property
    def merge_key(self) -> str | None:
        """None: the list is atomic; '': a set of primitives."""
        return self.lists.get(self.rule)


def apply(original: dict[str, Any], patch: Any, lists: Mapping[str, str] = POD_TEMPLATE_LISTS) -> dict[str, Any]:
    """`original` with `patch` merged into it; neither is changed, and the result may share parts with both. Raises PatchError."""
    at = _At(lists)
    if not isinstance(patch, dict):
        raise PatchError("", "is not an object")
    return _merge_objects(original, patch, at)


def _merge_objects(original: dict[str, Any], patch: dict[str, Any], at: _At) -> dict[str, Any]:
    directive = patch.get(_PATCH, "merge")
    if directive == "replace":
        return {key: _literal(value) for key, value in patch.items() if key != _PATCH and value is not None}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise PatchError(at.shown, "has an unknown $patch directive")
    merged = _retained(original, patch, at)
    ordered = _apply_orders(merged, patch, at)
    for key, value in patch.items():
        if key.startswith(_DELETE):
            _delete_primitives(merged, key[len(_DELETE) :], value, at)
    for key, value in patch.items():
        if not _is_directive(key) and key not in ordered:
            _merge_field(merged, key, value, at.field(key))
    return merged


def _is_directive(key: str) -> bool:
    return key in (_PATCH, _RETAIN) or key.startswith((_ORDER, _DELETE))


def _merge_field(merged: dict[str, Any], key: str, value: Any, at: _At) -> None:
    present = merged.get(key)
    if value is None or (_dropped(value) and not isinstance(present, dict)):
        merged.pop(key, None)
    elif isinstance(value, dict) and isinstance(present, dict):
        merged[key] = _merge_objects(present, value, at)
    elif isinstance(value, list) and isinstance(present, list) and at.merge_key is not None:
        merged[key] = _merge_lists(present, value, at)
    else:
        merged[key] = _literal(value)


def _retained(original: dict[str, Any], patch: dict[str, Any], at: _At) -> dict[str, Any]:
    """A copy of `original`, of which `$retainKeys` keeps only what it names; what the patch sets must be named too."""
    if _RETAIN not in patch:
        return dict(original)
    names = _list_of_primitives(patch[_RETAIN], at.field(_RETAIN))
    keep = {name for name in names if isinstance(name, str)}
    for key, value in patch.items():
        if value is not None and not _is_directive(key) and key not in keep:
            raise PatchError(at.field(key).shown, "is set but not named in $retainKeys")
    return {key: value for key, value in original.items() if key in keep}


def _apply_orders(merged: dict[str, Any], patch: dict[str, Any], at: _At) -> set[str]:
    """Merge the lists that a `$setElementOrder/x` speaks of; returns their names."""
    done = set()
    for directive, order in patch.items():
        if not directive.startswith(_ORDER):
            continue
        key = directive[len(_ORDER) :]
        place = at.field(key)
        if not isinstance(order, list):
            raise PatchError(at.field(directive).shown, "is not a list")
        present, changes = merged.get(key, _ABSENT), patch.get(key, _ABSENT)
        for found in (present, changes):
            if found is not _ABSENT and not isinstance(found, list):
                raise PatchError(place.shown, "is not a list")
        done.add(key)
        if present is not _ABSENT or changes is not _ABSENT:
            merged[key] = _in_set_order(present, changes, order, place)
    return done


def _in_set_order(present: Any, changes: Any, order: list[Any], at: _At) -> list[Any]:
    key = at.merge_key or ""
    if changes is not _ABSENT:
        _check_order(changes, order, key, at)
    if changes is _ABSENT:
        both = present
    elif present is _ABSENT:
        both = _literal(changes)
    else:
        both = _merge_lists(present, changes, at) if at.merge_key is not None else _literal(changes)
    return _arranged(both, order, [] if present is _ABSENT else present, key, at)


def _check_order(changes: list[Any], order: list[Any], key: str, at: _At) -> None:
    """What the patch sets must stand in the order list, in the same order."""
    if not order or not changes:
        return
    places = iter(_identities(order, key, at))
    for index, item in enumerate(changes):
        if isinstance(item, dict) and _PATCH in item:
            continue
        wanted = _identity(item, key, at.item(index))
        if not any(place == wanted for place in places):
            raise PatchError(at.shown, "does not match its $setElementOrder list")


def _delete_primitives(merged: dict[str, Any], key: str, value: Any, at: _At) -> None:
    place = at.field(key)
    present = merged.get(key)
    doomed = set(_identities(_list_of_primitives(value, place), "", place))
    if not isinstance(present, list):
        return
    if place.merge_key != "":
        raise PatchError(place.shown, "is not a list that $deleteFromPrimitiveList can change")
    merged[key] = [item for item in present if _identity(item, "", place) not in doomed]


def _merge_lists(original: list[Any], patch: list[Any], at: _At) -> list[Any]:
    key = at.merge_key
    assert key is not None
    if not original and not patch:
        return original
    if key == "":
        unique = {_identity(item, "", at): item for item in (*original, *patch)}
        return _arranged(list(unique.values()), patch, original, "", at)
    kept, changes, replaced = _directed(original, patch, key, at)
    if replaced:
        return [_literal(item) for _, item in changes]
    both = list(kept)
    where: dict[Any, int] = {}
    for index, item in enumerate(kept):
        where.setdefault(_identity(item, key, at, required=False), index)
    for index, item in changes:
        identity = _identity(item, key, at.item(index))
        if identity in where:
            both[where[identity]] = _merge_objects(both[where[identity]], item, at.item(index))
        else:
            where[identity] = len(both)
            both.append(_literal(item))
    return _arranged(both, [item for _, item in changes], kept, key, at)


def _directed(
    original: list[Any], patch: list[Any], key: str, at: _At
) -> tuple[list[Any], list[tuple[int, dict[str, Any]]], bool]:
    """What is left of `original` after the items with a `$patch`; the other items with their index; whether the list is replaced."""
    doomed, changes, replaced = set(), [], False
    for index, item in enumerate(patch):
        place = at.item(index)
        identity = None if isinstance(item, dict) and item.get(_PATCH) == "replace" else _identity(item, key, place)
        directive = item.get(_PATCH, "merge")
        if directive == "merge":
            changes.append((index, {name: value for name, value in item.items() if name != _PATCH}))
        elif directive == "delete":
            doomed.add(identity)
        elif directive == "replace":
            replaced = True
        else:
            raise PatchError(place.shown, "has an unknown $patch directive")
    kept = [item for item in original if _identity(item, key, at, required=False) not in doomed]
    return kept, changes, replaced


def _arranged(items: list[Any], order: list[Any], original: list[Any], key: str, at: _At) -> list[Any]:
    """`items` as the original arranges them: those of the patch in its order, the others in theirs, the two woven by the old order.

    Where one of two items was not there before, the patch's comes first.
    """
    ranks, old = _ranks(order, key, at), _ranks(original, key, at, required=False)
    identified = [(_identity(item, key, at, required=False), item) for item in items]
    mine = sorted((pair for pair in identified if pair[0] in ranks), key=lambda pair: ranks[pair[0]])
    others = sorted((pair for pair in identified if pair[0] not in ranks), key=lambda pair: old.get(pair[0], len(old)))
    woven, next_mine = [], 0
    for identity, item in others:
        while next_mine < len(mine):
            rank = old.get(mine[next_mine][0])
            if rank is not None and identity in old and old[identity] < rank:
                break
            woven.append(mine[next_mine][1])
            next_mine += 1
        woven.append(item)
    return woven + [item for _, item in mine[next_mine:]]


def _ranks(items: Iterable[Any], key: str, at: _At, *, required: bool = True) -> dict[Any, int]:
    ranks: dict[Any, int] = {}
    for index, identity in enumerate(_identities(items, key, at, required=required)):
        ranks.setdefault(identity, index)
    return ranks


def _identities(items: Iterable[Any], key: str, at: _At, *, required: bool = True) -> list[Any]:
    return [_identity(item, key, at.item(index), required=required) for index, item in enumerate(items)]


def _identity(item: Any, key: str, at: _At, *, required: bool = True) -> Any:
    """What two items of a list are the same by: the merge key's value, or the primitive itself; 1, 1.0 and true are three."""
    if key == "":
        value = item
    elif not isinstance(item, dict):
        raise PatchError(at.shown, "is not an object")
    else:
        value = item.get(key)
        if value is None:
            if required:
                raise PatchError(at.shown, f"has no {key}, by which this list is merged")
            return (None, id(item))
    if isinstance(value, dict | list):
        raise PatchError(at.shown, "is not a plain value" if key == "" else f"has a {key} that is not a plain value")
    return (type(value), value)


def _list_of_primitives(value: Any, at: _At) -> list[Any]:
    if not isinstance(value, list) or any(isinstance(item, dict | list) for item in value):
        raise PatchError(at.shown, "is not a list of plain values")
    return value


def _dropped(value: Any) -> bool:
    return isinstance(value, dict) and value.get(_PATCH) == "delete"


def _literal(value: Any) -> Any:
    """A part of the patch that nothing is there to merge with: without nulls and directives."""
    if isinstance(value, dict):
        return {
            key: _literal(part)
            for key, part in value.items()
            if part is not None and not _dropped(part) and not _is_directive(key)
        }
    if isinstance(value, list):
        return [
            _literal(item)
            for item in value
            if not _dropped(item) and not (isinstance(item, dict) and item.keys() == {_PATCH})
        ]
    return value
