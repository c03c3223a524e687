"""What the scopes of a watched cluster share, and how one of them is doing."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.cluster import ClusterClient
from bridge.epochs import Epochs
from bridge.listing import PAGE
from bridge.observe import LIMIT, Observer
from bridge.outlet import Outlet
from bridge.pace import Backoff
from bridge.recent import Recent
from bus.clock import Randomness
from bus.metrics import Metrics

ADVICE: Final = {
    401: "the API server does not know us: check the credentials in the kubeconfig",
    403: "allow get, list and watch on {plural} (deploy/rbac.yaml)",
    404: "the API server does not know {plural}: install the CRDs (sandlog crds | kubectl apply -f -)",
}
"""What to do about a status that the API server refuses a list or watch with."""


class WatchSettings(msgspec.Struct, frozen=True):
    """`namespaces` () is all. Times in seconds, sizes in bytes. `message_limit`: at most what the NATS server takes (`max_payload`)."""

    digest_key: bytes
    digest_annotations: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    relist_interval: float = 300.0
    idle_timeout: float = 90.0
    """More than the minute after which the API server sends a bookmark."""
    watch_timeout: float = 300.0
    """What the server is asked to end a watch after; from this to twice as much, so that they do not all end at once."""
    message_limit: int = LIMIT
    page_size: int = PAGE
    backoff_longest: float = 30.0


class Parts(msgspec.Struct, frozen=True):
    cluster: str
    client: ClusterClient
    outlet: Outlet
    observer: Observer
    epochs: Epochs
    randomness: Randomness
    metrics: Metrics
    settings: WatchSettings
    recent: Recent | None

    def backoff(self) -> Backoff:
        return Backoff(self.randomness, longest=self.settings.backoff_longest)


class ScopeStatus(msgspec.Struct, frozen=True):
    """How a scope is doing. `age`: seconds since the API server was last heard, `list_age`: since the last whole list; None for never."""

    scope: str
    namespace: str
    state: str
    age: float | None
    list_age: float | None
    resource_version: int
    epoch: int
    error: str
