"""Columns of the streams in flight: `rows` is (S, WIDTH) int64, C-contiguous, a row a stream, one slot each.

Instants are in ns on the stream's own axis unless said otherwise, counts since the stream began; a truth is 0 or 1.
"""

from __future__ import annotations

from typing import Final

NEVER: Final = 2**63 - 1
"""An instant or a length of time that is not reached."""
UNKNOWN: Final = -1
"""In DUE_NS: the first token's deadline is not known, since the length of the prompt is not."""

# What is received of the stream, and what others have seen of it.
OFFSET_NS: Final = 0
"""The stream's clock less the collector's, at least."""
WATERMARK_NS: Final = 1
"""End of the last segment applied."""
RECEIPT_NS: Final = 2
"""When the last segment was received, on the collector's axis."""
SEGMENTS: Final = 3
"""How many were applied from number 0 on without a gap."""
TOKENS: Final = 4
"""Of any kind, applied."""
FIRST_NS: Final = 5
"""The first token of any kind; the commit while there is none."""
LAST_NS: Final = 6
"""The last token of any kind; the commit while there is none."""
METERED_TOKENS: Final = 7
"""Tokens that the counters have of it."""
METERED_IDLE_NS: Final = 8
"""Idle time that the counters have of it."""
GROUP: Final = 9
"""Place in the table's `groups`."""
SLO_INDEX: Final = 10
"""Place in the table's `classes`."""
IDENTITY: Final = 11
"""What its rules' terms on identity come to."""
READY: Final = 12
"""Whether nothing of it waits, so that the next segment can be applied here."""
AHEAD: Final = 13
"""Whether this row knows more than the stream's own Stream."""
PREFILTERED: Final = 14
"""Whether its rules are evaluated by columns."""
KNOWN_TOKENS: Final = 15
"""TOKENS when the rule engine last looked at them."""
PLAIN: Final = 16
"""Whether all its tokens are content and read, so that their times alone are kept."""
FRESH: Final = 17
"""How many of its last times stand in the table's `fresh_ns`; its own array does not have them yet."""

# The running judgement of its tokens that are read: see `otel_llm.slo.live.running`, which specifies it.
RUNNING: Final = 18
"""Where these columns begin."""
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
"""When a reader who began with the first token runs out of text; before it, earlier than any token."""
STALLS: Final = 24
STALLED: Final = 25
"""Whether the last token ended a stall, which then goes on with the next."""
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
"""Whether fluidity counts a miss a late token."""
FOLLOWING_NS: Final = 34
"""Its deadline's step where each token is compared with one as it comes, else NEVER."""
BY_GAP: Final = 35
"""Whether that step is from the token before, not from the first deadline."""
JUDGED_NS: Final = 36
"""Its first deadline."""
READS: Final = 37
"""A bit for each kind of token that is read."""
RUNNING_END: Final = 38

MOVED_AT: Final = 38
"""Where it stands among those moved last together; means nothing unless it stands there."""
WINDOWED_TOKENS: Final = 39
"""Tokens that the windows of its instance and class have of it."""
WINDOWED_IDLE_NS: Final = 40
"""Idle time that they have of it."""
WIDTH: Final = 41

INDEX_WIDTH: Final = 4
"""Columns of the index of streams by their keys: see `otel_llm.core.slot_index`."""
