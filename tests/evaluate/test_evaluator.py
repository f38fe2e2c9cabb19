from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.audit.audit_oracle import audited
from support.examples import examples
from support.live import Delivery, Live
from support.otlp import IDENTITY, T0_NS, Value, export, request_span, segment_span, stream_spans, token
from support.vectors import FOLDER, Vector, vectors

from otel_llm import semconv
from otel_llm.evaluate.streams.final_verdict import EndedStream
from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.otlp.export_json import parse_json
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.rows import Row
from otel_llm.rules.files.ruleset import Action, Limits, Rule, RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.language.condition import condition
from otel_llm.semconv import MAX_CHOICES
from otel_llm.slo.classes import SloClasses

MS = 1_000_000
SECOND = 1_000_000_000


def by_key(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    found = {(row["trace_id"], row["span_id"], row["choice"]): row for row in rows}
    assert len(found) == len(rows), "a row came twice"
    return found


def rows_vector() -> tuple[list[bytes], list[dict[str, Any]]]:
    lines = (FOLDER / "rows.jsonl").read_bytes().splitlines()
    expected = [json.loads(line) for line in (FOLDER / "rows.expect.jsonl").read_text().splitlines()]
    return lines, expected


@pytest.mark.parametrize("order", ["as recorded", "backwards", "shuffled"])
def test_spans_become_the_expected_rows_in_any_order(order: str) -> None:
    lines, expected = rows_vector()
    if order == "backwards":
        lines.reverse()
    if order == "shuffled":
        random.Random(7).shuffle(lines)
    deliveries = [(T0_NS + 2 * SECOND + i * 100 * MS, parse_json(line)) for i, line in enumerate(lines)]
    rows = by_key(Live().run(deliveries).rows)
    for want in expected:
        row = rows.pop((want["trace_id"], want["span_id"], want["choice"]))
        for name, value in want.items():
            if name == "why":
                continue
            if isinstance(value, float):
                assert row[name] == pytest.approx(value, abs=1e-9), f"{want['why']}: {name}"
            else:
                assert row[name] == value, f"{want['why']}: {name}"
    assert not rows


def vector_deliveries(vector: Vector) -> list[Delivery]:
    """Send a worked request as a recorder would, on an axis where all of it is plausible."""
    shift = T0_NS - vector.commit_ns
    tokens = sorted(
        zip(vector.tokens_ns, vector.kinds or [0] * len(vector.tokens_ns), strict=True), key=lambda pair: pair[0]
    )
    end = vector.end_ns + shift
    spans = [segment_span(start_ns=T0_NS, attributes=IDENTITY)]
    first = 0
    start = T0_NS
    for seq, at in enumerate(range(0, len(tokens), 7), start=1):
        segment = tokens[at : at + 7]
        upto = segment[-1][0] + shift
        events = [token(time + shift, kind=semconv_kind(kind)) for time, kind in segment]
        spans.append(segment_span(seq, first, events, start_ns=start, end_ns=upto))
        first, start = first + len(segment), upto
    if vector.outcome == "lost":
        spans.append(segment_span(len(spans), first, start_ns=start, end_ns=end))
    else:
        closing: dict[str, str | int] = {
            semconv.OUTCOME: vector.outcome,
            semconv.TOKENS: first,
            semconv.SEGMENTS: len(spans) + 1,
        }
        spans.append(segment_span(len(spans), first, start_ns=start, end_ns=end, attributes=closing))
    return [(span.end_time_unix_nano + 20 * MS, export(span)) for span in spans]


def semconv_kind(kind: int) -> str | None:
    return {0: None, 1: "reasoning", 2: "tool"}[kind]


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector.name)
def test_worked_requests_live(vector: Vector) -> None:
    classes = SloClasses((replace(vector.slo, name="v"),), "v")
    (row,) = Live(classes=classes).run(vector_deliveries(vector)).rows
    for name, value in vector.expect.items():
        if isinstance(value, float):
            assert row[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
        else:
            assert row[name] == value, name


def endings(recorded: int) -> st.SearchStrategy[dict[str, Value]]:
    """Draw how the tokens were counted, and what the reply states of them."""
    totals = st.sampled_from([None, recorded, 3 * recorded, recorded // 3, recorded + 1, 250 * recorded, 0])
    reasoning = st.sampled_from([None, None, 0, 1, recorded])
    return st.builds(
        lambda basis, total, thought: {
            semconv.TOKEN_BASIS: basis,
            **({} if total is None else {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: total}),
            **({} if thought is None else {semconv.GEN_AI_USAGE_REASONING_TOKENS: thought}),
        },
        st.sampled_from(["exact", "chunk", "chunk", "estimated"]),
        totals,
        reasoning,
    )


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Delivery], int]:
    """Several streams, each cut, delayed, shuffled, repeated and sometimes holed, all inside the lateness."""
    deliveries: list[Delivery] = []
    for request in range(1, draw(st.integers(1, 4)) + 1):
        commit = T0_NS + draw(st.integers(0, 15_000)) * MS
        gaps = draw(st.lists(st.sampled_from([0, 1, 20, 200, 1500]), max_size=40))
        times, at = [], commit
        for gap in gaps:
            at += gap * MS
            times.append(at)
        end = at + draw(st.sampled_from([0, 3, 900])) * MS
        outcome = draw(st.sampled_from(["completed", "cancelled", "error", "disconnected", "abandoned", None]))
        spans = stream_spans(
            times,
            request=request,
            commit_ns=commit,
            end_ns=end,
            outcome=outcome or "completed",
            segment_tokens=draw(st.sampled_from([1, 5, 64])),
            ending=draw(endings(len(times))),
        )
        if outcome is None:
            spans = spans[:-1]
        if len(spans) > 2 and draw(st.booleans()):
            del spans[draw(st.integers(1, len(spans) - 1))]
        for span in spans:
            for _ in range(draw(st.integers(1, 2))):
                delay = draw(st.sampled_from([0, 5, 40, 700])) * MS
                deliveries.append((span.end_time_unix_nano + delay, export(span)))
        if draw(st.booleans()):
            stated = {**IDENTITY, **draw(endings(len(times)))}
            span = request_span(request=request, start_ns=commit, end_ns=end, attributes=stated)
            deliveries.append((end + 300 * MS, export(span)))
    return deliveries, draw(st.sampled_from([1, 3, 10])) * SECOND


@settings(max_examples=examples(80))
@given(fleets())
def test_live_rows_and_windows_are_the_audits_to_the_bit(fleet: tuple[list[Delivery], int]) -> None:
    deliveries, window_ns = fleet
    classes = load_slo()
    timeouts = Timeouts(lateness_ns=60 * SECOND)  # nothing that these deliveries do is late
    live = Live(classes=classes, window_ns=window_ns, timeouts=timeouts).run(deliveries)
    rows, windows = audited(deliveries, classes, window_ns, 5 * SECOND)
    assert by_key(live.rows) == by_key(rows)
    if any(row["outcome"] == "lost" for row in rows):
        return  # a lost stream's end is known only long after its window closed
    assert [dict(one) for one in live.windows] == windows
    assert live.windowing.late == 0


@settings(max_examples=examples(60))
@given(fleets())
def test_counters_add_up_to_the_benefit(fleet: tuple[list[Delivery], int]) -> None:
    deliveries, window_ns = fleet
    live = Live(window_ns=window_ns).run(deliveries)
    benefit = sum(one.benefit for one in live.verdicts if one is not None and one.benefit is not None)
    read = sum(one.tokens_read for one in live.metered)
    penalty = sum(one.penalty_tokens for one in live.metered)
    refunded = sum(one.refunded_tokens for one in live.metered)
    assert read - penalty + refunded == pytest.approx(benefit, abs=1e-6)


def test_a_verdict_from_segments_alone_comes_with_the_lateness_at_most() -> None:
    spans = stream_spans([T0_NS + 100 * MS], end_ns=T0_NS + 200 * MS)
    live = Live()
    for span in spans:
        live.evaluator.apply(decode(export(span), span.end_time_unix_nano), span.end_time_unix_nano)
    live.evaluator.advance(T0_NS + 5 * SECOND)
    assert not live.rows
    live.evaluator.advance(T0_NS + 200 * MS + 5 * SECOND)
    assert live.rows[0]["met"] is True


def test_a_verdict_is_at_once_when_the_request_span_is_there() -> None:
    spans = stream_spans([T0_NS + 100 * MS], end_ns=T0_NS + 200 * MS)
    live = Live()
    now = T0_NS + 200 * MS
    live.evaluator.apply(decode(export(*spans, request_span(end_ns=now)), now), now)
    assert [row["outcome"] for row in live.rows] == ["completed"]


def test_a_silent_stream_is_lost_after_its_time() -> None:
    live = Live(timeouts=Timeouts(lost_after_ns=10 * SECOND))
    live.evaluator.apply(decode(export(segment_span(attributes=IDENTITY)), T0_NS), T0_NS)
    live.evaluator.advance(T0_NS + 9 * SECOND)
    assert not live.rows
    live.evaluator.advance(T0_NS + 10 * SECOND)
    assert live.rows[0]["outcome"] == "lost"
    assert not live.evaluator.live


def test_what_comes_after_the_verdict_is_counted_and_starts_nothing() -> None:
    spans = stream_spans([T0_NS + 100 * MS], end_ns=T0_NS + 200 * MS)
    live = Live().run([(span.end_time_unix_nano, export(span)) for span in spans])
    late = T0_NS + 1000 * SECOND
    live.evaluator.apply(decode(export(*spans, request_span()), late), late)
    assert len(live.rows) == 1
    assert live.evaluator.counts["late_or_duplicate_segments"] == len(spans)
    assert live.evaluator.counts["late_request_spans"] == 1
    assert not live.evaluator.live


def reported(choice: int, silent_s: int) -> list[Span]:
    """Return the segments of a token a second for 40 s: one of the first `silent_s`, then one each second."""
    ends_s = [0, *range(silent_s, 41)]
    spans = [segment_span(choice=choice, attributes=IDENTITY)]
    for seq, (start_s, end_s) in enumerate(pairwise(ends_s), 1):
        times = [T0_NS + at * SECOND for at in range(start_s + 1, end_s + 1)]
        ending: dict[str, Value] = {semconv.OUTCOME: "completed", semconv.TOKENS: 40} if end_s == 40 else {}
        period = {"start_ns": T0_NS + start_s * SECOND, "end_ns": T0_NS + end_s * SECOND}
        spans.append(segment_span(seq, start_s, times, choice=choice, attributes=ending, **period))
    return spans


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("silent_s", "late"), [(1, 0), (4, 0), (30, 1), (40, 1)])
def test_a_segment_that_covers_closed_windows_is_late(silent_s: int, late: int, *, columns: bool) -> None:
    live = Live(columns=columns)
    spans = [*reported(0, 1), *reported(1, silent_s)]
    deliveries = [(span.end_time_unix_nano, export(span)) for span in spans]
    live.run(deliveries)
    assert [row["tokens"] for row in live.rows] == [40, 40]
    assert live.windowing.late == late
    assert (live.windows == audited(deliveries, live.classes, live.window_ns, 5 * SECOND)[1]) is (late == 0)


