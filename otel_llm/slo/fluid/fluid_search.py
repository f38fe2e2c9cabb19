"""Search for the smallest TBT target under which requests are fluid (Etalon, section 5.1), for many at once.

Under a target P a token is late when it rises above its request's line t_i - i P by more than any token before it did.
Such a token rose by ds - di P, ds ns and di tokens after the late token before it (or the first), and misses
1 + (ds - di P) // P deadlines. Two things follow from a target that misses too many. Only its late tokens can be late
under a longer one. And under a longer one each of them misses at most 1 - di + ds // P', none if ds <= di P': so
if one token's fewer misses are enough, the target at which they fall that far is an upper bound of the answer, and
mostly is the answer. The search goes up to where that is so, in steps that are guessed from the misses and at least
double, then halves what is left, or tries one ns less than the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.slo.batch.judged import Masked
from otel_llm.slo.batch.ragged import LONG, block_of, by_class
from otel_llm.slo.batch.running_maxima import running_maxima
from otel_llm.slo.fluid.fluid_rate import fluid_tbt_ns, targets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.slo.batch.judged import Bools, Ints
    from otel_llm.slo.batch.ragged import Ragged
    from otel_llm.slo.batch.recorded import Recorded
    from otel_llm.slo.batch.running_maxima import RunningMaxima
    from otel_llm.slo.classes import SloClass


def fluid_tbt_many(
    requests: Recorded,
    classes: Sequence[SloClass],
    class_index: NDArray[np.integer] | None = None,
    *,
    block_tokens: int | None = None,
) -> Masked:
    """Return every request's smallest TBT target in ns (R,), unknown below two read tokens.

    Each equals `fluid_tbt_ns` at its class's fluidity objective; `class_index` (R,) int64 and `block_tokens` as for
    `judge_many`.

    Raises:
        OverflowError: a target beyond 64 bits.
    """
    found = FluidTargets(len(requests))
    for slo, which in by_class(requests, classes, class_index, block_tokens):
        read, reading = block_of(requests, which).read(slo.reads)
        if read is not None:
            found.add(slo, which[reading], read)
    return found.masked()


class FluidTargets:
    """The smallest TBT targets in ns of R requests, collected block by block."""

    def __init__(self, requests: int) -> None:
        self._found = Masked(np.zeros(requests, np.int64), np.zeros(requests, np.bool_))
        self._searches: dict[Fraction, TargetSearch] = {}

    def add(self, slo: SloClass, at: Ints, read: Ragged) -> None:
        """Add requests of one class; `at` (P,): their indexes; `read`: the read tokens of each."""
        fluidity = targets(slo.objective)[0]
        self._found.known[at] = read.lengths > 1
        if not fluidity:
            self._found.values[at] = 1
            return
        span_ns = read.last.astype(np.float64) - read.first
        # Times are sorted: if a span fits 64 bits, so does each gap in it.
        lines_ns = float((read.longest.astype(np.float64) * read.lengths).max())
        counts = int(read.lengths.max()) * fluidity.denominator
        if max(float(span_ns.sum()), lines_ns, counts) >= MOST:
            ends = read.starts + read.lengths
            tokens = (read.times[start:end].tolist() for start, end in zip(read.starts, ends, strict=True))
            self._found.values[at] = [fluid_tbt_ns(times, fluidity) or 0 for times in tokens]
            return
        search = self._searches.get(fluidity)
        if search is None:
            search = self._searches[fluidity] = TargetSearch(self._found.values, fluidity)
        search.add(at, read)

    def masked(self) -> Masked:
        """Return the targets (R,) of all requests, unknown below two tokens read."""
        for search in self._searches.values():
            search.finish()
        return Masked(np.where(self._found.known, self._found.values, 0), self._found.known)


MOST: Final = 2**61
"""The bound of all numbers, so that two of them add up within 64 bits: see `TargetSearch.add`."""
_NEVER: Final = 2**62
_STEP_SHARE: Final = 0.5
"""The share of the step that would be enough if misses fell as fast as they can."""


@dataclass(slots=True)
class _PendingRequests:
    """The requests (R,) whose answer lies in [low, high], at most `stride` above low if the estimate is right.

    `which`: their indexes in the result; `steps`: their deadlines if none were missed twice; `none`: a single miss is
    too many; `bounded`: `high` is the bound of one late token, so that high - 1 is worth trying.
    """

    which: Ints
    low: Ints
    high: Ints
    stride: Ints
    steps: Ints
    none: Bools
    bounded: Bools

    def only(self, chosen: Bools) -> _PendingRequests:
        """Return the requests `chosen` (R,) bool."""
        return _PendingRequests(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[_PendingRequests]) -> _PendingRequests:
        """Return the requests of several parts."""
        return cls(*(np.concatenate([getattr(one, field.name) for one in parts]) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens (N,) that can still be late, `counts` (R,) of each pending request: index and ns since the first."""

    index: Ints
    since: Ints
    counts: Ints

    @classmethod
    def joined(cls, parts: Sequence[_Tokens]) -> _Tokens:
        """Return the tokens of several parts."""
        return cls(*(np.concatenate([getattr(one, field.name) for one in parts]) for field in fields(cls)))


