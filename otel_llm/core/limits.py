"""The limits on one message, for the scan and for other readers."""

from __future__ import annotations

from typing import Final

from otel_llm import semconv

MAX_TIME_NS: Final = 2**62 - 1
"""Unix ns, in the year 2116. One bit is left, so that durations can be added to times in 64 bits."""
MAX_COUNT: Final = 2**31 - 1
"""The largest segment number, token index, choice and token count."""
MAX_TOKENS: Final = semconv.MAX_STREAM_TOKENS
"""The most tokens of one stream, so of one span."""
MAX_EVENT_TOKENS: Final = 131_072
"""The most tokens of one event: the longest reply of today, in one piece."""
MAX_MESSAGE_TOKENS: Final = 4_000_000
"""The most tokens of one message: an event of 40 bytes can claim many."""
FREE_MESSAGE_TOKENS: Final = 250_000
"""The tokens that a message may have whatever its size: thirty replies of 8,000 tokens, each in one event."""
TOKENS_PER_BYTE: Final = 4
"""Further tokens for each byte: seventy times as many as with an event for each token."""
