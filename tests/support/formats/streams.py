"""The streams that a file gives, and those of export requests as they were received."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.recordings import read_inputs

from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import Assembled, row_order
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.otlp.export_request import decode


def streams_of(path: Path, skipped: Skipped) -> list[Assembled]:
    """Return the streams of a file or folder, in the order of rows."""
    assembler = Assembler()
    others = []
    for item in read_inputs([path], skipped):
        if isinstance(item, Assembled):
            others.append(item)
        else:
            message = item.message  # only a journal knows when a record came; that places windows, and changes no row
            assembler.add(decode(message))
    return sorted([*assembler.finish(), *others], key=lambda one: row_order(one.resolved))


def direct(messages: Sequence[ExportTraceServiceRequest]) -> list[Assembled]:
    """Return the streams of messages as they were received."""
    assembler = Assembler()
    for message in messages:
        assembler.add(decode(message))
    return assembler.finish()
