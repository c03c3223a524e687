"""Where snapshots are pushed to, as a flag: what can begin an image's name (the grammar of distribution's references)."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from bus.names import MAX_REGISTRY

_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_REGISTRY: Final = re.compile(rf"(?:{_HOST}|{_PART})(?:/{_PART})*")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SHAPE: Final = "write it as HOST[:PORT][/PATH], the path in lower case, without a tag"


def check_registry(text: str) -> str:
    """`text`, without a slash at its end; '' is none. Raises ValueError that says what is wrong and what to write."""
    scheme = _SCHEME.fullmatch(text)
    if scheme:
        insecure = ", and --snapshot-registry-insecure for plain HTTP" if scheme[1].lower() == "http" else ""
        raise ValueError(f"{text!r} has a scheme, an image's name has none: write {scheme[2].strip('/')}{insecure}")
    registry = text.removesuffix("/")
    if len(registry) > MAX_REGISTRY:
        raise ValueError(f"it is longer than {MAX_REGISTRY} characters: no room is left for the images' names")
    if text and not _REGISTRY.fullmatch(registry):
        raise ValueError(f"{text!r} cannot begin an image's name: {_SHAPE}")
    return registry


class RegistryType(click.ParamType[str]):
    name = "registry"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_registry(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


REGISTRY: Final = RegistryType()
