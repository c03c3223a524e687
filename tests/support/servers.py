"""API servers that tests run against."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.controlplane import ControlPlane


def required(reason: str) -> None:
    """Skip for want of a real part; a failure where the checks were to prepare it."""
    if os.environ.get("SANDLOG_REQUIRE_REAL"):
        pytest.fail(f"SANDLOG_REQUIRE_REAL is set, but {reason}")
    pytest.skip(reason)


class Server:
    """An API server to test against."""

    def __init__(
        self, kind: str, url: str, kubeconfig: Path, tokens: dict[str, str], plane: ControlPlane | None
    ) -> None:
        self.kind, self.url, self.kubeconfig, self.tokens, self.plane = kind, url, kubeconfig, tokens, plane

    @property
    def real(self) -> bool:
        return self.plane is not None
