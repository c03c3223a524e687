"""The key of the digests that stand for secret values in the log (DESIGN §4): as configured, else one of our own."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import structlog

logger = structlog.get_logger(__name__)

FILE: Final = "redaction-key"


def key(configured: bytes | None, local_data: Path | None) -> bytes:
    """`local_data`: the data directory of a local NATS server, where a key of our own is kept as long as its log."""
    if configured is not None:
        return configured
    if local_data is not None:
        return _kept(local_data / FILE)
    logger.warning(
        "no --redaction-key: digests of secret values differ between bridges and after a restart; give all bridges the same key"
    )
    return secrets.token_bytes(32)


def _kept(file: Path) -> bytes:
    """Readable by us alone. Whoever comes second takes the first one's."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = file.read_bytes()
        if found:
            return found
        descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)
    made = secrets.token_hex(32).encode()
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(made)
    return made
