"""What a variant's telemetry says of one reply, by whatever of it says so."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_llm import semconv

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan


@dataclass
class Said:
    """One reply as it was recorded; None is not said."""

    timed: int = 0
    """Tokens (or chunks) that have a time."""
    gaps: int = 0
    """Gaps that went into a histogram."""
    ttft_s: float | None = None
    ttft_from: str = ""


def reported(spans: Sequence[ReadableSpan], metrics: Any) -> Said:
    """Return what these spans and metrics say."""
    result = Said()
    points = list(_points(metrics))
    result.gaps = max((point.count for name, point in points if "per_output_chunk" in name), default=0)
    for name, point in points:
        if "time_to_first" in name and point.count:
            result.ttft_s, result.ttft_from = point.sum / point.count, "metric"
    for span in spans:
        for seconds, source in _first(span):
            result.ttft_s, result.ttft_from = seconds, source
        result.timed += sum("chunk" in event.name for event in span.events)
    ours = [span for span in spans if semconv.SEGMENT_SEQ in (span.attributes or {})]
    tokens = [event for span in ours for event in span.events if event.name == semconv.TOKEN_EVENT]
    for event in tokens:
        count = (event.attributes or {}).get(semconv.TOKEN_COUNT, 1)
        result.timed += count if isinstance(count, int) else 1
    if tokens:
        commit_ns = min(span.start_time or 0 for span in ours)
        result.ttft_s = (min(event.timestamp for event in tokens) - commit_ns) / 1e9
        result.ttft_from = "token times"
    return result


def _first(span: ReadableSpan) -> Iterator[tuple[float, str]]:
    start_ns = span.start_time or 0
    for event in span.events:
        if event.name == semconv.OPENINFERENCE_FIRST_TOKEN_EVENT:
            yield (event.timestamp - start_ns) / 1e9, "span event"
    for name, value in (span.attributes or {}).items():
        if "time_to_first" in name and isinstance(value, float):
            yield value, "attribute"
        elif "completion_start_time" in name:  # Langfuse: JSON of an ISO time
            at = dt.datetime.fromisoformat(str(value).strip('"'))
            yield at.timestamp() - start_ns / 1e9, "attribute"


def _points(metrics: Any) -> Iterable[tuple[str, Any]]:
    for resource in metrics.resource_metrics if metrics else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    yield metric.name, point
