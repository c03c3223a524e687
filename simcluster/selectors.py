"""Label and field selectors, in the server's grammar, compiled to predicates over objects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from simcluster.errors import bad_request

Json = dict[str, Any]
Predicate = Callable[[Json], bool]

_SET = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s!=,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[^\s!=,()]+)\s*$")
_FIELD = re.compile(r"^\s*(?P<key>[^\s!=,]+?)\s*(?P<op>==|!=|=)(?P<value>.*)$")


class LabelTerm(msgspec.Struct, frozen=True):
    """One requirement: `op` is in, notin, exists or absent."""

    key: str
    op: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Json) -> bool:
        if self.op == "exists":
            return self.key in labels
        if self.op == "absent":
            return self.key not in labels
        value = labels.get(self.key)
        if self.op == "in":
            return value is not None and value in self.values
        return value is None or value not in self.values


def parse_labels(text: str) -> tuple[LabelTerm, ...]:
    """`a=b,c!=d,e in (f,g),h notin (i),j,!k`; 400 when it cannot be read."""
    return tuple(_label_term(part, text) for part in _split(text)) if text.strip() else ()


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _label_term(part: str, text: str) -> LabelTerm:
    if match := _SET.match(part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        return LabelTerm(match["key"], match["op"], values)
    if match := _EQUAL.match(part):
        return LabelTerm(match["key"], "notin" if match["op"] == "!=" else "in", frozenset((match["value"],)))
    if match := _EXISTS.match(part):
        return LabelTerm(match["key"], "absent" if match["not"] else "exists")
    raise bad_request(f"unable to parse requirement: found '{part}', expected: identifier in '{text}'")


def parse_fields(text: str, supported: tuple[str, ...]) -> tuple[tuple[str, str, bool], ...]:
    """`path=value,path!=value` as (path, value, wanted equal); 400 for a path the kind does not offer."""
    terms = []
    for part in text.split(","):
        if not part.strip():
            continue
        match = _FIELD.match(part)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        if match["key"] not in supported and match["key"] not in ("metadata.name", "metadata.namespace"):
            raise bad_request(f"field label not supported: {match['key']}")
        terms.append((match["key"], match["value"], match["op"] != "!="))
    return tuple(terms)


def field_value(obj: Json, path: str) -> str:
    """The field as the selector compares it; absent is the empty string."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if path == "source" and isinstance(value, dict):
        value = value.get("component")
    return "" if value is None else str(value)


def compile_selector(labels: str = "", fields: str = "", supported: tuple[str, ...] = ()) -> Predicate | None:
    """A predicate for both selectors; None when everything matches."""
    label_terms = parse_labels(labels)
    field_terms = parse_fields(fields, supported)
    if not label_terms and not field_terms:
        return None

    def matches(obj: Json) -> bool:
        found = obj["metadata"].get("labels") or {}
        return all(term.holds(found) for term in label_terms) and all(
            (field_value(obj, path) == value) is equal for path, value, equal in field_terms
        )

    return matches
