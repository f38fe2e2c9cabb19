"""The answers of the scan, and the columns of its arrays: spans, pieces around them, counts."""

from __future__ import annotations

from typing import Final

# Classes of spans.
PLAIN: Final = 0
"""A segment of choice 0, not the first, without further attributes, its tokens of one kind and none after its end."""
SEGMENT: Final = 1
"""Any other segment."""
REQUEST: Final = 2
"""A request span of otel-llm: one with `otel_llm.segments`, without events."""
OTHER: Final = 3
"""A span for protobuf: only CLASS, BEGIN, STOP and RESOURCE are filled."""

FOREIGN: Final = 4
"""A span for protobuf that nothing uses, by its names: it is only checked and counted."""

# Columns of a span.
CLASS: Final = 0
BEGIN: Final = 1
STOP: Final = 2
"""The begin and end of the span's fields in the message."""
RESOURCE: Final = 3
"""The number of its ResourceSpans."""
TRACE: Final = 4
"""The halves of the trace id (4, 5), the request span's id (6): eight bytes each as a little-endian integer."""
PARENT_AT: Final = 7
"""The index of a request span's parent id; -1: none."""
START_NS: Final = 8
END_NS: Final = 9
SEQ: Final = 10
FIRST_TOKEN: Final = 11
CHOICE: Final = 12
KIND: Final = 13
"""A segment's kind of tokens, if it has one; a request span's SpanKind."""
EVENTS: Final = 14
"""The begin (14) and end (15) of its token events among all."""
ATTRIBUTES: Final = 16
"""The begin (16) and end (17) of its attributes among all."""
NAME_AT: Final = 18
NAME_END: Final = 19
ERROR: Final = 20
LATE: Final = 21
"""1: a token is after the segment's end."""
LAST_BYTE_NS: Final = 22
"""The newest byte that a segment states; 0: none."""
TOKENS: Final = 23
"""How many tokens its events stand for."""
SPAN_COLUMNS: Final = 24

# Pieces of the message around the spans, (kind, resource, begin, end): each is a message for protobuf to check. A
# resource or scope in two pieces is left to protobuf, so that there are no more pieces than parts.
RESOURCE_PIECE: Final = 0
SCOPE_PIECE: Final = 1
PIECE_COLUMNS: Final = 4

# Indexes of `filled`.
SPANS: Final = 0
ALL_EVENTS: Final = 1
"""The token events of all spans with a row of their own."""
ALL_ATTRIBUTES: Final = 2
PIECES: Final = 3
RESOURCES: Final = 4
PLAIN_SPANS: Final = 5
MORE_TOKENS: Final = 6
"""The tokens of these events beyond one each."""
COUNTS: Final = 7

# Answers.
READ: Final = 0
MORE_ROOM: Final = 1
"""An array is full: scan again with larger ones."""
UNREADABLE: Final = 2
