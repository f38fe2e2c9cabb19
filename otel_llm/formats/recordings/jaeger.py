"""Jaeger's JSON, as its UI and `/api/traces` give it: `{"data": [TRACE, ...]}`, or traces by themselves.

Times are whole microseconds: the rest of a span's times is lost, so gaps between tokens are off by up to 1 us. A
span's `logs` are its events, named by their field `event`; tags have types; the parent is the reference CHILD_OF, or
the `parentSpanID` of old. Arrays arrive as JSON in a string (the Collector's translation to Jaeger's model).
"""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.core.limits import MAX_TIME_NS
from otel_llm.formats.io.json_values import END, items
from otel_llm.formats.io.skipped import Received
from otel_llm.formats.recordings.span_parts import (
    ERROR,
    FIELDS,
    any_value,
    array,
    dropped_events,
    hex_id,
    make_span,
    pair,
    request,
    span_kind,
    text,
    whole_number,
)
from otel_llm.formats.records import DecodeError, InputError
from otel_llm.formats.spans.attributes import ARRAYS, typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head

_MAX_US: Final = MAX_TIME_NS // 1000
_MOST_SPANS: Final = 10_000
"""Spans of one trace that are held until its processes are read; of more the first are passed on without them."""


def sniff(head: Head) -> bool:
    """Tell whether a file begins with traces as Jaeger's API gives them."""
    keys = head.keys
    for trace in ("data[].", "", "[]."):
        if f"{trace}traceID" in keys and (f"{trace}spans" in keys or f"{trace}processes" in keys):
            return True
        if f"{trace}spans[].traceID" in keys and f"{trace}spans[].spanID" in keys:
            return True
    return {"data", "total", "limit", "offset", "errors"} <= keys  # an answer without traces


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Received]:
    """Yield the spans of each trace as export requests, one for each process that sent some.

    Raises:
        InputError: the file holds no trace of Jaeger's.
    """
    good, before = 0, skipped.broken
    streamed = {"", "data", "[]", "data[]"}
    # Of a trace its spans, and the processes that sent them, which follow the spans.
    spans: list[tuple[Any, int]] = []
    processes: Any = {}
    for item in items(path, chunks, skipped, streamed | {"spans", "[].spans", "data[].spans"}):
        name = item.path.removeprefix("data[]").removeprefix("[]").removeprefix(".")
        if name == "spans[]":
            spans.append((item.value, item.offset))
            if len(spans) == _MOST_SPANS:
                if not good and skipped.broken - before >= _MOST_SPANS:
                    break  # it will not get better
                for message in _messages(path, spans, processes, skipped):
                    good += 1
                    yield message
                spans = []
        elif name == "processes":
            processes = item.value
        elif item.value is END:
            for message in _messages(path, spans, processes, skipped):
                good += 1
                yield message
            spans, processes = [], {}
    # The file may be cut between a trace's spans and its processes.
    for message in _messages(path, spans, processes, skipped):
        good += 1
        yield message
    if not good and skipped.broken > before:
        raise InputError(f"{path}: no span of Jaeger's in it ({'; '.join(skipped.notes[-1:])})")


def _messages(path: Path, spans: list[tuple[Any, int]], processes: Any, skipped: Skipped) -> Iterator[Received]:
    senders: dict[str | None, list[Span]] = {}
    for data, offset in spans:
        try:
            span = _span(data)
            span.dropped_events_count = dropped_events(span, skipped)
            senders.setdefault(_instance(data, processes), []).append(span)
        except DecodeError as error:
            skipped.bad(path, f"byte {offset}", f"not a span of Jaeger's: {error}")
    for instance, sent in senders.items():
        yield Received(request(sent, instance))