def test_a_clock_that_is_off_by_years_lands_in_the_collectors_windows() -> None:
    year = 365 * 86_400 * SECOND
    for off in (-40 * year, 40 * year):
        spans = stream_spans([T0_NS + off + 100 * MS], commit_ns=T0_NS + off, end_ns=T0_NS + off + 200 * MS)
        live = Live().run([(span.end_time_unix_nano - off, export(span)) for span in spans])
        assert [window["window_start_unix_nano"] for window in live.windows] == [T0_NS]
        assert live.evaluator.counts["shifted_streams"] == 1


def test_a_token_in_the_far_future_costs_no_loop_of_years() -> None:
    spans = stream_spans([T0_NS + 10**18], end_ns=T0_NS + 10**18)
    live = Live().run([(T0_NS + i * MS, export(span)) for i, span in enumerate(spans)])
    assert live.rows[0]["ttft_s"] == 1e9
    assert len(live.windows) < 10


@st.composite
def odd_fleets(draw: st.DrawFn) -> list[Delivery]:
    """Requests of several choices whose segment 0, identity or end is reported late, elsewhere or twice."""
    deliveries: list[Delivery] = []
    for request in range(1, draw(st.integers(1, 3)) + 1):
        commit = T0_NS + draw(st.integers(0, 3000)) * MS
        end, made = commit, 0
        for choice in range(draw(st.integers(1, 3))):
            gaps = draw(st.lists(st.sampled_from([0, 20, 200, -300]), max_size=12))
            times, at = [], commit
            for gap in gaps:
                at += gap * MS
                times.append(at)
            end = max([end, at, *times])
            identity = IDENTITY if draw(st.booleans()) else {}
            spans = stream_spans(
                times, request=request, choice=choice, commit_ns=commit, end_ns=end, segment_tokens=5, identity=identity
            )
            made += len(spans)
            for index in sorted(draw(st.sets(st.integers(0, len(spans) - 1), max_size=2)), reverse=True):
                del spans[index]
            deliveries += [(end + draw(st.sampled_from([0, 5, 700, 2000])) * MS, export(span)) for span in spans]
        stated: dict[str, Any] = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    semconv.SLO_CLASS: st.sampled_from(["agent", "voice", "nobody"]),
                    semconv.INSTANCE: st.just("a"),
                    semconv.OUTCOME: st.sampled_from(["completed", "cancelled"]),
                    semconv.TOKENS: st.integers(0, 20),
                    semconv.SEGMENTS: st.just(made),
                    semconv.GEN_AI_LATENCY_QUEUE: st.just(0.25),
                    semconv.GEN_AI_LATENCY_TTFT: st.just(0.5),
                },
            )
        )
        if draw(st.booleans()):
            span = request_span(
                request=request, start_ns=commit + draw(st.sampled_from([0, 300])) * MS, end_ns=end,
                attributes={**IDENTITY, **stated},
            )  # fmt: skip
            deliveries.append((end + draw(st.sampled_from([0, 5, 700, 2000])) * MS, export(span)))
    return deliveries


