"""Predict the time of a backend's iterations from the observed gaps between tokens. No I/O, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from math import inf
from typing import Final

KEPT: Final = 32
"""The number of gaps that are kept for each number of streams: the last ones."""
COUNTS: Final = 64
"""The most numbers of streams with kept gaps; the one that was observed the longest ago makes room."""
FORGET_S: Final = 60.0
"""The age at which gaps no longer count: the engine, its prompts or its neighbours may have changed (s)."""


class GapHistory:
    """A predictor of a backend's iteration time from the gaps between tokens of its streams.

    The prediction for an observed number of streams is the median of its kept gaps, so one stall does not change it.
    Between two such numbers it is linear. Below the least it is the least's. Beyond the largest it goes on along the
    last two, level if they fall: more streams take no less time; with one number only it is proportional.

    Single-threaded. `observe` costs well under a microsecond, `predict` some 20.
    """

    __slots__ = ("_gaps", "_last_s")

    def __init__(self) -> None:
        self._gaps: dict[int, deque[tuple[float, float]]] = {}
        """By number of streams: the instant and the length of each gap, in order of time."""
        self._last_s = -inf

    def observe(self, streams: int, gap_s: float, now_s: float) -> None:
        """Note a gap (s for each token) that ended now, with so many streams in flight; `now_s` does not go back.

        The streams of a batch share their iterations: a gap is left out if more than half of it lies before the end of
        the last kept one. So the kept gaps cover `KEPT` iterations however many streams there are, and a stall of all
        of them is kept once.
        """
        if not 0.0 < gap_s < 2.0 * (now_s - self._last_s):
            return
        self._last_s = now_s
        gaps = self._gaps.get(streams)
        if gaps is None:
            gaps = self._begin(streams)
        gaps.append((now_s, gap_s))

    def predict(self, streams: int, now_s: float) -> float | None:
        """Return the time of an iteration with so many streams (s, finite, not negative); None if nothing is known."""
        since_s = now_s - FORGET_S
        known = sorted(count for count, gaps in self._gaps.items() if gaps[-1][0] >= since_s)
        if not known:
            return None
        at = bisect_left(known, streams)
        if at == 0 or (at < len(known) and known[at] == streams):
            return self._median_s(known[at], since_s)
        if len(known) == 1:
            return self._median_s(known[0], since_s) * streams / known[0]
        right = min(at, len(known) - 1)
        low, high = known[right - 1], known[right]
        low_s, high_s = self._median_s(low, since_s), self._median_s(high, since_s)
        if streams > high:
            return high_s + max(0.0, high_s - low_s) * ((streams - high) / (high - low))
        return low_s + (high_s - low_s) * ((streams - low) / (high - low))

    def kept(self) -> dict[int, int]:
        """Return how many gaps are kept, by number of streams."""
        return {streams: len(gaps) for streams, gaps in self._gaps.items()}

    def _begin(self, streams: int) -> deque[tuple[float, float]]:
        if len(self._gaps) >= COUNTS:
            del self._gaps[min(self._gaps, key=lambda count: self._gaps[count][-1][0])]
        gaps = self._gaps[streams] = deque(maxlen=KEPT)
        return gaps

    def _median_s(self, streams: int, since_s: float) -> float:
        gaps_s = sorted(gap_s for at_s, gap_s in self._gaps[streams] if at_s >= since_s)
        half = len(gaps_s) // 2
        return gaps_s[half] if len(gaps_s) % 2 else (gaps_s[half - 1] + gaps_s[half]) / 2.0
