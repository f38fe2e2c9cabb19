"""The columns of streams in flight: `rows` is (S, WIDTH) int64, C-contiguous, with one row, its slot, for each stream.

Instants are unix ns of the stream's own clock unless stated otherwise; counts are since its beginning; flags: 0 or 1.
"""

from __future__ import annotations

from typing import Final

NEVER: Final = 2**63 - 1
"""An instant or a duration that is never reached."""
UNKNOWN: Final = -1
"""In DUE_NS: the first token's deadline is unknown, since the length of the prompt is."""

# In BUFFERS.
BUFFERS_NOTHING: Final = 0
"""Some of its tokens are not content, or are not read."""
BUFFERS_TIMES: Final = 1
"""Its events are one token each: their times, from the begin of its buffer on."""
BUFFERS_COUNTS: Final = 2
"""The times of its events, from the begin of its buffer on, and how many tokens each has, from its middle on."""

# The received part of the stream, and its state elsewhere.
OFFSET_NS: Final = 0
"""A lower bound of the stream's clock minus the collector's."""
WATERMARK_NS: Final = 1
"""The end of the last applied segment."""
RECEIPT_NS: Final = 2
"""The receipt time of the last segment, on the collector's clock."""
SEGMENTS: Final = 3
"""The number of applied segments, from number 0 on without a gap."""
TOKENS: Final = 4
"""Applied tokens of any kind."""
FIRST_NS: Final = 5
"""The first token of any kind; the commit while there is none."""
LAST_NS: Final = 6
"""The last token of any kind; the commit while there is none."""
METERED_TOKENS: Final = 7
"""Tokens charged to the counters."""
METERED_IDLE_NS: Final = 8
"""Idle time charged to the counters."""
GROUP: Final = 9
"""Its index in the table's `groups`."""
SLO_INDEX: Final = 10
"""Its index in the table's `classes`."""
IDENTITY: Final = 11
"""The results of its rules' terms on identity, as bits."""
READY: Final = 12
"""Whether no segment of it waits, so that the next can be applied here."""
AHEAD: Final = 13
"""Whether this row is newer than the stream's Stream."""
PREFILTERED: Final = 14
"""Whether its rules are evaluated by columns."""
KNOWN_TOKENS: Final = 15
"""TOKENS at the last evaluation by the rule engine."""
BUFFERS: Final = 16
"""What of its token events is buffered in the table's `buffer`: BUFFERS_NOTHING, BUFFERS_TIMES or BUFFERS_COUNTS."""
FRESH: Final = 17
"""The number of its last events that are buffered there and are not in its own arrays yet."""

# The running judgement of its tokens that are read; `otel_llm.slo.live.running` specifies it.
RUNNING: Final = 18
"""The first of these columns."""
DUE_NS: Final = 18
"""Etalon's deadline of the next token, or UNKNOWN."""
COUNT: Final = 19
"""Tokens read."""
READ_FIRST_NS: Final = 20
"""The first token read; the commit while there is none."""
READ_LAST_NS: Final = 21
"""The last token read; the commit while there is none."""
ALLOWANCE_NS: Final = 22
"""The reading line's deadline of the next token."""
DRY_NS: Final = 23
"""When a reader who began with the first token runs out of text; before the first token, earlier than any."""
STALLS: Final = 24
STALLED: Final = 25
"""Whether the last token was stalled: a stalled next token continues the same stall."""
LATE: Final = 26
"""Tokens after Etalon's deadline."""
MISSED: Final = 27
"""Etalon's deadlines missed."""
PASSED: Final = 28
"""Whether a token missed the class's deadline under `dslo` or `ttft_tbt`."""
COMMIT_NS: Final = 29

# Of its class.
PACE_NS: Final = 30
TBT_NS: Final = 31
DROPS: Final = 32
"""Whether fluidity drops the first token's credit."""
ONE_A_TOKEN: Final = 33
"""Whether fluidity counts one miss for each late token."""
FOLLOWING_NS: Final = 34
"""The step of its deadlines where each token is compared with one on arrival, else NEVER."""
BY_GAP: Final = 35
"""Whether that step counts from the token before, not from the first deadline."""
JUDGED_NS: Final = 36
"""Its first deadline."""
READS: Final = 37
"""A bit for each kind of token that is read."""
RUNNING_END: Final = 38

MOVED_AT: Final = 38
"""Its index in the `moved` of the last batch; valid only if its slot is there."""
WINDOWED_TOKENS: Final = 39
"""Tokens charged to the windows of its instance and class."""
WINDOWED_IDLE_NS: Final = 40
"""Idle time charged to them."""
LAST_BYTE_NS: Final = 41
"""The newest byte that a segment has stated; 0: none."""
KNOWN_BYTE_NS: Final = 42
"""LAST_BYTE_NS at the last evaluation by the rule engine."""
WIDTH: Final = 43

INDEX_WIDTH: Final = 5
"""Columns of the index of streams by key (`otel_llm.core.slot_index`)."""
