"""Read OTLP trace export requests to records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_llm.core.kernel import COMPILED
from otel_llm.core.limits import FREE_MESSAGE_TOKENS, MAX_MESSAGE_TOKENS, TOKENS_PER_BYTE
from otel_llm.formats.batch import Batch
from otel_llm.formats.otlp.length_delimited import RESOURCE_SPANS, refuse_many_parts
from otel_llm.formats.otlp.span_records import add_span, instance_of
from otel_llm.formats.records import DecodeError
from otel_llm.formats.spans.attributes import DEFAULT_LIMITS, AttributeLimits

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse(raw: bytes) -> ExportTraceServiceRequest:
    """Return the message in `raw`; no bytes are an empty one.

    Raises:
        DecodeError: these bytes are no such message.
    """
    try:
        return ExportTraceServiceRequest.FromString(raw)
    except ProtobufDecodeError as error:
        raise DecodeError(f"not an OTLP trace export request: {error}") from error


def token_budget(size: int) -> int:
    """Return how many tokens an export request of `size` bytes may have; spans beyond are refused."""
    return min(MAX_MESSAGE_TOKENS, FREE_MESSAGE_TOKENS + TOKENS_PER_BYTE * size)


def read(
    raw: bytes,
    *,
    receipt_ns: int | None = None,
    limits: AttributeLimits = DEFAULT_LIMITS,
    free_ns: int | None = None,
    max_tokens: int | None = None,
) -> Batch:
    """Return the records of an export request, its plain segments as columns.

    `receipt_ns`: the instant of receipt (unix ns); `max_tokens`: `token_budget` of its size by default. Without
    compiled kernels all of it is read by protobuf.

    Raises:
        DecodeError: these bytes are no such message, or one of more small parts than its size allows (`framing`).
    """
    refuse_many_parts(raw, free_ns)
    budget = token_budget(len(raw)) if max_tokens is None else max_tokens
    if COMPILED:
        # The import loads the kernels: a process that reads no export request need not wait for them.
        from otel_llm.formats.otlp.scanned import read_scanned

        batch = read_scanned(raw, receipt_ns, limits, budget)
        if batch is not None:
            return batch
    return decode(parse(raw), receipt_ns, limits, budget)


def read_all(
    raws: Sequence[bytes], *, limits: AttributeLimits = DEFAULT_LIMITS, max_tokens: int | None = None
) -> list[Batch | DecodeError]:
    """Return the records of each export request as `read` does, or the error of bytes that are no such message.

    `max_tokens`: the budget of all of them together.
    """
    found: list[Batch | DecodeError] = []
    left = MAX_MESSAGE_TOKENS * len(raws) if max_tokens is None else max_tokens
    for raw in raws:
        try:
            batch = read(raw, limits=limits, max_tokens=min(left, token_budget(len(raw))))
        except DecodeError as error:
            found.append(error)
            continue
        left -= batch.tokens + sum(span.tokens for span in batch.requests)
        found.append(batch)
    return found


def parse_cut(raw: bytes) -> tuple[ExportTraceServiceRequest, bool]:
    """Return the message in `raw` and whether it was complete; of a cut one, the resources before the cut.

    Raises:
        DecodeError: nothing complete stands at its beginning.
    """
    try:
        return parse(raw), True
    except DecodeError:
        end = whole_resources(raw)
        if end == 0:
            raise
        return parse(raw[:end]), False


def whole_resources(raw: bytes) -> int:
    """Return the end of the last `resource_spans` that is not cut."""
    whole = position = 0
    while position < len(raw) and raw[position] == RESOURCE_SPANS:
        length = 0
        for size, byte in enumerate(raw[position + 1 : position + 6]):
            length |= (byte & 127) << 7 * size
            if byte < 128:
                position += 2 + size + length
                break
        else:
            break
        if position <= len(raw):
            whole = position
    return whole


def decode(
    message: ExportTraceServiceRequest,
    receipt_ns: int | None = None,
    limits: AttributeLimits = DEFAULT_LIMITS,
    budget: int | None = None,
) -> Batch:
    """Return the records of `message`; it raises nothing, unusable spans are counted in the batch.

    `budget`: the most tokens it may have, MAX_MESSAGE_TOKENS by default.
    """
    batch = Batch()
    budget = MAX_MESSAGE_TOKENS if budget is None else budget
    for resource_spans in message.resource_spans:
        instance_id = instance_of(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                budget = add_span(span, batch, budget, receipt_ns, instance_id, limits)
    return batch
