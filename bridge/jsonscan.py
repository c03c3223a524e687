"""Takes JSON apart one level deep without recursion, for what nests deeper than a decoder follows.

The API server accepts 10,000 levels in a field of ours that may hold anything; msgspec gives up at about 1,000. Such an object must
harm only itself (DESIGN §8.7), so the list or event that it came in is taken apart here. Slow; used only then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
_BLANK = b" \t\r\n"


class NotJson(ValueError):
    """The bytes are no object or array of JSON."""


def members(data: bytes) -> dict[str, bytes]:
    """The members of an object, values as they stand. Raises NotJson."""
    found: dict[str, bytes] = {}
    for part in _parts(data, b"{", b"}"):
        key = _TOKEN.match(part)
        if key is None or not part.startswith(b'"'):
            raise NotJson("a member without a name")
        rest = part[key.end() :].lstrip(_BLANK)
        if not rest.startswith(b":"):
            raise NotJson("a member without a value")
        try:
            found[msgspec.json.decode(key.group(), type=str)] = rest[1:].strip(_BLANK)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotJson(str(error)) from error
    return found


def elements(data: bytes) -> list[bytes]:
    """The elements of an array, as they stand. Raises NotJson."""
    return list(_parts(data, b"[", b"]"))


def _parts(data: bytes, opening: bytes, closing: bytes) -> Iterator[bytes]:
    data = data.strip(_BLANK)
    if not (data.startswith(opening) and data.endswith(closing) and len(data) > 1):
        raise NotJson("not what was expected")
    depth, start, last = 0, 1, len(data) - 1
    for token in _TOKEN.finditer(data):
        first = token.group()[:1]
        if first in (b"{", b"["):
            depth += 1
        elif first in (b"}", b"]"):
            depth -= 1
            if depth <= 0 and token.start() != last:
                raise NotJson("something follows")
        elif first == b"," and depth == 1:
            yield data[start : token.start()].strip(_BLANK)
            start = token.end()
    if depth != 0:
        raise NotJson("not closed")
    if tail := data[start:last].strip(_BLANK):
        yield tail
