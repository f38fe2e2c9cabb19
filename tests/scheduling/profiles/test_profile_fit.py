"""Fits to a miniature engine whose formula is known, and the recordings that nothing can be fitted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from support.scheduling.engine import Run, run_engine

from otel_llm.audit import load_streams
from otel_llm.scheduling.profiles import load_profile
from otel_llm.scheduling.profiles.profile_file import exact_duration_ns
from otel_llm.scheduling.profiles.profile_fit import (
    TERMS,
    Fit,
    FitError,
    fit_profile,
    least_deviations,
    profile_text,
    read_requests,
)
from otel_llm.scheduling.profiles.recorded_steps import Sample, rebuild

RECORDED = Path(__file__).parent / "vllm-0.32-recorded.parquet"
"""Six seconds of a real vLLM 0.32 with a tiny model on a busy CPU: 63 completions, 256 tokens an iteration at most,
no prefix cache; prompts of 5 to 380 random tokens, replies of 10 to 100. Written by `otel-llm audit --streams`."""
MS = 1_000_000
S = 1_000_000_000
FACTORS = {"base": 2 * MS, "per_decode": 100_000, "per_kv_token": 20, "per_chunk_token": 30_000, "per_chunk_kv": 10}
FACTS = {"accelerator": "a", "engine": "e", "kv_tokens": 9000, "max_batch": 64, "max_batched_tokens": 128}


def formula(decodes: int, kv: int, chunk: int, prior: int) -> int:
    base, per_decode, per_kv, per_chunk, per_both = FACTORS.values()
    return base + per_decode * decodes + per_kv * kv + per_chunk * chunk + per_both * chunk * prior


def load(seed: int = 3, requests: int = 150) -> list[tuple[int, int, int]]:
    rng = Random(seed)
    return [(rng.randrange(S), rng.randrange(1, 300), rng.randrange(1, 80)) for _ in range(requests)]


def busy(noise: float = 0.0, pauses: float = 0.0) -> Run:
    """A second of requests; each iteration takes up to `noise` more or less, and one in so many ten times as long."""
    rng = Random(5)

    def iteration_ns(decodes: int, kv: int, chunk: int, prior: int) -> int:
        length = formula(decodes, kv, chunk, prior) * (1 + noise * (2 * rng.random() - 1))
        return round(length * (10 if rng.random() < pauses else 1))

    return run_engine(load(), iteration_ns, 128, jitter=Random(7), overhead_ns=3 * MS)


def values(fit: Fit) -> dict[str, float]:
    return {name: float(exact_duration_ns(fit.terms[name])) for name in TERMS}


def test_a_formula_is_found_again() -> None:
    fit = fit_profile({"": busy().recorded}, "m", 128)
    assert values(fit) == pytest.approx(FACTORS, rel=1e-3)
    assert exact_duration_ns(fit.request_overhead) == pytest.approx(3 * MS, rel=1e-3)
    assert fit.residuals["all"].p90 < 1e-3
    assert fit.residuals["decodes only"].iterations + fit.residuals["with a chunk"].iterations == (
        fit.residuals["all"].iterations
    )
    assert fit.ranges["chunk"][0] == 0
    assert fit.ranges["prior"][1] > 128


def test_pauses_of_the_machine_hardly_move_it() -> None:
    fit = fit_profile({"": busy(noise=0.05, pauses=0.1).recorded}, "m", 128)
    found = values(fit)
    assert found["base"] == pytest.approx(FACTORS["base"], rel=0.05)
    assert found["per_chunk_token"] == pytest.approx(FACTORS["per_chunk_token"], rel=0.05)
    assert 0.01 < fit.residuals["all"].median < 0.05
    assert abs(fit.residuals["all"].bias) < 0.01


def test_pauses_are_spread_over_the_iterations() -> None:
    """Predicted and measured add up to the same time, so that long replies are predicted as they last."""
    run = busy(noise=0.05, pauses=0.1)
    fit = fit_profile({"": run.recorded}, "m", 128)
    found = values(fit)
    overhead_ns = float(exact_duration_ns(fit.step_overhead))
    samples = rebuild(run.recorded, 128).samples
    predicted = [
        found["base"]
        + found["per_decode"] * one.decodes
        + found["per_kv_token"] * one.kv_tokens
        + found["per_chunk_token"] * one.chunk
        + found["per_chunk_kv"] * one.chunk * one.prior
        + overhead_ns
        for one in samples
    ]
    assert overhead_ns > MS
    assert sum(predicted) == pytest.approx(sum(one.length_ns for one in samples), rel=1e-3)


def test_as_many_iterations_are_longer_than_predicted_as_are_shorter() -> None:
    samples = [Sample(1, 0, 0, 0, length * MS) for length in (1, 2, 3, 4, 100)]
    assert least_deviations(samples)[:2].sum() == pytest.approx(3 * MS, rel=0.02)


def test_engines_of_one_kind_are_fitted_together() -> None:
    one = run_engine(load(1, 60), formula, 128).recorded
    other = run_engine(load(2, 60), formula, 128).recorded
    fit = fit_profile({"a": one, "b": other}, "m", 128)
    assert fit.requests == 120
    assert values(fit) == pytest.approx(FACTORS, rel=1e-3)
    # As if they were one engine, hardly an iteration is as the plugin counted it.
    with pytest.raises(FitError, match="are incomplete or were not recorded"):
        fit_profile({"": [*one, *other]}, "m", 128)


def test_the_file_is_a_profile_and_says_what_it_rests_on(tmp_path: Path) -> None:
    fit = replace(fit_profile({"": busy().recorded}, 'a "model": 1', 128), request_overhead="3ms")
    path = tmp_path / "mine.yaml"
    path.write_text(profile_text(fit, FACTS), encoding="utf-8")
    profile = load_profile(path)
    assert profile.model == 'a "model": 1'
    assert profile.request_overhead_ns == 3 * MS
    assert profile.source.startswith(f"Fitted to {fit.residuals['all'].iterations} iterations of 150 recorded requests")
    assert profile.iteration_ns(8, 900, 64, 32) == pytest.approx(formula(8, 900, 64, 32), rel=1e-3)


def test_too_little_is_refused_with_a_remedy() -> None:
    one_by_one = [(number * S, 40, 20) for number in range(20)]
    run = run_engine(one_by_one, formula, 128)
    with pytest.raises(FitError, match="20 iterations with a chunk of known length are too few: 50 are wanted"):
        fit_profile({"": run.recorded}, "m", 128)
    with pytest.raises(FitError, match="prompts of several lengths, all requests streamed, without prefix caching"):
        fit_profile({"": []}, "m", 128)


def test_no_coefficient_is_below_zero_and_the_middle_is_fitted() -> None:
    """Larger batches are quicker here: the best that is allowed is level, at the median of equal deviations."""
    samples = [Sample(decodes, 0, 0, 0, (110 - decodes) * MS) for decodes in range(1, 20)]
    found = least_deviations(samples)
    assert (found >= 0).all()
    assert np.count_nonzero(found) == 1
    assert found[0] == pytest.approx(100 * MS, rel=0.02)


def test_of_a_real_vllm_hardly_an_iteration_is_lost() -> None:
    """The rebuilt iterations agree with the plugin's own counts of them, but for ten of 1,849."""
    engines, model = read_requests(load_streams(RECORDED))
    fit = fit_profile(engines, model, 256)
    assert (fit.model, fit.requests, fit.steps, fit.idle_before, fit.doubtful) == ("tiny", 63, 1849, 0, 10)
    assert fit.residuals["with a chunk"].iterations == 73
    assert fit.ranges["prior"] == (0, 255)
    assert exact_duration_ns(fit.terms["base"]) == pytest.approx(1.93 * MS, rel=0.05)
    assert exact_duration_ns(fit.terms["per_chunk_token"]) == pytest.approx(8_000, rel=0.2)
    assert exact_duration_ns(fit.request_overhead) == pytest.approx(3.8 * MS, rel=0.01)
    assert fit.residuals["all"].median < 0.11
    # With another budget than the engine's the chunks do not fit together, or are others.
    assert fit_profile(engines, model, 200).doubtful > 10
