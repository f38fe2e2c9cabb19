"""The input of the checks."""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Situation:
    """An environment.

    `classes`: the SLO classes that the collector knows, None where not given. `timeout_s`: the longest wait for an
    endpoint; a shorter `OTEL_EXPORTER_OTLP_TIMEOUT` wins.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    classes: frozenset[str] | None = None
    timeout_s: float = 10.0


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
