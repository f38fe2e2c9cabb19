"""The test, by the names in a span, for spans that are not of a model's reply: most spans of a general exporter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm import semconv
from otel_llm.core.kernel import kernel
from otel_llm.core.loads import byte
from otel_llm.core.scanning import tags
from otel_llm.core.scanning.protobuf import LENGTH, is_same, length, skip, tag
from otel_llm.core.scanning.token_event import constant

if TYPE_CHECKING:
    from otel_llm.core.loads import Bytes

_PREFIX: Final = 4
MODEL_NAMES: Final = (
    semconv.GEN_AI_OPERATION_NAME,
    semconv.OPENINFERENCE_SPAN_KIND,
    semconv.LANGFUSE_COMPLETION_START,
    semconv.SEGMENTS,
    semconv.OLD_CHUNK_EVENT,
    *semconv.FIRST_CHUNK_UNITS,
)
"""A span of a model's reply has an attribute or event whose name begins with the first letters of one of these."""
_BEGINNINGS: Final = np.array(
    sorted({int.from_bytes(name[:_PREFIX].encode(), "big") for name in MODEL_NAMES}), np.int64
)
_SEGMENT_NAME: Final = constant(semconv.SEGMENT_SPAN)


@kernel()
def _has_model_name(data: Bytes, at: int, end: int, name: int) -> bool:
    """Return whether the name of an attribute or event, with the tag `name`, marks a model's reply; True in doubt."""
    while at < end:
        found, at = tag(data, at, end)
        if at < 0:
            return True
        if found != name:
            at = skip(data, at, end, found & 7)
            if at < 0:
                return True
            continue
        begin, at = length(data, at, end)
        if at < 0:
            return True
        if at - begin < _PREFIX:
            continue
        beginning = 0
        for place in range(begin, begin + _PREFIX):
            beginning = beginning << 8 | byte(data, place)
        for one in _BEGINNINGS:
            if one == beginning:
                return True
    return False


@kernel()
def is_foreign(data: Bytes, at: int, end: int) -> bool:
    """Return whether a span is neither a segment nor of a model's reply, by its names; False in doubt."""
    while at < end:
        found, at = tag(data, at, end)
        if at < 0:
            return False
        if found & 7 != LENGTH:
            at = skip(data, at, end, found & 7)
            if at < 0:
                return False
            continue
        begin, at = length(data, at, end)
        if at < 0:
            return False
        if found == tags.NAME and is_same(data, begin, at, _SEGMENT_NAME):
            return False
        if found == tags.ATTRIBUTE and _has_model_name(data, begin, at, tags.KEY):
            return False
        if found == tags.EVENT and _has_model_name(data, begin, at, tags.EVENT_NAME):
            return False
    return True
