"""Events of chunks and tokens on the spans of others: which count, and what is made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.formats.foreign_rows import S, doubles, judged, known, rows, with_array
from support.otlp import T0_NS, Event, Value, export, request_span, span_id

from otel_llm import semconv
from otel_llm.formats.otlp.export_request import decode
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.request import judge

MS = 1_000_000
CHUNKS = [semconv.CHUNK_EVENT, semconv.OLD_CHUNK_EVENT]


def named(name: str, times_ns: Sequence[int]) -> list[Event]:
    return [(name, at) for at in times_ns]


def reply(
    *events: Event, reported: Mapping[str, Value] = MappingProxyType({}), dropped: int = 0, error: bool = False
) -> Span:
    """Return a client's span of a second with these events."""
    attributes: dict[str, Value] = {semconv.GEN_AI_OPERATION_NAME: "chat", **reported}
    return request_span(attributes=attributes, events=events, dropped_events=dropped, error=error)


TIMES = [T0_NS + at * MS for at in (100, 150, 150, 400)]


@pytest.mark.parametrize("name", [semconv.TOKEN_GENERATED_EVENT, *CHUNKS])
def test_events_make_any_span_that_of_a_reply(name: str) -> None:
    (row,) = rows(export(request_span(name="x", attributes={}, events=named(name, TIMES))))
    assert (row["tokens"], row["ttft_s"], row["coverage"]) == (4, 0.1, 1.0)
    assert row["token_basis"] == ("chunk" if name in CHUNKS else "exact")


def test_events_named_token_are_anybody_s_word_elsewhere() -> None:
    assert decode(export(request_span(name="login", attributes={}, events=TIMES))).ignored == 1
    (row,) = rows(export(reply(*TIMES)))
    assert (row["tokens"], row["token_basis"]) == (4, None)


@pytest.mark.parametrize("basis", ["exact", "chunk", "estimated"])
def test_a_span_may_say_what_its_events_are(basis: str) -> None:
    (row,) = rows(export(reply(*TIMES, reported={semconv.TOKEN_BASIS: basis})))
    assert row["token_basis"] == basis


def test_only_the_most_exact_of_several_counts() -> None:
    everything = [*named(semconv.CHUNK_EVENT, TIMES[:1]), *TIMES[:2], *named(semconv.TOKEN_GENERATED_EVENT, TIMES)]
    (row,) = rows(export(reply(*everything)))
    assert (row["tokens"], row["token_basis"]) == (4, "exact")


def test_what_else_happened_on_a_span_is_no_oddity() -> None:
    events = [("exception", T0_NS), ("gen_ai.choice", T0_NS), ("gen_ai.token.scheduled", T0_NS)]
    (one,), counts = judged(export(reply(*events, *named(semconv.CHUNK_EVENT, TIMES))))
    assert one.row["tokens"] == 4
    assert not counts


def test_an_error_is_an_error() -> None:
    (row,) = rows(export(reply(*named(semconv.CHUNK_EVENT, TIMES), error=True)))
    assert (row["outcome"], row["met"]) == ("error", False)


@pytest.mark.parametrize("name", [semconv.TOKEN_GENERATED_EVENT, *CHUNKS])
@pytest.mark.parametrize("stated", [None, 0.05])
def test_of_a_stream_that_lost_its_beginning_nothing_is_scored(name: str, stated: float | None) -> None:
    reported: dict[str, Value] = {} if stated is None else {semconv.GEN_AI_TIME_TO_FIRST_CHUNK: stated}
    (row,) = rows(export(reply(*named(name, TIMES), dropped=12, reported=reported)))
    assert (row["tokens"], row["tokens_read"], row["coverage"], row["e2e_s"]) == (4, 4, 0.25, 1.0)
    assert row["ttft_s"] == stated
    judged_columns = ("tpot_s", "tbt_max_s", "idle_s", "deadlines", "fluidity_index", "met", "benefit", "ttfo_s")
    assert all(row[column] is None for column in judged_columns)


def test_what_was_dropped_beside_no_token_is_nobody_s_loss() -> None:
    (row,) = rows(export(reply(dropped=12, reported={semconv.GEN_AI_TIME_TO_FIRST_CHUNK: 0.25})))
    assert (row["ttft_s"], row["coverage"], row["tokens"]) == (0.25, None, None)


def test_the_tokens_of_a_reply_say_nothing_of_its_chunks() -> None:
    usage: dict[str, Value] = {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 40}
    (chunks,) = rows(export(reply(*named(semconv.CHUNK_EVENT, TIMES), reported=usage)))
    (tokens,) = rows(export(reply(*named(semconv.TOKEN_GENERATED_EVENT, TIMES), reported=usage)))
    assert (chunks["coverage"], tokens["coverage"]) == (1.0, 0.1)


