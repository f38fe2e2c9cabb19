"""The incremental form while a stream runs: every prefix, every cut, late records, and the lines between tokens."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.slo import oracle
from support.slo.requests import Request, cases

from otel_llm.slo.classes import CONTENT, OUTCOMES, REASONING, TOOL, Curve, Fluidity, SloClass
from otel_llm.slo.live.inflight import InFlight
from otel_llm.slo.request import judge
from otel_llm.slo.stream import Stream

LINES = {
    "age": "age_ns",
    "gap": "gap_ns",
    "idle": "idle_ns",
    "idle_decode": "idle_decode_ns",
    "runway": "runway_ns",
}


def in_order(request: Request) -> list[tuple[int, int]]:
    kinds = [CONTENT] * len(request.tokens_ns) if request.kinds is None else request.kinds
    return sorted(zip(request.tokens_ns, kinds, strict=True))


def assert_facts(stream: Stream, request: Request, tokens: list[tuple[int, int]], x_ns: int) -> InFlight:
    found = stream.at(x_ns)
    times, kinds = [time for time, _ in tokens], [kind for _, kind in tokens]
    expected = oracle.in_flight(times, request.commit_ns, x_ns, stream.slo, kinds, request.input_tokens)
    for name, value in expected.items():
        fact = getattr(found, name)
        if isinstance(value, int) or value is None:
            assert fact == value, name
        else:
            assert fact == pytest.approx(float(value), rel=1e-12), name
    for name, fact_name in LINES.items():
        assert getattr(stream.lines(), name).value(x_ns) == getattr(found, fact_name), name
    assert stream.running.starving(x_ns) is (found.tokens_read > 0 and found.runway_ns < 0)
    return found


@settings(max_examples=examples(300))
@given(cases(), st.lists(st.integers(0, 90), min_size=1, max_size=4))
def test_facts_in_flight_and_lines_are_those_of_the_oracle_at_every_prefix(
    case: tuple[SloClass, Request], waits: list[int]
) -> None:
    slo, request = case
    stream = Stream(slo, request.commit_ns, request.input_tokens)
    tokens = in_order(request)
    for count in range(len(tokens) + 1):
        if count:
            time, kind = tokens[count - 1]
            stream.extend([time], [kind])
        last = max([request.commit_ns, *(time for time, _ in tokens[:count])])
        for wait in waits:
            assert_facts(stream, request, tokens[:count], last + wait * slo.pace_ns // 7)


@settings(max_examples=examples(300))
@given(cases(), st.integers(-2, 90), st.sampled_from(OUTCOMES))
def test_every_prefix_can_be_judged_and_goes_on_unchanged(
    case: tuple[SloClass, Request], end: int, outcome: str
) -> None:
    slo, request = case
    stream = Stream(slo, request.commit_ns, request.input_tokens)
    tokens = in_order(request)
    for count in range(len(tokens) + 1):
        if count:
            stream.extend([tokens[count - 1][0]], [tokens[count - 1][1]])
        end_ns = request.commit_ns + end * slo.pace_ns // 3
        times, kinds = [time for time, _ in tokens[:count]], [kind for _, kind in tokens[:count]]
        expected = judge(times, request.commit_ns, end_ns, outcome, slo, kinds, request.input_tokens)
        assert stream.finish(end_ns, outcome) == expected
        assert stream.finish(end_ns, outcome) == expected


@settings(max_examples=examples(300))
@given(cases(), st.randoms(), st.integers(1, 5))
def test_late_records_in_any_cut_give_the_same_verdict_and_facts(
    case: tuple[SloClass, Request], random: Random, cut: int
) -> None:
    slo, request = case
    tokens = in_order(request)
    shuffled = list(tokens)
    random.shuffle(shuffled)
    ordered, late = (Stream(slo, request.commit_ns, request.input_tokens) for _ in range(2))
    ordered.extend([time for time, _ in tokens], [kind for _, kind in tokens])
    for start in range(0, len(shuffled), cut):
        part = shuffled[start : start + cut]
        late.extend([time for time, _ in part], [kind for _, kind in part])
    x = max([request.commit_ns, *request.tokens_ns]) + slo.pace_ns
    assert late.finish(request.end_ns, request.outcome) == ordered.finish(request.end_ns, request.outcome)
    assert late.at(x) == ordered.at(x)
    assert late.lines() == ordered.lines()
    assert list(late.times_ns) == list(ordered.times_ns)
    assert list(late.read_ns) == list(ordered.read_ns)


@given(cases(), st.integers(0, 40))
def test_a_prompt_length_learnt_late_counts_as_if_known_from_the_start(
    case: tuple[SloClass, Request], input_tokens: int
) -> None:
    slo, request = case
    known, learnt = Stream(slo, request.commit_ns, input_tokens), Stream(slo, request.commit_ns)
    half = len(request.tokens_ns) // 2
    kinds = [CONTENT] * len(request.tokens_ns) if request.kinds is None else request.kinds
    for stream in (known, learnt):
        stream.extend(request.tokens_ns[:half], kinds[:half])
    learnt.know_input_tokens(input_tokens)
    for stream in (known, learnt):
        stream.extend(request.tokens_ns[half:], kinds[half:])
    assert known.finish(request.end_ns, request.outcome) == learnt.finish(request.end_ns, request.outcome)
    assert known.at(request.end_ns) == learnt.at(request.end_ns)


def test_without_the_prompt_length_a_curve_leaves_fluidity_missing_and_the_rest_there() -> None:
    stream = Stream(SloClass(fluidity=Fluidity(ttft=Curve(((10, 100), (20, 200))))), 0)
    stream.extend([150, 160])
    facts = stream.at(170)
    assert (facts.deadlines, facts.deadline_misses, facts.fluidity_index) == (None, None, None)
    assert facts.tokens_read == 2
    stream.know_input_tokens(10)
    assert stream.at(170).deadline_misses == 1


def test_late_and_early_tokens_are_counted() -> None:
    stream = Stream(SloClass(), 100)
    stream.extend([90, 130])
    stream.extend([120, 140, 125])
    assert stream.skewed == 1
    assert list(stream.times_ns) == [100, 120, 125, 130, 140]
    stream.extend([80])
    assert stream.skewed == 2
    assert list(stream.times_ns) == [100, 100, 120, 125, 130, 140]


def test_kinds_are_kept_where_they_matter() -> None:
    stream = Stream(SloClass(reads=(CONTENT, TOOL)), 0)
    stream.extend([10, 20])
    assert stream.kinds is None
    stream.extend([40, 30], [CONTENT, REASONING])
    stream.extend([50])
    stream.extend([25], [TOOL])
    assert stream.kinds == bytes([0, 0, 2, 1, 0, 0])
    assert list(stream.times_ns) == [10, 20, 25, 30, 40, 50]
    assert list(stream.read_ns) == [10, 20, 25, 40, 50]


def test_a_class_that_reads_no_content_reads_what_it_says() -> None:
    stream = Stream(SloClass(reads=(REASONING,)), 0)
    stream.extend([10, 20])
    stream.extend([30], [REASONING])
    assert list(stream.read_ns) == [30]
    assert stream.at(40).tokens == 3


@pytest.mark.parametrize(
    ("events", "error", "message"),
    [
        (([1, 2], [0]), ValueError, "1 kinds for 2 tokens"),
        (([], [0]), ValueError, "1 kinds for 0 tokens"),
        (([1], [3]), ValueError, "kind codes are 0 to 2"),
        (([1], [-1]), ValueError, "kind codes are 0 to 2"),
        (([2**63],), OverflowError, "too"),
        (([2**63], [1]), OverflowError, "too"),
        (([2, 2**63],), OverflowError, "too"),
        (([4, 5], None, [1]), ValueError, "counts of 1 or more"),
        (([4, 5], None, [1, 0]), ValueError, "counts of 1 or more"),
        (([4, 2**63], None, [1, 2]), OverflowError, "too"),
        (([4, 5], None, [1, 2**63]), OverflowError, "too"),
        (([4, 5], [0, 1], [1, 2**63]), OverflowError, "too"),
    ],
)
def test_what_is_refused_changes_nothing(events: tuple[Any, ...], error: type[Exception], message: str) -> None:
    stream = Stream(SloClass(), 0)
    stream.extend([3])
    with pytest.raises(error, match=message):
        stream.extend(*events)
    assert stream.events.expanded() == ([3], None)
    assert stream.at(4).tokens_read == 1


def test_an_instant_before_the_last_token_is_taken_as_that() -> None:
    stream = Stream(SloClass(), 0)
    stream.extend([10, 50])
    assert stream.at(20) == stream.at(50)
    assert Stream(SloClass(), 100).at(7) == Stream(SloClass(), 100).at(100)


def test_tokens_at_one_instant_have_no_rate() -> None:
    stream = Stream(SloClass(), 0)
    stream.extend([10, 10])
    assert stream.at(20).rate_tokens_per_second is None
    stream.extend([10 + 10**9])
    assert stream.at(10 + 10**9).rate_tokens_per_second == 2.0


def test_an_unknown_outcome_is_refused_by_the_stream() -> None:
    with pytest.raises(ValueError, match="outcome 'done'"):
        Stream(SloClass(), 0).finish(1, "done")


def test_the_arithmetic_needs_no_numpy() -> None:
    import subprocess

    code = (
        "import sys, otel_llm.slo.request, otel_llm.slo.stream, otel_llm.slo.windows;"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'yaml', 'pydantic', 'opentelemetry')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
