"""What the attributes behind a segment's place say, remembered by their bytes: most say what others have said."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_llm import semconv
from otel_llm.readers.attributes import AttributeLimits, scalars

if TYPE_CHECKING:
    from otel_llm.readers.records import Attributes

MOST_BYTES: Final = 2048
"""Longer ones are not read here: what is remembered is bounded."""
_REMEMBERED: Final = 1024
_SPANS, _SCOPE_SPANS, _RESOURCE_SPANS = 0x12, 0x12, 0x0A
_PLACING: Final = frozenset({semconv.SEGMENT_SEQ, semconv.SEGMENT_FIRST_TOKEN, semconv.CHOICE})


@lru_cache(maxsize=_REMEMBERED)
def said(attributes: bytes, limits: AttributeLimits) -> Attributes | None:
    """Return the attributes of a segment that stand in a Span as these bytes, not to be changed.

    None where they are to be read with their span: they are no attributes, place the segment, or something of them is
    to be counted as odd.
    """
    message = attributes
    for tag in (_SPANS, _SCOPE_SPANS, _RESOURCE_SPANS):
        message = framed(tag, message)
    try:
        # Within an export request: protobuf bounds how deep values are nested.
        found = ExportTraceServiceRequest.FromString(message).resource_spans[0].scope_spans[0].spans[0].attributes
    except DecodeError:
        return None
    if any(attribute.key in _PLACING for attribute in found):
        return None
    odd: Counter[str] = Counter()
    kept = scalars(found, odd, limits)
    return None if odd else kept


def framed(tag: int, body: bytes) -> bytes:
    """Return a field that holds this."""
    length, head = len(body), bytearray((tag,))
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    return bytes(head) + body
