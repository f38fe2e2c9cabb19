"""The engine's promises, one by one, on the virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.scripted import COMMIT, MS, S, Segment, View, flushed, key, one_rule, ruleset, run, story
from support.examples import examples

from otel_llm.formats.records import StreamKey
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.shipped import shipped_rules_dir
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

QUARTERS = [250 * at for at in range(1, 20)]
"""When a sender flushes, in ms since the commit."""


def outcomes(decisions: list[Decision]) -> list[tuple[str | None, str]]:
    return [(one.action, one.outcome) for one in decisions]


# Time.


def test_for_counts_from_the_true_flip_though_it_is_learnt_later() -> None:
    # The last token is at 300; the segment that says so arrives at 450, when `gap > 0.1` has held for 50 ms already.
    reported = story(run(one_rule("gap_seconds > 0.1 && tokens > 0", for_="100ms"), flushed([300], [250, 430]), 2 * S))
    assert reported == [("firing", "done", 500.000001)]


def test_the_decision_is_made_at_its_instant_on_the_collectors_clock() -> None:
    (only,) = run(one_rule("gap_seconds >= 0.5"), flushed([100], [250], clock_ms=7_000_000), 7_001 * S)
    assert only.flip_ns == COMMIT + 600 * MS
    # Delivery takes 20 ms at best, and so the stream's now is that much behind what the collector's clock says.
    assert only.now_ns == (7_000_000 + 620) * MS
    assert only.offset_ns == COMMIT - 7_000_020 * MS
    assert only.record()["now_offset_nano"] == only.flip_ns - only.now_ns


def test_a_stream_that_began_slowly_is_not_late_for_ever() -> None:
    # Segment 0 took 400 ms, the next one 20 ms: from then on the fastest delivery counts.
    segments = flushed([], [250, 500], delays_ms={0: 400})
    decisions = run(one_rule("age_seconds > 0.6"), segments, 2 * S)
    assert [one.now_ns for one in decisions] == [620 * MS + 1]


def test_pending_ends_as_soon_as_the_condition_does() -> None:
    rules = one_rule("gap_seconds > 0.2 && gap_seconds < 0.4", for_="250ms")
    assert story(run(rules, flushed([100], [250, 500]), 2 * S)) == []
    assert story(run(one_rule("gap_seconds > 0.2", for_="250ms"), flushed([100, 500], QUARTERS), S)) == [
        ("firing", "done", 950.000001)
    ]


def test_a_resolve_condition_of_its_own_keeps_a_rule_from_flapping() -> None:
    # Fifty times the runway falls below 0.1 s: a token a quarter of a second, each worth 0.2 s of reading.
    tokens = [100 + 250 * at for at in range(50)]
    segments = flushed(tokens, [time + 10 for time in tokens], end_ms=13_000)
    plain = story(run(one_rule("runway_seconds < 0.1 && tokens > 0"), segments, 20 * S))
    assert sum(state == "firing" for state, _, _ in plain) == 50
    steady = one_rule("runway_seconds < 0.1 && tokens > 0", resolve_when="'runway_seconds > 1.0'")
    assert story(run(steady, segments, 20 * S)) == [("firing", "done", 200.000001), ("resolved", "ended", 13_000.0)]
    patient = one_rule("runway_seconds < 0.1 && tokens > 0", keep_firing_for="500ms")
    assert story(run(patient, segments, 20 * S)) == [("firing", "done", 200.000001), ("resolved", "ended", 13_000.0)]


def test_resolved_at_the_first_instant_at_which_both_hold() -> None:
    # The gap ends at 1000, the runway passes 0.5 s with the third token at 1020, two seconds after the gap's end count.
    rules = one_rule("gap_seconds > 0.5", resolve_when="'runway_seconds > 0.5'", keep_firing_for="100ms")
    reported = story(run(rules, flushed([100, 1000, 1010, 1020, 1030], QUARTERS), 3 * S))
    assert reported[:2] == [("firing", "done", 600.000001), ("resolved", "resolved", 1100.0)]
    quick = one_rule("gap_seconds > 0.5", resolve_when="'runway_seconds > 0.5'")
    assert story(run(quick, flushed([100, 1000, 1010, 1020, 1030], QUARTERS), 3 * S))[1] == (
        "resolved",
        "resolved",
        1020.0,
    )


def test_steps_are_evaluated_every_100_ms_and_with_every_segment() -> None:
    # Etalon's deadlines: the first token is due at 1000, then one every 50 ms: the fourth is missed from 1150 on.
    rules = one_rule("deadline_misses >= 4", max_fact_age="10s")
    assert story(run(rules, flushed([], [250]), 2 * S)) == [("firing", "done", 1200.0)]
    assert story(run(rules, flushed([], [250, 1160]), 2 * S)) == [("firing", "done", 1160.0)]


def test_a_flip_among_the_tokens_of_one_batch_is_found() -> None:
    # The sixth token came at 350 and is learnt at 520 together with the seventh.
    reported = story(run(one_rule("tokens > 5"), flushed([100, 110, 120, 130, 140, 350, 400], [250, 500]), 2 * S))
    assert reported == [("firing", "done", 350.0)]


# Missing facts.


def test_facts_that_are_too_old_hold_a_rule_where_it_is() -> None:
    segments = flushed([100], [250, 3000])
    assert story(run(one_rule("gap_seconds > 2.0"), segments[:2], 9 * S)) == []
    # When facts are back the condition has held since 2100, and is decided on what is known now.
    back = run(one_rule("gap_seconds > 2.0"), segments, 4 * S)
    assert [(one.flip_ns, one.now_ns) for one in back] == [(COMMIT + 2100 * MS + 1, 3020 * MS)]
    assert back[0].record()["fact_age_seconds"] == 0.0


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("hold", []), ("false", []), ("fire", [("firing", "done", 1750.000001)])],
)
def test_old_facts_by_policy(policy: str, expected: list[tuple[str, str, float]]) -> None:
    rules = one_rule("gap_seconds > 60.0", on_missing=policy)
    assert story(run(rules, flushed([100], [250]), 10 * S)) == expected


def test_false_resolves_what_nobody_can_see_any_more() -> None:
    rules = one_rule("tokens > 0 && gap_seconds > 0.2", on_missing="false", keep_firing_for="100ms")
    reported = story(run(rules, flushed([100], [250]), 10 * S))
    assert reported == [("firing", "done", 300.000001), ("resolved", "resolved", 1850.000001)]
    hysteresis = one_rule("tokens > 0 && gap_seconds > 0.2", on_missing="false", resolve_when="'gap_seconds < 0.1'")
    assert story(run(hysteresis, flushed([100], [250]), 10 * S)) == reported[:1]


def test_a_missing_record_of_a_fact_says_null() -> None:
    decision = run(one_rule("gap_seconds > 60.0 && model == 'm'", on_missing="fire"), flushed([100], [250]), 10 * S)[0]
    assert decision.facts == {"gap_seconds": None, "model": "m"}


def test_while_a_segment_is_missing_facts_of_time_are_missing() -> None:
    # Segment 2 comes at 1120, after 3 and 4: it says that a token was there at 400.
    segments = flushed([100, 400], QUARTERS, delays_ms={2: 620})
    decisions = run(one_rule("tokens > 0 && gap_seconds > 0.65"), segments, 1_400 * MS)
    # What would have been 750 by what was known is not decided: from 770 on a segment is known to be missing.
    assert [(one.flip_ns, one.now_ns) for one in decisions] == [(COMMIT + 1050 * MS + 1, 1120 * MS)]
    # Counts are known all the same: as many as have come without a gap.
    assert story(run(one_rule("tokens >= 1 && model == 'm'"), segments, 2 * S)) == [("firing", "done", 100.0)]


def test_the_age_of_the_telemetry_itself_is_never_missing() -> None:
    assert story(run(one_rule("fact_age_seconds > 5.0"), flushed([100], [250]), 10 * S)) == [
        ("firing", "done", 5250.000001)
    ]


def test_a_fact_that_does_not_exist_yet_is_missing() -> None:
    rules = one_rule("ttft_seconds > 0.3 || age_seconds > 0.1")
    assert story(run(rules, flushed([500], QUARTERS), 3 * S)) == [("firing", "done", 500.0)]
    assert story(run(rules, flushed([], QUARTERS), 3 * S)) == []


def test_an_expression_without_a_value_is_missing() -> None:
    rules = one_rule("tokens / (tokens_read - 1) > 0 && gap_seconds > 0.1")
    reported = story(run(rules, flushed([100, 600], QUARTERS), 2 * S))
    assert reported == [("firing", "done", 700.000001)]


# What later segments show.


def test_a_token_under_way_refutes_a_firing() -> None:
    # At 620 nothing has been heard of since 250; the token of 450 arrives at 640.
    segments = flushed([100, 450], [250, 500, 750], delays_ms={2: 140})
    decisions = run(one_rule("gap_seconds > 0.4"), segments, 700 * MS)
    assert story(decisions) == [("firing", "done", 500.000001), ("resolved", "refuted", 500.000001)]
    fired, ended = decisions
    assert (fired.now_ns, fired.facts) == (520 * MS + 1, {"gap_seconds": 0.400000001})
    assert (ended.now_ns, ended.facts) == (640 * MS, {"gap_seconds": 0.050000001})
    assert (ended.action, ended.mode, ended.state) == (None, None, "resolved")


def test_a_firing_that_was_right_is_not_refuted_by_what_comes_after() -> None:
    segments = flushed([100, 600], [250, 500, 750], delays_ms={2: 140})
    reported = story(run(one_rule("gap_seconds > 0.4"), segments, 700 * MS))
    assert reported == [("firing", "done", 500.000001), ("resolved", "resolved", 600.0)]


def test_an_end_can_refute_too() -> None:
    segments = flushed([100, 450], [250], end_ms=700)
    assert story(run(one_rule("gap_seconds > 0.4"), segments, 2 * S)) == [
        ("firing", "done", 500.000001),
        ("resolved", "refuted", 500.000001),
    ]


def test_a_refutation_waits_until_no_segment_is_missing() -> None:
    # The token of 450 arrives at 640, but with a hole behind it that is closed only at 900.
    segments = flushed([100, 450], [250, 500, 600, 650], delays_ms={2: 140, 3: 300, 4: -10})
    rules = one_rule("gap_seconds > 0.4")
    assert story(run(rules, segments[:3] + segments[4:], 890 * MS)) == [("firing", "done", 500.000001)]
    decisions = run(rules, segments, 910 * MS)
    assert story(decisions)[:2] == [("firing", "done", 500.000001), ("resolved", "refuted", 500.000001)]
    assert decisions[1].now_ns == 900 * MS


def test_a_stream_may_have_been_over_before_it_began_to_fire() -> None:
    reported = run(
        one_rule("gap_seconds > 0.2 && tokens > 0"), flushed([100], [110], end_ms=290, delays_ms={2: 200}), S
    )
    assert story(reported) == [("firing", "done", 300.000001), ("resolved", "ended", 300.000001)]


def test_after_a_refutation_the_run_begins_anew() -> None:
    # Between 352 and 550 facts are too old and count as `fire`; the third segment refutes what began then.
    rules = one_rule("gap_seconds > 0.3", for_="300ms", on_missing="fire", max_fact_age="352ms")
    script = [
        (1000, 0, []), (1550, 250, [2, 12, 122]), (1800, 500, [322, 332, 433, 443]), (1900, 900, []), (2144, 1143, []),
    ]  # fmt: skip
    segments = [
        Segment(receipt * MS, seq, COMMIT + end * MS, tuple(COMMIT + token * MS for token in tokens))
        for seq, (receipt, end, tokens) in enumerate(script)
    ]
    assert story(run(rules, segments, 3 * S)) == [
        ("firing", "done", 600.000001),
        ("resolved", "refuted", 600.000001),
        ("firing", "done", 1043.000001),
    ]


def test_flips_never_go_back() -> None:
    # Resolved at 300, when nothing was known of the token of 250; what then fires again cannot have begun earlier.
    rules = one_rule("tokens > 0 && gap_seconds < 0.1")
    reported = story(run(rules, flushed([100, 150, 200, 250], [210, 260], delays_ms={2: 70}), S))
    assert reported == [
        ("firing", "done", 100.0),
        ("resolved", "resolved", 300.0),
        ("firing", "done", 300.0),
        ("resolved", "resolved", 350.0),
    ]


def test_a_stream_that_ends_ends_what_fires_and_forgets_what_is_pending() -> None:
    rules = one_rule("gap_seconds > 0.4")
    reported = run(rules, flushed([100], [250], end_ms=700), 2 * S)
    assert story(reported) == [("firing", "done", 500.000001), ("resolved", "ended", 700.0)]
    assert reported[1].facts == {"gap_seconds": 0.6}
    assert story(run(one_rule("gap_seconds > 0.4", for_="300ms"), flushed([100], [250], end_ms=700), 2 * S)) == []


def test_late_segments_never_make_a_rule_fire() -> None:
    late = [Segment(300 * MS, 0, COMMIT), Segment(310 * MS, 1, COMMIT + 250 * MS, (COMMIT + 100 * MS,), late=True)]
    rules = one_rule("tokens > 0 && gap_seconds > 0.2", max_fact_age="1h")
    assert run(rules, late, 5 * S) == []
    # Once others come it may.
    reported = run(rules, [*late, Segment(600 * MS, 2, COMMIT + 500 * MS)], 5 * S)
    assert [(one.flip_ns, one.now_ns) for one in reported] == [(COMMIT + 300 * MS + 1, 600 * MS)]


def test_of_what_comes_at_one_instant_one_segment_in_time_is_enough() -> None:
    for late in ([True, False], [False, True], [True, False, True]):
        engine = RuleEngine(one_rule("gap_seconds > 0.2"))
        view = View(Stream(SloClass(), COMMIT), offset_ns=COMMIT, watermark_ns=COMMIT + 300 * MS)
        for one in late:
            engine.update(view, 300 * MS, late=one)
        assert len(engine.advance(300 * MS, {view.key: view})) == 1


def test_late_segments_can_end_a_firing() -> None:
    segments = [
        Segment(20 * MS, 0, COMMIT),
        Segment(900 * MS, 1, COMMIT + 250 * MS, (COMMIT + 240 * MS,), late=True),
    ]
    rules = one_rule("gap_seconds > 0.5")
    assert story(run(rules, segments, 5 * S)) == [("firing", "done", 500.000001), ("resolved", "refuted", 500.000001)]


# Actions.

MOVING = """[
      {migrate: {to: safest, only_if: 'exact_resume'}, ttl: 400ms, budget: {per_request: 1, in_flight: 1}},
      {alert: {name: A, by: [slo_class]}}]"""


def test_an_action_has_its_outcome() -> None:
    rules = one_rule("gap_seconds > 0.4", actions=MOVING)
    segments = flushed([100], [250])
    plain = run(rules, segments, S)
    assert outcomes(plain) == [("migrate", "only_if"), ("alert", "done")]
    assert plain[0].facts == {"gap_seconds": 0.400000001, "exact_resume": False}
    assert plain[0].budget == {}
    resumable = run(rules, segments, S, identity={key(): {"exact_resume": True}})
    assert outcomes(resumable) == [("migrate", "shadow"), ("alert", "done")]
    assert resumable[0].budget == {"per_request": True, "in_flight": True}
    assert [one.mode for one in resumable] == ["shadow", "enforce"]
    assert resumable[1].arguments == {"name": "A", "by": ("slo_class",)}
    shadow = run(rules.in_shadow(), segments, S, identity={key(): {"exact_resume": True}})
    assert outcomes(shadow) == [("migrate", "shadow"), ("alert", "shadow")]


def test_budgets_are_spent_in_shadow() -> None:
    rules = one_rule("tokens > 0 && gap_seconds > 0.2", actions=MOVING)
    identity: dict[StreamKey, dict[str, object]]
    identity = {key(number): {"exact_resume": True} for number in (1, 2)}
    # Stream 1 fires at 300 and again at 900; stream 2 at 320, while the first move counts as in flight.
    one = flushed([100, 700], [110, 400, 710])
    two = flushed([120], [130], stream=key(2))
    decisions = [each for each in run(rules, one + two, 1_200 * MS, identity=identity) if each.action == "migrate"]
    assert [(each.subject[0][-1], each.outcome, each.budget) for each in decisions] == [
        (1, "shadow", {"per_request": True, "in_flight": True}),
        (2, "budget", {"per_request": True, "in_flight": False}),
        (1, "budget", {"per_request": False, "in_flight": True}),
    ]


def test_choices_of_a_request_share_its_budget() -> None:
    rules = one_rule("gap_seconds > 0.2", actions="[{abort: {}, budget: {per_request: 1}}]")
    segments = flushed([100], [110, 200]) + flushed([150], [160, 200], stream=key(1, 1))
    assert [(one.subject[3], one.outcome) for one in run(rules, segments, S)] == [(0, "shadow"), (1, "budget")]


def test_an_enforced_action_is_unconfirmed_until_its_executor_says_more() -> None:
    rules = one_rule("gap_seconds > 0.2", actions="[{abort: {}}]")
    enforced = RuleSet(rules.rules)
    object.__setattr__(enforced.rules[0].actions[0], "mode", "enforce")
    assert outcomes(run(enforced, flushed([100], QUARTERS), S))[0] == ("abort", "unconfirmed")


def test_what_stands_in_the_decision_file_is_not_decided_again() -> None:
    rules = one_rule("gap_seconds > 0.2", actions="[{abort: {}, budget: {per_request: 1}}, {alert: {name: A}}]")
    segments = flushed([100, 700], [110, 400, 710], end_ms=2000)
    everything = run(rules, segments, 3 * S)
    assert outcomes(everything) == [
        ("abort", "shadow"), ("alert", "done"), (None, "resolved"),
        ("abort", "budget"), ("alert", "done"), (None, "ended"),
    ]  # fmt: skip
    for known in range(len(everything) + 1):
        decided = {one.key for one in everything[:known]}
        assert run(rules, segments, 3 * S, decided=decided) == [one for one in everything if one.key not in decided]


# Streams.


def test_a_rule_for_another_class_costs_nothing_and_says_nothing() -> None:
    rules = one_rule("slo_class == 'voice' && gap_seconds > 0.3")
    assert run(rules, flushed([100], QUARTERS), S) == []
    reported = story(run(rules, flushed([100], QUARTERS), S, identity={key(): {"slo_class": "voice"}}))
    assert reported == [("firing", "done", 400.000001)]


def test_an_identity_learnt_later_counts_from_then_on() -> None:
    engine = RuleEngine(one_rule("model == 'big' && gap_seconds > 0.2"))
    view = View(Stream(SloClass(), COMMIT), offset_ns=COMMIT)
    engine.update(view, 0)
    assert engine.advance(S, {view.key: view}) == []
    view.model, view.watermark_ns = "big", COMMIT + S
    engine.update(view, S)
    assert [one.flip_ns for one in engine.advance(S, {view.key: view})] == [COMMIT + 200 * MS + 1]
    # A rule that fires goes on though the name changes: only its own conditions end it.
    view.model = "other"
    engine.update(view, S)
    assert [one.outcome for one in engine.advance(S, {view.key: view})] == ["resolved"]


def test_streams_are_evaluated_in_the_order_of_their_instants() -> None:
    segments = [one for at in (3, 1, 2) for one in flushed([100 * at], QUARTERS, stream=key(at))]
    decisions = run(one_rule("gap_seconds > 0.5"), segments, 2 * S, wake=False)
    assert [one.subject[0][-1] for one in decisions] == [1, 2, 3]
    assert [one.now_ns for one in decisions] == sorted(one.now_ns for one in decisions)


@pytest.mark.parametrize("at_ms", [0, 300])
def test_at_one_instant_streams_go_by_their_ids_in_whatever_order_they_came(at_ms: int) -> None:
    # Decided by timers; or at 300, when the condition holds already.
    engine = RuleEngine(one_rule("gap_seconds > 0.2", actions="[{abort: {}, budget: {in_flight: 1}}]"))
    watermark = COMMIT + at_ms * MS
    views = {
        one: View(Stream(SloClass(), COMMIT), key=one, offset_ns=COMMIT, watermark_ns=watermark)
        for one in (key(1), key(2), key(3))
    }
    for one in (key(2), key(3), key(1)):
        engine.update(views[one], at_ms * MS)
    decisions = engine.advance(S, views)
    assert [(one.subject[0][-1], one.outcome) for one in decisions] == [(1, "shadow"), (2, "budget"), (3, "budget")]


def test_a_flip_is_traced_back_through_tokens_that_are_not_read() -> None:
    tokens = [COMMIT + at * MS for at in (100, 110, 120, 130, 140, 150)]
    segments = [
        Segment(20 * MS, 0, COMMIT),
        Segment(270 * MS, 1, COMMIT + 250 * MS, tuple(tokens), kinds=(1, 0, 1, 0, 1, 0)),
    ]
    assert story(run(one_rule("tokens_read > 1"), segments, S)) == [("firing", "done", 130.0)]
    assert story(run(one_rule("tokens > 1"), segments, S)) == [("firing", "done", 110.0)]
    both = SloClass(reads=(0, 1))
    assert story(run(one_rule("tokens_read > 1"), segments, S, slo=both)) == [("firing", "done", 110.0)]
    thoughts = SloClass(reads=(1,))
    assert story(run(one_rule("tokens_read > 1"), segments, S, slo=thoughts)) == [("firing", "done", 120.0)]


def test_a_stream_without_a_view_is_forgotten() -> None:
    engine = RuleEngine(one_rule("gap_seconds > 0.2"))
    view = View(Stream(SloClass(), COMMIT), offset_ns=COMMIT)
    engine.update(view, 0)
    engine.advance(0, {view.key: view})
    assert engine.next_timer() == 200 * MS + 1
    assert engine.advance(S, {}) == []
    assert engine.next_timer() is None
    assert engine.ended(view, COMMIT, S) == []


def test_the_timer_is_the_next_flip_and_nothing_earlier() -> None:
    engine = RuleEngine(one_rule("gap_seconds > 0.5", for_="100ms"))
    view = View(Stream(SloClass(), COMMIT), offset_ns=COMMIT)
    views = {view.key: view}
    assert engine.next_timer() is None
    engine.update(view, 0)
    assert engine.next_timer() == 0
    assert engine.advance(0, views) == []
    assert engine.next_timer() == 500 * MS + 1
    view.stream.extend([COMMIT + 200 * MS])
    view.watermark_ns = COMMIT + 250 * MS
    engine.update(view, 250 * MS)
    assert engine.next_timer() == 250 * MS
    assert engine.advance(250 * MS, views) == []
    assert engine.next_timer() == 700 * MS + 1
    assert engine.advance(700 * MS + 1, views) == []
    assert engine.next_timer() == 800 * MS + 1
    assert len(engine.advance(800 * MS + 1, views)) == 1
    # Facts are too old after 1750, and nothing changes until a segment comes.
    assert engine.next_timer() is None


# Replays.


@st.composite
def traffic(draw: st.DrawFn) -> list[Segment]:
    """Draw a few streams whose segments are received at whole tenths of a second, many at the same instant."""
    segments = []
    for number in range(1, draw(st.integers(2, 5))):
        tokens, at = [], draw(st.integers(0, 400))
        for _ in range(draw(st.integers(0, 12))):
            tokens.append(at)
            at += draw(st.sampled_from([0, 20, 150, 400, 900]))
        flushes = range(100, at + draw(st.sampled_from([200, 1500])), 100)
        delays = {seq: draw(st.sampled_from([0, 100, 100, 300])) for seq in range(len(flushes) + 2)}
        end = flushes[-1] + 100 if flushes and draw(st.booleans()) else None
        segments += flushed(tokens, flushes, delays_ms=delays, stream=key(number), end_ms=end, clock_ms=1000)
    return segments


def busy() -> RuleSet:
    shipped = load_rules([shipped_rules_dir()])
    more = ruleset(
        """
