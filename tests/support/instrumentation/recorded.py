"""What a recorder sent to an exporter in memory, sorted to requests and their choices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext
from support.patience import WAIT_S

import otel_llm
from otel_llm import semconv


@dataclass
class Stream:
    """The segments of one choice, in order of seq."""

    segments: list[ReadableSpan]

    @property
    def last(self) -> dict[str, object]:
        return dict(self.segments[-1].attributes or {})

    @property
    def outcome(self) -> object:
        return self.last.get(semconv.OUTCOME)

    @property
    def parents(self) -> list[tuple[int, int]]:
        """Return the ids (trace, span) of all the spans that the segments hang from."""
        return sorted({ids(segment.parent) for segment in self.segments})

    @property
    def times_ns(self) -> list[int]:
        return [event.timestamp for segment in self.segments for event in segment.events]

    def check(self) -> None:
        """Assert that the segments tile the stream's time and end it exactly once."""
        attributes = [dict(segment.attributes or {}) for segment in self.segments]
        assert [a[semconv.SEGMENT_SEQ] for a in attributes] == list(range(len(self.segments)))
        assert [semconv.OUTCOME in a for a in attributes] == [False] * (len(attributes) - 1) + [True]
        assert self.last[semconv.SEGMENTS] == len(self.segments)
        first = self.segments[0]
        assert first.start_time == first.end_time
        assert attributes[0][semconv.GEN_AI_OPERATION_NAME] == "chat"
        for before, segment in itertools.pairwise(self.segments):
            assert segment.start_time == before.end_time
        for segment in self.segments:
            assert all((segment.start_time or 0) <= e.timestamp <= (segment.end_time or 0) for e in segment.events)


def ids(context: SpanContext | None) -> tuple[int, int]:
    """Return the ids of a span, for comparison: contexts cannot be hashed."""
    assert context is not None
    return context.trace_id, context.span_id


class Recorded:
    """Reads an exporter; everything that was recorded is flushed first."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self.exporter = exporter

    def spans(self) -> Sequence[ReadableSpan]:
        assert otel_llm.flush(WAIT_S)
        return self.exporter.get_finished_spans()

    def requests(self) -> list[ReadableSpan]:
        """Return the request spans that were sent like segments."""
        return [span for span in self.spans() if span.name != semconv.SEGMENT_SPAN]

    def streams(self) -> list[Stream]:
        """Return the streams in order of their commit, and of choice."""
        streams: dict[tuple[int, int, int], list[ReadableSpan]] = {}
        for span in self.spans():
            if span.name == semconv.SEGMENT_SPAN:
                assert span.parent is not None
                choice = (span.attributes or {}).get(semconv.CHOICE, 0)
                assert isinstance(choice, int)
                streams.setdefault((span.parent.trace_id, span.parent.span_id, choice), []).append(span)
        for segments in streams.values():
            segments.sort(key=lambda span: int(str((span.attributes or {})[semconv.SEGMENT_SEQ])))
        return [
            Stream(segments) for _, segments in sorted(streams.items(), key=lambda item: item[1][0].start_time or 0)
        ]

    def stream(self) -> Stream:
        """Return the one stream there is, checked."""
        [only] = self.streams()
        only.check()
        return only
