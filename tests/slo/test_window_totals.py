"""Totals of a window: what is counted where, merging, and the row of `--windows`."""

from __future__ import annotations

import math
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.slo.requests import Request, cases

from otel_llm.slo.classes import TOOL, Benefit, Deadline, SloClass
from otel_llm.slo.ledger import Ledger, window_charges
from otel_llm.slo.metrics import WINDOWS
from otel_llm.slo.request import judge
from otel_llm.slo.stream import Stream
from otel_llm.slo.verdict import Verdict
from otel_llm.slo.windows import WindowTotals

S = 10**9
GROUP = {"slo_class": "chat", "model": "m", "instance": None, "measured_at": "client"}


def test_a_row_has_the_columns_in_order() -> None:
    totals = WindowTotals()
    slo = SloClass(deadline=Deadline("reading", S))
    good = judge([100_000_000, 200_000_000], 0, 200_000_000, "completed", slo)
    totals.started()
    totals.ended([("completed", good)])
    totals.charge((Ledger(slo, 0).close(good),))
    row = totals.row(20 * S, 10 * S, GROUP)
    assert tuple(row) == tuple(WINDOWS)
    assert row == {
        "window_start_unix_nano": 20 * S,
        "window_s": 10.0,
        **GROUP,
        "requests_started": 1,
        "requests_ended": 1,
        "met_true": 1,
        "met_false": 0,
        "met_null": 0,
        "incomplete": 0,
        "aborted": 0,
        "tokens_read": 2,
        "throughput_tok_s": 0.2,
        "goodput_tok_s": 0.2,
        "smooth_goodput_tok_s": 0.2,
        "idle_s_sum": 0.0,
        "fluidity_p50": 1.0,
        "idle_p50_s": 0.0,
        "idle_p99_s": 0.0,
    }


def test_an_empty_window_has_no_percentiles() -> None:
    row = WindowTotals().row(0, S, GROUP)
    assert row["fluidity_p50"] is row["idle_p50_s"] is row["idle_p99_s"] is None
    assert row["smooth_goodput_tok_s"] == 0.0


def test_ends_are_counted_by_verdict_and_outcome() -> None:
    totals = WindowTotals()
    slo = SloClass(deadline=Deadline("reading", 0))
    requests: list[tuple[str, Verdict | None]] = [
        ("completed", judge([100_000_000], 0, S, "completed", slo)),
        ("completed", judge([2 * S], 0, 2 * S, "completed", slo)),
        ("cancelled", judge([100_000_000], 0, 150_000_000, "cancelled", slo)),
        ("error", judge([100_000_000], 0, 150_000_000, "error", slo)),
        ("completed", judge([S], 0, S, "completed", slo, [TOOL])),
        ("disconnected", None),
    ]
    totals.ended(requests[:4])
    totals.ended(requests[4:])
    assert (totals.met_true, totals.met_false, totals.met_null) == (1, 2, 3)
    assert (totals.requests_ended, totals.incomplete, totals.aborted) == (6, 1, 2)
    assert totals.goodput_tokens == 1
    assert totals.idle.count == 4


@settings(max_examples=examples(100))
@given(st.lists(cases(), max_size=6), st.integers(0, 6), st.randoms())
def test_totals_merge_to_those_of_all_requests_in_any_order(
    found: list[tuple[SloClass, Request]], cut: int, random: Random
) -> None:
    def add(totals: WindowTotals, some: list[tuple[SloClass, Request]]) -> WindowTotals:
        for slo, request in some:
            stream = Stream(slo, request.commit_ns, request.input_tokens)
            stream.extend(request.tokens_ns, request.kinds)
            verdict = stream.finish(request.end_ns, request.outcome)
            totals.started()
            end_ns = request.commit_ns + verdict.end_ns
            for _, charge in window_charges(slo, request.commit_ns, stream.read_ns, end_ns, verdict, 3 * slo.pace_ns):
                totals.charge((charge,))
            totals.ended([(request.outcome, verdict)])
        return totals

    expected = add(WindowTotals(), found)
    shuffled = list(found)
    random.shuffle(shuffled)
    left, right = add(WindowTotals(), shuffled[:cut]), add(WindowTotals(), shuffled[cut:])
    left.merge(right)
    assert left == expected
    assert left.row(0, S, GROUP) == expected.row(0, S, GROUP)


def test_benefits_of_many_requests_add_up_exactly_over_their_windows() -> None:
    slo = SloClass(benefit=Benefit(alpha=0.1, penalty="quadratic"))
    totals, terms = WindowTotals(), []
    for late in range(20):
        times = [S + late * 333_333_333]
        verdict = judge(times, 0, 9 * S, "completed", slo)
        for _, charge in window_charges(slo, 0, times, 9 * S, verdict, S):
            totals.charge((charge,))
        terms += [1.0, -slo.benefit.penalty_tokens(verdict.idle_ns or 0)]
    assert totals.benefit.value == math.fsum(terms)
