"""A first-token target by prompt length: the law comes back, the share holds it, and the SLO file takes it as it is."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from support.otlp import IDENTITY, T0_NS, export, request_span, stream_spans
from support.recordings import write_format

from otel_llm import audit, semconv
from otel_llm.audit.calibrate.alpha_fit import TooLittleError
from otel_llm.audit.calibrate.prefill import Method, Prompts, fit_prefill, prompts_of
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import Curve

ALL, MOST = Fraction(1), Fraction(9, 10)


def measured(
    coefficients: tuple[float, float, float] = (0.02, 1e-4, 3e-8), spread: float = 0.0, each: int = 20, seed: int = 1
) -> Prompts:
    a, b, c = coefficients
    length = np.repeat([64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0], each)
    noise = 1 + spread * np.random.default_rng(seed).exponential(1.0, len(length))
    ttft = (a + b * length + c * length**2) * noise
    return Prompts(length, ttft, np.ones(len(length), np.bool_), 0)


@pytest.mark.parametrize("law", [(0.02, 1e-4, 3e-8), (0.05, 2e-4, 0.0), (0.1, 0.0, 0.0), (0.0, 1e-4, 0.0)])
def test_a_known_law_comes_back(law: tuple[float, float, float]) -> None:
    found = fit_prefill(measured(law), ALL)

    assert found.coefficients == pytest.approx(law, rel=1e-6, abs=1e-12)
    assert found.lift == pytest.approx(1)
    assert found.spread == pytest.approx(0, abs=1e-9)
    for tokens in (64, 100, 1024, 3000, 4096):
        exact = law[0] + law[1] * tokens + law[2] * tokens**2
        # The lines between the points lie above the curve, and not far.
        assert exact - 1e-9 <= found.curve.at(tokens) / 1e9 <= exact * 1.05


@pytest.mark.parametrize("method", ["quadratic", "quantile"])
@pytest.mark.parametrize("share", [Fraction(1, 2), MOST, ALL])
def test_the_share_that_was_asked_for_holds_the_target(method: Method, share: Fraction) -> None:
    prompts = measured(spread=0.2)
    found = fit_prefill(prompts, share, method=method)
    held = [
        round(ttft * 1e9) <= found.curve.at(int(length))
        for length, ttft in zip(prompts.input_tokens, prompts.ttft_s, strict=True)
    ]

    assert sum(held) == found.held
    assert float(share) <= sum(held) / found.requests <= float(share) + 0.1


def test_a_prompt_law_that_falls_gives_a_target_that_does_not() -> None:
    prompts = measured()
    falling = Prompts(prompts.input_tokens, 1 / prompts.input_tokens, prompts.alone, 0)
    for method in ("quadratic", "quantile"):
        points = fit_prefill(falling, MOST, method=method).curve.points
        assert [time for _, time in points] == sorted(time for _, time in points)
        assert [tokens for tokens, _ in points] == sorted({tokens for tokens, _ in points})


@pytest.mark.parametrize("method", ["quadratic", "quantile"])
def test_the_slo_file_takes_it_as_it_is(tmp_path: Path, method: Method) -> None:
    found = fit_prefill(measured(spread=0.3), MOST, method=method)
    file = tmp_path / "slo.yaml"
    file.write_text(f"version: 1\ndefault: chat\nclasses:\n  chat:\n    {found.yaml()}", "utf-8")

    assert load_slo(file).get("chat").fluidity.ttft == found.curve


def test_the_yaml_is_this() -> None:
    found = fit_prefill(
        Prompts(np.repeat([10.0, 20.0], 10), np.repeat([0.0123456, 0.02], 10), np.ones(20, bool), 0), ALL
    )
    two = type(found)(Curve(((10, 12_346_000), (20, 20_000_000))), "quadratic", None, 1.0, 0.0, 20, 20)
    assert two.yaml() == "fluidity: {ttft: {curve: [[10, 12.346ms], [20, 20ms]]}}\n"


def test_headroom_multiplies_the_target() -> None:
    plain, more = (fit_prefill(measured(), ALL, headroom=by).curve.points for by in (1.0, 1.5))
    for (tokens, time), (same, longer) in zip(plain, more, strict=True):
        assert tokens == same
        assert longer == pytest.approx(1.5 * time, abs=2000)


def test_too_little_is_refused() -> None:
    prompts = measured()
    few = Prompts(prompts.input_tokens[:9], prompts.ttft_s[:9], prompts.alone[:9], 3)
    with pytest.raises(TooLittleError, match=r"9 requests .* too few for a curve: 10 are wanted"):
        fit_prefill(few, MOST)
    one = Prompts(prompts.input_tokens[:20], prompts.ttft_s[:20], prompts.alone[:20], 0)
    with pytest.raises(TooLittleError, match="all prompts are of one length"):
        fit_prefill(one, MOST)
    crowd = Prompts(prompts.input_tokens, prompts.ttft_s, ~prompts.alone, 0)
    with pytest.raises(TooLittleError, match="120 were not alone"):
        fit_prefill(crowd, MOST)
    assert fit_prefill(crowd, MOST, contended=True).requests == 120


def test_requests_that_overlap_or_lack_their_prompt_are_seen(tmp_path: Path) -> None:
    # Commit, first token and end in seconds; the second begins while the first is being answered.
    requests = [(0, 1, 4), (3, 5, 6), (7, 8, 9), (8, 10, 11), (20, 21, 22), (30, 33, 34), (32, 35, 36)]
    messages = []
    for number, (start, first, end) in enumerate(requests, start=1):
        reported = dict(IDENTITY)
        if number != 5:
            reported[semconv.GEN_AI_USAGE_INPUT_TOKENS] = 100 * number
        at = [T0_NS + one * 10**9 for one in (start, first, end)]
        spans = stream_spans([at[1], at[2]], request=number, commit_ns=at[0], end_ns=at[2])
        messages.append(export(request_span(request=number, start_ns=at[0], end_ns=at[2], attributes=reported), *spans))
    prompts = prompts_of(audit.load_streams(write_format(tmp_path, "journal.otlp", messages)), load_slo())

    assert prompts.input_tokens.tolist() == [100, 200, 300, 400, 600, 700]
    assert prompts.ttft_s.tolist() == [1, 2, 1, 2, 3, 3]
    # The third had its first token as the fourth came: no other request was in its way.
    # The sixth still waited when the seventh came.
    assert prompts.alone.tolist() == [True, False, True, False, False, False]
    assert prompts.left_out == 1
