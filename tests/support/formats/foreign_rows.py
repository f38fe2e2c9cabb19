"""Rows of others' spans as the audit makes them, and spans with the arrays that some of them carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.audit.audit_oracle import Judged, one_by_one

from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.otlp.export_json import parse_json
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.rows import Row
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import SloClasses

CAPTURED = Path(__file__).parents[2] / "formats" / "foreign" / "captured"
S = 1_000_000_000


def captured(emitter: str) -> ExportTraceServiceRequest:
    """Return what `emitter` sent."""
    return parse_json((CAPTURED / f"{emitter}.json").read_bytes())


def judged(
    *messages: ExportTraceServiceRequest, classes: SloClasses | None = None
) -> tuple[list[Judged], Counter[str]]:
    """Return the rows of an audit of `messages`, with what they come from, and what was counted."""
    assembler = Assembler()
    for message in messages:
        assembler.add(decode(message))
    found = one_by_one(assembler.finish(), classes or load_slo(), assembler.counts)
    return found, +assembler.counts


def rows(*messages: ExportTraceServiceRequest) -> list[Row]:
    """Return the rows of an audit of `messages`."""
    return [one.row for one in judged(*messages)[0]]


def known(row: Row) -> dict[str, Any]:
    """Return the columns of a row that are not null."""
    return {name: value for name, value in row.items() if value is not None}


def doubles(values: Sequence[float]) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=[AnyValue(double_value=value) for value in values]))


def with_array(span: Span, key: str, value: AnyValue) -> Span:
    """Return `span` with an attribute of any kind."""
    span.attributes.append(KeyValue(key=key, value=value))
    return span