version: 1
groups:
- name: more
  scope: stream
  rules:
  - {rule: Gap, when: 'gap_seconds > 0.3', for: 50ms, on_missing: fire, max_fact_age: 500ms,
     actions: [{abort: {}, ttl: 300ms, budget: {per_instance: 2 in 1s, in_flight: 2}}]}
  - {rule: Misses, when: 'deadline_misses > 4 && runway_seconds < 0.5', on_missing: false, keep_firing_for: 200ms,
     actions: [{alert: {name: M}}, {preempt: {}, budget: {per_instance: 1 in 400ms}}]}
"""
    )
    return RuleSet(shipped.rules + more.rules)


BUSY = busy()


@given(traffic(), st.lists(st.integers(1, 4), max_size=4))
@settings(max_examples=examples(60))
def test_the_same_records_give_the_same_decisions(segments: list[Segment], sizes: list[int]) -> None:
    until = 10 * S
    whole = run(BUSY, segments, until)
    # However the records of an instant are cut into batches, and whether or not the engine was woken in between.
    assert run(BUSY, segments, until, batches=sizes) == whole
    assert run(BUSY, segments, until, wake=False) == whole
    assert [one.now_ns for one in whole] == sorted(one.now_ns for one in whole)
    assert len({one.key for one in whole if one.action is None}) == sum(one.action is None for one in whole)
