"""Flags of the stock controller that mean nothing here: accepted, so that its manifests work, with one warning each that says why.

Names and defaults: controller-behaviour.md §8.1. A flag leaves this table when its subject is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from sandlog.options import SIGNED_DURATION, boolean, option


class Ignored(msgspec.Struct, frozen=True):
    """A flag without effect. `kind` is how Go parses it: `bool`, `string`, `duration`."""

    kind: str
    why: str


_WEBHOOK: Final = "no webhook is served, nor does the stock controller register one"

IGNORED: Final[Mapping[str, Ignored]] = {
    "leader-elect": Ignored("bool", "there is no leader: any number of replicas work at once, the log arbitrates"),
    "expectation-timeout": Ignored(
        "duration", "there are no expectations: what is open is in the view, and ends by observation"
    ),
    "enable-http2": Ignored("bool", "health and metrics are served over HTTP/1.1 only"),
    "allow-weak-tls-keylengths": Ignored("bool", "key lengths are what the OpenSSL of this machine allows"),
    "webhook-cert-path": Ignored("string", _WEBHOOK),
    "webhook-cert-name": Ignored("string", _WEBHOOK),
    "webhook-cert-key": Ignored("string", _WEBHOOK),
    "zap-stacktrace-level": Ignored("string", "stack traces come with unexpected errors only, at any level"),
    "zap-time-encoding": Ignored("string", "times are always RFC 3339 in UTC"),
}

_MAKERS: Final[Mapping[str, Callable[..., Any]]] = {
    "bool": lambda name, **kw: boolean(name, **kw),
    "string": lambda name, **kw: option(name, default=None, **kw),
    "duration": lambda name, **kw: option(name, type=SIGNED_DURATION, default=None, **kw),
}


def ignored_options(function: Any) -> Any:
    """All of IGNORED as hidden options; their values never reach the command."""
    for name, flag in IGNORED.items():
        function = _MAKERS[flag.kind](f"--{name}", expose_value=False, callback=_remember, hidden=True)(function)
    return function


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if context.get_parameter_source(str(parameter.name)) not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
        context.meta.setdefault("sandlog.ignored", []).append(str(parameter.name).replace("_", "-"))
    return value


def warnings(context: click.Context) -> Iterator[tuple[str, str]]:
    """(flag, why it has no effect) of each that was given, on the command line or by its variable."""
    for name in sorted(set(context.meta.get("sandlog.ignored", ()))):
        yield f"--{name}", IGNORED[name].why
