"""Intervals hold the truth as often as they say, and resampling is what it says: requests drawn with replacement."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support.audit.judged import judged
from support.vectors import FOLDER

import otel_llm.audit
from otel_llm.audit.compare.bootstrap import Drawing, resampled_sums, resamples, too_few
from otel_llm.audit.kernel.judged_columns import span_s
from otel_llm.audit.kernel.samples import Sample, sample
from otel_llm.slo.classes import Objective
from otel_llm.slo.figures import FIGURES
from otel_llm.slo.quantiles import LOG_RATIO

BY_NAME = {figure.name: figure for figure in FIGURES}
PROMISE = Objective(Fraction(9, 10), Fraction(99, 100), Fraction(99, 100))


def drawn(generator: np.random.Generator, count: int, slower: float = 1.0) -> Sample:
    """Requests whose law is known: idle is exponential with mean `slower`, met if it is at most 1 s."""
    idle = generator.exponential(slower, count)
    return of_idle(idle)


def of_idle(idle: np.ndarray) -> Sample:
    table = judged(
        len(idle),
        idle_s=idle,
        met=(idle <= 1).tolist(),
        benefit=100 - 2.5 * idle,
        ttft_s=idle,
        fluidity_index=1 / (1 + idle),
    )
    return sample(table, PROMISE, span_s(table))


TRUTHS: dict[str, Callable[[float], float]] = {
    "attainment": lambda slower: 1 - math.exp(-1 / slower),
    "benefit_mean_tokens": lambda slower: 100 - 2.5 * slower,
    "idle_p50_s": lambda slower: slower * math.log(2),
    "idle_p99_s": lambda slower: slower * math.log(100),
}


def test_an_interval_of_95_percent_holds_the_true_difference_as_often() -> None:
    generator, rounds, count = np.random.default_rng(7), 120, 400
    held: Counter[str] = Counter()
    for turn in range(rounds):
        drawing = Drawing(resamples=200, seed=turn)
        both = drawn(generator, count), drawn(generator, count, 1.2)
        draws = [resamples(one, drawing, drawing.generator(side)) for side, one in zip("on", both, strict=True)]
        for name, truth in TRUTHS.items():
            low, high = drawing.bounds(draws[1][name] - draws[0][name])
            held[name] += low <= truth(1.2) - truth(1.0) <= high
    # Of 120 at 95 %: fewer than 105 come by chance once in a thousand times.
    for name in TRUTHS:
        assert held[name] >= 105, (name, held)
    assert sum(held.values()) < 120 * len(TRUTHS)


def of_gaps(replies: Sequence[np.ndarray]) -> Sample:
    """Replies with these gaps between their tokens, in seconds."""
    counted = [np.unique(np.ceil(np.log(gaps) / LOG_RATIO).astype(int), return_counts=True) for gaps in replies]
    table = judged(
        len(replies),
        gap_buckets=[buckets.tolist() for buckets, _ in counted],
        gap_counts=[counts.tolist() for _, counts in counted],
        tbt_max_s=[float(gaps.max()) for gaps in replies],
        tokens=[len(gaps) + 1 for gaps in replies],
        tpot_s=[float(gaps.mean()) for gaps in replies],
    )
    return sample(table, PROMISE, None)


def replies(generator: np.random.Generator, count: int, slower: float = 1.0) -> list[np.ndarray]:
    """Replies of 20 to 200 gaps about a mean of each reply's own, and a stall at each fiftieth token."""
    found = []
    for mean in generator.lognormal(0, 0.3, count) * slower * 0.02:
        gaps = generator.exponential(mean, int(generator.integers(20, 200)))
        found.append(np.where(generator.random(len(gaps)) < 0.02, generator.exponential(0.5, len(gaps)), gaps))
    return found


def test_an_interval_of_itl_holds_the_true_difference_as_often() -> None:
    generator, rounds = np.random.default_rng(5), 120
    many = [np.concatenate(replies(np.random.default_rng(8), 20_000, slower)) for slower in (1.0, 1.2)]
    truths = {
        name: float(np.subtract(*(np.quantile(one, share) for one in many[::-1])))
        for name, share in (("itl_p50_s", 0.5), ("itl_p90_s", 0.9), ("itl_p99_s", 0.99))
    }
    held: Counter[str] = Counter()
    for turn in range(rounds):
        drawing = Drawing(resamples=200, seed=turn)
        both = (of_gaps(replies(generator, 60)), of_gaps(replies(generator, 60, 1.2)))
        draws = [resamples(one, drawing, drawing.generator(side)) for side, one in zip("on", both, strict=True)]
        for name, truth in truths.items():
            low, high = drawing.bounds(draws[1][name] - draws[0][name])
            held[name] += low <= truth <= high
    for name in truths:
        assert held[name] >= 105, (name, held)
    assert sum(held.values()) < 120 * len(truths)


