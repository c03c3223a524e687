"""How `sandlog` ends when something is wrong: one exit code and one sentence each. docs/cli.md and `sandlog --help` list the codes."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
NO_NATS: Final = 3
NO_API_SERVER: Final = 4
NOT_FOUND: Final = 5
REFUSED: Final = 6

MEANINGS: Final = {
    OK: "it worked",
    FAILURE: "it failed, or `status` found something wrong",
    USAGE: "the command line is wrong, or a file that it names cannot be used",
    NO_NATS: "NATS cannot be reached, or refused us",
    NO_API_SERVER: "the Kubernetes API server cannot be reached, or its configuration cannot be read",
    NOT_FOUND: "what was asked for does not exist",
    REFUSED: "refused to start: the stock controller holds its lease, or live bridges of another cluster hold the name",
}


def help_text() -> str:
    """The table of exit codes, for --help."""
    return "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items()) + "."


class Stop(Exception):
    """End the command with `code` after saying `message` on standard error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def no_nats(message: str) -> Stop:
    return Stop(NO_NATS, message)


def usage(message: str) -> Stop:
    return Stop(USAGE, message)


def not_found(message: str) -> Stop:
    return Stop(NOT_FOUND, message)


def failed(message: str) -> Stop:
    return Stop(FAILURE, message)
