"""The roles' figures as Prometheus metrics: one table of names, and what the roles call to count (`bus.metrics.Metrics`).

Exported names begin with `sandlog_`. Labels never hold a sandbox's name: their number has a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

logger = structlog.get_logger(__name__)

disable_created_metrics()  # type: ignore[no-untyped-call]

PREFIX: Final = "sandlog_"
FAST: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SLOW: Final = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metric(msgspec.Struct, frozen=True):
    """`kind` is `counter`, `gauge` or `histogram` (in seconds, of `buckets`)."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = FAST


METRICS: Final[Mapping[str, Metric]] = {
    # The process
    "role_up": Metric("gauge", "1 while the role runs, 0 while it waits to be started again", ("role",)),
    "role_restarts": Metric("counter", "Times that a role ended with an error and was started again", ("role",)),
    "role_ready": Metric("gauge", "1 while the role does its work, as /readyz has it", ("role",)),
    "nats_connected": Metric("gauge", "1 while connected to NATS"),
    "nats_reconnects": Metric("gauge", "Reconnects to NATS since the start"),
    "commands_pending": Metric("gauge", "Commands in the log that nobody has taken yet", ("cluster",)),
    "dead_letters": Metric("counter", "Messages given up: see `sandlog dead`", ("by", "cluster")),
    # The projector
    "time_to_ready_seconds": Metric(
        "histogram", "From a sandbox's first observation to its phase Succeed", ("cluster",), SLOW
    ),
    "projector_records": Metric("counter", "Messages folded"),
    "projector_commits": Metric("counter", "Commits of views"),
    "projector_lag_seconds": Metric("histogram", "From a message's append to its commit in the views"),
    "projector_restarts": Metric("counter", "Times that the partitions were loaded anew, and why", ("reason",)),
    "projector_asks": Metric("counter", "Lists asked for because something was not complete"),
    # The reconciler
    "reconciler_decisions": Metric("counter", "Views decided on"),
    "reconciler_commands": Metric("counter", "Commands appended", ("kind",)),
    "reconciler_refused_commands": Metric("counter", "Commands refused because another reconciler was first"),
    "reconciler_oversized_commands": Metric("counter", "Commands too large to be appended"),
    "reconciler_ticks": Metric("counter", "Wake-ups appended"),
    "reconciler_lag_seconds": Metric("gauge", "From the latest change of a view to its decision"),
    "reconciler_views": Metric("gauge", "Views in this process's share"),
    "reconciler_failed_decisions": Metric("counter", "Decisions that failed by a fault of ours"),
    "reconciler_unreadable_views": Metric("counter", "Views that could not be read"),
    # The bridge's watch
    "watch_age_seconds": Metric(
        "gauge", "Since the API server was last heard on this watch", ("cluster", "scope", "namespace")
    ),
    "watch_list_age_seconds": Metric("gauge", "Since the last complete list", ("cluster", "scope", "namespace")),
    "watch_crashes": Metric("counter", "Faults of ours in the watch", ("cluster", "part", "error")),
    "watch_events": Metric("counter", "Changes that the API server told", ("cluster", "scope")),
    "watch_lists": Metric("counter", "Complete lists, and why", ("cluster", "scope", "reason")),
    "watch_errors": Metric("counter", "Lists, watches and reads that failed", ("cluster", "scope", "what", "status")),
    "watch_reduced": Metric(
        "counter", "Objects too large for a message, told without their spec", ("cluster", "scope")
    ),
    "watch_unreadable": Metric("counter", "Objects that could not be told to the log", ("cluster", "scope")),
    "watch_epoch": Metric("gauge", "The cluster's epoch", ("cluster",)),
    "watch_epochs_written": Metric("counter", "Times that this process wrote the epoch", ("cluster",)),
    "watch_name_held": Metric(
        "counter", "Times that this process waited because another cluster has its name", ("cluster",)
    ),
    "watch_log_losses": Metric("counter", "Times that the log was away and everything was listed again", ("cluster",)),
    # The executor
    "commands_in_flight": Metric("gauge", "Commands being performed by this process", ("cluster",)),
    "commands_handed_back": Metric("counter", "Commands left for another try", ("cluster", "cause")),
    "command_seconds": Metric("histogram", "From a command's delivery to its ack", ("cluster",)),
    "command_faults": Metric("counter", "Commands at which our code failed", ("cluster",)),
    "ops": Metric(
        "counter",
        "Ops performed, by result; what is neither done nor skipped was a failed try",
        ("cluster", "op", "result"),
    ),
    "api_call_seconds": Metric(
        "histogram", "Calls of the API server, by verb, kind and status", ("verb", "kind", "code")
    ),
    "api_retries": Metric("counter", "Calls tried again, and why", ("verb", "kind", "cause")),
    "events": Metric("counter", "Events sent, dropped or refused", ("result", "cause")),
    "events_waiting": Metric("gauge", "Events that wait until nothing else does"),
}


CHILDREN_LIMIT = 10_000
"""Label sets remembered; more than any sound set of labels has."""


class PrometheusMetrics:
    """Implements `bus.metrics.Metrics` over a registry of its own. A name that is not in the table is made at first use, and logged."""

    def __init__(self, *, process: bool = True) -> None:
        self.registry = CollectorRegistry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}
        self._labels: dict[str, tuple[str, ...]] = {}
        self._children: dict[tuple[str, ...], Counter | Gauge | Histogram] = {}
        """what `labels()` gave for a name and its label values: finding it afresh costs more than counting"""
        self.undeclared: set[str] = set()
        self.mislabelled: set[str] = set()
        if process:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
        for name, metric in METRICS.items():
            self._make(name, metric)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        found = self._find(name, "counter", labels)
        if isinstance(found, Counter):
            found.inc(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        found = self._find(name, "gauge", labels)
        if isinstance(found, Gauge):
            found.set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        found = self._find(name, "histogram", labels)
        if isinstance(found, Histogram):
            found.observe(value)

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)

    def _make(self, name: str, metric: Metric) -> Counter | Gauge | Histogram:
        full = PREFIX + name
        made: Counter | Gauge | Histogram
        if metric.kind == "counter":
            made = Counter(full, metric.help, metric.labels, registry=self.registry)
        elif metric.kind == "gauge":
            made = Gauge(full, metric.help, metric.labels, registry=self.registry)
        else:
            made = Histogram(full, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets)
        self._made[name] = made
        self._labels[name] = metric.labels
        return made

    def _find(self, name: str, kind: str, labels: Mapping[str, str]) -> Counter | Gauge | Histogram:
        key = (name, *labels, *labels.values())
        child = self._children.get(key)
        if child is None:
            child = self._look_up(name, kind, labels)
            if len(self._children) < CHILDREN_LIMIT:
                self._children[key] = child
        return child

    def _look_up(self, name: str, kind: str, labels: Mapping[str, str]) -> Counter | Gauge | Histogram:
        made = self._made.get(name)
        if made is None:
            self.undeclared.add(name)
            logger.warning("metric is not in the table", metric=name, kind=kind)
            made = self._make(name, Metric(kind, "(not described)", tuple(sorted(labels))))
        declared = self._labels[name]
        if not set(labels) <= set(declared):
            self.mislabelled.add(name)
        return made.labels(*(str(labels.get(label, "")) for label in declared)) if declared else made
