"""Whether the stock controller is at work: two controllers on one set of sandboxes would fight (controller-behaviour.md §8.3)."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

import msgspec
import structlog

from bridge.cluster import ClusterClient, Response
from bus.names import STOCK_LEASE
from bus.times import SECOND, parse_time

logger = structlog.get_logger(__name__)

_GROUP: Final = "/apis/coordination.k8s.io/v1"
DEFAULT_SECONDS: Final = 15


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    renew_time: str | None = None
    lease_duration_seconds: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    spec: _LeaseSpec = _LeaseSpec()


class _Leases(msgspec.Struct, frozen=True):
    items: tuple[_Lease, ...] = ()


async def stock_controller_holds(client: ClusterClient, namespace: str = "") -> str | None:
    """The identity that holds the stock controller's lease now, None if nobody does.

    Looks in `namespace` first ('' to skip), then in all of them if that is allowed. Where leases cannot be read it says so in the log output
    and answers None. Raises Unreachable.
    """
    refused = 0
    for path, query in _places(namespace):
        response = await client.request("GET", path, query=query)
        if response.status == 200:
            for lease in _leases(response, whole=query is None):
                if held(lease.spec, server_time(response)):
                    return lease.spec.holder_identity
        elif response.status != 404:
            refused = response.status
    if refused:
        advice = (
            "allow get and list on leases (deploy/rbac.yaml), or make sure that the stock controller is not running"
        )
        logger.warning("cannot tell whether the stock controller runs", status=refused, advice=advice)
    return None


def held(spec: _LeaseSpec, now: int | None) -> bool:
    """Whether somebody holds it at the server's time `now` (nanoseconds); where times are missing, held as long as a holder is named."""
    if not spec.holder_identity:
        return False
    renewed = parse_time(spec.renew_time or "")
    if renewed is None or now is None:
        return True
    return now <= renewed + (spec.lease_duration_seconds or DEFAULT_SECONDS) * SECOND


def server_time(response: Response) -> int | None:
    """The API server's own time of an answer, in nanoseconds, from its `Date`; None if it does not say."""
    try:
        return int(parsedate_to_datetime(response.headers["date"]).timestamp()) * SECOND
    except (KeyError, ValueError):
        return None


def _places(namespace: str) -> list[tuple[str, dict[str, str] | None]]:
    everywhere: tuple[str, dict[str, str] | None] = (
        f"{_GROUP}/leases",
        {"fieldSelector": f"metadata.name={STOCK_LEASE}"},
    )
    if not namespace:
        return [everywhere]
    return [(f"{_GROUP}/namespaces/{namespace}/leases/{STOCK_LEASE}", None), everywhere]


def _leases(response: Response, *, whole: bool) -> tuple[_Lease, ...]:
    try:
        if whole:
            return (msgspec.json.decode(response.body, type=_Lease),)
        return msgspec.json.decode(response.body, type=_Leases).items
    except msgspec.MsgspecError:
        return ()
