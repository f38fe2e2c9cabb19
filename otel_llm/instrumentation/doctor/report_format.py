"""Format the report: for people one line a finding, for programs one JSON object."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Any, Final

from otel_llm.export.records import version
from otel_llm.instrumentation.doctor.finding import STATUSES, version_of, worst_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_llm.instrumentation.doctor.finding import Finding
    from otel_llm.instrumentation.doctor.program import Ran

FORMAT: Final = 1
"""The version of the JSON; raised when a key changes its meaning."""
WIDTH: Final = max(len(status) for status in STATUSES)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the report as text."""
    for finding in findings:
        yield f"{finding.status:<{WIDTH}}  {finding.text}"
        if finding.remedy and finding.status != "ok":
            yield f"{'':<{WIDTH}}  -> {finding.remedy}"
    counted = {status: sum(finding.status == status for finding in findings) for status in STATUSES}
    yield ", ".join(f"{count} {status}" for status, count in reversed(counted.items()) if count)


def as_json(findings: Sequence[Finding], ran: Ran | None) -> str:
    """Return the report as one JSON object."""
    found: dict[str, Any] = {
        "version": FORMAT,
        "status": worst_status(list(findings)),
        "otel_llm": version(),
        "python": platform.python_version(),
        "opentelemetry_sdk": version_of("opentelemetry-sdk"),
        "findings": [
            {
                "check": finding.check,
                "status": finding.status,
                "text": finding.text,
                "remedy": finding.remedy,
                "facts": dict(finding.facts),
            }
            for finding in findings
        ],
        "command": None if ran is None else {"exit_status": ran.exit_status, "processes": ran.reports},
    }
    return json.dumps(found, indent=2)
