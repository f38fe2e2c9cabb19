"""What went wrong, or nearly did, when streams were looked at by columns: each case as the engine alone decides it."""

from __future__ import annotations

import numpy as np
import pytest
from rules.scripted import one_rule, ruleset
from support.core.core_cases import MS, SECOND, at, commit, ends, request, seen, segment, story, take
from support.core.core_fleets import Seen
from support.core.core_spans import sent_segment
from support.otlp import IDENTITY, export, request_span, segment_span, span_id, trace_id

from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.otlp.export_request import read
from otel_llm.rules.files.ruleset import RuleSet

TWO_RULES = """version: 1
groups:
- name: g
  scope: stream
  rules:
  - {{rule: R1, when: '{}', max_fact_age: 60s, actions: [{{alert: {{name: A}}}}]}}
  - {{rule: R2, when: '{}', max_fact_age: 60s, actions: [{{alert: {{name: A}}}}]}}
"""


@pytest.fixture(params=["columns", "engine"])
def by_columns(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "columns")


def advance(one: Seen, *instants: float) -> None:
    for ms in instants:
        one.evaluator.advance(at(ms))


def test_a_stream_of_which_only_late_segments_came_fires_nothing(by_columns: bool) -> None:
    one = seen(one_rule("gap_seconds > 8.0", max_fact_age="60s"), by_columns=by_columns)
    take(one, 0, commit())
    take(one, 6000, segment(1, 0, [100], 200))
    advance(one, *range(6100, 12_000, 100))
    assert story(one) == []
    take(one, 12_000, segment(2, 1, [], 12_000))
    assert [one.decisions[0].flip_ns, one.decisions[0].now_ns] == [at(8100) + 1, at(12_000)]


def test_a_request_span_that_ends_nothing_keeps_nothing_from_firing(by_columns: bool) -> None:
    one = seen(one_rule("gap_seconds > 0.5"), by_columns=by_columns)
    take(one, 0, commit())
    take(one, 200, segment(1, 0, [100], 200))
    take(one, 300, request(250))
    advance(one, 1500)
    assert story(one) == [("R", 1, "firing", "done", 600.000001, 600.000001)]


def test_what_was_due_before_a_request_span_ended_the_stream_is_decided(by_columns: bool) -> None:
    one = seen(one_rule("fact_age_seconds >= 0.4"), by_columns=by_columns)
    take(one, 20, commit())
    take(one, 45, segment(1, 0, [10, 20], 25))
    take(one, 540, request(500, stated={**IDENTITY, **ends(2, 2)}))
    assert story(one) == [
        ("R", 1, "firing", "done", 425.0, 445.0),
        ("R", 1, "resolved", "ended", 500.0, 540.0),
    ]


@pytest.mark.parametrize("instants", [[2000], [1010, 1057, 1153, 1160, 1171, 2000], range(1001, 2000, 7)])
def test_whoever_reads_the_clock_when_makes_no_difference(by_columns: bool, instants: list[int]) -> None:
    # R1 is one that the prefilter cannot rule out before the first token; R2 moves by steps.
    one = seen(ruleset(TWO_RULES.format("!(ttft_seconds > 5.0)", "deadline_misses >= 4")), by_columns=by_columns)
    take(one, 0, commit())
    advance(one, *instants)
    assert story(one) == [("R2", 1, "firing", "done", 1200.0, 1200.0)]


def test_one_rules_instant_is_no_evaluation_of_the_steps_of_another(by_columns: bool) -> None:
    one = seen(ruleset(TWO_RULES.format("gap_seconds > 1.16", "deadline_misses >= 4")), by_columns=by_columns)
    take(one, 0, commit())
    advance(one, 1300)
    assert story(one) == [
        ("R1", 1, "firing", "done", 1160.000001, 1160.000001),
        ("R2", 1, "firing", "done", 1200.0, 1200.0),
    ]


def test_steps_and_a_length_of_time_in_one_rule_are_evaluated_where_the_length_crosses(by_columns: bool) -> None:
    one = seen(one_rule("gap_seconds > 1.17 && deadline_misses >= 4", max_fact_age="60s"), by_columns=by_columns)
    take(one, 0, commit())
    take(one, 1110, segment(1, 0, [], 1110))
    advance(one, 1300)
    assert story(one) == [("R", 1, "firing", "done", 1170.000001, 1170.000001)]


