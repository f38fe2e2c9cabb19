"""Finished metric families as Prometheus's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric


def text_of(families: Iterable[Metric]) -> bytes:
    """Return the families in text format 0.0.4."""
    return generate_latest(_Prepared(families))


class _Prepared(CollectorRegistry):
    """Hand prepared families to the text writer."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__(auto_describe=False)
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families
