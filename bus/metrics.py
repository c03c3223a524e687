"""Figures of the roles as plain counters, gauges and observations behind a narrow interface; `sandlog` exports them to Prometheus."""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    def count(self, name: str, amount: float = 1, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """One observation of a histogram, in seconds."""
        ...


class NoMetrics:
    """For tests and tools that export nothing."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        pass

    def gauge(self, name: str, value: float, **labels: str) -> None:
        pass

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass
