"""The figures of `audit --format json`, against sums done by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from support.audit.summary_oracle import incomplete, judgements

from otel_llm.slo.classes import Objective, SloClass, SloClasses
from otel_llm.slo.request import judge
from otel_llm.slo.summary import figures, incomplete_ones, summarise

S = 10**9
FIGURES = (
    "requests", "tokens", "incomplete", "undetermined", "aborted_share", "attainment", "throughput_tok_s",
    "throughput_req_s", "goodput_tok_s", "goodput_req_s", "smooth_goodput_tok_s", "fluidity_p50", "fluidity_ok_share",
    "idle_p50_s", "idle_p99_s", "ttfo_p50_s", "ttfo_p99_s",
    *(f"{name}_{one}_s" for name in ("ttft", "itl", "tpot", "e2e") for one in ("mean", "p50", "p90", "p99")),
    "fluid_token_rate",
)  # fmt: skip


def row(times: list[int], outcome: str = "completed", **changes: Any) -> dict[str, Any]:
    verdict = judge(times, 0, 4 * S, outcome, SloClass())
    return {
        "slo_class": "chat",
        "measured_at": "client",
        "outcome": outcome,
        "start_unix_nano": 0,
        "coverage": 1.0,
        "fluid_tbt_ns": None,
        **verdict.columns(),
        **changes,
    }


def torn(tokens: int = 7) -> dict[str, Any]:
    nothing = dict.fromkeys(judge([], 0, 0, "completed", SloClass()).columns())
    return (
        row([], coverage=0.5) | nothing | {"tokens": tokens, "tokens_read": tokens, "ttft_s": 9.0, "outcome": "error"}
    )


def test_every_figure() -> None:
    rows = [
        row([100_000_000, 120_000_000, 140_000_000], fluid_tbt_ns=20_000_000),
        row([2 * S, 2 * S + 20_000_000], fluid_tbt_ns=20_000_000),
        row([100_000_000], "disconnected"),
        row([100_000_000, 150_000_000], "cancelled", met=None, fluid_tbt_ns=50_000_000),
        torn() | {"fluid_tbt_ns": 1},
    ]
    found = figures(judgements(rows), Objective(Fraction(9, 10)), 10.0)
    assert tuple(found) == FIGURES
    idle = sorted([0.0, 1.8, 3.6, 3.4])
    benefits = [3.0, 2 - 2.5 * 1.8, 1 - 2.5 * 3.6, 2 - 2.5 * 3.4]
    assert found["requests"] == 5
    assert found["tokens"] == 15
    assert found["incomplete"] == 1
    assert found["undetermined"] == 2
    assert found["aborted_share"] == 0.4
    assert found["attainment"] == pytest.approx(1 / 3)
    assert found["throughput_tok_s"] == pytest.approx(0.8)
    assert found["throughput_req_s"] == pytest.approx(0.5)
    assert found["goodput_tok_s"] == pytest.approx(0.3)
    assert found["goodput_req_s"] == pytest.approx(0.1)
    assert found["smooth_goodput_tok_s"] == pytest.approx(sum(benefits) / 10)
    assert found["fluidity_ok_share"] == 0.25
    assert found["idle_p50_s"] == idle[1]
    assert found["idle_p99_s"] == idle[3]
    assert (found["ttfo_p50_s"], found["ttfo_p99_s"]) == (0.1, 2.0)
    assert found["ttft_p50_s"] == 0.1
    assert found["ttft_p99_s"] == 9.0
    # Of all that say it, the torn one among them: 0.1, 2, 0.1, 0.1 and 9 s.
    assert found["ttft_mean_s"] == pytest.approx(2.26)
    # Gaps of 20, 20, 20 and 50 ms; a row knows their mean, not each of them.
    assert found["itl_mean_s"] == pytest.approx(0.0275)
    assert found["itl_p50_s"] is None
    assert found["tpot_mean_s"] == pytest.approx(0.03)
    assert (found["tpot_p50_s"], found["tpot_p90_s"], found["tpot_p99_s"]) == (0.02, 0.05, 0.05)
    # Two of the five completed.
    assert (found["e2e_mean_s"], found["e2e_p99_s"]) == (4.0, 4.0)
    assert found["fluid_token_rate"] == 20.0


def test_nothing_to_say_is_none() -> None:
    found = figures(judgements([torn()]), Objective(), None)
    unsaid = {"attainment", "fluidity_p50", "fluidity_ok_share", "idle_p50_s", "idle_p99_s", "fluid_token_rate"}
    unsaid |= {"ttfo_p50_s", "ttfo_p99_s"}
    unsaid |= {name for name in FIGURES if name.startswith(("itl", "tpot", "e2e"))}
    rates = {name for name in FIGURES if name.endswith(("tok_s", "req_s"))}
    assert {name for name, value in found.items() if value is None} == unsaid | rates


def test_a_share_on_the_objective_is_in_it() -> None:
    rows = [row([], deadlines=10, deadline_misses=1, fluidity_index=0.9), row([], deadlines=10, deadline_misses=2)]
    assert figures(judgements(rows), Objective(Fraction(9, 10)), 1.0)["fluidity_ok_share"] == 0.5


def test_fluid_token_rate_takes_the_share_of_the_objective() -> None:
    judged = judgements([row([1], fluid_tbt_ns=tbt) for tbt in (10, 20, 30, 40)])
    assert figures(judged, Objective(share=Fraction(1, 2)), 1.0)["fluid_token_rate"] == 1 / (20 / 1e9)
    assert figures(judged, Objective(), 1.0)["fluid_token_rate"] == 1 / (40 / 1e9)


def test_groups_are_classes_in_file_order_then_where_it_was_measured() -> None:
    classes = SloClasses((SloClass("b"), SloClass("a"), SloClass("unused")), default="b")
    rows = [
        row([1, 2], slo_class="a", measured_at="server"),
        row([1], slo_class="a"),
        row([1, 2, 3], slo_class="b"),
    ]
    found = summarise(judgements(rows), classes, 2 * S, 3)
    assert (found["requests"], found["tokens"], found["span_s"], found["skipped"]) == (3, 6, 2.0, 3)
    assert [(name, list(places)) for name, places in found["classes"].items()] == [
        ("b", ["client"]),
        ("a", ["client", "server"]),
    ]
    assert found["classes"]["a"]["server"]["tokens"] == 2
    assert summarise(judgements([]), classes, None, 0) == {
        "requests": 0,
        "tokens": 0,
        "span_s": None,
        "skipped": 0,
        "classes": {},
    }


@pytest.mark.parametrize(
    ("start", "coverage", "expected"), [(0, 1.0, False), (0, None, False), (0, 0.99, True), (None, 1.0, True)]
)
def test_what_is_incomplete(start: int | None, coverage: float | None, expected: bool) -> None:
    one = row([], start_unix_nano=start, coverage=coverage)
    assert incomplete(one) is expected
    assert incomplete_ones(judgements([one])).tolist() == [expected]


def test_a_sum_that_no_request_has_a_part_in_is_none_and_not_zero() -> None:
    foreign = torn(0) | {"coverage": None, "tokens_read": None, "tokens": None, "outcome": "completed"}
    found = figures(judgements([foreign] * 2), Objective(), 10.0)
    assert found["throughput_req_s"] == 0.2
    unsaid = ("throughput_tok_s", "goodput_tok_s", "goodput_req_s", "smooth_goodput_tok_s")
    assert [found[name] for name in unsaid] == [None] * 4
    # One that failed is judged: it met nothing, and what it read is known.
    late = figures(judgements([foreign, row([2 * S], "error")]), Objective(), 10.0)
    assert (late["goodput_tok_s"], late["goodput_req_s"], late["throughput_tok_s"]) == (0.0, 0.0, 0.1)
    # A verdict alone is enough for goodput, and says nothing of the benefit.
    failed = figures(judgements([foreign | {"met": False}]), Objective(), 10.0)
    assert [failed[name] for name in unsaid] == [None, 0.0, 0.0, None]
    nobody = figures(judgements([]), Objective(), 10.0)
    assert [nobody[name] for name in unsaid] == [0.0] * 4
