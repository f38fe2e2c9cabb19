"""Assemble the records of a recording and return its streams at the end: all in memory, in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_llm import semconv
from otel_llm.formats.assemble.received_request import ReceivedRequest
from otel_llm.formats.assemble.received_stream import missing_segments
from otel_llm.formats.assemble.resolved import Assembled, row_order
from otel_llm.formats.foreign.foreign_spans import foreign_tokens
from otel_llm.slo.token_events import NO_EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.formats.batch import Batch
    from otel_llm.formats.records import RequestKey


@dataclass(slots=True)
class Assembler:
    """The assembly of batches in any order; it returns every stream at the end of the input.

    `counts` has records received more than once or left over: `duplicate_segments`, `duplicate_requests`,
    `ignored`, `missing_empty_segments`, `refused.REASON` and the parsers' `anomaly.NAME`.
    """

    parts: dict[RequestKey, ReceivedRequest] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, batch: Batch) -> None:
        """Add the records of one export request."""
        for segment in batch.segments:
            key = segment.request_key
            parts = self.parts.get(key)
            if parts is None:
                parts = self.parts[key] = ReceivedRequest(*key)
            if (dropped := parts.stream(segment.choice).add(segment)) is not None:
                self.counts[dropped] += 1
        for span in batch.requests:
            parts = self.parts.get(span.key)
            if parts is None:
                parts = self.parts[span.key] = ReceivedRequest(*span.key)
            if not parts.add_request(span):
                self.counts["duplicate_requests"] += 1
        count_rest(batch, self.counts)

    def finish(self) -> list[Assembled]:
        """Return every stream, in the order of rows: start (unknown last), trace id, span id, choice (null last)."""
        found = list(self._streams())
        found.sort(key=lambda one: row_order(one.resolved))
        return found

    def _streams(self) -> Iterator[Assembled]:
        for parts in self.parts.values():
            yield from streams_of(parts, self.counts)


def count_rest(batch: Batch, counts: Counter[str]) -> None:
    """Count an export request's other spans, and the anomalies of its records."""
    counts["ignored"] += batch.ignored
    for reason, number in batch.refused.items():
        counts[f"refused.{reason}"] += number
    for name, number in batch.anomalies.items():
        counts[f"anomaly.{name}"] += number


def streams_of(parts: ReceivedRequest, counts: Counter[str]) -> Iterator[Assembled]:
    """Yield the streams of one request, at the end of the input."""
    if not parts.streams:
        yield from _without_segments(parts, counts)
        return
    for choice, stream in parts.streams.items():
        resolved = parts.resolve(choice)
        counts["missing_empty_segments"] += missing_segments(stream) if resolved.complete else 0
        events = stream.token_events()
        yield Assembled.of(resolved, events.in_time_order() if resolved.complete else events)


def _without_segments(parts: ReceivedRequest, counts: Counter[str]) -> Iterator[Assembled]:
    assert parts.request is not None  # noqa: S101  a ReceivedRequest is made for a segment or for a request span
    if semconv.SEGMENTS in parts.request.attributes:
        yield Assembled.of(parts.resolve(0), NO_EVENTS)
        return
    resolved = parts.resolve_foreign()
    if resolved is None:
        counts["ignored"] += 1
        return
    events = foreign_tokens(parts.request) or NO_EVENTS
    yield Assembled.of(resolved, events.in_time_order() if resolved.complete else events)
