"""Which views a command is about: by kind, cluster, namespace and name."""

from __future__ import annotations

import structlog

from bus import viewcodec
from bus.subjects import Aggregate
from bus.views import View
from bus.viewstore import ViewStore
from sandlog.exits import failed, not_found, usage

logger = structlog.get_logger(__name__)

DEFAULT_NAMESPACE = "default"


def split_name(text: str, namespace: str | None) -> tuple[str, str]:
    """`ns/name`, or `name` in the namespace of -n, else in `default`."""
    first, slash, name = text.partition("/")
    if not slash:
        return namespace or DEFAULT_NAMESPACE, first
    if not first or not name or "/" in name:
        raise usage(f"{text!r} is no name of a sandbox: write it as namespace/name")
    if namespace and namespace != first:
        raise usage(f"{text!r} is not in the namespace {namespace!r} that -n gives")
    return first, name


async def all_views(store: ViewStore) -> dict[Aggregate, View]:
    """Every view that can be read, those that cannot logged."""
    stored = {entry.key: entry.data for entry in await store.list("") if entry.data is not None}
    try:
        return viewcodec.assemble(stored)
    except viewcodec.Unreadable as error:
        raise failed(f"the views cannot be read: {error}; a newer sandlog may have written them") from error


def selected(
    views: dict[Aggregate, View], *, kind: str, cluster: str | None, namespace: str | None
) -> dict[Aggregate, View]:
    return {
        aggregate: views[aggregate]
        for aggregate in sorted(views)
        if aggregate.kind == kind and cluster in (None, aggregate.cluster) and namespace in (None, aggregate.namespace)
    }


def one(aggregates: list[Aggregate], what: str, hint: str) -> Aggregate:
    """The only one of these. Raises Stop if there is none, or one in each of several clusters."""
    if not aggregates:
        raise not_found(f"{what} is not known; {hint}")
    if len(aggregates) > 1:
        clusters = ", ".join(sorted(a.cluster for a in aggregates))
        raise failed(f"{what} is in several clusters ({clusters}): choose one with --cluster")
    return aggregates[0]