@settings(max_examples=examples(150))
@given(odd_fleets())
def test_odd_streams_have_the_audits_rows_and_leave_nothing_behind(deliveries: list[Delivery]) -> None:
    classes = load_slo()
    live = Live(classes=classes, timeouts=Timeouts(lateness_ns=20 * SECOND)).run(deliveries)
    rows, windows = audited(deliveries, classes, 10 * SECOND, 5 * SECOND)
    assert by_key(live.rows) == by_key(rows)
    for name in ("requests_ended", "incomplete", "aborted", "met_true"):
        assert sum(window[name] for window in live.windows) == sum(int(str(window[name])) for window in windows), name
    evaluator = live.evaluator
    evaluator.advance(T0_NS + 10_000 * SECOND)
    assert not evaluator.live
    assert not evaluator.registry.parts
    assert not evaluator.registry.orphans
    assert not evaluator.registry.ended
    assert evaluator.timers.next_due() is None
    assert not live.windowing.open_windows


def test_a_failing_terminal_costs_no_verdict_and_no_window() -> None:
    class Broken(Live):
        def streams_judged(self, ended: Sequence[EndedStream[StreamInFlight]]) -> None:
            super().streams_judged(ended)
            raise BrokenPipeError

    live = Broken()
    for span in stream_spans([T0_NS + 100 * MS], end_ns=T0_NS + 200 * MS):
        live.evaluator.apply(decode(export(span), span.end_time_unix_nano), span.end_time_unix_nano)
    with pytest.raises(BrokenPipeError):
        live.evaluator.advance(T0_NS + 60 * SECOND)
    live.evaluator.advance(T0_NS + 60 * SECOND)
    assert len(live.rows) == 1
    assert sum(window["requests_ended"] for window in live.windows) == 1


