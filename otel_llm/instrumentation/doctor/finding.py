"""The findings of checks."""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Situation:
    """An environment.

    `classes`: the SLO classes that the collector knows, None if not given. `timeout_s`: the longest wait for an
    endpoint; a shorter `OTEL_EXPORTER_OTLP_TIMEOUT` wins.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    classes: frozenset[str] | None = None
    timeout_s: float = 10.0


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


Status = Literal["ok", "unchecked", "warning", "problem"]

STATUSES: Final[tuple[Status, ...]] = ("ok", "unchecked", "warning", "problem")
"""From best to worst. `problem`: data is lost; `warning`: data may be lost, or is less than it seems."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `facts` are for programs: their names are stable."""

    check: str
    status: Status
    text: str
    remedy: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


def worst_status(findings: list[Finding]) -> Status:
    """Return the worst status of all findings."""
    return max((finding.status for finding in findings), key=STATUSES.index, default="ok")
