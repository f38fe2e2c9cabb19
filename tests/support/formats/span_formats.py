"""Export requests in every format of file that the audit reads as spans, and token times as CSV.

Each is written here as the tool that makes it writes it, from its own sources, so that a reader is not tested against
itself: the Collector's file exporter, its translation to Jaeger's model and Jaeger's JSON of that, Tempo's API, the
Collector's ClickHouse exporter.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import zstandard
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.recordings import collector_proto, journal, json_lines, one_message

Messages = Sequence[ExportTraceServiceRequest]
KIND_WORDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUS_WORDS = ("Unset", "Ok", "Error")


def records(raws: Iterable[bytes]) -> bytes:
    """Return records as the Collector's file exporter frames them: 4 bytes big-endian length each."""
    return b"".join(len(raw).to_bytes(4, "big") + raw for raw in raws)


def collector_zstd_proto(messages: Messages) -> bytes:
    """Return what the file exporter writes with `format: proto` and `compression: zstd`."""
    return records(zstandard.compress(message.SerializeToString()) for message in messages)


def collector_zstd_json(messages: Messages) -> bytes:
    """Return what the file exporter writes with `compression: zstd`: JSON, framed too."""
    return records(zstandard.compress(line) for line in json_lines(messages).splitlines())


def each_span(messages: Messages) -> list[tuple[Resource, str, Span]]:
    """Return every span with its resource and the name of its scope."""
    return [
        (resource.resource, scope.scope.name, span)
        for message in messages
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def plain(value: AnyValue) -> Any:
    """Return a value as JSON would hold it."""
    match value.WhichOneof("value"):
        case "array_value":
            return [plain(one) for one in value.array_value.values]
        case "kvlist_value":
            return {pair.key: plain(pair.value) for pair in value.kvlist_value.values}
        case None:
            return ""
        case name:
            return getattr(value, name)


def as_string(value: AnyValue) -> str:
    """Return a value as pdata's `Value.AsString` does."""
    found = plain(value)
    if isinstance(found, bool):
        return "true" if found else "false"
    return found if isinstance(found, str) else json.dumps(found, separators=(",", ":"))


# Jaeger


def jaeger_tag(key: str, value: AnyValue) -> dict[str, Any]:
    match plain(value):
        case bool() as found:
            return {"key": key, "type": "bool", "value": found}
        case int() as found:
            return {"key": key, "type": "int64", "value": found}
        case float() as found:
            # JavaScript's JSON writes a whole one without its point.
            return {"key": key, "type": "float64", "value": int(found) if found.is_integer() else found}
        case _:
            return {"key": key, "type": "string", "value": as_string(value)}


def jaeger_tags(pairs: Iterable[KeyValue]) -> list[dict[str, Any]]:
    return [jaeger_tag(pair.key, pair.value) for pair in pairs]


def jaeger_span(span: Span, scope: str) -> dict[str, Any]:
    tags = jaeger_tags(span.attributes)
    tags.insert(0, {"key": "otel.scope.name", "type": "string", "value": scope})
    if span.kind:
        tags.append({"key": "span.kind", "type": "string", "value": KIND_WORDS[span.kind].lower()})
    if span.status.code == 2:
        tags.append({"key": "otel.status_code", "type": "string", "value": "ERROR"})
        tags.append({"key": "error", "type": "bool", "value": True})
    start_us = span.start_time_unix_nano // 1000
    references = []
    if span.parent_span_id:
        one = {"refType": "CHILD_OF", "traceID": span.trace_id.hex(), "spanID": span.parent_span_id.hex()}
        references.append(one)
    return {
        "traceID": span.trace_id.hex(),
        "spanID": span.span_id.hex(),
        "operationName": span.name,
        "references": references,
        "startTime": start_us,
        "duration": span.end_time_unix_nano // 1000 - start_us,
        "tags": tags,
        "logs": [
            {
                "timestamp": event.time_unix_nano // 1000,
                "fields": [{"key": "event", "type": "string", "value": event.name}, *jaeger_tags(event.attributes)],
            }
            for event in span.events
        ],
        "processID": "p1",
        "warnings": None,
    }


def jaeger(messages: Messages, indent: int | None = None) -> bytes:
    """Return what Jaeger's UI downloads: traces, each with its spans and the processes that sent them."""
    traces: dict[str, dict[str, Any]] = {}
    for resource, scope, span in each_span(messages):
        trace = traces.setdefault(span.trace_id.hex(), {"traceID": span.trace_id.hex(), "spans": [], "processes": {}})
        trace["spans"].append(jaeger_span(span, scope))
        trace["processes"]["p1"] = {"serviceName": "s", "tags": jaeger_tags(resource.attributes)}
        trace["warnings"] = None
    answer = {"data": list(traces.values()), "total": 0, "limit": 0, "offset": 0, "errors": None}
    return json.dumps(answer, indent=indent).encode()


def in_whole_us(messages: Messages) -> list[ExportTraceServiceRequest]:
    """Return the same with every time cut to microseconds: what Jaeger keeps."""
    found = []
    for message in messages:
        cut = ExportTraceServiceRequest.FromString(message.SerializeToString())
        for _, _, span in each_span([cut]):
            span.start_time_unix_nano -= span.start_time_unix_nano % 1000
            span.end_time_unix_nano -= span.end_time_unix_nano % 1000
            for event in span.events:
                event.time_unix_nano -= event.time_unix_nano % 1000
        found.append(cut)
    return found


# Tempo


def tempo_v1(messages: Messages) -> bytes:
    """Return `/api/traces/ID`: `batches`, ids as base64, enums by name."""
    batches = [one for message in messages for one in json_format.MessageToDict(message)["resourceSpans"]]
    return json.dumps({"batches": batches}).encode()


def tempo_old(messages: Messages) -> bytes:
    """Return the same of a Tempo from before OTLP's scopes."""
    return (
        tempo_v1(messages)
        .replace(b'"scopeSpans"', b'"instrumentationLibrarySpans"')
        .replace(b'"scope"', b'"instrumentationLibrary"')
    )


def tempo_v2(messages: Messages) -> bytes:
    """Return `/api/v2/traces/ID`."""
    spans = json.loads(tempo_v1(messages))["batches"]
    return json.dumps({"trace": {"resourceSpans": spans}, "metrics": {"inspectedBytes": "7"}}).encode()


def tempo_proto(messages: Messages) -> bytes:
    """Return `/api/traces/ID` asked for as protobuf: `Trace`."""
    return b"".join(message.SerializeToString() for message in messages)


def tempo_proto_v2(messages: Messages) -> bytes:
    """Return `/api/v2/traces/ID` asked for as protobuf: `TraceByIDResponse{trace = 1, metrics = 2}`."""
    trace = tempo_proto(messages)
    size, length = len(trace), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return b"\x0a" + bytes([*length, size]) + trace + b"\x12\x02\x08\x07"


# ClickHouse


def clickhouse_time(at_ns: int) -> str:
    whole = datetime.fromtimestamp(at_ns // 10**9, UTC)
    return f"{whole:%Y-%m-%d %H:%M:%S}.{at_ns % 10**9:09d}"


def clickhouse_row(resource: Resource, scope: str, span: Span) -> dict[str, Any]:
    """Return what the Collector's exporter inserts: attributes are all text."""
    return {
        "Timestamp": clickhouse_time(span.start_time_unix_nano),
        "TraceId": span.trace_id.hex(),
        "SpanId": span.span_id.hex(),
        "ParentSpanId": span.parent_span_id.hex(),
        "TraceState": span.trace_state,
        "SpanName": span.name,
        "SpanKind": KIND_WORDS[span.kind],
        "ServiceName": "s",
        "ResourceAttributes": {pair.key: as_string(pair.value) for pair in resource.attributes},
        "ScopeName": scope,
        "ScopeVersion": "",
        "SpanAttributes": {pair.key: as_string(pair.value) for pair in span.attributes},
        "Duration": span.end_time_unix_nano - span.start_time_unix_nano,
        "StatusCode": STATUS_WORDS[span.status.code],
        "StatusMessage": span.status.message,
        "Events.Timestamp": [clickhouse_time(event.time_unix_nano) for event in span.events],
        "Events.Name": [event.name for event in span.events],
        "Events.Attributes": [{pair.key: as_string(pair.value) for pair in event.attributes} for event in span.events],
        "Links.TraceId": [],
        "Links.SpanId": [],
        "Links.TraceState": [],
        "Links.Attributes": [],
    }


def clickhouse(messages: Messages) -> bytes:
    """Return `SELECT * ... FORMAT JSONEachRow`, with its setting for quoted 64-bit integers."""
    rows = [clickhouse_row(*one) for one in each_span(messages)]
    return b"".join(json.dumps(row | {"Duration": str(row["Duration"])}).encode() + b"\n" for row in rows)


def clickhouse_json_schema(messages: Messages) -> bytes:
    """Return the same of a table of the exporter's JSON schema: attributes nested by their dots, with types."""
    lines = []
    for resource, scope, span in each_span(messages):
        row = clickhouse_row(resource, scope, span)
        row["SpanAttributes"] = nested(span.attributes)
        row["Events.Attributes"] = [nested(event.attributes) for event in span.events]
        lines.append(json.dumps(row))
    return "\n".join(lines).encode()


def nested(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in sorted(pairs, key=lambda one: -one.key.count(".")):
        *outer, last = pair.key.split(".")
        here = found
        for name in outer:
            here = here.setdefault(name, {})
        if isinstance(here.get(last), dict):  # `a` beside `a.b`: ClickHouse keeps both paths
            found[pair.key] = plain(pair.value)
        else:
            here[last] = plain(pair.value)
    return found


def clickhouse_answer(messages: Messages) -> bytes:
    """Return the same as `FORMAT JSON`."""
    rows = [clickhouse_row(*one) for one in each_span(messages)]
    meta = [{"name": name, "type": "String"} for name in rows[0]]
    answer = {"meta": meta, "data": rows, "rows": len(rows), "statistics": {"elapsed": 0.1}}
    return json.dumps(answer, indent="\t").encode()


def clickhouse_compact(messages: Messages) -> bytes:
    """Return the same as `FORMAT JSONCompact`."""
    answer = json.loads(clickhouse_answer(messages))
    return json.dumps(answer | {"data": [list(row.values()) for row in answer["data"]]}).encode()


def clickhouse_array(messages: Messages) -> bytes:
    """Return JSONEachRow with `output_format_json_array_of_rows`."""
    return b"[\n" + clickhouse(messages).rstrip().replace(b"\n", b",\n") + b"\n]\n"


def clickhouse_nested(messages: Messages, *, named: bool = True) -> bytes:
    """Return JSONEachRow of a table with `flatten_nested = 0`: tuples as objects, or as arrays."""
    lines = []
    for one in each_span(messages):
        row = clickhouse_row(*one)
        names = ("Timestamp", "Name", "Attributes")
        events = zip(*(row.pop(f"Events.{name}") for name in names), strict=True)
        row["Events"] = [dict(zip(names, event, strict=True)) if named else list(event) for event in events]
        lines.append(json.dumps(row).encode())
    return b"\n".join(lines)


def clickhouse_tuples(messages: Messages) -> bytes:
    """Return the same with `output_format_json_named_tuples_as_objects = 0`."""
    return clickhouse_nested(messages, named=False)


def jaeger_v3(messages: Messages) -> bytes:
    """Return `/api/v3/traces`: a line for each chunk of the answer."""
    each = [json.loads(line) for line in json_lines(messages).splitlines()]
    return b"".join(json.dumps({"result": one}).encode() + b"\n" for one in each)


def otlp_array(messages: Messages) -> bytes:
    """Return an array of export requests."""
    return json.dumps([json.loads(line) for line in json_lines(messages).splitlines()]).encode()


def otlp_indented(messages: Messages) -> bytes:
    """Return export requests as `jq` writes them."""
    return b"".join(json.dumps(json.loads(one), indent=2).encode() + b"\n" for one in json_lines(messages).splitlines())


SPAN_FORMATS: dict[str, Callable[[Messages], bytes]] = {
    "journal.otlp": journal,
    "collector.jsonl": json_lines,
    "collector.binpb": collector_proto,
    "collector-zstd.binpb": collector_zstd_proto,
    "collector-zstd.jsonl": collector_zstd_json,
    "single.pb": one_message,
    "jaeger.json": jaeger,
    "tempo.json": tempo_v1,
    "tempo-old.json": tempo_old,
    "tempo-v2.json": tempo_v2,
    "tempo.pb": tempo_proto,
    "tempo-v2.pb": tempo_proto_v2,
    "otel_traces.jsonl": clickhouse,
    "otel_traces-json.jsonl": clickhouse_json_schema,
    "otel_traces.json": clickhouse_answer,
    "otel_traces-compact.json": clickhouse_compact,
    "otel_traces-array.json": clickhouse_array,
    "otel_traces-nested.jsonl": clickhouse_nested,
    "otel_traces-tuples.jsonl": clickhouse_tuples,
    "jaeger-v3.json": jaeger_v3,
    "otlp-array.json": otlp_array,
    "otlp-indented.json": otlp_indented,
}
"""A file's name and how its bytes are made."""


def csv_times(rows: Iterable[Sequence[Any]], header: Sequence[str]) -> bytes:
    """Return lines under a header, as the csv module writes them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue().encode()
