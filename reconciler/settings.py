"""What decisions depend on apart from the view: flags of the reconciler, as plain data."""

from __future__ import annotations

from typing import Final

import msgspec

from bus.times import SECOND


class Settings(msgspec.Struct, frozen=True):
    """Times in nanoseconds of log time."""

    pod_failure_grace: int = 20 * SECOND
    """How long a pod may show a reason that can heal before its sandbox is Failed (DESIGN §11, `--pod-failure-grace`)."""
    in_between_delay: int = 2 * SECOND
    """How long a state that nobody waits for must hold, unchanged, before it is written (DESIGN §6, Writes are the cost).

    The design said 250 ms from the first change: in a burst that wrote `Pending` just when the API server was busiest, 1.5 writes
    more per sandbox (docs/performance.md). A client that sees no phase yet takes it for pending.
    """
    in_between_limit: int = 15 * SECOND
    """However it changes, after so long it is written."""
    command_ttl: int = 30 * SECOND
    """After so long a command must not be performed any more."""
    creates_per_command: int = 64
    snapshot_registry: str = ""
    """Where snapshots are pushed to, verbatim (`--snapshot-registry`); '' refuses every snapshot (SNP-08)."""
    resume_pull_secret: str = ""
    """Added to a resumed sandbox's imagePullSecrets (`--resume-pull-secret`); '' for none (N-16)."""
    snapshot_patience: int = 1800 * SECOND
    """How old a pause's snapshot may become before the pause has failed (DESIGN §8.8); well above `--commit-job-timeout`."""

    orphan_patience: int = 600 * SECOND
    """How old a pause's snapshot whose sandbox goes may become before it stops waiting for the garbage collector (DESIGN §8.8)."""
    unpause_patience: int = 300 * SECOND
    """How long a snapshot's deletion waits for what its unpause Job does, whatever that Job's own deadline (DESIGN §8.6, §8.8)."""


DEFAULT: Final = Settings()
