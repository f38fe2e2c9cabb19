"""A large export is cut into several that say together what it says, whatever it is made of."""

from __future__ import annotations

from random import Random

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from support.collector.message_mutations import OF_MESSAGES, field_of
from support.core.dense_exports import dense
from support.core.scan_messages import random_message
from support.examples import examples

from otel_llm.formats.otlp.cutting import cut_export

Placed = tuple[bytes, bytes, bytes]


def spans_of(raw: bytes) -> list[Placed]:
    """Return every span with what is around it."""
    found: list[Placed] = []
    for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
        around = ResourceSpans()
        around.CopyFrom(resource)
        del around.scope_spans[:]
        for scope in resource.scope_spans:
            about = ScopeSpans()
            about.CopyFrom(scope)
            del about.spans[:]
            outside = (around.SerializeToString(), about.SerializeToString())
            found += [(*outside, span.SerializeToString()) for span in scope.spans]
    return found


def all_spans(parts: list[bytes]) -> list[Placed]:
    return [span for part in parts for span in spans_of(part)]


@pytest.mark.parametrize("part_bytes", [1_000, 20_000, 2**17])
def test_no_span_is_lost_or_moved(part_bytes: int) -> None:
    for name, raw in dense().items():
        parts = cut_export(raw, part_bytes)
        assert all_spans(parts) == spans_of(raw), name
        if part_bytes > 1_000:
            assert max(map(len, parts)) < 1.5 * part_bytes + 6_000
            assert len(parts) < 3 * len(raw) / part_bytes + 2


def test_messages_of_every_shape() -> None:
    random = Random(2)
    cut = 0
    for _ in range(examples(200)):
        raw = random_message(random) + random_message(random)
        parts = cut_export(raw, random.choice((50, 300, 3_000)))
        cut += len(parts) > 1
        assert all_spans(parts) == spans_of(raw), raw.hex()
        broken = random.choice(OF_MESSAGES)(raw, random)
        try:
            expected = spans_of(broken)
        except Exception:  # noqa: BLE001
            continue
        assert all_spans(cut_export(broken, 300)) == expected, broken.hex()
    assert cut > examples(100)


def test_what_would_repeat_much_comes_whole() -> None:
    resource = field_of(1, 2, field_of(1, 2, field_of(1, 2, bytes(5_000)).raw).raw).raw
    raw = field_of(
        1, 2, resource + field_of(2, 2, field_of(2, 2, Span(name="x").SerializeToString()).raw * 9_000).raw
    ).raw
    assert cut_export(raw, 20_000) == [raw]
    assert len(cut_export(raw, 50_000)) == 1 or max(map(len, cut_export(raw, 50_000))) < 80_000
    assert cut_export(b"", 10) == [b""]
    assert cut_export(b"\xff" * 30, 10) == [b"\xff" * 30]
