"""Spans as an encoder of OTLP writes them, and both ways of reading a message: by the scan, and by protobuf alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp import Event, segment_span

from otel_llm.core.kernel import COMPILED
from otel_llm.core.scanning import span_columns as column
from otel_llm.formats.batch import Batch, SegmentColumns
from otel_llm.formats.otlp import export_request as otlp
from otel_llm.formats.otlp.length_delimited import refuse_many_parts
from otel_llm.formats.otlp.scanned import read_scanned, scan
from otel_llm.formats.records import DecodeError
from otel_llm.formats.spans.attributes import DEFAULT_LIMITS, AttributeLimits

LOCAL, REMOTE = 0x101, 0x301
needs_kernels = pytest.mark.skipif(not COMPILED, reason="no numba: plain mode reads every message by protobuf")


def as_sent(span: Span, flags: int = LOCAL) -> Span:
    """Return a span with what encoders write though it says nothing."""
    span.status.SetInParent()
    span.flags = flags
    return span


def sent_segment(seq: int, first_token: int, events: Iterable[Event] = (), **stated: Any) -> Span:
    """Return a segment span as it is sent; see `segment_span`."""
    return as_sent(segment_span(seq, first_token, events, **stated))


Parts = tuple[Counter[Any], list[Any], int, Counter[str], Counter[str]]


def parts_of(batch: Batch) -> Parts:
    """Return all that a batch says, in whatever form its segments are; those in columns do not say who sent them."""
    segments: Counter[Any] = Counter()
    plain = [] if batch.plain is None else [batch.plain.segment(at, None, "default") for at in range(len(batch.plain))]
    for one in (*batch.segments, *plain):
        events = tuple(one.times_ns), one.kinds, None if one.counts is None else tuple(one.counts)
        stated = one.first_token, one.start_ns, one.end_ns, *events, one.last_byte_ns
        segments[*one.key, *stated, repr(sorted(one.attributes.items()))] += 1
    return segments, [repr(request) for request in batch.requests], batch.ignored, +batch.refused, +batch.anomalies


def agree(
    message: ExportTraceServiceRequest | bytes, limits: AttributeLimits = DEFAULT_LIMITS
) -> tuple[SegmentColumns | None, int]:
    """Check that both ways of reading a message say the same.

    Return the segments that were read as columns, and how many request spans the scan read.
    """
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    read = partial(otlp.read, limits=limits) if COMPILED else partial(by_scan, limits=limits)
    scanned, alone = outcome(lambda: read(raw)), outcome(lambda: by_protobuf(raw, limits))
    if isinstance(scanned, str) or isinstance(alone, str):
        assert scanned == alone, raw.hex()
        return None, 0
    assert parts_of(scanned) == parts_of(alone), raw.hex()
    found = scan(raw)
    return scanned.plain, 0 if found is None else int((found.spans[:, column.CLASS] == column.REQUEST).sum())


def by_scan(raw: bytes, limits: AttributeLimits = DEFAULT_LIMITS) -> Batch:
    """Read a message by the kernels in plain mode too, if `read` leaves all to protobuf."""
    refuse_many_parts(raw)
    batch = read_scanned(raw, None, limits, otlp.token_budget(len(raw)))
    return by_protobuf(raw, limits) if batch is None else batch


def by_protobuf(raw: bytes, limits: AttributeLimits = DEFAULT_LIMITS) -> Batch:
    """Return what protobuf alone reads of a message."""
    return otlp.decode(otlp.parse(raw), limits=limits, budget=otlp.token_budget(len(raw)))


def outcome(read: Callable[[], Batch]) -> Batch | str:
    """Return what is read, or that it is no message."""
    try:
        return read()
    except DecodeError:
        return "no message"
