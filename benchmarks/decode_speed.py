"""How fast OTLP becomes token times, beside the floor: the parse, and reading each event's time and nothing else.

    python benchmarks/decode_speed.py

Columns are ns a token, best of several runs on one core; `plain` is the obvious loop that also looks at each
event's name and attributes, as `decode` must.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm import semconv
from otel_llm.readers.otlp import decode, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T0_NS = 1_790_000_000_000_000_000
TOKENS = 32_000
RUNS = 9


def message(tokens_a_segment: int, kind: str | None) -> bytes:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for seq in range(TOKENS // tokens_a_segment):
        span = spans.add(
            trace_id=b"t" * 16,
            span_id=b"s" * 8,
            parent_span_id=b"p" * 8,
            name=semconv.SEGMENT_SPAN,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=T0_NS,
            end_time_unix_nano=T0_NS + 10**9,
            flags=0x100,
        )
        for key, value in ((semconv.SEGMENT_SEQ, seq), (semconv.SEGMENT_FIRST_TOKEN, seq * tokens_a_segment)):
            span.attributes.add(key=key).value.int_value = value
        for i in range(tokens_a_segment):
            event = span.events.add(name=semconv.TOKEN_EVENT, time_unix_nano=T0_NS + i)
            if kind is not None:
                event.attributes.add(key=semconv.TOKEN_KIND).value.string_value = kind
    return request.SerializeToString()


def each_span(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def floor(request: ExportTraceServiceRequest) -> None:
    for span in each_span(request):
        [event.time_unix_nano for event in span.events]


def plain(request: ExportTraceServiceRequest) -> None:
    for span in each_span(request):
        [e.time_unix_nano for e in span.events if e.name == semconv.TOKEN_EVENT and not len(e.attributes)]


def ns_a_token(raw: bytes, step: Callable[[ExportTraceServiceRequest], object]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        request = parse(raw)  # wrappers are cached on a message: each run reads a fresh one
        gc.collect()
        start = time.perf_counter()
        step(request)
        best = min(best, time.perf_counter() - start)
    return best / TOKENS * 1e9


def parse_ns_a_token(raw: bytes) -> float:
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        parse(raw)
        best = min(best, time.perf_counter() - start)
    return best / TOKENS * 1e9


def main() -> None:
    print(
        f"{'segment':>8}{'kind':>11}{'parse':>8}{'floor':>8}{'plain':>8}{'decode':>8}{'M tokens/s':>12}{'x floor':>9}"
    )
    for size in (64, 16, 8):
        for kind in (None, "reasoning"):
            raw = message(size, kind)
            parsed, lowest, obvious, ours = (
                parse_ns_a_token(raw),
                *(ns_a_token(raw, step) for step in (floor, plain, decode)),
            )
            print(
                f"{size:>8}{kind or 'content':>11}{parsed:>8.0f}{lowest:>8.0f}{obvious:>8.0f}{ours:>8.0f}"
                f"{1e3 / (parsed + ours):>8.2f}{(parsed + ours) / (parsed + lowest):>9.2f}"
            )


if __name__ == "__main__":
    main()
