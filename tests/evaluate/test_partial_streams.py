"""Streams whose segment 0 was not received, and fleets of several collectors, by which that happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.examples import examples
from support.live import Delivery, Live
from support.otlp import IDENTITY, T0_NS, export, request_span, stream_spans

from otel_llm import semconv
from otel_llm.evaluate.timers import Timeouts
from otel_llm.export.routing import Rendezvous
from otel_llm.rules.files.ruleset import Action, Limits, OnMissing, Rule, RuleSet
from otel_llm.rules.language.condition import condition

MS = 1_000_000
SECOND = 1_000_000_000
TOKENS = [T0_NS + at * 100 * MS for at in range(1, 101)]
END_NS = TOKENS[-1]
LATENESS_NS = Timeouts().lateness_ns


def spans_of(**stated: Any) -> list[Span]:
    """Return the segments of a stream of 100 tokens in 10 s: the commit, then four of 30, 30, 30 and 10 tokens."""
    return stream_spans(TOKENS, end_ns=END_NS, segment_tokens=30, **stated)


def at_their_ends(*spans: Span) -> list[Delivery]:
    return [(span.end_time_unix_nano, export(span)) for span in spans]


def ended(*, outcome: str = "completed") -> Span:
    """Return the request span of the stream, as our recorder ends it."""
    known = {**IDENTITY, semconv.OUTCOME: outcome, semconv.TOKENS: 100, semconv.SEGMENTS: 5}
    return request_span(end_ns=END_NS, attributes=known)


@pytest.mark.parametrize("outcome", ["completed", "error"])
def test_a_stream_first_seen_in_its_middle_is_no_new_outcome_and_has_no_verdict(outcome: str) -> None:
    live = Live().run(at_their_ends(*spans_of(outcome=outcome)[2:]))
    (row,) = live.rows
    assert (row["outcome"], row["tokens"], row["coverage"]) == (outcome, 70, 0.7)
    judged = ("met", "start_unix_nano", "ttft_s", "e2e_s", "idle_s", "fluidity_index", "benefit")
    assert [row[name] for name in judged] == [None] * len(judged)
    assert live.evaluator.counts["partial"] == 1
    assert sum(int(window["met_null"]) for window in live.windows) == 1
    assert sum(charge.tokens_read + charge.idle_ns for charge in live.metered) == 0


@pytest.mark.parametrize(("after_ns", "partial"), [(LATENESS_NS - 1, 0), (LATENESS_NS + 1, 1)])
def test_a_segment_0_within_the_lateness_makes_it_whole(after_ns: int, partial: int) -> None:
    first, *rest = spans_of()
    live = Live().run([*at_their_ends(*rest), (END_NS + after_ns, export(first))])
    (row,) = live.rows
    assert live.evaluator.counts["partial"] == partial
    assert (row["met"], row["coverage"]) == (None if partial else True, 1.0)


def test_one_that_ends_long_after_is_whole_if_segment_0_is_there_by_then() -> None:
    first, *rest = spans_of()
    live = Live().run([*at_their_ends(*rest), (TOKENS[80], export(first))])
    assert (live.rows[0]["met"], live.evaluator.counts["partial"]) == (True, 0)


def test_a_request_span_that_makes_up_for_a_lost_segment_0_gives_the_verdict() -> None:
    """It is counted all the same: what was lost here, another collector may have."""
    live = Live().run([*at_their_ends(*spans_of()[1:]), (END_NS, export(ended()))])
    (row,) = live.rows
    assert (row["met"], row["coverage"]) == (True, 1.0)
    assert (live.evaluator.counts["partial"], live.evaluator.counts["missing_empty_segments"]) == (1, 1)


def test_a_request_span_gives_no_verdict_on_a_stream_without_its_first_tokens() -> None:
    *rest, last = spans_of()[2:]
    live = Live().run([*at_their_ends(*rest), (END_NS + 200 * MS, export(last, ended()))])
    (row,) = live.rows
    assert (row["met"], row["coverage"], row["start_unix_nano"]) == (None, 0.7, T0_NS)
    assert live.evaluator.counts["partial"] == 1
    assert (live.windows[0]["window_start_unix_nano"], live.windows[0]["requests_started"]) == (T0_NS, 1)
    assert live.windowing.late == 0


def test_a_stream_whose_end_is_missing_too_is_lost() -> None:
    live = Live().run(at_their_ends(*spans_of()[2:-1]))
    assert [(row["outcome"], row["coverage"], row["met"]) for row in live.rows] == [("lost", 60 / 90, None)]
    assert (live.evaluator.counts["partial"], live.evaluator.counts["lost"]) == (1, 1)


def test_a_request_span_alone_is_partial_where_segments_were_sent() -> None:
    other = request_span(request=2, end_ns=END_NS, events=TOKENS)  # another instrumentation's: it has no segments
    live = Live().run([(END_NS, export(ended(), other))])
    assert sorted((row["coverage"] or 0.0, row["tokens"]) for row in live.rows) == [(0.0, 0), (1.0, 100)]
    assert live.evaluator.counts["partial"] == 1


def test_each_choice_is_a_stream_of_its_own() -> None:
    second = spans_of(choice=1)
    live = Live().run(at_their_ends(*spans_of(), *second[2:]))
    assert {row["choice"]: row["met"] for row in live.rows} == {0: True, 1: None}
    assert live.evaluator.counts["partial"] == 1


# Rules.


def ruled(when: str, on_missing: OnMissing) -> RuleSet:
    alert = Action("alert", (("name", "A"),), "enforce", None, Limits())
    return RuleSet(
        (
            Rule(
                name="R", group="g", scope="stream", when=condition(when, "stream"), resolve_when=None, for_ns=0,
                keep_firing_for_ns=0, on_missing=on_missing, max_fact_age_ns=1500 * MS, actions=(alert,),
            ),
        )
    )  # fmt: skip


@pytest.mark.parametrize("on_missing", ["hold", "false", "fire"])
@pytest.mark.parametrize("when", ["gap_seconds > 0.05", "tokens < 1000", 'measured_at == "client"'])
@pytest.mark.parametrize("columns", [True, False])
def test_every_rule_holds_on_a_stream_without_its_beginning(when: str, on_missing: OnMissing, columns: bool) -> None:
    """Also if another instrumentation's request span says when it began, before the stream has ended."""
    parent = request_span(end_ns=TOKENS[70])
    spans = spans_of()
    parted = Live(rules=ruled(when, on_missing), columns=columns).run(at_their_ends(*spans[2:4], parent, spans[4]))
    assert (parted.decisions, parted.evaluator.counts["partial"]) == ([], 1)
    whole = Live(rules=ruled(when, on_missing), columns=columns).run(at_their_ends(*spans[:4], parent, spans[4]))
    assert whole.decisions  # the rule does fire


