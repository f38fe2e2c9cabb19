"""The worked rows of tests/vectors as any OTLP sender delivers them: the spans to send, the rows that must come out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from support.vectors import FOLDER

import otel_llm.audit

SHIFT_NS = 123_456_789
"""Added to every time, so that none is round: who keeps nanoseconds in a double, or cuts them, is found out."""


@cache
def exports() -> tuple[dict[str, Any], ...]:
    """Return the export requests to send, in order: OTLP JSON, int64 as strings, ids in hex."""
    return tuple(_shifted(json.loads(line)) for line in _lines("rows.jsonl"))


def spans(export: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the spans of one export request."""
    for resource in export["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def span_count() -> int:
    """Return how many spans there are to send."""
    return sum(1 for export in exports() for _ in spans(export))


def differences(journal: Path) -> list[str]:
    """Return what the audit of a journal says otherwise than the worked rows do; nothing when all is as it must be."""
    expected = [json.loads(line) for line in _lines("rows.expect.jsonl")]
    rows = otel_llm.audit.load(journal).rows
    if [row["trace_id"] for row in rows] != [one["trace_id"] for one in expected]:
        return [f"{len(rows)} rows, not {len(expected)}: {[row['trace_id'] for row in rows]}"]
    found = []
    for row, one in zip(rows, expected, strict=True):
        why = one.pop("why")
        if one["start_unix_nano"] is not None:
            one["start_unix_nano"] += SHIFT_NS
        found += [
            f"{why}: {name} is {row[name]!r}, not {value!r}"
            for name, value in one.items()
            if not _same(row[name], value)
        ]
    return found


def _lines(name: str) -> list[str]:
    return (FOLDER / name).read_text(encoding="utf-8").splitlines()


def _shifted(export: dict[str, Any]) -> dict[str, Any]:
    for span in spans(export):
        for key in ("startTimeUnixNano", "endTimeUnixNano"):
            span[key] = str(int(span[key]) + SHIFT_NS)
        for event in span.get("events", ()):
            event["timeUnixNano"] = str(int(event["timeUnixNano"]) + SHIFT_NS)
    return export


def _same(found: object, wanted: object) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, rel_tol=0, abs_tol=1e-9)
    return found == wanted and type(found) is type(wanted)
