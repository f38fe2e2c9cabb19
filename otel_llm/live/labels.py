"""Limits on the length of label values and of a scrape."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

METRICS_BYTES: Final = 16 * 2**20
"""A scrape has at most this size; label sets beyond it count as `other`."""
MAX_LABEL_CHARS: Final = 128
"""A longer value is cut, and ends in a hash of the whole: two different long names stay different."""


def shortened(value: str) -> str:
    """Return a label value cut to MAX_LABEL_CHARS; a longer one ends in `~` and 16 hex digits of its hash."""
    if len(value) <= MAX_LABEL_CHARS:
        return value
    digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{value[: MAX_LABEL_CHARS - 1 - len(digest)]}~{digest}"


def escaped_bytes(value: str) -> int:
    """Return the bytes of a label value in the text format, which escapes three characters."""
    return len(value.encode("utf-8", "surrogatepass")) + sum(map(value.count, '\\\n"'))
