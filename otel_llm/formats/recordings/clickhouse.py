"""Rows of ClickHouse's `otel_traces` as the Collector's exporter fills it: JSON by rows or as one answer, or Parquet.

`Timestamp` is the span's start, `Duration` in ns; attributes are maps of text, so known ones get back the type of their
name; `Events.*` are arrays side by side, or `Events` is one of objects (`flatten_nested = 0`). Tables of the exporter's
JSON schema are read too (nested objects, with types). Times are taken as ns, as seconds with a point, as ISO with a
zone, or without one (UTC, reported).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.core.limits import MAX_TIME_NS
from otel_llm.formats.io.json_values import items, json_records, load
from otel_llm.formats.io.skipped import Received
from otel_llm.formats.recordings.recording_format import read_head
from otel_llm.formats.recordings.span_parts import (
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
from otel_llm.formats.records import DecodeError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head

COLUMNS: Final = frozenset({"Timestamp", "TraceId", "SpanId", "SpanName", "SpanAttributes", "Duration"})
"""The required columns; the others of the table may be missing."""
READ: Final = (*sorted(COLUMNS), "ParentSpanId", "SpanKind", "StatusCode", "ResourceAttributes")
NESTED: Final = "Events"
_EVENT: Final = ("Timestamp", "Name", "Attributes")
EVENTS: Final = tuple(f"{NESTED}.{name}" for name in _EVENT)
BATCH_ROWS: Final = 1000
_EXPECTED: Final = "expected rows of otel_traces, as FORMAT JSONEachRow writes them (docs/audit-formats.md)"
_HOPELESS: Final = 10_000
"""After so many leading rows of another kind the file is refused."""
_FIRST_NS: Final = 10**16
"""A whole number from here on is ns (from April 1970 on), below it is seconds."""
_DATE: Final = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


def sniff(head: Head) -> bool:
    """Tell whether a file begins with a row of the table as JSON, or is an answer in ClickHouse's `FORMAT JSON`."""
    return head.own_keys >= COLUMNS or _is_answer(head)


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Received]:
    """Yield the spans of rows of JSON as export requests: JSONEachRow, an array, `FORMAT JSON` or `JSONCompact`.

    Raises:
        InputError: nothing in it is a row of the table.
    """
    head, every = read_head(chunks)
    rows = _answer if _is_answer(head) else json_records
    found = rows(path, every, skipped)
    places = ((f"{path}:{place}" if isinstance(place, int) else f"{path}: {place}", row) for place, row in found)
    yield from spans_of(path, places, skipped)


def _is_answer(head: Head) -> bool:
    return head.keys >= {"meta[].name", "data"} and b'"SpanAttributes"' in head.text


def _answer(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[tuple[str, Any]]:
    """Yield the place and the row of each element of `data`; a row without names has those of `meta`.

    Raises:
        InputError: the answer is one of columns.
    """
    names: list[str] = []
    for item in items(path, chunks, skipped, {"", "data"}):
        if item.path == "meta" and isinstance(item.value, list):
            names = [str(one.get("name")) for one in item.value if isinstance(one, dict)]
        elif item.path.startswith("data."):
            raise InputError(f"{path}: an answer by columns: {_EXPECTED}")
        elif item.path == "data[]":
            row = item.value
            if isinstance(row, list) and len(row) == len(names):
                row = dict(zip(names, row, strict=True))
            yield f"byte {item.offset}", row


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
            yield from (Received(request(spans, instance)) for instance, spans in waiting.items())
            waiting, held = {}, 0
    yield from (Received(request(spans, instance)) for instance, spans in waiting.items())
    if zones.assumed:
        skipped.add(
            "zone_assumed", f"{path}: times without a zone are read as UTC (docs/audit-formats.md)", zones.assumed
        )
    if refusal and not good:
        raise InputError(f"{refusal}: {_EXPECTED}")


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
    times, names, maps = _events(row)
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


def _events(row: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the times, names and attributes of a row's events, whichever way the table and the format nest them."""
    nested = row.get(NESTED)
    if nested is None:
        times, names, maps = (array(row.get(name), name) for name in EVENTS)
    elif isinstance(nested, dict):
        times, names, maps = (array(nested.get(name), f"{NESTED}.{name}") for name in _EVENT)
    else:
        each = [_event(one) for one in array(nested, NESTED)]
        times, names, maps = ([event[at] for event in each] for at in range(len(_EVENT)))
    return times, names, maps


def _event(event: Any) -> list[Any]:
    if isinstance(event, dict):
        return [event.get(name) for name in _EVENT]
    if not isinstance(event, list) or len(event) != len(_EVENT):
        raise DecodeError(f"{NESTED}: expected an object or {len(_EVENT)} values for each event")
    return event


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