def _span(data: Any) -> Span:
    if not isinstance(data, dict):
        raise DecodeError("expected a span")
    start_us = whole_number(data.get("startTime"), "startTime", _MAX_US)
    end_us = start_us + whole_number(data.get("duration"), "duration", _MAX_US)
    span = make_span(
        text(data.get("operationName"), "operationName"),
        "operationName",
        trace_id=hex_id(data.get("traceID"), 16, "traceID"),
        span_id=hex_id(data.get("spanID"), 8, "spanID"),
        parent_span_id=_parent(data),
        start_time_unix_nano=start_us * 1000,
        end_time_unix_nano=min(end_us, _MAX_US) * 1000,
    )
    for key, value in _tags(data.get("tags"), "tags"):
        match key, value.WhichOneof("value"):
            case "span.kind", "string_value":
                span.kind = span_kind(value.string_value)  # type: ignore[assignment]
            case "otel.status_code", "string_value":
                if value.string_value.upper() == "ERROR":
                    span.status.code = ERROR  # type: ignore[assignment]
            case "error", "bool_value" if value.bool_value:
                span.status.code = ERROR  # type: ignore[assignment]
            case _ if key not in FIELDS:
                span.attributes.append(pair(key, value))
    for number, log in enumerate(array(data.get("logs"), "logs")):
        what = f"logs[{number}]"
        if not isinstance(log, dict):
            raise DecodeError(f"{what}: expected an object")
        at_us = whole_number(log.get("timestamp"), f"{what}.timestamp", _MAX_US)
        event = span.events.add(time_unix_nano=at_us * 1000)
        for key, value in _tags(log.get("fields"), f"{what}.fields"):
            if key == "event" and not event.name and value.WhichOneof("value") == "string_value":
                event.name = value.string_value
            else:
                event.attributes.append(pair(key, value))
    return span


def _parent(data: dict[str, Any]) -> bytes:
    for reference in array(data.get("references"), "references"):
        if isinstance(reference, dict) and reference.get("refType", "CHILD_OF") == "CHILD_OF":
            return hex_id(reference.get("spanID"), 8, "references")
    old = data.get("parentSpanID")
    return hex_id(old, 8, "parentSpanID") if old and isinstance(old, str) and old.strip("0") else b""


def _instance(data: dict[str, Any], processes: Any) -> str | None:
    """Return `service.instance.id` of the process that sent a span."""
    process = data.get("process")
    if process is None and isinstance(processes, dict):
        process = processes.get(data.get("processID") if isinstance(data.get("processID"), str) else "")
    tags = process.get("tags") if isinstance(process, dict) else None
    for tag in tags if isinstance(tags, list) else ():
        if isinstance(tag, dict) and tag.get("key") == semconv.SERVICE_INSTANCE_ID:
            value = tag.get("value")
            return value if isinstance(value, str) and value.isprintable() else None
    return None


def _tags(data: Any, what: str) -> Iterator[tuple[str, AnyValue]]:
    for number, tag in enumerate(array(data, what)):
        if not isinstance(tag, dict) or not isinstance(tag.get("key"), str):
            raise DecodeError(f"{what}[{number}]: expected a key")
        plain = tag.get("value")
        if tag["key"] in ARRAYS and isinstance(plain, str):
            plain = typed(tag["key"], plain)
        value = _value(plain, str(tag.get("type", "")), f"{what}[{number}]")
        if value is not None:
            yield tag["key"], value


def _value(value: Any, kind: str, what: str) -> AnyValue | None:
    """Return a tag's value as the type it names; if it names none, as it is written."""
    if isinstance(value, str):
        try:
            match kind.lower():
                case "int64":
                    value = int(value) if len(value) <= 20 else value
                case "float64":
                    value = float(value)
                case "bool":
                    value = value.lower() == "true"
                case "binary":
                    value = b64decode(value, validate=True)
        except ValueError as error:
            raise DecodeError(f"{what}: {error}") from None
    elif kind.lower() == "float64" and type(value) is int:
        # JavaScript writes 1.0 as 1.
        value = float(value) if abs(value) < 2**63 else None
    return any_value(value)