def test_request_spans_of_a_thousand_years_leave_no_window_open() -> None:
    live = Live()
    for i in range(200):
        attributes = {**IDENTITY, semconv.SEGMENTS: 0, semconv.TOKENS: 0, semconv.OUTCOME: "error"}
        start = T0_NS + i * 10**15
        span = request_span(request=i + 1, start_ns=start, end_ns=start + SECOND, attributes=attributes)
        live.evaluator.apply(decode(export(span), T0_NS), T0_NS)
    live.evaluator.advance(T0_NS + 60 * SECOND)
    assert len(live.rows) == 200
    assert not live.windowing.open_windows


def test_waiting_is_charged_only_for_time_that_was_reported() -> None:
    times = [T0_NS + i * 100 * MS for i in range(1, 101)]
    first, second, third = (
        segment_span(attributes=IDENTITY),
        segment_span(1, 0, times[:50], start_ns=T0_NS, end_ns=T0_NS + 5 * SECOND),
        segment_span(2, 50, times[50:], start_ns=T0_NS, end_ns=T0_NS + 10 * SECOND),
    )
    now = T0_NS + 10 * SECOND
    live = Live().run([(now, export(third)), (now + MS, export(first)), (now + 2 * MS, export(second))])
    assert sum(max(0, charge.idle_ns) for charge in live.metered) == 0
    assert live.rows[0]["idle_s"] == 0.0


