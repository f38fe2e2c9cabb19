"""What stops the service from starting."""

from __future__ import annotations


class CollectorError(Exception):
    """Stand for everything that the service itself reports; see `otel_llm.collector.errors` for the tree."""


class StartError(CollectorError):
    """Say why the service does not start and what to do about it."""
