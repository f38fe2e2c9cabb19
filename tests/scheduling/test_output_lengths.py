"""The output-length predictor: moments by hand and beside the statistics module, and what is drawn from them."""

from __future__ import annotations

import math
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.scheduling.output_lengths import OutputLengths, vary


def seen(*lengths: int, kind: str = "chat") -> OutputLengths:
    predictor = OutputLengths()
    for length in lengths:
        predictor.observe(kind, length)
    return predictor


def test_of_a_kind_not_seen_the_prior_is_expected() -> None:
    lengths = OutputLengths(expected=50)
    lengths.observe("code", 5)
    assert lengths.distribution("chat") is None
    assert lengths.draw("chat", Random(0)) == lengths.mean("chat") == 50


def test_the_mean_begins_with_the_weight_of_200_requests() -> None:
    outputs = OutputLengths(256)
    outputs.observe(1, 658)
    assert outputs.mean(1) == 258  # (256 x 200 + 658) / 201 = 258
    for _ in range(200):
        outputs.observe(0, 1)
    assert outputs.mean(0) == 129  # 128.5, half up


def test_moments_by_hand() -> None:
    """Around 20: deviations of -10, 0 and 10; the sample variance is 200 / 2."""
    assert seen(10, 20, 30).distribution("chat") == (20.0, 10.0)
    assert seen(7).distribution("chat") == (7.0, 0.0)


@given(st.lists(st.integers(1, 100_000), min_size=2, max_size=50))
def test_moments_one_by_one_are_those_of_all(lengths: list[int]) -> None:
    found = seen(*lengths).distribution("chat")
    assert found == pytest.approx((statistics.fmean(lengths), statistics.stdev(lengths)), abs=1e-6)


def test_kinds_do_not_mix() -> None:
    predictor = seen(10, 20, 30)
    predictor.observe("code", 500)
    assert predictor.distribution("chat") == (20.0, 10.0)
    assert predictor.draw("code", Random(1)) == 500


def test_predictions_are_drawn_from_the_gaussian_and_at_least_one_token() -> None:
    draw, predictor = Random(4), seen(*[90, 110] * 500)
    lengths = [predictor.draw("chat", draw) for _ in range(4000)]
    assert statistics.fmean(lengths) == pytest.approx(100, abs=1)
    assert statistics.stdev(lengths) == pytest.approx(10, abs=1)
    wide = seen(1, 1, 1, 50)
    assert min(wide.draw("chat", draw) for _ in range(1000)) == 1


def test_a_length_known_but_for_an_error_is_within_it() -> None:
    draw = Random(2)
    lengths = [vary(1000, 0.05, draw) for _ in range(4000)]
    assert (min(lengths), max(lengths)) == pytest.approx((950, 1050), abs=2)
    assert statistics.fmean(lengths) == pytest.approx(1000, abs=3)
    assert vary(1000, 0.0, draw) == 1000
    assert min(vary(1, 3.0, draw) for _ in range(100)) == 1


def test_lengths_and_errors_that_make_no_sense_are_refused() -> None:
    for output in (0, -3):
        with pytest.raises(ValueError, match=f"output is {output}; give a number of tokens"):
            seen(output)
        with pytest.raises(ValueError, match=f"output is {output}; give a number of tokens"):
            vary(output, 0.1, Random(0))
    for error in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"error is .*; give a share"):
            vary(10, error, Random(0))
