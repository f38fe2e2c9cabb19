"""Token times of many requests in one array: sorted, selected by kind, with the gaps between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from otel_llm.slo.classes import CONTENT, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from otel_llm.slo.batch.judged import Ints
    from otel_llm.slo.batch.recorded import Recorded
    from otel_llm.slo.classes import SloClass

BLOCK_TOKENS = 262_144
"""2 MiB of times: enough that a block's calls cost little a token, and small enough for the last-level cache."""
LONG = 2**32 - 1
"""The gap in ns, 4.3 s, that stands for all longer ones too."""
_Item = TypeVar("_Item", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Ragged:
    """The sorted times of requests one after the other, none of them empty.

    `times` (N,) int64, ns; `starts`, `lengths` (R,); `gaps` (N,) uint32, the time since the token before, ns, LONG
    if it is that or more, 0 at a request's first: half as wide as a time, since they are read again and again.
    `longest` (R,) ns, exact.
    """

    times: Ints
    starts: Ints
    lengths: Ints
    gaps: NDArray[np.uint32]
    longest: Ints

    @classmethod
    def of(cls, times: Ints, lengths: Ints) -> Ragged:
        """Build from the sorted times (N,) of requests, `lengths` (R,) of each."""
        starts = np.cumsum(lengths) - lengths
        return cls.of_gaps(times, starts, lengths, _gaps(times, starts))

    @classmethod
    def of_gaps(cls, times: Ints, starts: Ints, lengths: Ints, gaps: Ints) -> Ragged:
        """Build with `gaps` (N,) that are known already."""
        longest: Ints = np.maximum.reduceat(gaps, starts)
        short = int(longest.max()) <= LONG
        return cls(times, starts, lengths, (gaps if short else np.minimum(gaps, LONG)).astype(np.uint32), longest)

    @property
    def first(self) -> Ints:
        """Return every request's first time (R,)."""
        first: Ints = self.times[self.starts]
        return first

    @property
    def last(self) -> Ints:
        """Return every request's last time (R,)."""
        last: Ints = self.times[self.starts + self.lengths - 1]
        return last


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens of P requests: `every` one in order (None: there are none), of the requests `some` that have any.

    `kinds` (N,) in the order of the times, None if all is content; `skewed`: how many tokens of each of `some` were
    before its commit and were moved to it.
    """

    every: Ragged | None
    some: Ints
    kinds: NDArray[np.uint8] | None
    skewed: Ints

    def read(self, reads: tuple[int, ...]) -> tuple[Ragged | None, Ints]:
        """Return the tokens of these kinds, None for none, and the indexes of the P requests that have some."""
        if self.every is None or (self.kinds is None and CONTENT not in reads):
            return None, self.some[:0]
        if self.kinds is None:
            return self.every, self.some
        is_read = np.zeros(len(KINDS), np.bool_)
        is_read[list(reads)] = True
        chosen = is_read[self.kinds]
        if bool(chosen.all()):
            return self.every, self.some
        counts = np.add.reduceat(chosen, self.every.starts, dtype=np.int64)
        reading = np.flatnonzero(counts)
        if not len(reading):
            return None, self.some[:0]
        return Ragged.of(self.every.times[chosen], counts[reading]), self.some[reading]


def by_class(
    requests: Recorded,
    classes: Sequence[SloClass],
    class_index: NDArray[np.integer] | None,
    block_tokens: int | None = None,
) -> Iterator[tuple[SloClass, Ints]]:
    """Yield every request once, as (class, indexes of some requests of it), about `block_tokens` tokens at a time.

    `block_tokens`: BLOCK_TOKENS if None. `class_index` (R,): positions in `classes`, the first for all if None.

    Raises:
        ValueError: an index that is no position.
    """
    if class_index is None:
        class_index = np.zeros(len(requests), np.intp)
    in_range = not len(class_index) or 0 <= class_index.min() <= class_index.max() < len(classes)
    if len(class_index) != len(requests) or not in_range:
        raise ValueError(f"class_index must be {len(requests)} positions in {len(classes)} classes")
    if block_tokens is None:
        block_tokens = BLOCK_TOKENS
    lengths = np.diff(requests.offsets)
    for code, slo in enumerate(classes):
        chosen = np.flatnonzero(class_index == code)
        ends = np.cumsum(lengths[chosen])
        low, before = 0, 0
        while low < len(chosen):
            high = max(low + 1, int(np.searchsorted(ends, before + block_tokens, "right")))
            yield slo, chosen[low:high]
            low, before = high, int(ends[high - 1])


def block_of(requests: Recorded, which: Ints) -> Block:
    """Return the tokens of the requests `which` (P,), sorted, none before its request's commit."""
    lengths = requests.offsets[which + 1] - requests.offsets[which]
    some = np.flatnonzero(lengths)
    skewed = np.zeros(len(some), np.int64)
    if not len(some):
        return Block(None, some, None, skewed)
    times = _gather(requests.tokens_ns, requests.offsets, which)
    kinds = None if requests.kinds is None else _gather(requests.kinds, requests.offsets, which)
    lengths, commit = lengths[some], requests.commit_ns[which][some]
    starts = np.cumsum(lengths) - lengths
    gaps = _gaps(times, starts)
    falls = np.zeros(len(times), np.bool_)  # decided by the times: a gap that leaves 64 bits changes its sign
    np.less(times[1:], times[:-1], out=falls[1:])
    falls[starts] = False
    backward = np.flatnonzero(falls)
    least = np.minimum.reduceat(times, starts) if len(backward) else times[starts]
    early = np.flatnonzero(least < commit)
    if not len(backward) and not len(early):
        return Block(Ragged.of_gaps(times, starts, lengths, gaps), some, kinds, skewed)
    times = times.copy()
    kinds = None if kinds is None else kinds.copy()
    for index in np.unique(np.searchsorted(starts, backward, "right") - 1).tolist():
        span = slice(starts[index], starts[index] + lengths[index])
        if kinds is not None:
            kinds[span] = kinds[span][np.argsort(times[span], kind="stable")]
        times[span].sort()
    for index in early.tolist():
        own = times[starts[index] : starts[index] + lengths[index]]
        skewed[index] = np.searchsorted(own, commit[index])
        own[: skewed[index]] = commit[index]
    return Block(Ragged.of(times, lengths), some, kinds, skewed)


def _gaps(times: Ints, starts: Ints) -> Ints:
    gaps = np.empty_like(times)
    np.subtract(times[1:], times[:-1], out=gaps[1:])
    gaps[starts] = 0
    return gaps


def _gather(values: NDArray[_Item], offsets: Ints, which: Ints) -> NDArray[_Item]:
    """Return the values of these requests one after the other; a view if they are contiguous."""
    first, last = int(which[0]), int(which[-1])
    if last - first == len(which) - 1:  # `which` rises
        return values[offsets[first] : offsets[last + 1]]
    low, high = offsets[which].tolist(), offsets[which + 1].tolist()
    return np.concatenate([values[start:stop] for start, stop in zip(low, high, strict=True)])
