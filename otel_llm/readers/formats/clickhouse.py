"""Rows of ClickHouse's `otel_traces` as the Collector's exporter fills it: lines of JSONEachRow, or Parquet.

`Timestamp` is the span's start, `Duration` in ns; attributes are maps of text, so known ones get back the type of their
name; `Events.*` are arrays side by side. Tables of the exporter's JSON schema are read too (nested objects, with
types). Times are taken as ns, as seconds with a point, as ISO with a zone, or without one (UTC, reported).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.core.limits import MAX_TIME_NS
from otel_llm.readers.formats.span_parts import (
    ERROR,
    array,
    attributes,
    dropped_events,
    hex_id,
    make_span,
    request,
    seconds_ns,
    span_kind,
    text,
    whole_number,
)
from otel_llm.readers.io.bytestream import split_lines
from otel_llm.readers.io.json_walk import load
from otel_llm.readers.io.skipped import MAX_DOCUMENT_BYTES
from otel_llm.readers.records import DecodeError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_llm.readers.formats.form import Head
    from otel_llm.readers.io.skipped import Received, Skipped

COLUMNS: Final = frozenset({"Timestamp", "TraceId", "SpanId", "SpanName", "SpanAttributes", "Duration"})
"""The required columns; the others of the table may be missing."""
READ: Final = (*sorted(COLUMNS), "ParentSpanId", "SpanKind", "StatusCode", "ResourceAttributes")
EVENTS: Final = ("Events.Timestamp", "Events.Name", "Events.Attributes")
BATCH_ROWS: Final = 1000
_HOPELESS: Final = 10_000
"""After so many leading rows of another kind the file is refused."""
_FIRST_NS: Final = 10**16
"""A whole number from here on is ns (from April 1970 on), below it is seconds."""
_DATE: Final = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


def sniff(head: Head) -> bool:
    """Tell whether a file begins with a row of the table as JSON."""
    return head.keys >= COLUMNS


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Received]:
    """Yield the spans of JSONEachRow (a line each) as export requests.

    Raises:
        InputError: no line is a row of the table.
    """

    def rows() -> Iterator[tuple[str, Any]]:
        for line in split_lines(chunks, MAX_DOCUMENT_BYTES):
            try:
                yield f"{path}:{line.number}", load(line.text)
            except DecodeError as error:
                skipped.bad_line(path, line, error)

    yield from spans_of(path, rows(), skipped)


def spans_of(path: Path, rows: Iterable[tuple[str, Any]], skipped: Skipped) -> Iterator[Received]:
    """Yield the spans of rows as export requests; a row of another kind is counted with its place.

    Raises:
        InputError: there is no row of the table.
    """
    waiting: dict[str | None, list[Span]] = {}
    held = good = bad = 0
    zones = _Zones()
    refusal = ""
    for place, row in rows:
        try:
            span = _span(row, zones)
            span.dropped_events_count = dropped_events(span, skipped)
            resource = _flat(row.get("ResourceAttributes"), "ResourceAttributes")
            instance = resource.get(semconv.SERVICE_INSTANCE_ID)
            waiting.setdefault(instance if isinstance(instance, str) else None, []).append(span)
        except DecodeError as error:
            refusal = refusal or f"{place}: {error}"
            skipped.add("bad_record", f"{place}: not a row of otel_traces: {error}")
            bad += 1
            if bad == _HOPELESS and not good:
                break
            continue
        good += 1
        held += 1
        if held == BATCH_ROWS:
            yield from ((request(spans, instance), None) for instance, spans in waiting.items())
            waiting, held = {}, 0
    yield from ((request(spans, instance), None) for instance, spans in waiting.items())
    if zones.assumed:
        skipped.add(
            "zone_assumed", f"{path}: times without a zone are read as UTC (docs/audit-forms.md)", zones.assumed
        )
    if refusal and not good:
        raise InputError(f"{refusal}: expected rows of otel_traces (docs/audit-forms.md)")


class _Zones:
    """A count of times without a zone."""

    assumed = 0


def _span(row: Any, zones: _Zones) -> Span:
    if not isinstance(row, dict):
        raise DecodeError("expected an object")
    start_ns = _time(row.get("Timestamp"), "Timestamp", zones)
    end_ns = start_ns + whole_number(row.get("Duration"), "Duration")
    parent = row.get("ParentSpanId")
    span = make_span(
        text(row.get("SpanName"), "SpanName"),
        "SpanName",
        trace_id=hex_id(row.get("TraceId"), 16, "TraceId"),
        span_id=hex_id(row.get("SpanId"), 8, "SpanId"),
        parent_span_id=hex_id(parent, 8, "ParentSpanId") if parent else b"",
        start_time_unix_nano=start_ns,
        end_time_unix_nano=min(end_ns, MAX_TIME_NS),
    )
    span.kind = span_kind(text(row.get("SpanKind") or "", "SpanKind"))  # type: ignore[assignment]
    if text(row.get("StatusCode") or "", "StatusCode").upper().removeprefix("STATUS_CODE_") == "ERROR":
        span.status.code = ERROR  # type: ignore[assignment]
    span.attributes.extend(attributes(_flat(row.get("SpanAttributes"), "SpanAttributes")))
    times, names, maps = (array(row.get(name), name) for name in EVENTS)
    if not len(times) == len(names) == len(maps):
        raise DecodeError("Events: arrays of different lengths")
    for at, name, values in zip(times, names, maps, strict=True):
        try:
            event = span.events.add(
                time_unix_nano=_time(at, EVENTS[0], zones),
                name=text(name, EVENTS[1]),
            )
        except ValueError as error:
            raise DecodeError(f"{EVENTS[1]}: {error}") from None
        if values:
            event.attributes.extend(attributes(_flat(values, EVENTS[2])))
    return span


def _time(value: Any, what: str, zones: _Zones) -> int:
    if isinstance(value, str):
        date = _DATE.fullmatch(value)
        if date is not None:
            zones.assumed += date[4] is None
            try:
                whole = datetime.fromisoformat(f"{date[1]}T{date[2]}{date[4] or '+00:00'}")
            except ValueError as error:
                raise DecodeError(f"{what}: {error}") from None
            seconds = int((whole - datetime.fromtimestamp(0, UTC)).total_seconds())
            return whole_number(seconds * 10**9 + int((date[3] or "").ljust(9, "0")), what)
        if value.isascii() and value.isdigit() and len(value) <= 20:
            value = int(value)
    if type(value) is int and value >= _FIRST_NS:
        return whole_number(value, what)
    return whole_number(seconds_ns(value, what), what)


def _flat(data: Any, what: str) -> dict[str, Any]:
    """Return attributes as one object of dotted names: a map is one, JSON nests them, Parquet lists its pairs."""
    if data is None:
        return {}
    if isinstance(data, str):
        data = load(data)
    if isinstance(data, list) and all(isinstance(one, tuple | list) and len(one) == 2 for one in data):
        data = {one[0]: one[1] for one in data if isinstance(one[0], str)}
    if not isinstance(data, dict):
        raise DecodeError(f"{what}: expected an object")
    if not any(isinstance(value, dict) for value in data.values()):
        return data
    found: dict[str, Any] = {}
    waiting = [("", data)]
    while waiting:
        before, nested = waiting.pop()
        for key, value in nested.items():
            if isinstance(value, dict):
                waiting.append((f"{before}{key}.", value))
            else:
                found[f"{before}{key}"] = value
    return found