CHOICES = [
    {semconv.GEN_AI_REQUEST_CHOICE_COUNT: 2},
    {semconv.GEN_AI_RESPONSE_FINISH_REASONS: ["stop", "length"]},
]


@pytest.mark.parametrize("reported", CHOICES)
@pytest.mark.parametrize("dropped", [0, 3])
def test_choices_that_cannot_be_distinguished_are_not_one_stream(reported: dict[str, Value], dropped: int) -> None:
    found, counts = judged(export(reply(*named(semconv.CHUNK_EVENT, TIMES), dropped=dropped, reported=reported)))
    times = [{name: known(one.row).get(name) for name in ("ttft_s", "tokens", "coverage", "met")} for one in found]
    # The first chunk of all is the first chunk; if it may have been dropped nothing follows.
    assert times == ([] if dropped else [{"ttft_s": 0.1, "tokens": None, "coverage": None, "met": None}])
    assert counts["anomaly.choices_not_told_apart"] == 1


def test_one_choice_is_a_stream() -> None:
    reported: dict[str, Value] = {
        semconv.GEN_AI_REQUEST_CHOICE_COUNT: 1,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: ["stop"],
    }
    (row,) = rows(export(reply(*named(semconv.CHUNK_EVENT, TIMES), reported=reported)))
    assert row["met"] is True


@pytest.mark.parametrize(
    ("at_ns", "reason"),
    [
        (0, "missing_time"),
        (2**63, "time_out_of_range"),
        (2**64 - 1, "time_out_of_range"),
        (1, "token_outside_span"),
        (T0_NS - 2 * S, "token_outside_span"),
        (T0_NS + 3 * S, "token_outside_span"),
    ],
)
@pytest.mark.parametrize("name", [semconv.TOKEN_EVENT, semconv.TOKEN_GENERATED_EVENT, semconv.CHUNK_EVENT])
def test_times_that_cannot_be_right(name: str, at_ns: int, reason: str) -> None:
    events = named(name, [*TIMES, at_ns])
    batch = decode(export(request_span(request=7), reply(*events)))
    assert batch.refused == Counter({reason: 1})
    assert [request.span_id for request in batch.requests] == [span_id(7)]

    (one,), counts = judged(export(reply(*events, reported={semconv.GEN_AI_TIME_TO_FIRST_CHUNK: 0.25})))
    assert (one.row["ttft_s"], one.row["tokens"]) == (0.25, None)
    assert counts == Counter({f"anomaly.{reason}": 1})


def test_a_chunk_just_before_the_start_came_with_it() -> None:
    (one,), counts = judged(export(reply(*named(semconv.CHUNK_EVENT, [T0_NS - MS, T0_NS + MS]))))
    assert one.row["ttft_s"] == 0.0
    assert one.verdict is not None
    assert one.verdict.skewed == 1
    assert not [name for name in counts if name.startswith("refused")]


@pytest.mark.parametrize("array", [True, False])
def test_where_segments_were_sent_events_and_arrays_are_not_read(array: bool) -> None:
    span = reply(*named(semconv.CHUNK_EVENT, TIMES), dropped=3, reported={semconv.SEGMENTS: 3})
    if array:
        with_array(span, semconv.PER_TOKEN_GENERATION_TIME, doubles([-1.0]))
    batch = decode(export(span))
    (request,) = batch.requests
    assert (request.events_ns, request.event_basis, request.dropped_events) == ([], None, 3)
    assert not batch.anomalies


@given(
    st.lists(st.integers(0, 20 * S), min_size=1, max_size=60),
    st.integers(0, 2 * S),
    st.booleans(),
    st.sampled_from(["chat", "code", "agent", "voice", "batch"]),
    st.sampled_from([semconv.TOKEN_GENERATED_EVENT, semconv.TOKEN_EVENT, *CHUNKS]),
    st.sampled_from([None, 0, 700]),
)
def test_events_are_judged_like_the_stream_they_stand_for(
    offsets_ns: list[int], after_ns: int, error: bool, name: str, event: str, prompt: int | None
) -> None:
    times = [T0_NS + offset for offset in offsets_ns]  # in any order
    end_ns = max(times) + after_ns
    reported: dict[str, Value] = {semconv.GEN_AI_OPERATION_NAME: "chat", semconv.SLO_CLASS: name}
    if prompt is not None:
        reported[semconv.GEN_AI_USAGE_PROMPT_TOKENS] = prompt
    (row,) = rows(export(request_span(attributes=reported, end_ns=end_ns, events=named(event, times), error=error)))
    outcome = "error" if error else "completed"
    expected = judge(times, T0_NS, end_ns, outcome, load_slo().get(name), input_tokens=prompt).columns()
    assert {column: row[column] for column in expected} == expected
