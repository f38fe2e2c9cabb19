"""Finished spans of an exporter, as the readers see them once they were on the wire."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from otel_llm.formats.batch import Batch
from otel_llm.formats.otlp.export_request import decode, parse


def records_of(spans: Sequence[ReadableSpan]) -> Batch:
    """Encode with the standard encoder, and decode."""
    return decode(parse(encode_spans(spans).SerializeToString()))