def test_gaps_of_requests_that_share_a_fate_need_blocks() -> None:
    means = np.repeat(np.random.default_rng(2).exponential(0.02, 30), 20)
    gaps = of_gaps([np.random.default_rng(at).exponential(mean, 50) for at, mean in enumerate(means)])
    spread = {}
    for block in (1, 20):
        drawing = Drawing(resamples=400, block=block)
        low, high = drawing.bounds(resamples(gaps, drawing, drawing.generator())["itl_p50_s"])
        spread[block] = high - low
    assert spread[20] > 2 * spread[1]


def test_an_interval_of_itl_that_would_end_beyond_the_longest_gap_is_not_given() -> None:
    even = [np.full(100, 0.02)] * 30
    stalled = [*even[1:], np.where(np.arange(100) < 40, 1.0, 0.02)]
    p50, p99 = BY_NAME["itl_p50_s"], BY_NAME["itl_p99_s"]
    assert too_few(of_gaps(even), p99, Drawing()) is None
    assert too_few(of_gaps(stalled), p50, Drawing()) is None
    assert too_few(of_gaps(stalled), p99, Drawing()) == "too few: the interval would end beyond the longest gap"
    assert too_few(of_gaps(even[:19]), p50, Drawing()) == "too few: 19 of 20"


def test_equal_gaps_differ_by_no_more_than_their_range() -> None:
    drawing = Drawing()
    draws = resamples(of_gaps([np.full(100, 0.02)] * 30), drawing, drawing.generator())["itl_p99_s"]
    assert 0.0198 < draws.min() < 0.02 < draws.max() < 0.0202


def test_requests_that_share_a_fate_need_blocks() -> None:
    generator, rounds = np.random.default_rng(3), 60
    held: Counter[int] = Counter()
    for turn in range(rounds):
        # Twenty in a row wait alike: there are 30 of them, not 600.
        one = of_idle(np.repeat(generator.exponential(1.0, 30), 20))
        for block in (1, 20):
            drawing = Drawing(resamples=100, seed=turn, block=block)
            low, high = drawing.bounds(resamples(one, drawing, drawing.generator())["benefit_mean_tokens"])
            held[block] += low <= 100 - 2.5 <= high
    assert held[1] < 0.6 * rounds
    assert 0.84 * rounds <= held[20]


def test_a_percentile_of_a_resample_follows_the_law_of_all_resamples() -> None:
    values = [0.5, 1.0, 2.0, 4.0]
    every = Counter(sorted(some)[1] for some in itertools.product(values, repeat=4))  # nearest rank of 1/2: the second
    drawing = Drawing(resamples=40_000)
    found = Counter(resamples(of_idle(np.array(values)), drawing, drawing.generator())["idle_p50_s"].tolist())

    for value in values:
        assert found[value] / 40_000 == pytest.approx(every[value] / 256, abs=0.015), value


@pytest.mark.parametrize("name", ["idle_p50_s", "idle_p99_s", "fluidity_p50", "attainment", "smooth_goodput_tok_s"])
def test_single_requests_and_blocks_of_one_are_resampled_alike(name: str) -> None:
    one = drawn(np.random.default_rng(1), 300)
    # Every second stands twice: blocks of two of them are single requests of the other.
    twice = of_idle(np.repeat(one.ranked["idle_s"], 2))
    single, pairs = (Drawing(resamples=2000, block=block) for block in (1, 2))
    left = resamples(one, single, single.generator())[name]
    right = resamples(replace(twice, span_s=2 * (one.span_s or 0)), pairs, pairs.generator())[name]

    for share in (0.05, 0.5, 0.95):
        assert np.quantile(left, share) == pytest.approx(np.quantile(right, share), rel=0.03), share


class Once:
    """Random numbers by which everything is drawn exactly once."""

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        assert (low, high) == (0, size)
        return np.arange(size)

    def beta(self, above: float, below: float, size: int) -> np.ndarray:
        return np.zeros(size)

    def standard_normal(self, size: int) -> np.ndarray:
        return np.zeros(size)

    def random(self, size: int) -> np.ndarray:
        return np.full(size, 0.5)


@pytest.mark.parametrize("block", [2, 7])
def test_a_resample_of_everything_once_has_the_figures_themselves(block: int) -> None:
    table = otel_llm.audit.load(FOLDER / "rows.jsonl").judged_table
    for part in (table, judged(9, met=[True, False, None] * 3, idle_s=[0.5, None, 2.0] * 3, fluid_tbt_ns=5 * 10**7)):
        one = sample(part, PROMISE, span_s(part))
        drawing = Drawing(resamples=100, block=block)
        draws = resamples(one, drawing, Once())  # type: ignore[arg-type]
        figures = one.figures
        for name, found in draws.items():
            if figures[name] is None:
                assert np.isnan(found).all(), name
            elif BY_NAME[name].kind != "share" or figures[name] not in (0, 1):
                assert found == pytest.approx(figures[name]), name


