"""Flags as Go programs take them, made into what click takes (controller-behaviour.md §8.1).

The stock controller's deployments say `-metrics-bind-address=:8443`, `--leader-elect` and `--metrics-secure=false`. A long flag with one dash
gets its second; a boolean without a value gets `=true`, so that it cannot swallow the next word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import click

from sandlog.options import GoBool


def _options(command: click.Command) -> Iterator[click.Option]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield parameter
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _options(child)


def long_flags(command: click.Command) -> dict[str, bool]:
    """Every long flag of a command and those below it, without its dashes; True for those that are booleans."""
    return {
        name.lstrip("-"): isinstance(option.type, GoBool)
        for option in _options(command)
        for name in option.opts
        if name.startswith("--")
    }


def go_style(arguments: Sequence[str], flags: dict[str, bool]) -> list[str]:
    """`arguments` with each known flag in the form that click reads; the rest, and all that follows `--`, untouched."""
    return list(_rewritten(arguments, flags))


def _rewritten(arguments: Iterable[str], flags: dict[str, bool]) -> Iterator[str]:
    words = iter(arguments)
    for word in words:
        if word == "--":
            yield word
            yield from words
            return
        name, equals, _ = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in flags or len(name) < 2:
            yield word
        elif flags[name] and not equals:
            yield f"--{name}=true"
        else:
            yield "--" + word.lstrip("-")
