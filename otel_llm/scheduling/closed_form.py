"""The least cost of serving requests by a profile, and the load that a fleet carries at most (PolyServe, section 3.5).

The cost of a request is instance time: each of its d output tokens costs its share of the cheapest decode iteration,
each of its p input tokens its share of the cheapest prefill iteration. Its context is p + d/2 tokens, the mean over its
life, and the tokens prefilled before a chunk are p/2; both are rounded down. Times are those of `iteration_ns`, without
overheads, so that the load is an upper bound.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from otel_llm.scheduling.iteration_profile import IterationProfile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NS_PER_S = 1_000_000_000


class CostProfile(IterationProfile, Protocol):
    """A profile whose times are straight lines between known edges."""

    @property
    def batch_edges(self) -> Sequence[int]:
        """Return the batches between which the time of decodes of one context is a straight line, but for a floor."""
        ...

    @property
    def chunk_edges(self) -> Sequence[int]:
        """Return the chunks between which the time of a prefill is a straight line, but for a floor."""
        ...


class Cost(NamedTuple):
    """The instance time of a request, in ns."""

    prefill_ns: float
    decode_ns: float


class Served(NamedTuple):
    """A request to serve: tokens from 1, and the promised time per token, None if only the KV bounds its batch."""

    input: int
    output: int
    tpot_ns: int | None = None


class ServingCosts:
    """The least costs of requests by a profile; the search of each distinct argument is kept.

    A batch of decodes has at most `max_batch` requests, its contexts fit into the KV, and its iteration takes at most
    the time per token; a request whose time per token even a batch of one exceeds is best effort, and bounded by the KV
    alone. A chunk has at most `max_batched_tokens`: the time per token does not bound it, since the deadlines of a
    request let single iterations last longer.
    """

    def __init__(self, profile: CostProfile) -> None:
        self._profile = profile
        self._decode: dict[tuple[int, int | None], float] = {}
        self._prefill: dict[int, float] = {}

    def of(self, request: Served) -> Cost | None:
        """Return the cost of a request; None if it has more tokens than the KV."""
        tokens = request.input + request.output
        if tokens > self._profile.kv_tokens:
            return None
        context = (tokens + request.input) // 2
        return Cost(
            request.input * self._prefill_token_ns(request.input // 2),
            request.output * self._decode_token_ns(context, request.tpot_ns),
        )

    def mean(self, requests: Iterable[Served]) -> Cost | None:
        """Return the mean cost of the requests that fit into the KV; None if there are none."""
        costs = [cost for request in requests if (cost := self.of(request)) is not None]
        if not costs:
            return None
        prefills, decodes = zip(*costs, strict=True)
        return Cost(math.fsum(prefills) / len(costs), math.fsum(decodes) / len(costs))

    def _decode_token_ns(self, context: int, tpot_ns: int | None) -> float:
        """Return the least iteration(B, B context) / B in ns."""
        found = self._decode.get((context, tpot_ns))
        if found is None:
            profile = self._profile
            most = min(profile.max_batch, profile.kv_tokens // context)
            ends = _ends(profile.batch_edges, most)

            def length_ns(batch: int) -> int:
                return profile.iteration_ns(batch, batch * context)

            found = math.inf if tpot_ns is None else least_ratio(length_ns, ends, tpot_ns)
            if found == math.inf:
                found = least_ratio(length_ns, ends)
            self._decode[context, tpot_ns] = found
        return found

    def _prefill_token_ns(self, prior: int) -> float:
        """Return the least iteration(0, 0, c, prior) / c in ns."""
        found = self._prefill.get(prior)
        if found is None:
            profile = self._profile
            most = min(profile.max_batched_tokens, profile.kv_tokens)
            ends = _ends(profile.chunk_edges, most)
            found = self._prefill[prior] = least_ratio(lambda chunk: profile.iteration_ns(0, 0, chunk, prior), ends)
        return found


def _ends(edges: Sequence[int], most: int) -> list[int]:
    return sorted({1, most, *(edge for edge in edges if 1 < edge < most)})


def least_ratio(length_ns: Callable[[int], int], ends: Sequence[int], at_most_ns: float = math.inf) -> float:
    """Return the least length_ns(x) / x over the whole numbers from the first to the last end, inf if there are none.

    Left out are those with a length above `at_most_ns`. Between two `ends`, sorted and from 1, `length_ns` is a line
    that is rounded to whole numbers, or the larger one of a line and a constant; over all it may rise and fall.

    The search is exact. If lengths fall between two ends, so does the ratio, and the last one is the least. If
    they rise, those within the limit are found by bisection, and the first length over the largest x bounds the ratio.
    If that is not enough, the constant part is cut off, since its ratio falls as well. The rounded values of the line
    that is left are at most 1 below their chord, and (chord - 1) / x is monotone, so that the lesser one of its
    outermost values bounds all inner ones (branch and bound).
    """
    lengths = [length_ns(end) for end in ends]
    within = [length / end for end, length in zip(ends, lengths, strict=True) if length <= at_most_ns]
    least = min(within, default=math.inf)
    for (low, at_low), (high, at_high) in pairwise(zip(ends, lengths, strict=True)):
        if at_low < at_high and at_low <= at_most_ns and at_low / (high - 1) < least:
            last = high if at_high <= at_most_ns else _last(lambda at: length_ns(at) <= at_most_ns, low, high)
            least = _least_on_rise(length_ns, low, last, least)
    return least


def _least_on_rise(length_ns: Callable[[int], int], low: int, high: int, least: float) -> float:
    at_low = length_ns(low)
    corner = _last(lambda at: length_ns(at) == at_low, low, high)
    least = min(least, at_low / corner)
    pieces = [(min(corner + 1, high), high)]
    while pieces:
        left, right = pieces.pop()
        at_left, at_right = length_ns(left), length_ns(right)
        least = min(least, at_left / left, at_right / right)
        width = right - left
        if width < 2:
            continue
        bound = min(
            (at_left * (right - at) + at_right * (at - left) - width) / (width * at) for at in (left + 1, right - 1)
        )
        if bound < least:
            middle = (left + right) // 2
            pieces += [(left, middle), (middle, right)]
    return least


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last place from `low` to `high` at which something holds that holds at `low`, and then no more."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def optimal_req_s(instances: int, cost: Cost) -> float:
    """Return the load that instances carry at most, in requests/s: their number over the mean cost."""
    return instances * NS_PER_S / (cost.prefill_ns + cost.decode_ns)


def best_split(instances: int, cost: Cost) -> int:
    """Return how many of at least two instances prefill, so that prefill and decode pool carry the most together.

    A split carries the lesser one of the loads of its pools; of equal splits the one with fewer prefill instances wins.

    Raises:
        ValueError: fewer than two instances.
    """
    if instances < 2:
        raise ValueError(f"{instances} instances cannot be split; a pool needs at least one")
    return max(
        range(1, instances),
        key=lambda prefill: min(prefill / cost.prefill_ns, (instances - prefill) / cost.decode_ns),
    )
