"""The plan of a load: a function of its shape and seed."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.bench.load_settings import LoadSettings, arrivals_of, lengths_of, rate_of
from otel_llm.bench.plan.load_plan import LoadShape, PlanError, draw_plan
from otel_llm.scheduling.workload.arrivals import ConstantArrivals, GammaArrivals, PoissonArrivals
from otel_llm.scheduling.workload.lengths import FixedLength, TraceLengths, UniformLengths

SECOND = 10**9
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:00:00.0000000,100,10
2023-11-16 18:00:01.0000000,200,20
2023-11-16 18:00:03.0000000,300,30
"""


def _settings(**options: object) -> LoadSettings:
    return LoadSettings("http://127.0.0.1:1", "m", **options)  # type: ignore[arg-type]


def test_constant_arrivals_by_hand() -> None:
    plan = draw_plan(_settings(rate="4", arrivals="constant", duration_ns=SECOND, input="7", output="3").shape(), 0)
    assert plan.at_ns is not None
    assert plan.at_ns.tolist() == [0, SECOND // 4, SECOND // 2, 3 * SECOND // 4]
    assert plan.input_tokens.tolist() == [7] * 4
    assert plan.output_tokens.tolist() == [3] * 4


@settings(max_examples=examples(30))
@given(
    rate=st.fractions(Fraction(1, 10), Fraction(200), max_denominator=100),
    kind=st.sampled_from(["poisson", "constant", "gamma:0.5", "gamma:4"]),
    duration_s=st.integers(1, 20),
    seed=st.integers(0, 2**40),
)
def test_a_longer_load_begins_with_the_arrivals_of_a_shorter_one(
    rate: Fraction, kind: str, duration_s: int, seed: int
) -> None:
    plans = [
        draw_plan(LoadShape(arrivals_of(kind, rate), FixedLength(1), FixedLength(1), None, length * SECOND), seed).at_ns
        for length in (duration_s, 2 * duration_s)
    ]
    short, long = plans
    assert short is not None
    assert long is not None
    assert (np.diff(long) >= 0).all()
    assert (long < 2 * duration_s * SECOND).all()
    assert long[long < duration_s * SECOND].tolist() == short.tolist()


def test_poisson_arrivals_have_their_rate() -> None:
    plan = draw_plan(_settings(rate="50", duration_ns=400 * SECOND).shape(), 3)
    assert abs(len(plan) - 20_000) < 5 * 20_000**0.5


def test_a_trace_gives_arrivals_and_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text(AZURE, encoding="ascii")
    plan = draw_plan(_settings(trace=trace, speed=Fraction(2)).shape(), 0)
    assert plan.at_ns is not None
    assert plan.at_ns.tolist() == [0, SECOND // 2, 3 * SECOND // 2]
    assert plan.input_tokens.tolist() == [100, 200, 300]
    assert plan.output_tokens.tolist() == [10, 20, 30]
    cut = draw_plan(_settings(trace=trace, duration_ns=2 * SECOND, output="5").shape(), 0)
    assert cut.input_tokens.tolist() == [100, 200]
    assert cut.output_tokens.tolist() == [5, 5]
    assert len(draw_plan(_settings(trace=trace, requests=1).shape(), 0)) == 1


def test_a_closed_loop_has_lengths_and_no_times() -> None:
    plan = draw_plan(_settings(concurrency=2, requests=9, input="1..5").shape(), 0)
    assert plan.at_ns is None
    assert len(plan) == 9
    assert set(plan.input_tokens.tolist()) <= {1, 2, 3, 4, 5}


def test_the_texts_of_options() -> None:
    assert rate_of("0.25") == Fraction(1, 4)
    assert arrivals_of("poisson", Fraction(2)) == PoissonArrivals(Fraction(2))
    assert arrivals_of("constant", Fraction(2)) == ConstantArrivals(Fraction(2))
    assert arrivals_of("gamma:2.5", Fraction(2)) == GammaArrivals(Fraction(2), 2.5)
    assert lengths_of("--input", "64..512") == UniformLengths(64, 512)
    assert lengths_of("--input", "64") == FixedLength(64)


def test_a_search_takes_the_lengths_of_a_trace_and_arrivals_of_its_own(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text(AZURE, encoding="ascii")
    shape = _settings(trace=trace, arrivals="gamma:2", duration_ns=SECOND).shape(Fraction(5))
    assert shape.arrivals == GammaArrivals(Fraction(5), 2.0)
    assert isinstance(shape.input, TraceLengths)


@pytest.mark.parametrize("option", ["rate", "input", "output"])
def test_an_option_that_is_empty_is_none(option: str) -> None:
    with pytest.raises(PlanError, match=f"--{option} ''"):
        _settings(**{option: ""}).shape()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "fast", "1e9"])
def test_a_rate_that_is_none(text: str) -> None:
    with pytest.raises(PlanError, match="requests a second"):
        rate_of(text)


@pytest.mark.parametrize("text", ["uniform", "gamma", "gamma:", "gamma:0", "gamma:-1", "gamma:nan", "gamma:1000"])
def test_arrivals_that_are_none(text: str) -> None:
    with pytest.raises(PlanError, match="poisson, constant or gamma"):
        arrivals_of(text, Fraction(1))


@pytest.mark.parametrize("text", ["0", "5..4", "-3", "a", "1..", "..5", "1.5"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(PlanError, match="--output"):
        lengths_of("--output", text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": "1", "concurrency": 2}, "--rate and --concurrency"),
        ({"requests": 5, "duration_ns": 1}, "--duration and --requests"),
        ({"concurrency": 2, "workers": 3}, "--workers 3"),
        ({"speed": Fraction(2)}, "--trace FILE"),
        ({"concurrency": 2, "arrivals": "constant"}, "--concurrency has none"),
        ({"trace": Path("x"), "arrivals": "gamma:2"}, "--trace has arrivals"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        _settings(**options).shape()


def test_a_load_that_is_too_long() -> None:
    with pytest.raises(PlanError, match="shorten the load"):
        draw_plan(_settings(rate="1000000", duration_ns=3600 * SECOND).shape(), 0)
