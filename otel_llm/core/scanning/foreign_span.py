"""Tell by the names in a span that it is none of a model's reply: most spans of a general exporter are not."""

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
TELLING: Final = (
    semconv.GEN_AI_OPERATION_NAME,
    semconv.OPENINFERENCE_SPAN_KIND,
    semconv.LANGFUSE_COMPLETION_START,
    semconv.SEGMENTS,
    semconv.OLD_CHUNK_EVENT,
)
"""With the first letters of one of these begins every name of an attribute or event that says so of a span."""
_BEGINNINGS: Final = np.array([int.from_bytes(name[:_PREFIX].encode(), "big") for name in TELLING], np.int64)
_SEGMENT_NAME: Final = constant(semconv.SEGMENT_SPAN)


@kernel()
def _tells(data: Bytes, at: int, end: int, name: int) -> bool:
    """Tell whether an attribute or event has a name that says so, its tag is `name`; True in doubt."""
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
    """Tell whether nothing in a span says that it is a segment or a model's reply; False in doubt."""
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
        if found == tags.ATTRIBUTE and _tells(data, begin, at, tags.KEY):
            return False
        if found == tags.EVENT and _tells(data, begin, at, tags.EVENT_NAME):
            return False
    return True