def test_rules_begin_when_segment_0_arrives_after_others() -> None:
    first, *rest = spans_of()
    live = Live(rules=ruled("tokens < 1000", "hold"))
    live.run([*at_their_ends(*rest), (TOKENS[40], export(first))])
    assert live.decisions[0].now_ns == TOKENS[40]


# Several collectors.


@dataclass
class Sent:
    """The spans of one request in order, each with its instant; they reach a collector at once and once."""

    request: int
    spans: list[tuple[int, Span]]

    def moved(self, before: Rendezvous, after: Rendezvous, change_ns: int) -> bool:
        """Return whether spans of it reached two collectors."""
        parts = {at_ns < change_ns for at_ns, _ in self.spans}
        return len(parts) == 2 and before.choose(self.request) != after.choose(self.request)


@st.composite
def fleets(draw: st.DrawFn) -> list[Sent]:
    """Requests that stall, fail, are silent or end early, with or without a request span."""
    found = []
    for request in range(1, draw(st.integers(1, 12)) + 1):
        commit = T0_NS + draw(st.integers(0, 4000)) * MS
        times, at = [], commit
        for gap in draw(st.lists(st.sampled_from([0, 20, 200, 1500]), max_size=25)):
            at += gap * MS
            times.append(at)
        end = at + draw(st.sampled_from([0, 3, 900])) * MS
        spans = stream_spans(
            times,
            request=request,
            commit_ns=commit,
            end_ns=end,
            outcome=draw(st.sampled_from(["completed", "cancelled", "error", "disconnected"])),
            segment_tokens=draw(st.sampled_from([1, 5, 64])),
            identity={**IDENTITY, semconv.SLO_CLASS: draw(st.sampled_from(["chat", "agent"]))},
        )
        if draw(st.booleans()):
            known = {**IDENTITY, semconv.OUTCOME: "completed", semconv.TOKENS: len(times), semconv.SEGMENTS: len(spans)}
            spans.append(request_span(request=request, start_ns=commit, end_ns=end, attributes=known))
        # A millisecond apart: at an equal instant a collector that is added could get a part of an export.
        instants = range(0, len(spans) * MS, MS)
        pairs = zip(instants, spans, strict=True)
        found.append(Sent(request, [(span.end_time_unix_nano + later, span) for later, span in pairs]))
    return found


