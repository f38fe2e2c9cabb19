"""Fits to a miniature engine whose formula is known, and the recordings that nothing can be fitted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from support.scheduling.engine import Run, run_engine

from otel_llm.audit import load_streams
from otel_llm.scheduling.profiles import load_profile
from otel_llm.scheduling.profiles.grid import Point
from otel_llm.scheduling.profiles.profile_file import exact_duration_ns
from otel_llm.scheduling.profiles.profile_fit import Fit, FitError, fit_profile, profile_text, read_requests, table_text
from otel_llm.scheduling.profiles.recorded_steps import rebuild

RECORDED = Path(__file__).parent / "vllm-0.32-recorded.parquet"
"""Three seconds of a real vLLM 0.32 with a tiny model on a busy CPU: 76 completions, 256 tokens an iteration at most,
no prefix cache; prompts of 5 to 380 random tokens, replies of 10 to 60. Written by `otel-llm audit --streams`."""
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


def assert_like_the_formula(fit: Fit, tolerance: float) -> None:
    """Compare the curve with the formula at sizes that were seen, and at its nodes' middles."""
    points = [
        Point(*one) for one in [(1, 200, 0, 0), (3, 900, 0, 0), (12, 2000, 0, 0), (0, 0, 100, 0), (5, 800, 90, 40)]
    ]
    for at, length_ns in zip(points, fit.curve.lengths_ns(points), strict=True):
        assert length_ns == pytest.approx(formula(*at), rel=tolerance), at


def test_a_formula_is_found_again() -> None:
    fit = fit_profile({"": busy().recorded}, "m", 128)
    assert_like_the_formula(fit, 1e-3)
    assert fit.curve.per_kv_token_ns == pytest.approx(FACTORS["per_kv_token"], rel=0.01)
    assert fit.curve.per_chunk_kv_ns == pytest.approx(FACTORS["per_chunk_kv"], rel=0.01)
    assert exact_duration_ns(fit.request_overhead) == pytest.approx(3 * MS, rel=0.1)
    assert fit.pauses < 1e-3
    assert fit.residuals["all"].p90 < 1e-3
    assert fit.residuals["decodes only"].iterations + fit.residuals["with a chunk"].iterations == (
        fit.residuals["all"].iterations
    )
    assert fit.ranges["chunk"][0] == 0
    assert fit.ranges["prior"][1] > 128


def test_pauses_of_the_machine_hardly_move_it() -> None:
    fit = fit_profile({"": busy(noise=0.05, pauses=0.1).recorded}, "m", 128)
    assert_like_the_formula(replace(fit, curve=fit.curve.stretched(1 / (1 + fit.pauses) - 1)), 0.05)
    assert 0.01 < fit.residuals["all"].median < 0.05
    assert abs(fit.residuals["all"].bias) < 0.01


def test_pauses_stretch_the_iterations() -> None:
    """Predicted and measured add up to the same time, so that long replies are predicted as they last."""
    run = busy(noise=0.05, pauses=0.1)
    fit = fit_profile({"": run.recorded}, "m", 128)
    samples = rebuild(run.recorded, 128).samples
    predicted_ns = fit.curve.lengths_ns([Point(*one[:4]) for one in samples]).sum()
    assert 0.5 < fit.pauses < 1.5  # one in ten takes ten times as long
    assert predicted_ns == pytest.approx(sum(one.length_ns for one in samples), rel=1e-3)


def test_engines_of_one_kind_are_fitted_together() -> None:
    one = run_engine(load(1, 60), formula, 128).recorded
    other = run_engine(load(2, 60), formula, 128).recorded
    fit = fit_profile({"a": one, "b": other}, "m", 128)
    assert fit.requests == 120
    assert_like_the_formula(fit, 1e-3)
    # As if they were one engine, hardly an iteration is as the plugin counted it.
    with pytest.raises(FitError, match="are incomplete or were not recorded"):
        fit_profile({"": [*one, *other]}, "m", 128)


def test_the_file_is_a_profile_and_says_what_it_rests_on(tmp_path: Path) -> None:
    fit = replace(fit_profile({"": busy().recorded}, 'a "model": 1', 128), request_overhead="3ms")
    path = tmp_path / "mine.yaml"
    path.write_text(profile_text(fit, FACTS, "mine.csv"), encoding="utf-8")
    (tmp_path / "mine.csv").write_text(table_text(fit), encoding="utf-8")
    profile = load_profile(path)
    assert profile.model == 'a "model": 1'
    assert profile.request_overhead_ns == 3 * MS
    assert profile.source.startswith(f"Fitted to {fit.residuals['all'].iterations} iterations of 150 recorded requests")
    # Between the nodes and beyond them the table says what the curve says.
    for at in [Point(8, 900, 64, 32), Point(1, 40, 0, 0), Point(7, 5000, 33, 500), Point(40, 9000, 300, 0)]:
        [length_ns] = fit.curve.lengths_ns([at])
        assert profile.iteration_ns(*at) == pytest.approx(length_ns, rel=1e-4), at


def test_too_little_is_refused_with_a_remedy() -> None:
    one_by_one = [(number * S, 40, 20) for number in range(20)]
    run = run_engine(one_by_one, formula, 128)
    with pytest.raises(FitError, match="20 iterations with a chunk of known length are too few: 50 are wanted"):
        fit_profile({"": run.recorded}, "m", 128)
    with pytest.raises(FitError, match="prompts of several lengths, all requests streamed, without prefix caching"):
        fit_profile({"": []}, "m", 128)


def test_of_a_real_vllm_hardly_an_iteration_is_lost() -> None:
    """All iterations are rebuilt, but for four beside a request that is left out."""
    engines, model = read_requests(load_streams(RECORDED))
    fit = fit_profile(engines, model, 256)
    assert (fit.model, fit.requests, fit.steps, fit.idle_before, fit.doubtful) == ("tiny", 76, 673, 0, 4)
    assert fit.residuals["with a chunk"].iterations == 87
    assert fit.ranges["prior"] == (0, 253)
    [decode_ns, chunk_ns] = fit.curve.lengths_ns([Point(1, 200, 0, 0), Point(0, 0, 200, 0)])
    assert decode_ns == pytest.approx(2.5 * MS, rel=0.1)
    assert chunk_ns == pytest.approx(7.6 * MS, rel=0.1)
    assert exact_duration_ns(fit.request_overhead) == pytest.approx(3.0 * MS, rel=0.01)
    assert fit.residuals["all"].median < 0.08
    # With another budget than the engine's the chunks do not fit together, or are others.
    [requests] = engines.values()
    assert rebuild(requests, 200).doubtful > 40
