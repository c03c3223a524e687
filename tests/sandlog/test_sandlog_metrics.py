"""Every figure that a role counts is in the table of metrics, with its labels; what is not is still exported, and told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sandlog.metrics import METRICS, PrometheusMetrics

ROOT = Path(__file__).parent.parent.parent
COUNTERS = re.compile(r"metrics$|teller$|^self$")
"""Who is asked to count: a Metrics, or a helper that adds labels of its own."""
KINDS = {"count": "counter", "gauge": "gauge", "observe": "histogram"}


def calls() -> Iterator[tuple[str, str, str, set[str]]]:
    """(where, kind, name, labels) of each call of a Metrics in the source, those labels that come as `**labels` apart."""
    for file in sorted(
        p for folder in ("bus", "bridge", "projector", "reconciler", "sandlog") for p in (ROOT / folder).glob("*.py")
    ):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                not isinstance(node, ast.Call)
                or not isinstance(node.func, ast.Attribute)
                or node.func.attr not in KINDS
            ):
                continue
            if not COUNTERS.search(ast.unparse(node.func.value)) or not node.args:
                continue
            if not isinstance(node.args[0], ast.Constant):
                continue  # a helper that passes a name on; its callers are found
            labels = {k.arg for k in node.keywords if k.arg is not None} - {"amount", "value"}
            yield f"{file.name}:{node.lineno}", KINDS[node.func.attr], str(node.args[0].value), labels


def test_what_the_roles_count_is_in_the_table() -> None:
    found = list(calls())

    assert len(found) > 20
    for where, kind, name, labels in found:
        assert name in METRICS, f"{where}: {name} is not in the table"
        assert METRICS[name].kind == kind, where
        assert labels <= set(METRICS[name].labels), where


def test_the_table_holds_nothing_that_nobody_counts() -> None:
    assert set(METRICS) == {name for _, _, name, _ in calls()}


def test_no_label_can_hold_a_sandboxs_name() -> None:
    """A label per sandbox would grow without bound."""
    assert {label for metric in METRICS.values() for label in metric.labels}.isdisjoint(
        {"name", "sandbox", "pod", "uid"}
    )


def value(metrics: PrometheusMetrics, sample: str, **labels: str) -> float:
    families = text_string_to_metric_families(metrics.text().decode())
    found = [s.value for f in families for s in f.samples if s.name == sample and s.labels == labels]
    assert len(found) == 1, f"{sample} {labels}"
    return found[0]


def test_counts_gauges_and_histograms_are_exported() -> None:
    metrics = PrometheusMetrics(process=False)
    metrics.count("dead_letters", by="projector")
    metrics.count("dead_letters", 2, by="projector")
    metrics.gauge("commands_pending", 7, cluster="c1")
    metrics.observe("time_to_ready_seconds", 0.3, cluster="c1")

    assert value(metrics, "sandlog_dead_letters_total", by="projector", cluster="") == 3
    assert value(metrics, "sandlog_commands_pending", cluster="c1") == 7
    assert value(metrics, "sandlog_time_to_ready_seconds_bucket", cluster="c1", le="0.25") == 0
    assert value(metrics, "sandlog_time_to_ready_seconds_bucket", cluster="c1", le="0.5") == 1
    assert metrics.undeclared == set()
    assert metrics.mislabelled == set()


@pytest.mark.parametrize("name", ["new_figure", "ops"])
def test_an_unknown_name_or_label_costs_no_role_its_life(name: str) -> None:
    metrics = PrometheusMetrics(process=False)
    metrics.count(name, surprise="x")
    metrics.count(name, other="y")

    assert name in metrics.undeclared | metrics.mislabelled
    assert f"sandlog_{name}_total" in metrics.text().decode()
