"""The densest export requests that applications send, and messages of many tiny parts near what is refused."""

from __future__ import annotations

import json
from random import Random

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from support.collector.message_mutations import field_of
from support.otlp import T0_NS

from otel_llm import semconv
from otel_llm.core.scanning.parts import COST, FREE_NS, NS_PER_BYTE
from otel_llm.export.records import Origin, Record, RequestRecord
from otel_llm.export.wire import export_request
from otel_llm.formats.otlp.export_request import read
from otel_llm.formats.records import DecodeError
from otel_llm.instrumentation.segments.timeline import Timeline

LEN, VARINT = 2, 0
SPANS = 4_000
MS = 1_000_000
RESOURCE = Resource({semconv.SERVICE_NAME: "chat", semconv.SERVICE_INSTANCE_ID: "app-1"})


def recorder_silence() -> bytes:
    """Return the recorder's exports of streams without tokens: empty segments."""
    return _recorded(tokens=0)


def recorder_tokens() -> bytes:
    """Return what it sends of streams with a token in each segment."""
    return _recorded(tokens=1)


def recorder_commits() -> bytes:
    """Return what it sends of streams that begin."""
    return export_request([_timeline(number)[0] for number in range(SPANS)])


def recorder_requests() -> bytes:
    """Return what it sends of streams that end, without what identifies them."""
    random = Random(3)
    origins = [_origin(random) for _ in range(SPANS)]
    records = [
        RequestRecord(origin.parent, None, RESOURCE, "chat m", T0_NS, T0_NS + MS, {semconv.SEGMENTS: 2}, None)
        for origin in origins
    ]
    return export_request(records)


def _recorded(tokens: int) -> bytes:
    records: list[Record] = []
    for number in range(SPANS):
        _, timeline = _timeline(number)
        if tokens:
            timeline.take([T0_NS + MS] * tokens)
        records += timeline.cut(T0_NS + 1_300 * MS)
    return export_request(records)


def _timeline(number: int) -> tuple[Record, Timeline]:
    random = Random(number)
    timeline = Timeline(0, T0_NS, _origin(random), random.getrandbits)
    return timeline.commit({semconv.GEN_AI_OPERATION_NAME: "chat"}), timeline


def _origin(random: Random) -> Origin:
    context = SpanContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1, False, TraceFlags(1))
    return Origin(context, RESOURCE)


def sdk(attributes: dict[str, object], name: str = "x", events: int = 0) -> bytes:
    """Return the SDK's export of many spans with these attributes."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=RESOURCE, span_limits=SpanLimits(max_attributes=2_000, max_events=2_000))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("t")
    parent = set_span_in_context(NonRecordingSpan(SpanContext(7, 7, False, TraceFlags(1))))
    for _ in range(SPANS if len(attributes) < 10 else 100):
        with tracer.start_as_current_span(name, context=parent, attributes=attributes) as span:  # type: ignore[arg-type]
            for _ in range(events):
                span.add_event("e")
    return encode_spans(kept.get_finished_spans()).SerializeToString()


def sparse(raw: bytes) -> bytes:
    """Return a message as an encoder writes it that leaves out what is default (rotel and the Collector among them)."""
    message = ExportTraceServiceRequest.FromString(raw)
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                span.ClearField("flags")
                if not span.status.ByteSize():
                    span.ClearField("status")
    return message.SerializeToString()


LETTERS = [chr(one) for one in (*range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1))]


def dense() -> dict[str, bytes]:
    """Return them, by what they are."""
    made = {
        "the recorder: silence": recorder_silence(),
        "the recorder: tokens": recorder_tokens(),
        "the recorder: commits": recorder_commits(),
        "the recorder: requests": recorder_requests(),
        "an SDK: bare spans": sdk({}),
        "an SDK: events": sdk({}, events=20),
        "an SDK: attributes with keys of one letter": sdk(dict.fromkeys(LETTERS, 1)),
        "an SDK: many flags": sdk({f"f{number}": True for number in range(500)}),
        "an SDK: a list of digits": sdk({"l": list(range(10)) * 100} | dict.fromkeys(LETTERS, True)),
        "an SDK: a list of words": sdk({"l": ["ab"] * 1_000} | dict.fromkeys(LETTERS, True)),
        "an SDK: spans of models": sdk({semconv.GEN_AI_OPERATION_NAME: "chat", "gen_ai.request.model": "m"}, "chat m"),
    }
    return made | {f"{name}, as rotel writes it": sparse(raw) for name, raw in made.items()}


def _within(*numbers: int, content: bytes) -> bytes:
    for number in reversed(numbers):
        content = field_of(number, LEN, content).raw
    return content


TINY = {
    "resources": ((), 1),
    "scopes": ((1,), 2),
    "spans": ((1, 2), 2),
    "attributes of a resource": ((1, 1), 1),
    "entities": ((1, 1), 3),
    "keys of an entity": ((1, 1, 3), 3),
    "attributes of a scope": ((1, 2, 1), 3),
    "attributes": ((1, 2, 2), 9),
    "events": ((1, 2, 2), 11),
    "attributes of an event": ((1, 2, 2, 11), 3),
    "links": ((1, 2, 2), 13),
    "attributes of a link": ((1, 2, 2, 13), 4),
    "items": ((1, 2, 2, 9, 2, 5), 1),
    "items of a list in a list": ((1, 2, 2, 9, 2, 5, 1, 5), 1),
    "pairs": ((1, 2, 2, 9, 2, 6), 1),
}
"""Where tiny parts of every kind stand, and their field's number."""


def tiny(kind: str, count: int, content: bytes = b"", filling: int = 0) -> bytes:
    """Return a message with so many parts of a kind that hold `content`, and an unknown field of `filling` bytes."""
    numbers, number = TINY[kind]
    raw = _within(*numbers, content=field_of(number, LEN, content).raw * count)
    return raw + (field_of(1001, LEN, bytes(filling)).raw if filling else b"")


def near_the_bound(random: Random) -> bytes:
    """Return a message of tiny parts that cost about what its bytes justify."""
    kind, content = random.choice(list(TINY)), random.choice((b"", b"\x00\x00", b"\x18\x01", b"\x0a\x01x", b"\x12\x00"))
    filling = random.choice((0, 1_000, 50_000))
    cost = int(COST.max()) * 2
    count = max(1, random.randint(1, 3 * (FREE_NS + NS_PER_BYTE * filling) // cost) * random.choice((1, 10, 100)))
    return tiny(kind, min(count, 100_000), content, filling)


def verdicts(seed: int, count: int) -> str:
    """Return which of so many messages near the bound are read, refused for their parts, or no messages."""
    random = Random(seed)
    found: list[list[int] | list[str]] = []
    for _ in range(count):
        raw = near_the_bound(random)
        try:
            batch = read(raw)
            found.append([batch.spans, batch.ignored])
        except DecodeError as error:
            found.append(["many" if "small or empty" in str(error) else "none"])
    return json.dumps(found)
