"""What the segments that a receiver got say of each stream."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm import semconv


def streams(spans: list[Span]) -> dict[tuple[bytes, bytes], list[dict[str, Any]]]:
    """Return the attributes of the segments of each stream, in order; a repeated segment is a failure."""
    found: dict[tuple[bytes, bytes], list[dict[str, Any]]] = {}
    for span in spans:
        if span.name == semconv.SEGMENT_SPAN:
            attributes = {p.key: getattr(p.value, p.value.WhichOneof("value") or "") for p in span.attributes}
            attributes["events"] = len(span.events)
            found.setdefault((span.trace_id, span.parent_span_id), []).append(attributes)
    for segments in found.values():
        segments.sort(key=lambda attributes: int(attributes[semconv.SEGMENT_SEQ]))
        numbers = [a[semconv.SEGMENT_SEQ] for a in segments]
        assert len(set(numbers)) == len(numbers), f"segments {numbers} of one stream"
    return found


def told(spans: list[Span]) -> list[tuple[str, str | None, int]]:
    """Return model, outcome and tokens of each stream, sorted; no outcome of one whose segments have not all come."""
    rows = [
        (
            segments[0].get(semconv.GEN_AI_REQUEST_MODEL, ""),
            segments[-1].get(semconv.OUTCOME) if segments[-1][semconv.SEGMENT_SEQ] == len(segments) - 1 else None,
            sum(s["events"] for s in segments),
        )
        for segments in streams(spans).values()
    ]
    return sorted(rows, key=lambda row: (row[0], row[1] or "", row[2]))
