"""A file of a known format without a request is said, never silently 0 requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.formats.span_formats import SPAN_FORMATS
from support.otlp import T0_NS, export
from support.recordings import vector_messages

from otel_llm.audit import load
from otel_llm.formats.records import InputError

EMPTY: dict[str, Any] = {
    "OTLP": {"resourceSpans": []},
    "an empty object": {},
    "Tempo": {"batches": []},
    "Tempo v2": {"trace": {"resourceSpans": []}},
    "Jaeger v3": {"result": {"resourceSpans": []}},
    "an array of OTLP": [{"resourceSpans": []}],
}


@pytest.mark.parametrize("name", sorted(EMPTY))
def test_an_answer_without_spans_is_reported(tmp_path: Path, name: str) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(EMPTY[name]))
    found = load(path, strict=True)
    assert (found.summary()["requests"], found.skipped.counts) == (0, {"no_request": 1})
    assert found.skipped.notes == [f"{path}: no request in it: it is of a known format, and empty"]


NOTHING: dict[str, Any] = {
    "Jaeger": {"data": [], "total": 0, "limit": 0, "offset": 0, "errors": None},
    "ClickHouse": {"meta": [{"name": "SpanAttributes", "type": "Map"}], "data": [], "rows": 0},
    "an array": [],
}


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_an_answer_without_anything_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(NOTHING[name]))
    with pytest.raises(InputError, match=str(path)):
        load(path)


@pytest.mark.parametrize("file_format", sorted(SPAN_FORMATS.keys() - {"journal.otlp"}))
def test_spans_of_another_kind_are_reported(tmp_path: Path, file_format: str) -> None:
    span = Span(trace_id=bytes(15) + b"1", span_id=bytes(7) + b"1", name="GET /")
    span.start_time_unix_nano = span.end_time_unix_nano = T0_NS
    path = tmp_path / "spans"
    path.write_bytes(SPAN_FORMATS[file_format]([export(span)]))
    found = load(path)
    assert found.summary()["requests"] == 0
    assert f"{path}: no request in it: 1 span, none of a model's request" in found.skipped.notes
    beside = tmp_path / "requests"
    beside.write_bytes(SPAN_FORMATS[file_format](vector_messages()))
    assert load(beside).skipped.counts["no_request"] == 0
