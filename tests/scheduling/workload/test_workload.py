"""Arrivals, lengths and tiers: exact if they can be worked by hand, means and percentiles if they are drawn."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.simulated import HandProfile, run_of

from otel_llm.scheduling.workload.arrivals import ConstantArrivals, GammaArrivals, PoissonArrivals, TraceArrivals
from otel_llm.scheduling.workload.lengths import FixedLength, PercentileLengths, TraceLengths, UniformLengths
from otel_llm.scheduling.workload.tiers import AloneTimes, Tier, tier_classes
from otel_llm.scheduling.workload.trace_file import Trace
from otel_llm.scheduling.workload.workload import Workload, WorkloadSpec, draw_workload
from otel_llm.slo.request import judge

S = 10**9
MS = 10**6


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def trace_of(*rows: tuple[int, int, int]) -> Trace:
    columns = np.array(rows, np.int64)
    return Trace(columns[:, 0], columns[:, 1], columns[:, 2])


def test_constant_arrivals_are_rounded_from_the_exact_time() -> None:
    assert ConstantArrivals(Fraction(3)).times(4, generator()).tolist() == [0, 333_333_333, 666_666_667, S]
    assert ConstantArrivals(Fraction(2, 5)).times(2, generator()).tolist() == [0, 2_500_000_000]


def test_poisson_arrivals_have_their_rate_and_gaps_that_vary_as_much_as_they_last() -> None:
    times = PoissonArrivals(Fraction(40)).times(50_000, generator())
    gaps = np.diff(times)
    assert times[0] == 0
    assert np.mean(gaps) == pytest.approx(S / 40, rel=0.02)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1, rel=0.02)


def test_gamma_arrivals_come_in_bursts() -> None:
    gaps = np.diff(GammaArrivals(Fraction(40), 3).times(50_000, generator()))
    assert np.mean(gaps) == pytest.approx(S / 40, rel=0.05)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(3, rel=0.05)


def test_a_trace_begins_at_zero_and_is_sped_up() -> None:
    trace = trace_of((70, 1, 1), (71, 1, 1), (76, 1, 1))
    assert TraceArrivals(trace, Fraction(1)).times(3, generator()).tolist() == [0, 1, 6]
    assert TraceArrivals(trace, Fraction(2)).times(3, generator()).tolist() == [0, 1, 3]  # 0.5 rounded half up
    with pytest.raises(ValueError, match="4 requests, but the trace has 3 rows"):
        TraceArrivals(trace, Fraction(1)).times(4, generator())


@pytest.mark.parametrize("kind", [ConstantArrivals, PoissonArrivals])
def test_arrivals_beyond_31_years_are_refused(kind: type[ConstantArrivals | PoissonArrivals]) -> None:
    with pytest.raises(ValueError, match="31 years"):
        kind(Fraction(1, 10**9)).times(1000, generator())


def test_uniform_lengths_reach_both_ends() -> None:
    lengths = UniformLengths(0, 3).draw(4000, generator())
    assert np.unique(lengths).tolist() == [1, 2, 3]
    assert np.count_nonzero(lengths == 1) == pytest.approx(2000, rel=0.1)  # 0 counts as 1


def test_fixed_lengths() -> None:
    assert FixedLength(7).draw(3, generator()).tolist() == [7, 7, 7]
    assert FixedLength(0).draw(1, generator()).tolist() == [1]


def test_drawn_lengths_have_their_percentiles() -> None:
    points = ((25.0, 2320), (50.0, 6923), (75.0, 15400), (90.0, 27571), (95.0, 39583), (99.0, 85401))
    lengths = PercentileLengths(points).draw(200_000, generator())
    for share, length in points:
        assert np.percentile(lengths, share) == pytest.approx(length, rel=0.03)
    assert lengths.max() <= 85401 + (85401 - 39583) / 4 + 1  # on the line of the last two
    assert lengths.min() >= 1


def test_one_percentile_is_the_longest() -> None:
    lengths = PercentileLengths(((50.0, 101),)).draw(10_000, generator())
    assert np.median(lengths) == pytest.approx(101, rel=0.02)
    assert lengths.max() == 101


# Tiers.


def spec_of(**changed: object) -> WorkloadSpec:
    given_: dict[str, object] = {
        "arrivals": PoissonArrivals(Fraction(40)),
        "input": UniformLengths(1, 50),
        "output": UniformLengths(1, 20),
        "requests": 500,
    }
    return WorkloadSpec(**(given_ | changed))  # type: ignore[arg-type]


def tiers_of(*rows: tuple[str, int, tuple[int, ...], str]) -> tuple[Tier, ...]:
    return tuple(Tier(name, tpot, ttft, Fraction(share)) for name, tpot, ttft, share in rows)


def test_classes_are_named_by_tier_and_first_token_time() -> None:
    classes = tier_classes(tiers_of(("t20", 20 * MS, (300 * MS, S), "0.1"), ("bulk", 1, (1500,), "0.9")))
    assert [one.slo.name for one in classes] == ["t20-300ms", "t20-1s", "bulk"]
    assert [one.weight for one in classes] == [Fraction(1, 20), Fraction(1, 20), Fraction(9, 10)]
    deadline = classes[1].slo.deadline
    assert (deadline.policy, deadline.first_ns, deadline.next_ns) == ("dslo", S, 20 * MS)


def test_shares_are_met_by_the_draw() -> None:
    tiers = tiers_of(("a", MS, (S, 2 * S), "0.2"), ("b", MS, (S,), "0.8"))
    drawn = draw_workload(spec_of(tiers=tiers, requests=20_000, feasible=False), HandProfile(), 1)
    counts = np.bincount(drawn.class_index) / 20_000
    assert counts.tolist() == pytest.approx([0.1, 0.1, 0.8], abs=0.01)
    assert not drawn.infeasible.any()


@given(st.integers(1, 300), st.integers(1, 40), st.integers(100, 300))
def test_a_request_alone_has_the_times_of_the_engine(length: int, output: int, tpot: int) -> None:
    profile = HandProfile()
    run = run_of([(0, length, output)], profile)
    times = run.token_times(run.requests[0]).tolist()
    alone = AloneTimes(profile, length + output)
    assert alone.first_ns(length) == times[0]
    least = max(time - index * tpot for index, time in enumerate(times))
    assert alone.least_ttft_ns(length, output, tpot) == least
    # On the least promise the reader of the audit is never late, a nanosecond below it is.
    for ttft, met in ((least, True), (least - 1, False)):
        slo = tier_classes([Tier("t", tpot, (ttft,), Fraction(1))])[0].slo
        assert judge(times, 0, times[-1], "completed", slo).met is met


def test_a_request_draws_among_the_promises_that_it_would_meet_alone() -> None:
    # Alone a first token is there after 7 + 100 + 2 x 50 + 5 = 212, and a decode lasts up to 100 + 10 + 69 + 5.
    tiers = tiers_of(
        ("never", 1000, (100,), "0.5"), ("always", 1000, (212,), "0.25"), ("short", 1000, (112 + 2 * 25,), "0.25")
    )
    drawn = draw_workload(spec_of(tiers=tiers), HandProfile(), 1)
    assert not drawn.infeasible.any()
    assert set(drawn.class_index.tolist()) == {1, 2}
    assert drawn.input[drawn.class_index == 2].max() <= 25
    short = drawn.class_index[drawn.input <= 25]
    assert np.mean(short == 2) == pytest.approx(0.5, abs=0.1)


def test_a_request_that_meets_nothing_draws_among_all_and_is_counted() -> None:
    tiers = tiers_of(("a", 1000, (5,), "0.5"), ("b", 1000, (212,), "0.5"))
    profile = HandProfile(kv_tokens=60)
    drawn = draw_workload(spec_of(tiers=tiers), profile, 1)
    too_long = drawn.input + drawn.output > 60
    assert too_long.any()
    assert drawn.infeasible.tolist() == too_long.tolist()
    assert set(drawn.class_index[too_long].tolist()) == {0, 1}
    assert set(drawn.class_index[~too_long].tolist()) == {1}


# Seeds.


def same(one: Workload, other: Workload) -> list[bool]:
    return [
        bool(np.array_equal(getattr(one, name), getattr(other, name)))
        for name in ("arrivals_ns", "input", "output", "class_index")
    ]


def test_a_workload_is_a_function_of_its_seed_and_other_arrivals_keep_the_rest() -> None:
    tiers = tiers_of(("a", MS, (S, 2 * S), "0.2"), ("b", MS, (S,), "0.8"))
    first = draw_workload(spec_of(tiers=tiers), HandProfile(), 1)
    assert same(first, draw_workload(spec_of(tiers=tiers), HandProfile(), 1)) == [True] * 4
    assert same(first, draw_workload(spec_of(tiers=tiers), HandProfile(), 2)) == [False] * 4
    faster = spec_of(tiers=tiers, arrivals=PoissonArrivals(Fraction(50)))
    assert same(first, draw_workload(faster, HandProfile(), 1)) == [False, True, True, True]


def test_the_lengths_of_a_trace_are_in_its_order_or_drawn_by_rows() -> None:
    trace = trace_of((5, 10, 0), (6, 20, 2), (9, 30, 3))
    lengths = {"input": TraceLengths(trace.input), "output": TraceLengths(trace.output)}
    ordered = draw_workload(
        spec_of(arrivals=TraceArrivals(trace, Fraction(1)), requests=None, **lengths), HandProfile(), 0
    )
    assert ordered.arrivals_ns.tolist() == [0, 1, 4]
    assert (ordered.input.tolist(), ordered.output.tolist()) == ([10, 20, 30], [1, 2, 3])  # 0 counts as 1
    drawn = draw_workload(spec_of(**lengths), HandProfile(), 0)
    assert len(drawn.input) == 500
    assert set(zip(drawn.input.tolist(), drawn.output.tolist(), strict=True)) == {(10, 1), (20, 2), (30, 3)}


def test_without_tiers_all_are_of_the_class_chat() -> None:
    drawn = draw_workload(spec_of(), HandProfile(), 0)
    assert [one.slo.name for one in drawn.classes] == ["chat"]
    assert not drawn.class_index.any()
    assert [one.number for one in drawn.requests()] == list(range(500))


def test_the_number_of_requests_is_needed_without_a_trace() -> None:
    with pytest.raises(ValueError, match="number of requests is missing"):
        draw_workload(spec_of(requests=None), HandProfile(), 0)


def test_the_first_token_is_due_by_the_class() -> None:
    tiers = tiers_of(("a", MS, (S, 2 * S), "0.2"), ("b", MS, (3 * S,), "0.8"))
    drawn = draw_workload(spec_of(tiers=tiers), HandProfile(), 1)
    allowed = [S, 2 * S, 3 * S]
    assert [one.due_ns - one.arrival_ns for one in drawn.requests()] == [allowed[one] for one in drawn.class_index]
