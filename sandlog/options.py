"""What all commands' flags have in common: their environment variables, Go's notations, and the flags of the connection."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from bus.connection import ConnectionSettings
from bus.natsserver import default_data_directory

F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class GoBool(click.ParamType[bool]):
    """A boolean flag of Go: `--flag`, `--flag=true`, `--flag=false`."""

    name = "boolean"
    _words: Mapping[str, bool] = {
        **dict.fromkeys(("1", "t", "true", "yes", "on"), True),
        **dict.fromkeys(("0", "f", "false", "no", "off", ""), False),
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        if isinstance(value, bool):
            return value
        known = self._words.get(str(value).lower())
        if known is None:
            self.fail(f"{value!r} is neither true nor false", param, ctx)
        return known


class Duration(click.ParamType[float]):
    """Seconds, from Go's notation (`10m`, `1h30m`, `500ms`), days (`7d`) or a bare number of seconds; negative ones only if `signed`."""

    name = "duration"

    def __init__(self, *, signed: bool = False) -> None:
        self._signed = signed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip()
        digits = text[1:] if text[:1] in ("-", "+") else text
        try:
            seconds = float(digits)
        except ValueError:
            seconds = sum(float(amount) * _UNITS[unit] for amount, unit in _DURATION.findall(digits))
            if _DURATION.sub("", digits):
                seconds = math.nan
        if not digits or digits[0] in "+-" or not math.isfinite(seconds):
            self.fail(f"{value!r} is no duration: write it like 30s, 10m, 1h30m or 7d", param, ctx)
        if text[0] != "-" or not seconds:
            return seconds
        if not self._signed:
            self.fail(f"{value!r} is negative: write it like 30s, 10m, 1h30m or 7d", param, ctx)
        return -seconds


class Size(click.ParamType[int]):
    """Bytes, from a number with K, M, G or T (powers of 1024, with or without `iB`)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no size: write it like 512M or 10G", param, ctx)
        return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


DURATION: Final = Duration()
SIGNED_DURATION: Final = Duration(signed=True)
"""For flags of the stock controller that give a meaning to negative ones."""
SIZE: Final = Size()
GO_BOOL: Final = GoBool()


def variable(flag: str) -> str:
    """The environment variable of a flag: `--js-domain` is SANDLOG_JS_DOMAIN."""
    return "SANDLOG_" + flag.lstrip("-").replace("-", "_").upper()


def option(*names: str, aliases: tuple[str, ...] = (), **settings: Any) -> Callable[[F], F]:
    """A click option with its environment variable, which --help shows; `aliases` are further variables, after ours."""
    long = next(name for name in names if name.startswith("--"))
    settings.setdefault("show_envvar", True)
    settings.setdefault("show_default", settings.get("default") not in (None, ()))
    return click.option(*names, envvar=[variable(long), *aliases], **settings)


def boolean(*names: str, default: bool = False, **settings: Any) -> Callable[[F], F]:
    """A flag that is given in any of Go's ways."""
    return option(*names, type=GO_BOOL, default=default, metavar="[true|false]", **settings)


class Target(msgspec.Struct, frozen=True):
    """Which NATS a command speaks to. `connection` None: the local server of `data_directory`."""

    connection: ConnectionSettings | None
    data_directory: Path
    timeout: float

    def settings(self, url: str) -> ConnectionSettings:
        """How to connect to the local server at `url`."""
        return ConnectionSettings(url=url, connect_timeout=self.timeout)


_CONNECTION: Final = (
    option("--nats", aliases=("NATS_URL",), metavar="URL", help="NATS servers, by commas. Without it: a local server."),
    option("--creds", aliases=("NATS_CREDS",), type=click.Path(path_type=Path), help="Credentials file of NATS."),
    option("--nkey", aliases=("NATS_NKEY",), type=click.Path(path_type=Path), help="NKey seed file of NATS."),
    option("--user", aliases=("NATS_USER",), help="User name (or token, without --password) for NATS."),
    option("--password", aliases=("NATS_PASSWORD",), help="Password for NATS."),
    option("--tlsca", aliases=("NATS_CA",), type=click.Path(path_type=Path), help="Certificate authority of NATS."),
    option("--tlscert", aliases=("NATS_CERT",), type=click.Path(path_type=Path), help="Client certificate for NATS."),
    option("--tlskey", aliases=("NATS_KEY",), type=click.Path(path_type=Path), help="Client key for NATS."),
    boolean("--tlsfirst", help="TLS before NATS's own greeting."),
    option("--js-domain", aliases=("NATS_JS_DOMAIN",), help="JetStream domain."),
    option("--timeout", aliases=("NATS_TIMEOUT",), type=DURATION, default="10s", help="How long to try to connect."),
    option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"Data of the local NATS server.  [default: {default_data_directory()}]".replace(str(Path.home()), "~"),
    ),
)


def _target(given: dict[str, Any]) -> Target:
    names = ("nats", "creds", "nkey", "user", "password", "tlsca", "tlscert", "tlskey", "tlsfirst", "js_domain")
    taken = {name: given.pop(name) for name in names}
    timeout = given.pop("timeout")
    directory = given.pop("data_dir") or default_data_directory()
    url = taken["nats"]
    if not url:
        unused = [f"--{name.replace('_', '-')}" for name, value in taken.items() if value and name != "nats"]
        if unused:
            raise click.UsageError(f"{', '.join(unused)}: only together with --nats URL")
        return Target(None, directory, timeout)
    # As the nats CLI has it: a user without a password is a token.
    token = taken["user"] if taken["user"] and not taken["password"] else None
    settings = ConnectionSettings(
        url=url,
        credentials=taken["creds"],
        nkey=taken["nkey"],
        user=None if token else taken["user"],
        password=taken["password"],
        token=token,
        tls_ca=taken["tlsca"],
        tls_certificate=taken["tlscert"],
        tls_key=taken["tlskey"],
        tls_first=taken["tlsfirst"],
        domain=taken["js_domain"],
        connect_timeout=timeout,
    )
    return Target(settings, directory, timeout)


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The flags of the connection, handed to the command as one `target: Target`."""

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        return function(target=_target(given), **given)

    for decorate in reversed(_CONNECTION):
        command = decorate(command)
    return command


output_option = option(
    "--output", "-o", type=click.Choice(("text", "json")), default="text", help="What to print: for people or programs."
)
cluster_option = option("--cluster", metavar="NAME", help="Only this cluster. Needed where a name is in several.")
