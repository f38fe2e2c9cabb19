"""The sorted gaps between the tokens of requests, for percentiles and histograms of TBT."""

from __future__ import annotations

from operator import sub
from typing import TYPE_CHECKING, Final

from otel_llm.slo.quantiles import P50, P99, rank

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

MANY: Final = 64
"""The number of tokens from which numpy is faster."""
_FEW: Final = 3
"""Fewer requests are as fast one by one."""


def sorted_gaps(times_ns: array[int]) -> Sequence[int]:
    """Return the gaps between sorted times, sorted; a list of few, an array of many."""
    if len(times_ns) <= MANY:
        return sorted(map(sub, times_ns[1:], times_ns))
    import numpy as np  # not needed for few tokens, and not loaded in every process

    times = np.frombuffer(times_ns, dtype=np.int64)
    gaps = times[1:] - times[:-1]
    gaps.sort()
    return gaps  # type: ignore[return-value]


def sorted_gaps_of(every: Sequence[array[int]]) -> list[Sequence[int]]:
    """Return `sorted_gaps` of each; requests of similar length are sorted in one pass.

    This saves little work, but numpy releases the interpreter's lock in nearly every call on so many numbers, so that
    waiting threads can run.
    """
    found: list[Sequence[int]] = [()] * len(every)
    order = sorted(range(len(every)), key=lambda index: len(every[index]))
    start = 0
    while start < len(order):
        length = len(every[order[start]])
        stop = start + 1
        while stop < len(order) and len(every[order[stop]]) <= length + length // 4:
            stop += 1
        indexes = order[start:stop]
        if length > MANY and len(indexes) >= _FEW:
            rows = _rows([every[index] for index in indexes])
            for index, row in zip(indexes, rows, strict=True):
                found[index] = row
        else:
            for index in indexes:
                found[index] = sorted_gaps(every[index])
        start = stop
    return found


def _rows(every: Sequence[array[int]]) -> list[Sequence[int]]:
    """Return the sorted gaps of each, laid out in a rectangle that is as wide as the longest, which is the last."""
    import numpy as np

    lengths = [len(times) - 1 for times in every]
    gaps = np.full((len(every), lengths[-1]), np.iinfo(np.int64).max)
    for row, times_ns, length in zip(gaps, every, lengths, strict=True):
        times = np.frombuffer(times_ns, dtype=np.int64)
        np.subtract(times[1:], times[:-1], out=row[:length])
    gaps.sort(axis=1)
    return [row[:length] for row, length in zip(gaps, lengths, strict=True)]  # type: ignore[misc]


def gap_ranks(gaps_ns: Sequence[int], zeros: int = 0) -> tuple[int | None, int | None, int | None]:
    """Return the median, the 99th percentile and the longest of gaps; None if there are none.

    The gaps are sorted ones, none negative, and so many `zeros`.
    """
    count = len(gaps_ns) + zeros
    if not count:
        return None, None, None
    p50, p99, longest = (at - zeros for at in (rank(count, P50), rank(count, P99), count - 1))
    return _at(gaps_ns, p50), _at(gaps_ns, p99), _at(gaps_ns, longest)


def _at(gaps_ns: Sequence[int], index: int) -> int:
    return 0 if index < 0 else int(gaps_ns[index])
