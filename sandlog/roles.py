"""Which roles a process runs, and what each is made of. The only place that knows their constructors."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog
import yaml

from bridge.credentials import CannotConfigure, Source
from bridge.execute import ExecuteSettings, Executor
from bridge.kube import KubeClient, KubeSettings
from bridge.lanes import LanesSettings
from bridge.recent import Recent
from bridge.watch import Watcher
from bridge.watch_parts import WatchSettings
from bus.clock import Clock
from bus.metrics import Metrics
from bus.times import SECOND
from bus.viewstore_shared import SharedViewStore
from projector.service import Projector, ProjectorSettings
from reconciler.service import Reconciler
from reconciler.settings import Settings as DecideSettings
from sandlog.adapter import Adapted
from sandlog.cluster_name import ClusterPresence
from sandlog.exits import NO_API_SERVER, Stop
from sandlog.fitting import by_text
from sandlog.run_options import RunSettings
from sandlog.runtime import Role, Supervisor
from sandlog.transport import Transport

logger = structlog.get_logger(__name__)

DEFAULT_CLUSTER: Final = "default"
OF_CLUSTER: Final = ("bridge", "executor")
ALL: Final = ("projector", "reconciler", "bridge", "executor")


class Cluster(msgspec.Struct, frozen=True):
    """A cluster as the bridge's roles in this process share it."""

    name: str
    client: KubeClient
    recent: Recent


class Parts(msgspec.Struct, frozen=True):
    """What roles are made from."""

    transport: Transport
    metrics: Metrics
    randomness: random.Random
    settings: RunSettings
    cluster: Cluster | None
    member: str
    redaction_key: bytes

    @property
    def clock(self) -> Clock:
        return self.transport.clock


def wanted(role: str) -> tuple[str, ...]:
    """The roles that a word of the command line stands for."""
    return ALL if role == "all" else (role,)


def member_name(settings: RunSettings) -> str:
    """This process among its peers: unique on one machine, and readable."""
    if settings.member:
        return settings.member
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}"


def legal_cluster_name(text: str) -> str:
    """A context's name as the name of a cluster: `kind_dev@admin` is `kind-dev-admin`."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return name if name and name != "all" else DEFAULT_CLUSTER


def cluster_name(settings: RunSettings, source: Source) -> str:
    """As --cluster says, else after the kubeconfig's context, else `default`."""
    if settings.cluster:
        return settings.cluster
    if settings.context:
        return legal_cluster_name(settings.context)
    if source.is_in_cluster:
        return DEFAULT_CLUSTER
    file = settings.kubeconfig or Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
    try:
        current = yaml.safe_load(file.read_text(encoding="utf-8")).get("current-context")
    except (OSError, yaml.YAMLError, AttributeError):
        return DEFAULT_CLUSTER
    return legal_cluster_name(str(current)) if current else DEFAULT_CLUSTER


@contextlib.asynccontextmanager
async def open_cluster(settings: RunSettings) -> AsyncIterator[Cluster]:
    """The cluster that the flags name. Raises Stop if its configuration cannot be used."""
    source = Source(settings.kubeconfig, settings.context)
    try:
        client = await KubeClient.open(KubeSettings(source, settings.qps, settings.burst))
    except CannotConfigure as error:
        raise Stop(NO_API_SERVER, f"{error}; name a kubeconfig with --kubeconfig FILE and --context NAME") from error
    async with client:
        name = cluster_name(settings, source)
        logger.info("cluster", cluster=name, server=client.address, namespaces=list(settings.namespaces) or "all")
        yield Cluster(name, client, Recent())


def _projector(parts: Parts) -> Role:
    transport = parts.transport
    settings = ProjectorSettings()
    return Adapted(
        Projector(
            transport.log,
            transport.views,
            transport.memberships,
            parts.clock,
            parts.randomness,
            parts.metrics,
            settings,
            name=parts.member,
        ),
        drains=False,
    )


