"""Errors of the transport and the cluster as sentences and exit codes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bus.connection import ApiError, Unreachable
from bus.log import LogUnavailable
from bus.membership_nats import MembershipUnavailable
from bus.viewstore import ViewStoreUnavailable
from sandlog.exits import no_nats

NATS_ERRORS = (LogUnavailable, ViewStoreUnavailable, MembershipUnavailable, Unreachable, ApiError)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """Turns what NATS could not do into an exit with code 3."""
    try:
        yield
    except NATS_ERRORS as error:
        raise no_nats(f"NATS does not answer as it should: {error}; `sandlog status` says more") from error
