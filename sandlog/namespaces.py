"""Namespaces to watch: what can be the name of one, and which of them do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import structlog

from bridge.cluster import ClusterClient, Unreachable

logger = structlog.get_logger(__name__)

NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label (RFC 1123), as the API server demands of a namespace."""
TIMEOUT: Final = 5.0


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


async def missing(client: ClusterClient, names: Iterable[str]) -> list[str]:
    """Those that do not exist, each told in the log output. Where we may not look (403), or nobody answers, nothing is said."""
    found: list[str] = []
    for name in names:
        try:
            response = await client.request("GET", f"/api/v1/namespaces/{name}", timeout=TIMEOUT)
        except Unreachable:
            break
        if response.status == 404:
            found.append(name)
            logger.warning("the namespace does not exist: nothing is seen until somebody creates it", namespace=name)
    return found