def run(names: list[str], fleet: list[Sent], *, added: list[str], change_ns: int) -> list[Live]:
    """Run collectors, `added` ones from an instant on, each with the spans that rendezvous hashing sends to it."""
    before, after = Rendezvous(names), Rendezvous([*names, *added])
    deliveries: dict[str, list[Delivery]] = {name: [] for name in [*names, *added]}
    for sent in fleet:
        for at_ns, span in sent.spans:
            chosen = (before if at_ns < change_ns else after).choose(sent.request)
            deliveries[chosen].append((at_ns, export(span)))
    return [Live().run(mine) for mine in deliveries.values() if mine]


def counters(collectors: list[Live]) -> Counter[tuple[str, ...]]:
    """Return what a sum over collectors of their counters says: verdicts, tokens read, idle time, deadlines."""
    found: Counter[tuple[str, ...]] = Counter()
    for live in collectors:
        for row in live.rows:
            group = tuple(str(row[name]) for name in ("slo_class", "model", "measured_at"))
            found[("requests", *group, str(row["outcome"]), str(row["met"]))] += 1
            found[("deadlines", *group)] += int(row["deadlines"] or 0)
            found[("misses", *group)] += int(row["deadline_misses"] or 0)
        for charge in live.metered:
            found[("read", *charge.group)] += charge.tokens_read
            found[("idle", *charge.group)] += charge.idle_ns
    return +found


ONE = ["one"]
THREE = ["a", "b", "c"]


@settings(max_examples=examples(25))
@given(fleets())
def test_counters_of_a_steady_fleet_are_those_of_one_collector(fleet: list[Sent]) -> None:
    never = 2 * T0_NS
    one = run(ONE, fleet, added=[], change_ns=never)
    three = run(THREE, fleet, added=[], change_ns=never)
    assert counters(three) == counters(one)
    assert sorted(map(str, (row for live in three for row in live.rows))) == sorted(map(str, one[0].rows))
    assert sum(live.evaluator.counts["partial"] for live in three) == 0


@settings(max_examples=examples(40))
@given(fleets(), st.integers(0, 12_000))
def test_a_collector_that_is_added_costs_at_most_the_streams_that_moved(fleet: list[Sent], change_ms: int) -> None:
    change_ns = T0_NS + change_ms * MS
    one = run(ONE, fleet, added=[], change_ns=change_ns)
    four = run(THREE, fleet, added=["d"], change_ns=change_ns)
    before, after = Rendezvous(THREE), Rendezvous([*THREE, "d"])
    moved = {sent.request for sent in fleet if sent.moved(before, after, change_ns)}
    assert sum(live.evaluator.counts["partial"] for live in four) == len(moved)

    was, now = counters(one), counters(four)
    series = {key for key in was | now if key[0] == "requests"}
    assert all(abs(now[key] - was[key]) <= len(moved) for key in series)
    assert abs(sum(now[key] for key in series) - sum(was[key] for key in series)) <= len(moved)

    def others(collectors: list[Live]) -> list[str]:
        rows = [row for live in collectors for row in live.rows]
        return sorted(str(row) for row in rows if int(str(row["trace_id"]), 16) not in moved)

    assert others(four) == others(one)
