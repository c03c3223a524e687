"""What decisions depend on apart from the view: flags of the reconciler, as plain data."""

from __future__ import annotations

from typing import Final

import msgspec

from bus.times import SECOND


class Settings(msgspec.Struct, frozen=True):
    """Times in nanoseconds of log time."""

    pod_failure_grace: int = 20 * SECOND
    """How long a pod may show a reason that can heal before its sandbox is Failed (DESIGN §11, `--pod-failure-grace`)."""
    in_between_delay: int = SECOND // 4
    """How long a state that nobody waits for must hold before it is written (DESIGN §6, Writes are the cost)."""
    command_ttl: int = 30 * SECOND
    """After so long a command must not be performed any more."""
    creates_per_command: int = 64


DEFAULT: Final = Settings()
