"""The findings of checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

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
