"""The closed form against a search of every batch and chunk, and cases by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.profiles import SMALL_ENGINE, table

from otel_llm.scheduling import load_profile
from otel_llm.scheduling.closed_form import Cost, Served, ServingCosts, best_split, least_ratio, optimal_req_s
from otel_llm.scheduling.profiles.profile import LinearProfile, Profile, Terms

Lengths = dict[tuple[int, int, int, int], int | Fraction]

HAND = LinearProfile(
    name="hand",
    terms=Terms(Fraction(1000), Fraction(10), Fraction(1), Fraction(2), Fraction(1, 100)),
    **SMALL_ENGINE | {"kv_tokens": 1000, "max_batch": 8, "max_batched_tokens": 100, "step_overhead_ns": 10**6},
)
"""An iteration of B decodes lasts 1000 + 10 B + KV + 2 chunk + chunk prior / 100, and an overhead that is left out."""


def of_all(length_ns: Callable[[int], int], most: int, at_most_ns: float = math.inf) -> float:
    """Return the least length_ns(x) / x up to `most` and the length `at_most_ns`: every one looked up."""
    return min((length_ns(at) / at for at in range(1, most + 1) if length_ns(at) <= at_most_ns), default=math.inf)


def by_search(profile: Profile, request: Served) -> Cost | None:
    """Return the cost of a request by the words of the contract."""
    if request.input + request.output > profile.kv_tokens:
        return None
    context = math.floor(request.input + Fraction(request.output, 2))
    batch = min(profile.max_batch, profile.kv_tokens // context)

    def decodes_ns(size: int) -> int:
        return profile.iteration_ns(size, size * context)

    decode = of_all(decodes_ns, batch, math.inf if request.tpot_ns is None else request.tpot_ns)
    if decode == math.inf:
        decode = of_all(decodes_ns, batch)
    most = min(profile.max_batched_tokens, profile.kv_tokens)
    prefill = of_all(lambda chunk: profile.iteration_ns(0, 0, chunk, request.input // 2), most)
    return Cost(request.input * prefill, request.output * decode)


def test_a_request_by_hand() -> None:
    # Its context is 90 + 21 / 2, rounded down 100. A batch of 8 lasts 1000 + 80 + 800; a chunk of 100 behind 45 tokens
    # 1000 + 200 + 45.
    assert ServingCosts(HAND).of(Served(90, 21)) == Cost(90 * 1245 / 100, 21 * 1880 / 8)
    # A time per token of 1500 allows 4 of them: 1440, and 5 last 1550.
    assert ServingCosts(HAND).of(Served(90, 21, 1500)) == Cost(90 * 1245 / 100, 21 * 1440 / 4)
    assert ServingCosts(HAND).of(Served(90, 21, 1440)) == Cost(90 * 1245 / 100, 21 * 1440 / 4)
    # The KV holds 3 contexts of 300: 1000 + 30 + 900.
    assert ServingCosts(HAND).of(Served(250, 100)) == Cost(250 * 1325 / 100, 100 * 1930 / 3)


def test_a_request_that_not_even_a_batch_of_one_keeps_is_best_effort() -> None:
    costs = ServingCosts(HAND)
    assert costs.of(Served(90, 21, 1109)) == costs.of(Served(90, 21))
    assert costs.of(Served(90, 21, 1110)) == Cost(90 * 1245 / 100, 21 * 1110.0)


def test_a_request_larger_than_the_kv_costs_nothing_and_the_mean_is_of_the_others() -> None:
    costs = ServingCosts(HAND)
    assert costs.of(Served(999, 1)) is not None
    assert costs.of(Served(999, 2)) is None
    assert costs.mean([Served(999, 2)]) is None
    assert costs.mean([]) is None
    small, large = costs.of(Served(90, 21)), costs.of(Served(250, 100))
    assert small is not None
    assert large is not None
    assert costs.mean([Served(90, 21), Served(999, 2), Served(250, 100)]) == pytest.approx(
        [(left + right) / 2 for left, right in zip(small, large, strict=True)]
    )


def test_the_load_is_the_instances_over_the_mean_cost() -> None:
    assert optimal_req_s(20, Cost(0.1e9, 0.4e9)) == pytest.approx(40)


@given(st.integers(2, 40), st.floats(1, 1e9), st.floats(1, 1e9))
def test_the_best_split_is_that_of_all(instances: int, prefill_ns: float, decode_ns: float) -> None:
    chosen = best_split(instances, Cost(prefill_ns, decode_ns))
    loads = {one: min(one / prefill_ns, (instances - one) / decode_ns) for one in range(1, instances)}
    assert loads[chosen] == max(loads.values())
    assert all(load < loads[chosen] for one, load in loads.items() if one < chosen)


def test_a_split_by_hand() -> None:
    # Prefill takes a quarter of the time: of 8 instances 2 carry 2 / 1 and the others 6 / 3.
    assert best_split(8, Cost(1.0, 3.0)) == 2
    # Three of 9 would carry 3 and the others 6 / 3, two 2 and 7 / 3: equal, and fewer prefill instances win.
    assert best_split(9, Cost(1.0, 3.0)) == 2
    with pytest.raises(ValueError, match="cannot be split"):
        best_split(1, Cost(1.0, 3.0))


lines = st.tuples(st.fractions(0, 60, max_denominator=30), st.fractions(-9, 9, max_denominator=30), st.integers(1, 300))


@given(st.lists(lines, min_size=1, max_size=4), st.lists(st.integers(1, 80), min_size=4, max_size=4), st.data())
def test_the_search_is_exact_on_pieces_of_any_slope(
    pieces: list[tuple[Fraction, Fraction, int]], floors: list[int], data: st.DataObject
) -> None:
    """Each piece is a rounded line with a floor; they need not meet, and fall or rise."""
    values: dict[int, int] = {}
    ends = []
    for (base, slope, width), floor in zip(pieces, floors, strict=False):
        first = len(values) + 1
        ends += [first, first + width - 1]
        for at in range(width):
            values[first + at] = max(floor, math.floor(base + slope * at + Fraction(1, 2)))
    at_most_ns = data.draw(st.sampled_from([math.inf, *sorted(set(values.values()))]))
    assert least_ratio(values.__getitem__, sorted(set(ends)), at_most_ns) == of_all(
        values.__getitem__, len(values), at_most_ns
    )


@st.composite
def tables(draw: st.DrawFn) -> Lengths:
    """Return iterations that dip at will, at the same contexts or the same KV."""
    decodes = sorted(draw(st.sets(st.integers(1, 80), min_size=2, max_size=4)))
    kv = sorted(draw(st.sets(st.integers(1, 300), min_size=1, max_size=3)))
    chunks = sorted(draw(st.sets(st.integers(1, 700), min_size=2, max_size=4)))
    priors = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=2)))
    per_decode = draw(st.booleans())
    lengths = st.integers(1, 3000)
    found: Lengths = {(0, 0, chunk, prior): draw(lengths) for chunk in chunks for prior in priors}
    for size in decodes:
        for tokens in kv:
            at = size * tokens if per_decode else tokens * 20
            found[size, at, 0, 0] = draw(lengths)
            for chunk in chunks:
                for prior in priors:
                    found[size, at, chunk, prior] = draw(lengths)
    return found


requests = st.builds(Served, st.integers(1, 1500), st.integers(1, 600), st.none() | st.integers(1, 4000))


@given(tables(), requests, st.integers(200, 10_000))
def test_the_search_is_exact_for_tables_that_dip(lengths: Lengths, request: Served, kv_tokens: int) -> None:
    # Such dips are refused in files. The search does not rest on that.
    profile = replace(table(lengths, small_dip=Fraction(1)), kv_tokens=kv_tokens)
    assert ServingCosts(profile).of(request) == by_search(profile, request)


@given(
    st.builds(
        Terms,
        st.fractions(0, 2000, max_denominator=8),
        st.fractions(0, 50, max_denominator=8),
        st.fractions(0, 3, max_denominator=64),
        st.fractions(0, 9, max_denominator=64),
        st.fractions(0, 1, max_denominator=64),
        st.integers(1, 4000),
    ),
    requests,
)
def test_the_search_is_exact_for_formulas_with_a_floor(terms: Terms, request: Served) -> None:
    profile = LinearProfile(name="drawn", terms=terms, **SMALL_ENGINE)
    assert ServingCosts(profile).of(request) == by_search(profile, request)


@pytest.mark.parametrize("name", ["h200-llama-3.1-8b", "h200-paper-era"])
def test_the_search_is_exact_for_profiles_that_ship(name: str) -> None:
    profile = load_profile(name)
    costs = ServingCosts(profile)
    for request in (Served(1, 1), Served(37, 280, 20_000_000), Served(4096, 1023, 30_000_000), Served(90_001, 5)):
        assert costs.of(request) == by_search(profile, request)


@dataclass(frozen=True, kw_only=True)
class Counting(LinearProfile):
    """A profile that counts its look-ups."""

    calls: list[int] = field(default_factory=lambda: [0], compare=False)

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        self.calls[0] += 1
        return super().iteration_ns(decodes, kv_tokens, chunk, prior)


def test_equal_arguments_are_searched_once() -> None:
    profile = Counting(name="counting", terms=HAND.terms, **SMALL_ENGINE)
    costs = ServingCosts(profile)
    first = costs.of(Served(90, 21, 1500))
    calls = profile.calls[0]
    # The same context of 100 and the same half of the prompt, 45.
    assert costs.of(Served(90, 20, 1500)) != first
    assert costs.of(Served(91, 18, 1500)) is not None
    assert profile.calls[0] == calls > 0
