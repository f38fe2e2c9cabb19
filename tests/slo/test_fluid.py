"""The fluid token rate: the worked example, brute force, and the array form."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.slo import oracle
from support.vectors import document

from otel_llm.slo.batch.ragged import LONG
from otel_llm.slo.batch.recorded import Recorded
from otel_llm.slo.batch.running_maxima import running_maxima
from otel_llm.slo.classes import CONTENT, REASONING, TOOL, Objective, SloClass
from otel_llm.slo.fluid import fluid_search
from otel_llm.slo.fluid.fluid_rate import DEFAULT_FLUIDITY, DEFAULT_SHARE, fluid_tbt_ns, fluid_token_rate, targets
from otel_llm.slo.fluid.fluid_search import fluid_tbt_many
from otel_llm.slo.stream import Stream

FLUIDITIES = (Fraction(0), Fraction(3, 10**9), Fraction(1, 2), Fraction(9, 10), Fraction(99, 100), Fraction(1))
ragged = st.lists(st.lists(st.integers(0, 60), max_size=25).map(sorted), max_size=6)


def recorded(times: list[list[int]], kinds: list[list[int] | None] | None = None) -> Recorded:
    count = len(times)
    return Recorded.of(times, [0] * count, [0] * count, ["completed"] * count, kinds)


def exactly(value: float) -> Fraction:
    return Fraction(str(value))


@pytest.mark.parametrize("expected", document()["fluid_token_rate"]["expect"], ids=lambda entry: str(entry["share"]))
def test_the_worked_example(expected: dict[str, float]) -> None:
    requests: list[list[int]] = document()["fluid_token_rate"]["requests_ns"]
    objective = Objective(exactly(expected["fluidity_index"]), exactly(expected["share"]))
    fluidity, share = targets(objective)
    scalar = [tbt for times in requests if (tbt := fluid_tbt_ns(times, fluidity)) is not None]
    rate = fluid_token_rate(scalar, share)
    assert rate is not None
    assert rate.tbt_ns / 1e9 == pytest.approx(expected["tbt_s"], abs=1e-9)
    assert rate.tokens_per_s == pytest.approx(expected["tokens_per_s"], abs=1e-9)
    many = fluid_tbt_many(recorded(requests), [SloClass(objective=objective)])
    assert many.values[many.known].tolist() == scalar
    streams = [Stream(SloClass(), 0) for _ in requests]
    for stream, times in zip(streams, requests, strict=True):
        stream.extend(times[:7])
        stream.extend(times[7:])
    streamed = [tbt for stream in streams if (tbt := fluid_tbt_ns(stream.read_ns, fluidity)) is not None]
    assert streamed == scalar


@settings(max_examples=examples(300))
@given(st.lists(st.integers(0, 60), max_size=25).map(sorted), st.sampled_from(FLUIDITIES))
def test_bisection_finds_what_trying_every_target_finds(times: list[int], fluidity: Fraction) -> None:
    assert fluid_tbt_ns(times, fluidity) == oracle.smallest_fluid_tbt(times, fluidity)


@settings(max_examples=examples(300))
@given(ragged, st.sampled_from(FLUIDITIES), st.sampled_from((1, 1_000_003, LONG // 3, 60_000_000_000, 2**40)))
def test_the_array_form_agrees(times: list[list[int]], fluidity: Fraction, scale: int) -> None:
    scaled = [[time * scale for time in one] for one in times]
    many = fluid_tbt_many(recorded(scaled), [SloClass(objective=Objective(fluidity))])
    found = [value if known else None for value, known in zip(many.values.tolist(), many.known.tolist(), strict=True)]
    assert found == [fluid_tbt_ns(one, fluidity) for one in scaled]


@pytest.mark.parametrize("stalls", [0, 0.002, 0.05])
@pytest.mark.parametrize("fluidity", FLUIDITIES, ids=str)
def test_long_replies_with_stalls_agree(fluidity: Fraction, stalls: float) -> None:
    random = np.random.default_rng(7)
    times = []
    for length in random.integers(1, 400, 80).tolist():
        gaps = (random.exponential(18e6, length) + 2e6).astype(np.int64)
        gaps[random.random(length) < stalls] += 3_000_000_000
        gaps[random.random(length) < 0.3] = 0  # several tokens in a chunk
        times.append(np.cumsum(gaps).tolist())
    many = fluid_tbt_many(recorded(times), [SloClass(objective=Objective(fluidity))])
    found = [value if known else None for value, known in zip(many.values.tolist(), many.known.tolist(), strict=True)]
    assert found == [fluid_tbt_ns(one, fluidity) for one in times]


def test_each_class_reads_its_own_kinds_and_has_its_own_objective() -> None:
    times = [[0, 10, 50, 60], [0, 10, 50, 60]]
    kinds: list[list[int] | None] = [[CONTENT, REASONING, CONTENT, TOOL]] * 2
    classes = [SloClass(), SloClass(reads=(CONTENT, REASONING), objective=Objective(Fraction(0)))]
    many = fluid_tbt_many(recorded(times, kinds), classes, np.array([0, 1]))
    assert many.values.tolist() == [50, 1]


def test_times_far_apart_are_judged_too() -> None:
    far = [[-(2**62), 0, 2**62 - 1], [0, 2**62]]
    many = fluid_tbt_many(
        Recorded.of(far, [-(2**62), 0], [0, 0], ["completed"] * 2), [SloClass(objective=Objective(Fraction(1)))]
    )
    assert many.values.tolist() == [fluid_tbt_ns(one, Fraction(1)) for one in far]


@pytest.mark.parametrize(("length", "gap_ns"), [(200, 2**58), (1000, 2**56), (10_000, 2**52)])
def test_gaps_that_leave_64_bits_when_every_token_is_given_one_are_judged_too(length: int, gap_ns: int) -> None:
    gaps = np.zeros(length, dtype=np.int64)
    gaps[[2, length // 2, -1]] = gap_ns, gap_ns // 2, gap_ns - 1000
    times = np.cumsum(gaps).tolist()
    for fluidity in (Fraction(length - 1, length), Fraction(length - 2, length), Fraction(99, 100), Fraction(9, 10)):
        many = fluid_tbt_many(recorded([times]), [SloClass(objective=Objective(fluidity))])
        assert many.values.tolist() == [fluid_tbt_ns(times, fluidity)]


@pytest.mark.parametrize("length", [1_000, 30_000])
def test_few_targets_are_tried_where_the_slow_tokens_come_first(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counted(*arguments: Any) -> Any:
        tried.append(arguments)
        return running_maxima(*arguments)

    monkeypatch.setattr(fluid_search, "running_maxima", counted)  # once for each target that is tried
    slow = length // 10 + 3
    times = np.cumsum([0] + [20_000_000] * slow + [0] * (length - slow - 1)).tolist()
    assert fluid_tbt_many(recorded([times]), [SloClass()]).values.tolist() == [20_000_000] == [fluid_tbt_ns(times)]
    assert len(tried) <= 40  # a search by halves takes 25


def test_an_objective_of_many_digits_is_kept_exactly() -> None:
    times = [2, 15, 17, 19, 32, 56, 59]
    fluidity = Fraction(498612292845591097, 3 * 10**18)  # counts times its denominator leave 64 bits
    many = fluid_tbt_many(recorded([times]), [SloClass(objective=Objective(fluidity))])
    assert many.values.tolist() == [oracle.smallest_fluid_tbt(times, fluidity)] == [3]


def test_what_is_asked_where_a_class_states_nothing_is_the_papers() -> None:
    assert targets(Objective()) == (DEFAULT_FLUIDITY, DEFAULT_SHARE) == (Fraction(9, 10), Fraction(99, 100))


def test_without_two_tokens_there_is_no_target_and_without_targets_no_rate() -> None:
    assert fluid_tbt_ns([5]) is None
    assert fluid_token_rate([]) is None


def test_a_burst_is_fluid_at_the_smallest_target() -> None:
    assert fluid_tbt_ns([5, 5, 5]) == 1