def decide_settings(flags: RunSettings) -> DecideSettings:
    """What the flags say to decisions."""
    return DecideSettings(
        pod_failure_grace=int(flags.pod_failure_grace * SECOND),
        snapshot_registry=flags.snapshot_registry,
        resume_pull_secret=flags.resume_pull_secret,
        # A commit ends on its own before a pause gives it up.
        snapshot_patience=max(DecideSettings().snapshot_patience, 3 * flags.commit.timeout * SECOND),
    )


def _reconciler(parts: Parts) -> Role:
    transport = parts.transport
    settings = decide_settings(parts.settings)
    return Adapted(
        Reconciler(
            transport.log,
            transport.views,
            transport.memberships,
            parts.clock,
            parts.randomness,
            parts.metrics,
            settings,
            name=parts.member,
        ),
        drains=True,
    )


def lanes_of(api_calls: int) -> LanesSettings:
    """The executor's places for so many API calls at a time: pods are created with half of them at the most."""
    usual = LanesSettings()
    most = max(1, api_calls // 2)
    return LanesSettings(limit=api_calls, creates=min(usual.creates, most), most_creates=most)


def _executor(parts: Parts) -> Role:
    cluster = _cluster_of(parts)
    flags = parts.settings
    settings = ExecuteSettings(
        by=parts.member,
        lanes=lanes_of(flags.api_calls),
        commit=flags.commit,
    )
    executor = Executor(
        cluster.name,
        cluster.client,
        parts.transport.log,
        parts.clock,
        parts.randomness,
        parts.metrics,
        settings,
        cluster.recent,
    )
    announce = (parts.transport.memberships, f"executor.{cluster.name}", parts.member)
    return Adapted(
        executor, drains=True, status=lambda: {"ready": True, "in_flight": executor.in_flight}, announce=announce
    )


def _bridge(parts: Parts) -> Role:
    cluster, flags = _cluster_of(parts), parts.settings
    settings = WatchSettings(
        digest_key=parts.redaction_key,
        digest_annotations=flags.redacted_annotations,
        namespaces=flags.namespaces,
        relist_interval=flags.relist_interval,
    )
    presence = ClusterPresence(parts.transport.memberships, cluster.name, parts.member)
    watcher = Watcher(
        cluster.name,
        cluster.client,
        parts.transport.log,
        parts.clock,
        parts.randomness,
        parts.metrics,
        settings,
        cluster.recent,
        presence,
    )
    return Adapted(watcher, drains=False, status=lambda: watch_status(watcher), presence=presence)


def watch_status(watcher: Watcher) -> dict[str, object]:
    """Ready once every kind was listed; else which were not, and what the API server said, or that another cluster has the name."""
    scopes = watcher.status()
    if watcher.held:
        return {"ready": False, "why": watcher.held, "scopes": scopes}
    unlisted = [scope for scope in scopes if scope.list_age is None]
    lacking = by_text((f"{s.scope} {s.namespace}".strip(), s.error or s.state) for s in unlisted)
    return {"ready": watcher.ready.is_set(), "why": "; ".join(lacking) or "listing", "scopes": scopes}


def _cluster_of(parts: Parts) -> Cluster:
    if parts.cluster is None:
        raise RuntimeError("this role needs a cluster")
    return parts.cluster


MAKERS: Final[dict[str, Callable[[Parts], Role]]] = {
    "projector": _projector,
    "reconciler": _reconciler,
    "executor": _executor,
    "bridge": _bridge,
}


def add(supervisor: Supervisor, names: tuple[str, ...], parts: Parts) -> None:
    """Roles to be made anew for every start. Where views are both committed and watched here, they take the short way."""
    if {"projector", "reconciler"} <= set(names):
        shared = SharedViewStore(parts.transport.views)
        parts = msgspec.structs.replace(parts, transport=msgspec.structs.replace(parts.transport, views=shared))
    for name in names:
        supervisor.add(name, partial(MAKERS[name], parts))


def fatal(error: BaseException) -> Stop | None:
    """The errors of roles that no restart mends."""
    return None
