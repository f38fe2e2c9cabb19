"""Expressions of the dashboards' queries."""

from __future__ import annotations

from typing import Final

from generator.metric_table import series

READER_LABELS: Final = (
    'job=~"$job"', 'slo_class=~"$slo_class"', 'model=~"$model"', 'instance=~"$instance"', 'measured_at=~"$measured_at"',
)  # fmt: skip
PROMISE_LABELS: Final = ('slo_class=~"$slo_class"', 'measured_at=~"$measured_at"')
"""What the rules record has no job, model or instance."""


def readers(name: str, *more: str) -> str:
    """Return the selector of a series of readers, by the variables."""
    return series(name, *READER_LABELS, *more)


def own(name: str, *more: str) -> str:
    """Return the selector of a collector's own series."""
    return series(name, 'job=~"$job"', 'instance=~"$instance"', *more)


def relays(name: str, *more: str) -> str:
    """Return the selector of a relay's series."""
    return series(name, 'job=~"$relay_job"', *more)


def rate(selector: str) -> str:
    """Return the increase a second, over an interval that holds enough scrapes, as Grafana reckons."""
    return f"rate({selector}[$__rate_interval])"


def total(expression: str, *by: str) -> str:
    """Return the sum, by some labels."""
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def rates(selector: str, *by: str) -> str:
    """Return the sum of rates."""
    return total(rate(selector), *by)


def quantile(q: float, buckets: str, *by: str) -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({q:g}, {rates(buckets, 'le', *by)})"


def share(part: str, whole: str) -> str:
    """Return a ratio, and nothing if the whole is 0."""
    return f"{part}\n/ ({whole} > 0)"
