"""What a scan answers, and what stands in the arrays that it fills: columns of spans, pieces around them, counts."""

from __future__ import annotations

from typing import Final

from otel_llm.core.limits import MAX_MESSAGE_TOKENS

# What a span is.
PLAIN: Final = 0
"""A segment of choice 0, not the first, without further attributes, its tokens of one kind and none after its end."""
SEGMENT: Final = 1
"""Any other segment."""
REQUEST: Final = 2
"""A request span of our own: one with `otel_llm.segments`, without events."""
OTHER: Final = 3
"""A span for protobuf: only CLASS, BEGIN, STOP and RESOURCE are filled."""

FOREIGN: Final = 4
"""A span for protobuf that no reader looks at, by the names in it: it is only to be checked, and counted."""

# Columns of a span.
CLASS: Final = 0
BEGIN: Final = 1
STOP: Final = 2
"""Where the span's fields begin and end in the message."""
RESOURCE: Final = 3
"""The number of its ResourceSpans."""
TRACE: Final = 4
"""The halves of the trace id (4, 5), the request span's id (6): eight bytes each as a little-endian integer."""
PARENT_AT: Final = 7
"""Where a request span's parent id stands, -1: nowhere."""
START_NS: Final = 8
END_NS: Final = 9
SEQ: Final = 10
FIRST_TOKEN: Final = 11
CHOICE: Final = 12
KIND: Final = 13
"""A segment's kind of token, where it has one; a request span's SpanKind."""
TOKENS: Final = 14
"""Where its tokens begin among all (14) and end (15)."""
ATTRIBUTES: Final = 16
"""Where its attributes begin among all (16) and end (17)."""
NAME_AT: Final = 18
NAME_END: Final = 19
ERROR: Final = 20
LATE: Final = 21
"""1: a token is after the segment's end."""
SPAN_COLUMNS: Final = 22

# Pieces of the message around the spans, (what, resource, begin, end): each is a message that protobuf is to check.
# A resource or scope that stands in two pieces is left to protobuf, so that there are at most as many as parts.
RESOURCE_PIECE: Final = 0
SCOPE_PIECE: Final = 1
PIECE_COLUMNS: Final = 4

# How many there are, in `filled`.
SPANS: Final = 0
ALL_TOKENS: Final = 1
ALL_ATTRIBUTES: Final = 2
PIECES: Final = 3
RESOURCES: Final = 4
PLAIN_SPANS: Final = 5
EXPANDED: Final = 6
"""Tokens that events stand for beyond one each, those of spans that protobuf is to read included."""
MOST_EXPANDED: Final = 2 * MAX_MESSAGE_TOKENS
"""An event of 40 bytes can claim a million tokens, and its span turn out to be one for protobuf: that is bounded."""
COUNTS: Final = 7

# Answers.
READ: Final = 0
MORE_ROOM: Final = 1
"""An array is full: scan once more with larger ones."""
UNREADABLE: Final = 2
