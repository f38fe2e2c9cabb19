"""The columns of the running judgement of a stream: a row of `rows`, (S, 20 or more) int64, for each stream.

Instants are unix ns of the stream's own clock; counts are since its beginning; flags are 0 or 1.
"""

from __future__ import annotations

from typing import Final

NEVER: Final = 2**63 - 1
"""An instant or a duration that is never reached."""
UNKNOWN: Final = -(2**63)
"""In DUE_NS: the first token's deadline is unknown, since the length of the prompt is."""

DUE_NS: Final = 0
"""Etalon's deadline of the next token, or UNKNOWN."""
COUNT: Final = 1
"""Tokens read."""
READ_FIRST_NS: Final = 2
"""The first token read; the commit while there is none."""
READ_LAST_NS: Final = 3
"""The last token read; the commit while there is none."""
ALLOWANCE_NS: Final = 4
"""The reading line's deadline of the next token, d_{n+1}."""
DRY_NS: Final = 5
"""When a reader who began with the first token runs out of text, t_1 + n P and every wait since; before the first
token, earlier than any."""
STALLS: Final = 6
STALLED: Final = 7
"""Whether the last token was stalled: a stalled next token continues the same stall."""
LATE: Final = 8
"""Tokens after Etalon's deadline."""
MISSED: Final = 9
"""Etalon's deadlines missed."""
PASSED: Final = 10
"""Whether a token missed the class's deadline under `dslo` or `ttft_tbt` (the other policies need no memory)."""
COMMIT_NS: Final = 11

# Of its class.
PACE_NS: Final = 12
"""P, the time that a token takes to read."""
TBT_NS: Final = 13
DROPS: Final = 14
"""Whether fluidity drops the first token's credit."""
ONE_A_TOKEN: Final = 15
"""Whether fluidity counts one miss for each late token."""
FOLLOWING_NS: Final = 16
"""The step of its deadlines if each token is compared with one on arrival, else NEVER."""
BY_GAP: Final = 17
"""Whether that step counts from the token before, not from the first deadline."""
JUDGED_NS: Final = 18
"""Its first deadline."""
READS: Final = 19
"""A bit for each kind of token that is read."""
RUNNING_WIDTH: Final = 20
