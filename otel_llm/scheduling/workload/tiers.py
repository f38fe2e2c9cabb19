"""Tiers: the promise of each request, drawn among those that it would meet alone on an idle instance."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_llm.slo.classes import Deadline, SloClass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.scheduling.iteration_profile import EngineProfile

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier: token i (from 0) is due at arrival + ttft + i tpot, inclusive; `share` of the requests is of it.

    A request has one of `ttft_ns`, each with the same chance.
    """

    name: str
    tpot_ns: int
    ttft_ns: tuple[int, ...]
    share: Fraction


class TierClass(NamedTuple):
    """A tier with one of its first-token times: `slo` judges it, `weight` is its chance."""

    tier: str
    slo: SloClass
    weight: Fraction


def tier_classes(tiers: Sequence[Tier]) -> list[TierClass]:
    """Return the classes of the tiers, in order; named as the tier, or `NAME-300ms` if it has several."""
    return [
        TierClass(
            tier.name,
            SloClass(
                tier.name if len(tier.ttft_ns) == 1 else f"{tier.name}-{duration_text(ttft)}",
                deadline=Deadline("dslo", ttft, tier.tpot_ns),
            ),
            tier.share / len(tier.ttft_ns),
        )
        for tier in tiers
        for ttft in tier.ttft_ns
    ]


def duration_text(length_ns: int) -> str:
    """Return a duration in its largest unit, as `300ms`."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if length_ns % size == 0:
            return f"{length_ns // size}{unit}"
    return f"{length_ns}ns"


class AloneTimes:
    """The token times of a request alone on an idle instance, with prefill chunks of `max_batched_tokens`.

    Args:
        longest: the most tokens, input and output, of a request that is asked for; at most the KV of the profile.
    """

    def __init__(self, profile: EngineProfile, longest: int) -> None:
        self._profile = profile
        self._first: dict[int, int] = {}
        step = profile.step_overhead_ns
        decode = (profile.iteration_ns(1, context) + step for context in range(1, longest + 1))
        # A prefix sum: the time of decodes with contexts below the index, from 1.
        self._decoded = np.array([0, *accumulate(decode, initial=0)], np.int64)
        self._behind: dict[int, Ints] = {}

    def first_ns(self, input_tokens: int) -> int:
        """Return the time from the arrival to the first token."""
        found = self._first.get(input_tokens)
        if found is None:
            profile = self._profile
            found = profile.request_overhead_ns
            for prior in range(0, input_tokens, profile.max_batched_tokens):
                chunk = min(input_tokens - prior, profile.max_batched_tokens)
                found += profile.iteration_ns(0, 0, chunk, prior) + profile.step_overhead_ns
            self._first[input_tokens] = found
        return found

    def least_ttft_ns(self, input_tokens: int, output_tokens: int, tpot_ns: int) -> int:
        """Return the least first-token promise with which no token is late: the maximum of t_i - i tpot."""
        behind = self._behind.get(tpot_ns)
        if behind is None:
            behind = self._decoded - np.arange(len(self._decoded), dtype=np.int64) * tpot_ns
            self._behind[tpot_ns] = behind
        span = behind[input_tokens + 1 : input_tokens + 1 + output_tokens]
        return self.first_ns(input_tokens) + int(span.max() - span[0])


def draw_tiers(
    classes: Sequence[TierClass], inputs: Ints, outputs: Ints, profile: EngineProfile | None, draw: Ints
) -> tuple[Ints, Bools]:
    """Return the class of each request (R,), a position in `classes`, and whether no class is feasible (R,).

    With a profile, a request draws among the classes that it would meet alone; where there is none, and where it has
    more tokens than the KV, among all. `draw` (R,): whole numbers below 2^62, with which the choice is exact.
    """
    count = len(inputs)
    denominator = lcm(*(one.weight.denominator for one in classes))
    weights = [int(one.weight * denominator) for one in classes]
    infeasible = np.zeros(count, np.bool_)
    if profile is None or not count:
        return np.array([_pick(weights, drawn) for drawn in draw.tolist()], np.int64), infeasible
    chosen = np.zeros(count, np.int64)
    totals = inputs + outputs
    fits = totals <= profile.kv_tokens
    alone = AloneTimes(profile, int(totals[fits].max(initial=1)))
    promises = [(one.slo.deadline.first_ns, one.slo.deadline.next_ns or 0) for one in classes]
    tpots = {tpot for _, tpot in promises}
    for number, (tokens, output, fit, drawn) in enumerate(
        zip(inputs.tolist(), outputs.tolist(), fits.tolist(), draw.tolist(), strict=True)
    ):
        open_weights = [0] * len(classes)
        if fit:
            least = {tpot: alone.least_ttft_ns(tokens, output, tpot) for tpot in tpots}
            open_weights = [
                weight if least[tpot] <= ttft else 0 for weight, (ttft, tpot) in zip(weights, promises, strict=True)
            ]
        if not any(open_weights):
            infeasible[number] = True
            open_weights = weights
        chosen[number] = _pick(open_weights, drawn)
    return chosen, infeasible


def _pick(weights: Sequence[int], drawn: int) -> int:
    """Return the place whose share of the sum holds `drawn` / 2^62."""
    level = drawn * sum(weights)
    for index, reached in enumerate(accumulate(weights)):
        if level < reached << 62:
            return index
    raise ValueError(f"{drawn} is not below 2^62, or no weight is above 0")
