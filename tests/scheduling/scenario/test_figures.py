"""The figures of a run against the arithmetic of single requests, and a run worked by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.simulated import HandProfile, Scripted

from otel_llm.scheduling.scenario.figures import RunFigures, figures_of
from otel_llm.scheduling.simulator.engine import Fleet, SimulatedRun, simulate
from otel_llm.scheduling.workload.tiers import Tier, TierClass, tier_classes
from otel_llm.scheduling.workload.workload import Workload
from otel_llm.slo.classes import SloClass
from otel_llm.slo.request import judge

CLASSES = (
    *tier_classes(
        [Tier("fast", 150, (200, 300), Fraction(1, 2)), Tier("slow", 400, (1000,), Fraction(1, 2))],
    ),
    TierClass("chat", SloClass("chat", pace_ns=140), Fraction(1)),
)
Rows = list[tuple[int, int, int, int]]


def workload_of(rows: Rows, warmup_ns: int = 0, classes: tuple[TierClass, ...] = CLASSES) -> Workload:
    """Return a workload of rows (arrival ns, input, output, class); every third is infeasible."""
    columns = np.array(sorted(rows, key=lambda row: row[0]), np.int64).reshape(-1, 4).T
    infeasible = np.arange(len(rows)) % 3 == 0
    return Workload(columns[0], columns[1], columns[2], columns[3], classes, infeasible, warmup_ns)


def run_of(workload: Workload, profile: HandProfile, instances: int = 1, prefill: int = 0) -> SimulatedRun:
    return simulate(workload.requests(), profile, Fleet(instances, prefill), Scripted())


def test_a_run_worked_by_hand() -> None:
    # Tokens at 132, 258, 385; the second has its token at 385 + 100 + 2 x 6 + 5 = 502.
    span_s = 300 / 1e9
    workload = workload_of([(0, 10, 3, 0), (300, 6, 1, 2), (300, 996, 5, 2)])
    found = figures_of(run_of(workload, HandProfile(max_batch=1)), workload)
    assert found == RunFigures(
        requests=3,
        dropped=1,
        infeasible=1,
        attainment=2 / 3,  # 132 <= 200, 258 <= 350, 385 <= 500; 502 - 300 <= 1000; the third fits nowhere
        attainment_by_tier={"fast": 1.0, "slow": 0.5, "chat": None},
        goodput_req_s=2 / span_s,
        throughput_req_s=2 / span_s,
        tokens_s=4 / span_s,
        ttft_p50_s=132 / 1e9,
        ttft_p99_s=202 / 1e9,
        tbt_p99_s=127 / 1e9,
        e2e_mean_s=(385 + 202) / 2 / 1e9,
        g_per_s=2 / ((385 + 202) / 1e9),
        smooth_goodput_tok_s=4 / span_s,
        instance_seconds=502 / 1e9,
        preemptions=0,
        simulated_s=502 / 1e9,
    )


rows = st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 40), st.integers(1, 20), st.integers(0, 3)), max_size=12)


@given(rows, st.integers(40, 120), st.integers(0, 800), st.integers(1, 2), st.integers(0, 1), st.integers(1, 60))
def test_figures_are_those_of_single_requests(
    drawn: Rows, kv_tokens: int, warmup_ns: int, instances: int, prefill: int, block_tokens: int
) -> None:
    workload = workload_of(drawn, warmup_ns)
    run = run_of(workload, HandProfile(kv_tokens=kv_tokens, max_batch=4), instances + prefill, prefill)
    found = figures_of(run, workload, block_tokens)
    judged = [one for one in run.requests if one.arrival_ns >= warmup_ns]
    times = {one.number: run.token_times(one).tolist() for one in judged}
    verdicts = [
        judge(
            times[one.number],
            one.arrival_ns,
            one.end_ns or 0,
            "error" if one.dropped else "completed",
            CLASSES[one.tier].slo,
        )
        for one in judged
    ]
    met = [bool(verdict.met) for verdict in verdicts]
    span_s = (judged[-1].arrival_ns - judged[0].arrival_ns) / 1e9 if judged else 0

    def rate(amount: float) -> float | None:
        return amount / span_s if span_s else None

    assert found.requests == len(judged)
    assert found.dropped == sum(verdict.outcome == "error" for verdict in verdicts)
    assert found.attainment == (sum(met) / len(met) if met else None)
    for tier, share in found.attainment_by_tier.items():
        mine = [good for good, one in zip(met, judged, strict=True) if CLASSES[one.tier].tier == tier]
        assert share == (sum(mine) / len(mine) if mine else None)
    assert found.goodput_req_s == rate(sum(met))
    assert found.tokens_s == rate(sum(verdict.tokens for verdict in verdicts))
    assert found.smooth_goodput_tok_s == rate(math.fsum(one.benefit for one in verdicts if one.benefit is not None))
    latencies = [times[one.number][-1] - one.arrival_ns for one in judged if not one.dropped]
    assert found.e2e_mean_s == (sum(latencies) / len(latencies) / 1e9 if latencies else None)
    assert found.g_per_s == (sum(met) / (sum(latencies) / 1e9) if latencies else None)
    first = sorted(verdict.ttft_ns for verdict in verdicts if verdict.ttft_ns is not None)
    gaps = sorted(after - before for one in times.values() for before, after in pairwise(one))
    for ordered, share_of, value in (
        (first, (1, 2), found.ttft_p50_s),
        (first, (99, 100), found.ttft_p99_s),
        (gaps, (99, 100), found.tbt_p99_s),
    ):
        numerator, denominator = share_of
        nearest = ordered[-(-len(ordered) * numerator // denominator) - 1] / 1e9 if ordered else None
        assert value == nearest


def test_nothing_after_the_warmup_has_no_rates() -> None:
    workload = workload_of([(0, 10, 3, 0)], warmup_ns=5)
    found = figures_of(run_of(workload, HandProfile()), workload)
    assert (found.requests, found.attainment, found.goodput_req_s, found.ttft_p50_s) == (0, None, None, None)
    assert found.simulated_s == 385 / 1e9