class TargetSearch:
    """A search for each request's smallest target in ns, at least 1, that keeps a fluidity-index above 0.

    `result` (R,) gets the targets. Requests are added in blocks. The first step reads most tokens and is made for each
    block; the rest of all blocks is searched together, since those steps read few tokens and their fixed cost is
    shared. Until then these few are kept: of ordinary replies some 7 bytes a token.
    """

    def __init__(self, result: Ints, fluidity: Fraction) -> None:
        self._result = result
        self._fluidity = fluidity
        self._waiting: list[tuple[_PendingRequests, _Tokens]] = []
        self._span_ns = 0

    def add(self, at: Ints, read: Ragged) -> None:
        """Add requests, whose indexes in the result are `at` (P,).

        Their times are sorted, and their spans (ns) add up to less than MOST: they are laid one after the other. A
        request's tokens times its longest gap (ns), which no target exceeds, are less too, and times the index's
        denominator.
        """
        spans = read.last - read.first
        span_ns = int(spans.sum())
        if self._span_ns + span_ns >= MOST:
            self.finish()
        self._span_ns += span_ns
        low, pending, tokens = _begin(read, self._fluidity)
        self._result[at] = low
        pending.which = at[pending.which]
        if len(pending.which):
            self._waiting.append(self._step(pending, tokens))

    def finish(self) -> None:
        """Find the targets of all that were added."""
        if self._waiting:
            pending = _PendingRequests.joined([one for one, _ in self._waiting])
            tokens = _Tokens.joined([one for _, one in self._waiting])
            while len(pending.which):
                pending, tokens = self._step(pending, tokens)
        self._waiting, self._span_ns = [], 0

    def _step(self, pending: _PendingRequests, tokens: _Tokens) -> tuple[_PendingRequests, _Tokens]:
        """Try one target of each request; return the requests and tokens that are still pending."""
        numerator, denominator = self._fluidity.as_integer_ratio()
        tried = np.where(
            pending.bounded,
            pending.high - 1,
            np.minimum((pending.low + pending.high) // 2, pending.low + pending.stride),
        )
        late = running_maxima(tokens.since - tokens.index * np.repeat(tried, tokens.counts), tokens.counts)
        tardy = np.diff(late.bounds)
        more = _more_than_one(late, np.repeat(tried, tardy))
        missed = late.sums(more) + tardy
        met = pending.steps - tardy
        over = missed - met * (denominator - numerator) // numerator
        kept = over <= 0
        # The same if one token less were late.
        over_less = missed - (met + 1) * (denominator - numerator) // numerator
        pending.low = np.where(kept, pending.low, tried + 1)
        pending.high = np.where(kept, tried, pending.high)
        # At least twice the last: misses may fall by far less than they can, as when all late tokens are the first.
        stride = np.maximum(_stride(tokens, late, tried, over), np.minimum(2 * pending.stride, MOST))
        pending.stride = np.where(kept, pending.stride, stride)
        wanted = np.where(kept, _NEVER, np.where(pending.none, 0, np.maximum(over_less, 1)))
        bound = _bounds(tokens, late, more, wanted, np.where(pending.none, _NEVER, over))
        pending.bounded = bound <= pending.high
        pending.high = np.minimum(bound, pending.high)
        left = pending.low < pending.high
        if not left.all():
            self._result[pending.which] = pending.low
        alive = _alive(tokens, late, kept, left)
        if 4 * len(alive) < 3 * len(tokens.index):
            counts = np.where(kept, tokens.counts, tardy)[left]
            return pending.only(left), _Tokens(tokens.index[alive], tokens.since[alive], counts)
        return pending, tokens


def _alive(tokens: _Tokens, late: RunningMaxima, kept: Bools, left: Bools) -> Ints:
    """Return the tokens that can still be late: all of a request that kept its target, else its late ones."""
    if not (kept & left).any():  # as after the first step
        return late.entry if left.all() else late.entry[np.repeat(left, np.diff(late.bounds))]
    alive = np.repeat(kept, tokens.counts)
    alive[late.entry] = True
    if not left.all():
        alive &= np.repeat(left, tokens.counts)
    return np.flatnonzero(alive)


def _stride(tokens: _Tokens, late: RunningMaxima, tried: Ints, over: Ints) -> Ints:
    """Return by how much (R,) ns the next target should be longer, if this one misses `over` (R,) too many.

    A target longer by the share p of it saves about p times t / P misses, t being the time of the last late token. The
    step is shorter: one that ends below the answer leaves fewer tokens, since then only late tokens stay. Nor is it
    longer than t, which no target has to exceed, nor below 0 if none are missed too many: p t / P may be beyond all
    integers either way.
    """
    some = np.flatnonzero(np.diff(late.bounds))
    stride = np.ones(len(tried), np.int64)
    last = tokens.since[late.entry[late.bounds[some + 1] - 1]]
    step = _STEP_SHARE * over[some] * tried[some] / last * tried[some]
    stride[some] += np.clip(step, 0, last).astype(np.int64)
    return stride


def _begin(read: Ragged, fluidity: Fraction) -> tuple[Ints, _PendingRequests, _Tokens]:
    """Return lower bounds of all answers (R,), and the requests whose answer is not yet known.

    A reader waits at least as long as any token exceeds its request's line t_i - i P, and every P of waiting is a
    miss: if `most` may be missed, no P below t_i / (i + most) is kept. For the last token that is about the mean gap
    times the fluidity-index; only gaps above it are tried further. Under the longest gap none waits.
    """
    numerator, denominator = fluidity.as_integer_ratio()
    steps = np.maximum(read.lengths - 1, 1)
    share = float(fluidity) * (1 - 1e-9)
    low = np.maximum(1, ((read.last - read.first) / steps * share).astype(np.int64))
    least_gap = np.minimum(low, LONG - 1).astype(np.uint32)
    index = np.flatnonzero(read.gaps > np.repeat(least_gap, read.lengths))
    counts = np.diff(np.searchsorted(index, read.starts), append=len(index))
    which = np.flatnonzero(counts)
    counts, result = counts[which], low.copy()
    low, steps = low[which], steps[which]
    none = steps * (denominator - numerator) < numerator
    pending = _PendingRequests(which, low, low, np.zeros_like(low), steps, none, np.zeros(len(which), np.bool_))
    if not len(which):
        return result, pending, _Tokens(index, index, counts)
    starts = np.cumsum(counts) - counts
    high = np.maximum(read.longest[which], low)
    since = read.times[index] - np.repeat(read.first[which], counts)
    index -= np.repeat(read.starts[which], counts)
    most = (steps - 1) * (denominator - numerator) // numerator
    least = np.maximum.reduceat(since / (index + np.repeat(most, counts)), starts) * (1 - 1e-9)
    low = np.minimum(np.maximum(low, least.astype(np.int64)), high)
    return result, replace(pending, low=low, high=high), _Tokens(index, since, counts)


def _more_than_one(late: RunningMaxima, tried: Ints) -> Ints:
    """Return how many deadlines each late token misses beyond its own; a division is slow, and few need one."""
    more = np.zeros(len(tried), np.int64)
    longer = np.flatnonzero(late.height >= tried)
    more[longer] = late.height[longer] // tried[longer]
    return more


def _bounds(tokens: _Tokens, late: RunningMaxima, more: Ints, in_time: Ints, still_late: Ints) -> Ints:
    """Return the shortest target (R,) ns that is known to be kept, beyond all if none is.

    `more`: the late tokens' misses beyond their own. A request keeps a target under which one of its late tokens misses
    `in_time` (R,) less and is in time, or `still_late` (R,) less and is late; if `in_time` is 0, one under which all
    are in time.
    """
    bound = np.full(len(in_time), _NEVER)
    some = np.flatnonzero(more + 1 >= np.repeat(in_time, np.diff(late.bounds)))
    if not len(some):
        return bound
    of = np.repeat(np.arange(len(bound)), np.diff(late.bounds))[some]
    entry, before = late.entry[some], late.entry[some - 1]
    follows = some > late.bounds[of]
    ds = tokens.since[entry] - np.where(follows, tokens.since[before], 0)
    di = tokens.index[entry] - np.where(follows, tokens.index[before], 0)
    target = -(-ds // di)
    less = more[some] - still_late[of]
    part = np.flatnonzero(less >= 0)
    target[part] = ds[part] // (di[part] + less[part] + 1) + 1
    begins = np.ones(len(of), np.bool_)
    np.not_equal(of[1:], of[:-1], out=begins[1:])
    first = np.flatnonzero(begins)
    least, most = np.minimum.reduceat(target, first), np.maximum.reduceat(target, first)
    bound[of[first]] = np.where(in_time[of[first]] == 0, most, least)
    return bound
