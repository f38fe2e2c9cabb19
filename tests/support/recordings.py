"""The worked requests as recorded telemetry, in every format that the audit reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp import T0_NS, Event, Value, export, segment_span, stream_spans
from support.vectors import Vector, vectors

from otel_llm import semconv
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.files import read_file
from otel_llm.formats.input_paths import input_files
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.io.skipped import Received, Skipped
from otel_llm.slo.classes import KINDS, SloClasses

SEGMENT_TOKENS = 7
"""Few, so that most vectors need several segments."""


def vector_classes() -> SloClasses:
    """Return the class of each vector, named after its number."""
    named = tuple(replace(one.slo, name=f"v{number}") for number, one in enumerate(vectors()))
    return SloClasses(named, "v0")


def vector_messages() -> list[ExportTraceServiceRequest]:
    """Return one export request for each vector: its segments as a recorder would cut them."""
    return [export(*vector_spans(number, one)) for number, one in enumerate(vectors())]


def vector_spans(number: int, one: Vector, segment_tokens: int = SEGMENT_TOKENS) -> list[Span]:
    """Return the segments of a vector: its trace id is its number + 1, its times begin after T0."""
    shift = T0_NS if one.commit_ns < T0_NS else 0  # OTLP has no instant 0
    said: dict[str, Value] = {semconv.SLO_CLASS: f"v{number}", semconv.MEASURED_AT: "client"}
    commit_ns, end_ns = one.commit_ns + shift, one.end_ns + shift
    events = [_event(at + shift, None if one.kinds is None else one.kinds[i]) for i, at in enumerate(one.tokens_ns)]
    spans = [segment_span(0, 0, request=number + 1, start_ns=commit_ns, attributes=said)]
    pieces: Sequence[Sequence[Event]] = [
        events[i : i + segment_tokens] for i in range(0, len(events), segment_tokens)
    ] or [[]]
    for seq, piece in enumerate(pieces, start=1):
        ends: dict[str, Value] = {}
        if seq == len(pieces) and one.outcome != "lost":
            ends = {
                semconv.OUTCOME: one.outcome,
                semconv.TOKENS: len(events),
                semconv.TOKEN_BASIS: "exact",
                semconv.SEGMENTS: len(pieces) + 1,
            }
        spans.append(
            segment_span(
                seq,
                (seq - 1) * segment_tokens,
                piece,
                request=number + 1,
                start_ns=commit_ns,
                end_ns=end_ns,
                attributes=ends,
            )
        )
    return spans


def _event(at_ns: int, kind: int | None) -> Event:
    return (at_ns, {semconv.TOKEN_KIND: KINDS[kind]}) if kind else at_ns


def bursts(late_ns: Sequence[int], every_ns: int) -> list[ExportTraceServiceRequest]:
    """Return requests of 20 tokens, one every `every_ns`: all come at once, so late after the first is due (200 ms)."""
    messages = []
    for number, late in enumerate(late_ns, 1):
        commit = T0_NS + number * every_ns
        at = commit + 200_000_000 + late
        messages.append(export(*stream_spans([at] * 20, request=number, commit_ns=commit, end_ns=at)))
    return messages


def journal(messages: Sequence[ExportTraceServiceRequest]) -> bytes:
    """Return a journal of ours: each record sealed, received when its spans ended."""
    return b"".join(
        frame(message.SerializeToString(), message.resource_spans[0].scope_spans[0].spans[0].end_time_unix_nano)
        for message in messages
    )


def json_lines(messages: Sequence[ExportTraceServiceRequest]) -> bytes:
    """Return OTLP JSON lines as the OpenTelemetry Collector's file exporter writes them."""
    lines: list[str] = []
    for message in messages:
        data = json_format.MessageToDict(message)
        for ours, theirs in zip(_spans(message), data["resourceSpans"][0]["scopeSpans"][0]["spans"], strict=True):
            theirs["traceId"], theirs["spanId"] = ours.trace_id.hex(), ours.span_id.hex()
            theirs["parentSpanId"] = ours.parent_span_id.hex()
        lines.append(json.dumps(data))
    return "\n".join(lines).encode() + b"\n"


def collector_proto(messages: Sequence[ExportTraceServiceRequest]) -> bytes:
    """Return length-prefixed messages as the Collector's file exporter writes them with `format: proto`."""
    raws = [message.SerializeToString() for message in messages]
    return b"".join(len(raw).to_bytes(4, "big") + raw for raw in raws)


def one_message(messages: Sequence[ExportTraceServiceRequest]) -> bytes:
    """Return everything as a single export request."""
    return export(*(span for message in messages for span in _spans(message))).SerializeToString()


FORMATS = {
    "journal.otlp": journal,
    "traces.jsonl": json_lines,
    "collector.binpb": collector_proto,
    "single.pb": one_message,
}
"""A file's name and how its bytes are made."""


def write_format(folder: Path, name: str, messages: Sequence[ExportTraceServiceRequest]) -> Path:
    """Write messages in one of the FORMS and return the file."""
    path = folder / name
    path.write_bytes(FORMATS[name](messages))
    return path


def _spans(message: ExportTraceServiceRequest) -> Sequence[Span]:
    return message.resource_spans[0].scope_spans[0].spans


def read_inputs(paths: Iterable[Path], skipped: Skipped | None = None) -> Iterator[Received | Assembled]:
    """Yield what files, folders and patterns hold, in the order given; they are looked for before that."""
    counted = Skipped() if skipped is None else skipped
    files = input_files(paths, counted)
    return chain.from_iterable(read_file(path, counted) for path in files)


def received(paths: Iterable[Path], skipped: Skipped | None = None) -> list[Received]:
    """Return the export requests in files of spans and in journals, with their receipt times."""
    return [item for item in read_inputs(paths, skipped) if isinstance(item, tuple)]
