"""What the attributes behind a segment's place say, remembered by their bytes: most say what others have said."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm import semconv
from otel_llm.readers.attributes import AttributeLimits, scalars

if TYPE_CHECKING:
    from otel_llm.readers.records import Attributes

MOST_BYTES: Final = 2048
"""Longer ones are not read here: what is remembered is bounded."""
_REMEMBERED: Final = 1024
_PLACING: Final = frozenset({semconv.SEGMENT_SEQ, semconv.SEGMENT_FIRST_TOKEN, semconv.CHOICE})


@lru_cache(maxsize=_REMEMBERED)
def said(attributes: bytes, limits: AttributeLimits) -> Attributes | None:
    """Return the attributes of a segment that stand in a Span as these bytes, not to be changed.

    None where they are to be read with their span: they are no attributes, place the segment, or something of them is
    to be counted as odd.
    """
    try:
        found = Span.FromString(attributes).attributes
    except DecodeError:
        return None
    if any(attribute.key in _PLACING for attribute in found):
        return None
    odd: Counter[str] = Counter()
    kept = scalars(found, odd, limits)
    return None if odd else kept
