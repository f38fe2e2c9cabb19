"""What can be gamed and what cannot: no delay improves the reader's columns, and holding tokens improves the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.slo.requests import Request, requests, slo_classes
from support.vectors import vector

from otel_llm.slo.classes import OUTCOMES, Deadline, SloClass
from otel_llm.slo.request import judge
from otel_llm.slo.verdict import Verdict


def verdict_of(name: str, slo: SloClass | None = None) -> Verdict:
    found = vector(name)
    return judge(found.tokens_ns, found.commit_ns, found.end_ns, found.outcome, slo or found.slo, found.kinds)


@st.composite
def delayed(draw: st.DrawFn) -> tuple[SloClass, Request, Request]:
    """Draw a request and one whose i-th token, of each kind, never comes earlier; nor does its end."""
    before = draw(requests(early=False))
    delays = draw(st.lists(st.integers(0, 40), min_size=len(before.tokens_ns), max_size=len(before.tokens_ns)))
    later = [time + delay for time, delay in zip(before.tokens_ns, delays, strict=True)]
    end = max([before.end_ns, *before.tokens_ns])
    after = replace(before, tokens_ns=later, end_ns=max([end + draw(st.integers(0, 40)), *later]))
    return draw(slo_classes()), before, after


@settings(max_examples=examples(500))
@given(delayed())
def test_no_delay_improves_idle_fluidity_line_dslo_or_benefit(case: tuple[SloClass, Request, Request]) -> None:
    slo, *pair = case
    slo = replace(slo, deadline=Deadline("dslo", slo.deadline.first_ns, slo.deadline.next_ns or 3))
    before, after = (
        judge(one.tokens_ns, one.commit_ns, one.end_ns, one.outcome, slo, one.kinds, one.input_tokens) for one in pair
    )
    assert before.judged == after.judged
    if before.idle_ns is None or after.idle_ns is None or before.benefit is None or after.benefit is None:
        return
    assert after.idle_ns >= before.idle_ns
    assert after.benefit <= before.benefit
    line, later = (one.columns()["fluidity_line"] for one in (before, after))
    if line is not None:
        assert later is not None
        assert later <= line
    goodness = {False: 0, None: 1, True: 2}
    assert goodness[after.met] <= goodness[before.met]
    if before.met is None:
        assert after.met is not True


@settings(max_examples=examples(300))
@given(delayed(), st.sampled_from(("reading", "dslo", "e2e")))
def test_no_delay_helps_to_meet_a_deadline_that_does_not_move(
    case: tuple[SloClass, Request, Request], policy: str
) -> None:
    slo, before, after = case
    deadline = Deadline(policy, slo.deadline.first_ns, 3 if policy == "dslo" else None)  # type: ignore[arg-type]
    slo = replace(slo, deadline=deadline)
    early, late = (
        judge(one.tokens_ns, one.commit_ns, one.end_ns, one.outcome, slo, one.kinds) for one in (before, after)
    )
    assert late.met is not True or early.met is True


def test_fluidity_can_be_bought_by_holding_one_token() -> None:
    before = verdict_of("fluidity gamed, before: tokens 2 and 3 come 10 and 50 ms too late")
    after = verdict_of("fluidity gamed, after: token 2 is held for 50 ms more")
    assert before.fluidity_index == pytest.approx(0.833, abs=1e-3)
    assert after.fluidity_index == pytest.approx(0.917, abs=1e-3)
    assert after.idle_ns == before.idle_ns
    assert after.columns()["fluidity_line"] == before.columns()["fluidity_line"]


def test_tail_tbt_can_be_bought_by_holding_tokens_back_while_idle_does_not_move() -> None:
    slo = SloClass(pace_ns=200_000_000)
    generated = [100_000_000 + 20_000_000 * index for index in range(50)] + [2_000_000_000]
    held = [200_000_000 * (index + 1) for index in range(51)]
    before = judge(generated, 0, generated[-1], "completed", slo)
    after = judge(held, 0, held[-1], "completed", slo)
    assert before.tbt_max_ns is not None
    assert after.tbt_max_ns is not None
    assert after.tbt_max_ns < before.tbt_max_ns
    assert (before.idle_ns, after.idle_ns) == (0, 0)


def test_the_output_delay_trick_leaves_idle_and_benefit_alone() -> None:
    before = verdict_of("output delay trick: as generated")
    after = verdict_of("output delay trick: the same tokens held back to a 200 ms cadence")
    assert (before.idle_ns, before.benefit) == (after.idle_ns, after.benefit) == (0, 100.0)


def test_tpot_hides_a_stall_that_fluidity_shows() -> None:
    verdict = verdict_of("ttft_tpot hides the stall")
    assert verdict.met is True
    assert verdict.tbt_max_ns == 2_320_000_000  # 23 times the TPOT that was met
    assert verdict.fluidity_index is not None
    assert verdict.fluidity_index < 0.65


def test_a_burst_counts_as_deadlines_met() -> None:
    verdict = verdict_of("burst: speculative decoding, four tokens at once")
    assert verdict.fluidity_index == 1.0


def test_giving_up_at_once_costs_nothing_unless_an_abort_penalty_is_agreed() -> None:
    slo = vector("the server gave up; an abort penalty of 20 tokens is agreed").slo
    free = replace(slo, benefit=replace(slo.benefit, abort_penalty=0.0))
    stalled = judge([5_000_000_000], 0, 5_000_000_000, "completed", slo)
    assert stalled.benefit is not None
    assert stalled.benefit < 0
    assert judge([], 0, 100_000_000, "error", free).benefit == 0.0
    assert judge([], 0, 100_000_000, "error", slo).benefit == -20.0


def test_only_the_servers_side_pays_the_abort_penalty() -> None:
    slo = vector("the server gave up; an abort penalty of 20 tokens is agreed").slo
    paid = [outcome for outcome in OUTCOMES if judge([1000], 0, 1000, outcome, slo).benefit != 1.0]
    assert paid == ["disconnected", "error"]
