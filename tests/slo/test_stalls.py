"""When the reader ran dry: spans that end where a token ended the wait and add up to the idle time."""

from __future__ import annotations

from hypothesis import given, settings
from support.examples import examples
from support.slo.requests import Request, cases
from support.vectors import vector

from otel_llm.slo.classes import SloClass
from otel_llm.slo.request import judge, stalls, waits

S = 10**9


@settings(max_examples=examples(300))
@given(cases())
def test_stalls_add_up_to_the_idle_time_and_do_not_overlap(case: tuple[SloClass, Request]) -> None:
    slo, request = case
    verdict = judge(
        request.tokens_ns, request.commit_ns, request.end_ns, request.outcome, slo, request.kinds, request.input_tokens
    )
    spans = stalls(request.tokens_ns, request.commit_ns, request.end_ns, request.outcome, slo, request.kinds)
    if not verdict.judged:
        assert spans == []
        return
    assert sum(end - start for start, end in spans) == verdict.idle_ns
    assert len(spans) == verdict.stalls
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert all(0 <= start < end <= verdict.end_ns for start, end in spans)


@settings(max_examples=examples(300))
@given(cases())
def test_idle_is_idle_while_reading_less_what_the_first_token_left_unspent(case: tuple[SloClass, Request]) -> None:
    slo, request = case
    verdict = judge(request.tokens_ns, request.commit_ns, request.end_ns, request.outcome, slo, request.kinds)
    if verdict.idle_ns is not None and verdict.ttfo_ns is not None and verdict.idle_decode_ns is not None:
        assert verdict.idle_ns == max(0, verdict.ttfo_ns + verdict.idle_decode_ns - slo.start_ns - slo.pace_ns)


def test_a_stall_is_the_wait_before_the_token_that_ended_it() -> None:
    # figure 1b: a reader of 4 tokens/s has 0.2 s and 0.1 s of text left, then waits until 1.2 s
    found = vector("figure 1b: two tokens, then a one-second stall")
    assert stalls(found.tokens_ns, found.commit_ns, found.end_ns, found.outcome, found.slo) == [
        (750_000_000, 1_200_000_000)
    ]


def test_waits_before_consecutive_tokens_are_one_stall_as_long_as_they_are_together() -> None:
    slo = SloClass(pace_ns=S)
    assert stalls([S, 2 * S + 100, 3 * S + 150, 4 * S], 0, 4 * S, "completed", slo) == [(3 * S, 3 * S + 150)]


def test_the_wait_to_an_end_that_is_no_completion_goes_on_with_the_last_stall() -> None:
    slo = SloClass(pace_ns=S)
    assert stalls([3 * S], 0, 6 * S, "error", slo) == [(6 * S - 4 * S, 6 * S)]
    assert stalls([3 * S], 0, 6 * S, "completed", slo) == [(S, 3 * S)]
    assert stalls([], 0, 6 * S, "lost", slo) == [(S, 6 * S)]


def test_waiting_only_grows() -> None:
    assert waits([5, 6, 40, 41], 10, 10, None) == [0, 0, 0, 10, 10]
    assert waits([5, 6, 40, 41], 10, 10, 90) == [0, 0, 0, 10, 10, 40]