def test_overlapping_segments_do_not_hide_a_hole() -> None:
    times = [T0_NS + i * 100 * MS for i in range(10)]
    closing: dict[str, str | int] = {semconv.OUTCOME: "completed", semconv.TOKENS: 10}
    spans = [
        segment_span(attributes=IDENTITY),
        segment_span(1, 0, times[:5], end_ns=times[5]),
        segment_span(2, 0, times[:5], end_ns=times[5]),
        segment_span(3, 8, times[8:], end_ns=times[9], attributes=closing),
    ]
    (row,) = Live().run([(T0_NS + SECOND, export(*spans))]).rows
    assert row["coverage"] == 0.7
    assert row["met"] is None


def test_a_thousand_choices_cost_no_more_than_they_may() -> None:
    batch = decode(export(*[segment_span(choice=i, attributes=IDENTITY) for i in range(1000)]), T0_NS)
    batch.bound(segments=100, choices=MAX_CHOICES)
    assert len(batch.segments) == MAX_CHOICES
    assert batch.refused == {"too_many_choices": 1000 - MAX_CHOICES}


def test_a_reader_who_starves_is_seen_though_exports_never_stop_coming() -> None:
    spans = stream_spans([T0_NS + at * 100 * MS for at in range(1, 5)], end_ns=T0_NS + 60 * SECOND, segment_tokens=1)
    starving = Rule(
        name="Starving", group="g", scope="stream", when=condition("gap_seconds > 0.5", "stream"), resolve_when=None,
        for_ns=0, keep_firing_for_ns=0, on_missing="hold", max_fact_age_ns=1500 * MS,
        actions=(Action("alert", (("name", "A"),), "enforce", None, Limits()),),
    )  # fmt: skip
    live = Live(rules=RuleSet((starving,)))
    live.evaluator.apply(decode(export(*spans[:4]), T0_NS + 301 * MS), T0_NS + 301 * MS)
    others = stream_spans(
        [T0_NS + at * 10 * MS for at in range(1, 200)], request=2, segment_tokens=1, end_ns=T0_NS + 3 * SECOND
    )
    seen_ns = None
    for span in others[:-1]:
        now_ns = max(span.end_time_unix_nano, T0_NS + 302 * MS)
        live.evaluator.apply(decode(export(span), now_ns), now_ns)
        if seen_ns is None and any(one.subject[0] == spans[0].trace_id for one in live.decisions):
            seen_ns = now_ns
    assert seen_ns is not None
    assert seen_ns < T0_NS + 860 * MS