def test_requests_without_a_value_are_drawn_too_and_do_not_count() -> None:
    idle = np.concatenate([np.full(30, np.nan), np.arange(1.0, 31.0)])
    table = judged(60, idle_s=[None if math.isnan(one) else one for one in idle], met=[None] * 30 + [True] * 30)
    one = sample(table, PROMISE, span_s(table))
    drawing = Drawing(resamples=500)
    draws = resamples(one, drawing, drawing.generator())

    assert one.figures["idle_p50_s"] == 15.0
    assert set(draws["idle_p50_s"]) <= set(range(1, 31))
    assert np.isnan(draws["ttft_p50_s"]).all()
    assert np.std(draws["goodput_req_s"]) > 0


@pytest.mark.parametrize(("met", "low"), [(30, 0.85), (0, 0.0)])
def test_a_share_of_all_or_nothing_is_not_certain(met: int, low: float) -> None:
    table = judged(30, met=[True] * met + [False] * (30 - met))
    drawing = Drawing()
    one = sample(table, PROMISE, span_s(table))
    bounds = drawing.bounds(resamples(one, drawing, drawing.generator())["attainment"])

    # Jeffreys' interval for 30 of 30 begins at 0.920 (equal tails), for 0 of 30 it ends at 0.080.
    assert bounds[0] == pytest.approx(0.920 if met else 0.0, abs=0.012)
    assert bounds[1] == pytest.approx(1.0 if met else 0.080, abs=0.012)
    assert low <= bounds[0] < bounds[1]


@pytest.mark.parametrize("block", [1, 2, 10])
def test_a_resample_has_as_many_requests_as_the_recording(block: int) -> None:
    one = drawn(np.random.default_rng(1), 60)
    drawing = Drawing(resamples=100, block=block)
    found = resamples(one, drawing, drawing.generator())["throughput_tok_s"]

    assert set(found) == {6000 / (one.span_s or 0)}  # of 100 tokens each


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    one = drawn(np.random.default_rng(1), 50)
    first, again, other = (Drawing(seed=seed) for seed in (1, 1, 2))
    draws = [
        resamples(one, drawing, drawing.generator("chat"))["benefit_mean_tokens"] for drawing in (first, again, other)
    ]

    assert (draws[0] == draws[1]).all()
    assert not (draws[0] == draws[2]).all()


def test_sums_are_those_of_requests_drawn_with_replacement() -> None:
    columns = np.column_stack([np.ones(50), np.arange(50.0)])
    drawing = Drawing(resamples=4000)
    sums = resampled_sums(columns, drawing, drawing.generator())

    assert (sums[:, 0] == 50).all()
    assert sums[:, 1].mean() == pytest.approx(50 * 24.5, rel=0.01)
    assert sums[:, 1].std() == pytest.approx(math.sqrt(50) * np.std(np.arange(50.0)), rel=0.05)


def test_memory_does_not_grow_with_the_number_of_resamples() -> None:
    one = drawn(np.random.default_rng(1), 64)
    drawing = Drawing(resamples=100)
    whole = resamples(one, drawing, drawing.generator())["benefit_mean_tokens"]
    drawing = replace(drawing, cells=64 * 7)

    # Which requests are drawn is the same; a BLAS may add up a block of another shape in another order.
    in_blocks = resamples(one, drawing, drawing.generator())["benefit_mean_tokens"]
    np.testing.assert_allclose(in_blocks, whole, rtol=1e-13)


@pytest.mark.parametrize(
    ("name", "count", "why"),
    [
        ("attainment", 19, "too few: 19 of 20"),
        ("attainment", 20, None),
        ("idle_p99_s", 367, "too few: 367 of 368"),
        ("idle_p99_s", 368, None),
        ("idle_p50_s", 20, None),
        ("throughput_req_s", 1000, "not sampled: it is what was sent"),
        ("requests", 1000, "not sampled: it is what was sent"),
    ],
)
def test_too_few_requests_get_no_interval(name: str, count: int, why: str | None) -> None:
    assert too_few(drawn(np.random.default_rng(1), count), BY_NAME[name], Drawing()) == why


def test_too_few_blocks_get_no_interval() -> None:
    one = drawn(np.random.default_rng(1), 100)
    assert too_few(one, BY_NAME["attainment"], Drawing(block=6)) == "too few blocks: 17 of 20"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"resamples": 10}, "10 resamples are too few"),
        ({"block": 0}, "a block of 0"),
        ({"level": 95}, "a confidence of 95"),
        ({"seed": -1}, "not negative"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Drawing(**wrong)