def test_a_length_that_decides_nothing_is_still_where_steps_are_evaluated(by_columns: bool) -> None:
    # The fourth deadline is missed after 1150; the gap reaches 1.16 between two looks, and the tokens hold anyway.
    rules = one_rule("deadline_misses >= 4 && (gap_seconds >= 1.16 || tokens >= 0)", max_fact_age="60s")
    one = seen(rules, by_columns=by_columns)
    take(one, 0, commit())
    take(one, 1110, segment(1, 0, [], 1110))
    advance(one, 1300)
    assert story(one) == [("R", 1, "firing", "done", 1160.0, 1160.0)]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_two_that_are_due_at_once_the_same_gets_what_is_left(by_columns: bool, order: tuple[int, int]) -> None:
    budget = "[{alert: {name: A}, budget: {in_flight: 1}, ttl: 10s}]"
    one = seen(one_rule("tokens_read > 2", actions=budget), by_columns=by_columns)
    take(one, 0, commit(), commit(request=2))
    take(one, 1000, *[segment(1, 0, [100, 200, 300], 1000, request=number) for number in order])
    assert [(reported[1], reported[3]) for reported in story(one)] == [(1, "done"), (2, "budget")]


def test_what_is_due_at_the_very_instant_of_a_batch_is_in_turn(by_columns: bool) -> None:
    budget = "[{alert: {name: A}, budget: {in_flight: 1}, ttl: 10s}]"
    one = seen(one_rule("gap_seconds > 0.5", actions=budget), by_columns=by_columns)
    take(one, 0, commit(), commit(request=2))
    take(one, 300, segment(1, 0, [100], 300, request=2), segment(1, 0, [100], 300))
    take(one, 600 + 1 / MS, segment(2, 1, [], 600 + 1 / MS, request=2))
    advance(one, 900)
    assert [(reported[1], reported[3], reported[5]) for reported in story(one)] == [
        (1, "done", 600.000001),
        (2, "budget", 600.000001),
    ]


def test_choices_share_a_budget_also_where_one_was_there_before_the_other(by_columns: bool) -> None:
    one = seen(
        one_rule("gap_seconds > 0.5", actions="[{alert: {name: A}, budget: {per_request: 1}}]"), by_columns=by_columns
    )
    take(one, 0, commit())
    take(one, 100, segment(1, 0, [100], 100))
    take(one, 200, commit(100, choice=1))
    for seq, ms in enumerate((210, 410, 610, 800), 2):
        take(one, ms, segment(seq, seq - 1, [ms], ms))
    take(one, 800, segment(1, 0, [], 800, choice=1))
    take(one, 900, segment(2, 0, [], 900, choice=1, stated=ends(0, 3)))
    advance(one, 1800)
    assert [(one.subject[3], one.outcome) for one in one.decisions] == [(1, "done"), (1, "ended"), (0, "budget")]


def test_a_sibling_that_appears_when_the_first_choice_falls_due_delays_nothing(by_columns: bool) -> None:
    one = seen(one_rule("gap_seconds >= 0.5"), by_columns=by_columns)
    take(one, 0, commit())
    take(one, 300, segment(1, 0, [100], 300))
    take(one, 600, commit(600, choice=1))
    advance(one, 700)
    assert story(one) == [("R", 1, "firing", "done", 600.0, 600.0)]


def test_a_silent_reader_is_seen_while_others_never_stop_talking() -> None:
    one = seen(one_rule("gap_seconds > 0.5"))
    take(one, 0, commit(), commit(request=2))
    take(one, 100, segment(1, 0, [100], 100, request=2))
    for seq in range(1, 140):
        take(one, 100 + seq * 10, segment(seq, seq - 1, [100 + seq * 10], 100 + seq * 10))
        if one.decisions:
            break
    assert story(one) == [("R", 2, "firing", "done", 600.000001, 600.000001)]
    assert seq * 10 + 100 <= 720  # it may wait for a moment, not for silence


# What is left behind.


@pytest.mark.parametrize("when", ["gap_seconds > ttft_seconds", "gap_seconds > 0.5"])
def test_streams_that_ended_leave_nothing_behind(by_columns: bool, when: str) -> None:
    one = seen(one_rule(when), by_columns=by_columns)
    table = one.evaluator.table
    keys = np.array([np.frombuffer(trace_id(number) + span_id(number), np.int64) for number in range(1, 200)])
    for number in range(1, 200):
        begin = number * 10
        take(one, begin, commit(begin, request=number))
        assert table.find(keys[number - 1 : number]) >= 0
        take(one, begin + 3, segment(1, 0, [begin + 1], begin + 3, request=number))
        take(one, begin + 5, segment(2, 1, [], begin + 5, request=number, stated=ends(1, 3)))
        take(one, begin + 6, request(begin + 5, number=number, start=begin))
    advance(one, 100_000)
    engine = one.evaluator.rules
    assert not one.evaluator.live
    assert not len(engine)
    assert not engine.take_evaluated()
    assert engine.next_timer() is None
    assert not len(table)
    assert set(table.find(keys).tolist()) == {-1}
    assert not any(table.streams)
    assert not any(arrays is not None for arrays in table.arrays)
    assert one.evaluator.scheduler.next_due() is None


