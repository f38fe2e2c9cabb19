"""Segment spans as an encoder of OTLP writes them (a status, flags), so that they are read as columns."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp import Event, segment_span

from otel_llm.readers import otlp
from otel_llm.readers.plain_segments import PlainSegments
from otel_llm.readers.records import Batch, DecodeError

TIMES_USUAL = float(os.environ.get("OTEL_LLM_CORE_EXAMPLES", "1"))
"""How many times as many examples and mutations as usual the tests of the evaluator's core try."""
SEED = int(os.environ.get("OTEL_LLM_CORE_SEED", "1"))
LOCAL, REMOTE = 0x101, 0x301


def examples(usual: int) -> int:
    """Return how many examples a test is to try."""
    return max(1, round(usual * TIMES_USUAL))


def as_sent(span: Span, flags: int = LOCAL) -> Span:
    """Return a span with what encoders write though it says nothing."""
    span.status.SetInParent()
    span.flags = flags
    return span


def sent_segment(seq: int, first_token: int, events: Iterable[Event] = (), **said: Any) -> Span:
    """Return a segment span as it is sent; see `segment_span`."""
    return as_sent(segment_span(seq, first_token, events, **said))


Told = tuple[Counter[Any], list[Any], int, Counter[str], Counter[str]]


def told(batch: Batch) -> Told:
    """Return all that a batch says, in whatever form its segments are, but for the sender's name."""
    segments: Counter[Any] = Counter()
    plain = [] if batch.plain is None else [batch.plain.segment(at) for at in range(len(batch.plain))]
    for one in (*batch.segments, *plain):
        said = one.first_token, one.start_ns, one.end_ns, tuple(one.times_ns), one.kinds
        segments[*one.key, *said, tuple(sorted(one.attributes.items(), key=repr))] += 1
    return segments, batch.requests, batch.ignored, +batch.refused, +batch.anomalies


def both_ways(raw: bytes) -> tuple[Told | str, Told | str, PlainSegments | None]:
    """Read a message as columns and one by one; return what each says (or that it is none), and the columns."""
    taken: list[PlainSegments | None] = [None]

    def columns() -> Batch:
        batch = otlp.read(raw, few=1)
        taken[0] = batch.plain
        return batch

    return _outcome(columns), _outcome(lambda: otlp.decode(otlp.parse(raw))), taken[0]


def _outcome(read: Callable[[], Batch]) -> Told | str:
    try:
        return told(read())
    except DecodeError:
        return "no message"
