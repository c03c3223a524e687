"""The version of this code, as the header `Sandlog-Code` and `sandlog --version` carry it."""

from __future__ import annotations

from typing import Final

CODE_VERSION: Final = "0.1.0"