def test_no_evaluation_of_a_stream_that_waits_for_its_end_is_due_at_once() -> None:
    # The rule fires, does not hold any more, and waits for a condition that only tokens can bring.
    one = seen(one_rule("gap_seconds > 0.2", resolve_when="'runway_seconds > 50.0'", max_fact_age="60s"))
    take(one, 0, commit())
    take(one, 100, segment(1, 0, [100], 100))
    advance(one, 400)
    take(one, 500, segment(2, 1, [500], 500))
    for ms in range(501, 700):
        advance(one, ms)
        due_ns = one.evaluator.next_timer()
        assert due_ns is None or due_ns > at(ms)


# Numbers that are as large as they may be.


@pytest.mark.parametrize("start_ns", [1, 2**62 - 1, 2**62, 2**63 - 10**9, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("plain", [True, False])
def test_a_time_at_the_end_of_time_costs_nobody_else_anything(start_ns: int, plain: bool, by_columns: bool) -> None:
    one = seen(one_rule("gap_seconds > 0.5 && runway_seconds < 100.0"), by_columns=by_columns)
    odd = [
        sent_segment(0, 0, request=7, start_ns=start_ns, attributes={} if plain else IDENTITY),
        sent_segment(1, 0, [start_ns] * 3, request=7, start_ns=start_ns),
        request_span(request=8, start_ns=start_ns, end_ns=start_ns),
    ]
    take(one, 0, odd[0], commit(), odd[2])
    take(one, 200, odd[1], segment(1, 0, [100], 200))
    advance(one, 1500, 400_000)
    assert next(line for line in story(one) if line[1] == 1) == (
        "R",
        1,
        "firing",
        "done",
        600.000001,
        600.000001,
    )
    assert [row["tokens"] for row in one.rows if str(row["trace_id"]).endswith("01")] == [1]


def test_the_tokens_of_a_burst_are_as_many_as_there_are() -> None:
    # Several segments of one stream in one batch, in any order, with streams enough for rounds by columns.
    one = seen(window_ns=SECOND)
    spans = [commit(request=number) for number in range(1, 21)]
    take(one, 0, *spans)
    rounds = [
        segment(seq, (seq - 1) * 100, [100 + seq] * 100, 200, request=number)
        for seq in range(1, 6)
        for number in range(1, 21)
    ]
    shuffled = [rounds[i] for i in np.random.default_rng(3).permutation(len(rounds))]
    take(one, 210, *shuffled)
    assert {stream.applied_tokens for stream in one.evaluator.live.values()} == {500}
    take(one, 300, *[segment(6, 500, [], 300, request=number, stated=ends(500, 7)) for number in range(1, 21)])
    one.evaluator.advance(at(20_000))
    assert [row["tokens_read"] for row in one.rows] == [500] * 20
    assert sum(window["tokens_read"] for window in one.windows) == 10_000


# Who begins.


def test_a_commit_begins_a_stream_however_little_it_says() -> None:
    plain = [sent_segment(0, 0, request=number) for number in range(1, 6)]
    for spans in (plain, [segment_span(0, 0)], [commit()]):
        assert read(export(*spans).SerializeToString()).begins
    assert not read(export(sent_segment(1, 0)).SerializeToString()).begins


def test_a_commit_that_says_nothing_is_told_who_it_is_like_any_other(by_columns: bool) -> None:
    rows = []
    for columns in (True, False):
        one = seen(RuleSet(()), by_columns=by_columns, timeouts=Timeouts(), window_ns=SECOND)
        take(one, 0, segment(1, 0, [100], 200), columns=columns)
        take(one, 250, request(240, stated={**IDENTITY, "otel_llm.instance": "a"}), commit(stated={}), columns=columns)
        take(one, 400, segment(2, 1, [], 400, stated=ends(1, 3)), columns=columns)
        one.evaluator.advance(at(30_000))
        rows.append((one.rows, one.windows))
    assert rows[0] == rows[1]
