"""Pauses between attempts that grow, with a jitter that is the same in every run."""

from __future__ import annotations

import zlib
from typing import Final

FIRST_S: Final = 0.05
MOST_S: Final = 1.0
JITTER: Final = 0.25
"""How much shorter or longer a pause may be, so that streams that fail together do not come back together."""


class Backoff:
    """The pauses between the attempts of one stream; `of`: its span id, from which the jitter follows."""

    __slots__ = ("_of", "attempts")

    def __init__(self, of: bytes) -> None:
        self._of = of
        self.attempts = 0
        """How many pauses there were."""

    def next_s(self) -> float:
        """Return the pause before the next attempt (s): 50 ms, doubled each time up to 1 s."""
        self.attempts += 1
        usual_s = min(FIRST_S * 2.0 ** min(self.attempts - 1, 10), MOST_S)
        draw = zlib.crc32(self._of + self.attempts.to_bytes(4, "big")) / 0xFFFFFFFF
        return usual_s * (1 - JITTER + 2 * JITTER * draw)
