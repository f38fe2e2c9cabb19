"""Hypothesis settings for a machine of any speed: the number of examples is set, never a time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(count: int = 100) -> settings:
    """Return settings for so many examples, however long one takes."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
