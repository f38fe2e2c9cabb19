"""The columns of streams in flight: `rows` is (S, WIDTH) int64, C-contiguous, with one row, its slot, for each stream.

The first ones are those of `otel_llm.slo.live.columns`. Instants are unix ns of the stream's own clock unless stated
otherwise; counts are since its beginning; flags: 0 or 1.
"""

from __future__ import annotations

from typing import Final

from otel_llm.slo.live.columns import RUNNING_WIDTH

# In BUFFERS.
BUFFERS_NOTHING: Final = 0
"""Some of its tokens are not content, or are not read."""
BUFFERS_TIMES: Final = 1
"""Its events are one token each: their times, from the begin of its buffer on."""
BUFFERS_COUNTS: Final = 2
"""The times of its events, from the begin of its buffer on, and how many tokens each has, from its middle on."""

# The received part of the stream, and its state elsewhere.
OFFSET_NS: Final = RUNNING_WIDTH
"""A lower bound of the stream's clock minus the collector's."""
WATERMARK_NS: Final = RUNNING_WIDTH + 1
"""The end of the last applied segment."""
RECEIPT_NS: Final = RUNNING_WIDTH + 2
"""The receipt time of the last segment, on the collector's clock."""
SEGMENTS: Final = RUNNING_WIDTH + 3
"""The number of applied segments, from number 0 on without a gap."""
TOKENS: Final = RUNNING_WIDTH + 4
"""Applied tokens of any kind."""
FIRST_NS: Final = RUNNING_WIDTH + 5
"""The first token of any kind; the commit while there is none."""
LAST_NS: Final = RUNNING_WIDTH + 6
"""The last token of any kind; the commit while there is none."""
METERED_TOKENS: Final = RUNNING_WIDTH + 7
"""Tokens charged to the counters."""
METERED_IDLE_NS: Final = RUNNING_WIDTH + 8
"""Idle time charged to the counters."""
GROUP: Final = RUNNING_WIDTH + 9
"""Its index in the table's `groups`."""
SLO_INDEX: Final = RUNNING_WIDTH + 10
"""Its index in the table's `classes`."""
IDENTITY: Final = RUNNING_WIDTH + 11
"""The results of its rules' terms on identity, as bits."""
READY: Final = RUNNING_WIDTH + 12
"""Whether no segment of it waits, so that the next can be applied here."""
PREFILTERED: Final = RUNNING_WIDTH + 13
"""Whether its rules are evaluated by columns."""
KNOWN_TOKENS: Final = RUNNING_WIDTH + 14
"""TOKENS at the last evaluation by the rule engine."""
BUFFERS: Final = RUNNING_WIDTH + 15
"""What of its token events is buffered in the table's `buffer`: BUFFERS_NOTHING, BUFFERS_TIMES or BUFFERS_COUNTS."""
FRESH: Final = RUNNING_WIDTH + 16
"""The number of its last events that are buffered there and are not in its own arrays yet."""

MOVED_AT: Final = RUNNING_WIDTH + 17
"""Its index in the `moved` of the last batch; valid only if its slot is there."""
WINDOWED_TOKENS: Final = RUNNING_WIDTH + 18
"""Tokens charged to the windows of its instance and class."""
WINDOWED_IDLE_NS: Final = RUNNING_WIDTH + 19
"""Idle time charged to them."""
LAST_BYTE_NS: Final = RUNNING_WIDTH + 20
"""The newest byte that a segment has stated; 0: none."""
KNOWN_BYTE_NS: Final = RUNNING_WIDTH + 21
"""LAST_BYTE_NS at the last evaluation by the rule engine."""
WIDTH: Final = RUNNING_WIDTH + 22

INDEX_WIDTH: Final = 5
"""Columns of the index of streams by key (`otel_llm.core.slot_index`)."""
