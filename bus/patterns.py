"""Subjects and their wildcards: `*` is one token, a final `>` one or more."""

from __future__ import annotations

from collections.abc import Sequence


def without_covered(subjects: Sequence[str]) -> tuple[str, ...]:
    """Drop what another subject covers: a consumer refuses filters that overlap."""
    unique = sorted(set(subjects))
    return tuple(s for s in unique if not any(o != s and covers(o, s) for o in unique))


def covers(pattern: str, subject: str) -> bool:
    """Whether every subject that `subject` (itself a pattern perhaps) matches is matched by `pattern`."""
    wide, narrow = pattern.split("."), subject.split(".")
    for index, token in enumerate(wide):
        if token == ">":
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == ">" or (token != "*" and token != narrow[index]):
            return False
    return len(wide) == len(narrow)
