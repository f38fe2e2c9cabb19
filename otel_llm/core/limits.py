"""What is read of one message at most; also what other readers keep to."""

from __future__ import annotations

from typing import Final

MAX_TIME_NS: Final = 2**62 - 1
"""In the year 2116. A bit is left, so that lengths can be added to times in 64 bits."""
MAX_COUNT: Final = 2**31 - 1
"""Of a segment's number, of its first token's, of a choice, of tokens."""
MAX_TOKENS: Final = 1_000_000
"""Tokens on one span at most: ten times the longest context of today."""
MAX_MESSAGE_TOKENS: Final = 4_000_000
"""Tokens that one message may expand to: an event of 40 bytes can claim a million."""
FREE_MESSAGE_TOKENS: Final = 250_000
"""As many, of a message of few bytes: thirty replies that each came in one piece of 8,000 tokens."""
TOKENS_PER_BYTE: Final = 4
"""So many more for each of its bytes: seventy times as many as an event for each token takes."""
