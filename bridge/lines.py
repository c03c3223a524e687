"""Lines out of chunks of bytes, without looking at any byte twice."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 16 * 1024 * 1024
"""Bytes of a line. etcd takes objects of 1.5 MiB; an event of one is a little longer."""


class LineTooLong(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(f"a watch event is longer than {limit} bytes")


class Lines:
    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._begun: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without their ends; empty ones are left out. Raises LineTooLong."""
        parts = chunk.split(b"\n")
        if len(parts) > 1 and self._begun:
            self._begun.append(parts[0])
            parts[0] = b"".join(self._begun)
            self._begun, self._size = [], 0
        rest = parts.pop()
        if rest:
            self._begun.append(rest)
            self._size += len(rest)
        if self._size > self._longest:
            raise LineTooLong(self._longest)
        return [part for part in parts if part]
