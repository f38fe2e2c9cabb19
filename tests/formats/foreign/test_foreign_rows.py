"""Which spans of others become rows, whose words count, and where a row's numbers go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.formats.foreign_rows import S, doubles, judged, known, rows, with_array
from support.otlp import T0_NS, Event, Value, export, request_span, span_id, stream_spans

import otel_llm.audit
from otel_llm import semconv
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.otlp.export_request import decode
from otel_llm.slo.metrics import COMPUTED

TTFT = semconv.GEN_AI_TIME_TO_FIRST_CHUNK
OPENINFERENCE: dict[str, Value] = {
    semconv.OPENINFERENCE_SPAN_KIND: "LLM",
    semconv.OPENINFERENCE_MODEL: "m",
    semconv.OPENINFERENCE_PROMPT_TOKENS: 11,
}
FIRST = (semconv.OPENINFERENCE_FIRST_TOKEN_EVENT, T0_NS + S // 4)
LANGFUSE_T0 = "2026-09-21T14:13:20"  # T0_NS


def chunks(times_ns: list[int]) -> list[Event]:
    return [(semconv.CHUNK_EVENT, at) for at in times_ns]


# Which.


@pytest.mark.parametrize(
    "attributes",
    [
        {TTFT: 0.25},
        {TTFT: 0.25, semconv.GEN_AI_OPERATION_NAME: "chat"},
        {TTFT: 0.25, semconv.GEN_AI_OPERATION_NAME: "responses"},  # an operation that is not defined
        {semconv.GEN_AI_LATENCY_TTFT: 0.25},
        {"gen_ai.client.operation.time_to_first_chunk": 0.25, semconv.TIME_PER_CHUNK: 0.05},
        {"ai.response.msToFirstChunk": 250},
        {"ai.stream.msToFirstChunk": 250.0, semconv.GEN_AI_OPERATION_NAME: "chat"},
        {semconv.LANGFUSE_COMPLETION_START: f'"{LANGFUSE_T0}.250000Z"'},
        {semconv.LANGFUSE_COMPLETION_START: f"{LANGFUSE_T0}.25+00:00"},
        {semconv.LANGFUSE_COMPLETION_START: '"2026-09-21T16:13:20.250000+02:00"'},
    ],
)
def test_a_span_that_states_a_time_is_a_row(attributes: dict[str, Value]) -> None:
    (row,) = rows(export(request_span(name="x", attributes=attributes)))
    assert {name: row[name] for name in COMPUTED if row[name] is not None} == {"ttft_s": 0.25}
    assert (row["coverage"], row["token_basis"], row["choice"], row["outcome"]) == (None, None, None, "completed")


@pytest.mark.parametrize(
    "attributes",
    [
        {semconv.GEN_AI_OPERATION_NAME: "chat"},
        {semconv.GEN_AI_OPERATION_NAME: "invoke_agent", TTFT: 0.25},
        {semconv.GEN_AI_OPERATION_NAME: "execute_tool", TTFT: 0.25},
        {semconv.GEN_AI_OPERATION_NAME: "embeddings", TTFT: 0.25},
        {semconv.GEN_AI_OPERATION_NAME: "plan", TTFT: 0.25},
        {semconv.GEN_AI_OPERATION_NAME: "fetch_response", TTFT: 0.25},
        {semconv.GEN_AI_OPERATION_NAME: "search_memory", TTFT: 0.25},
        {semconv.OPENINFERENCE_SPAN_KIND: "CHAIN"},
        {semconv.OPENINFERENCE_SPAN_KIND: "LLM"},
        {"gen_ai.server.time_to_first_token": 0.25},  # OpenLIT's, counted from the return of the call
        {"langfuse.observation.type": "generation"},
    ],
)
def test_spans_from_which_no_time_follows_are_counted(attributes: dict[str, Value]) -> None:
    found, counts = judged(export(request_span(attributes=attributes)))
    assert (found, counts) == ([], Counter(ignored=1))


def test_the_events_of_a_chain_are_not_those_of_a_reply() -> None:
    chain = request_span(attributes={semconv.OPENINFERENCE_SPAN_KIND: "CHAIN"}, events=[FIRST])
    assert decode(export(chain)).ignored == 1


# Whose words.


def test_openinference_in_the_conventions_words() -> None:
    (one,), counts = judged(export(request_span(attributes=OPENINFERENCE, events=[FIRST])))
    assert (one.row["model"], one.row["ttft_s"]) == ("m", 0.25)
    assert one.assembled.resolved.input_tokens == 11
    assert not counts


def test_what_a_span_says_in_the_conventions_words_stands() -> None:
    reported = OPENINFERENCE | {
        semconv.GEN_AI_REQUEST_MODEL: "asked",
        semconv.GEN_AI_USAGE_INPUT_TOKENS: 12,
        TTFT: 0.125,
    }
    (one,), _ = judged(export(request_span(attributes=reported, events=[FIRST])))
    assert (one.row["model"], one.row["ttft_s"], one.assembled.resolved.input_tokens) == ("asked", 0.125, 12)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", '""', "soon", '"2026-09-21T14:13:20.25"', 5, "[1]"),
        *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-09-21T14:13:18Z", "2026-09-21T14:13:23Z"),
    ],
)
def test_a_first_token_that_cannot_be_right_costs_itself(wrong: Value) -> None:
    reported: dict[str, Value] = {semconv.LANGFUSE_COMPLETION_START: wrong, semconv.GEN_AI_LATENCY_E2E: 0.5}
    (one,), counts = judged(export(request_span(attributes=reported)))
    assert (one.row["ttft_s"], one.row["e2e_s"]) == (None, 0.5)
    assert sum(counts.values()) == 1


@pytest.mark.parametrize("at_ns", [0, 1, T0_NS - 2 * S, T0_NS + 3 * S, 2**64 - 1])
def test_a_first_token_outside_its_span_costs_itself(at_ns: int) -> None:
    event = (semconv.OPENINFERENCE_FIRST_TOKEN_EVENT, at_ns)
    found, counts = judged(export(request_span(attributes=OPENINFERENCE, events=[event])))
    assert (found, counts) == ([], Counter({"ignored": 1, "anomaly.first_token_outside_span": 1}))


@pytest.mark.parametrize("wrong", [-1, 2**40, "many", 1.5])
def test_a_dialect_s_count_is_checked_like_any(wrong: Value) -> None:
    reported = OPENINFERENCE | {semconv.OPENINFERENCE_PROMPT_TOKENS: wrong}
    (one,), counts = judged(export(request_span(attributes=reported, events=[FIRST])))
    assert one.assembled.resolved.input_tokens is None
    assert counts == Counter({"anomaly.attribute_unusable": 1})


@pytest.mark.parametrize(
    ("kind", "attributes", "where"),
    [
        (Span.SPAN_KIND_CLIENT, {TTFT: 0.1}, "client"),
        (Span.SPAN_KIND_INTERNAL, {TTFT: 0.1}, "client"),
        (Span.SPAN_KIND_SERVER, {TTFT: 0.1}, "server"),
        (Span.SPAN_KIND_SERVER, {semconv.GEN_AI_LATENCY_TTFT: 0.1}, "server"),
        (Span.SPAN_KIND_INTERNAL, {semconv.GEN_AI_LATENCY_E2E: 0.1}, "server"),  # SGLang
        (Span.SPAN_KIND_UNSPECIFIED, {semconv.GEN_AI_LATENCY_QUEUE: 0.1}, "server"),
        (Span.SPAN_KIND_CLIENT, {semconv.GEN_AI_LATENCY_TTFT: 0.1}, "client"),
        (Span.SPAN_KIND_SERVER, {TTFT: 0.1, semconv.MEASURED_AT: "relay"}, "relay"),
    ],
)
def test_where_a_time_was_taken(kind: Span.SpanKind.ValueType, attributes: dict[str, Value], where: str) -> None:
    (row,) = rows(export(request_span(kind=kind, attributes=attributes)))
    assert row["measured_at"] == where


# Two words of one request.


def test_segments_win_over_what_the_span_carries() -> None:
    times = [T0_NS + at * S // 10 for at in (1, 2, 3)]
    theirs = request_span(events=chunks([T0_NS + S // 2] * 7), dropped_events=9)
    with_array(theirs, semconv.PER_TOKEN_GENERATION_TIME, doubles([0.9]))
    ours = stream_spans(times, end_ns=T0_NS + S)
    alone = rows(export(*ours))
    assert rows(export(*ours, theirs)) == rows(export(theirs, *ours)) == alone
    assert (alone[0]["tokens"], alone[0]["choice"]) == (3, 0)


def test_a_client_and_an_engine_are_two_rows_of_one_request() -> None:
    client = request_span(request=1, events=chunks([T0_NS + S // 5, T0_NS + S // 2]))
    engine = request_span(
        request=1,
        kind=Span.SPAN_KIND_SERVER,
        attributes={semconv.GEN_AI_LATENCY_TTFT: 0.125, semconv.GEN_AI_LATENCY_E2E: 0.5},
    )
    engine.span_id, engine.parent_span_id = span_id(99), span_id(1)
    found = {row["measured_at"]: row for row in rows(export(client, engine))}
    assert {where: row["ttft_s"] for where, row in found.items()} == {"client": 0.2, "server": 0.125}
    assert len({row["trace_id"] for row in found.values()}) == 1


def test_a_wrapper_that_states_no_time_of_its_own_is_no_second_row() -> None:
    wrapper = request_span(request=1, name="ChatOpenAI.chat")
    inner = request_span(request=1, events=chunks([T0_NS + S // 5]))
    inner.span_id, inner.parent_span_id = span_id(99), span_id(1)
    found, counts = judged(export(inner, wrapper))
    assert [one.row["span_id"] for one in found] == [span_id(99).hex()]
    assert counts == Counter(ignored=1)


def test_a_wrapper_that_states_one_is() -> None:
    wrapper = request_span(request=1, attributes={semconv.GEN_AI_OPERATION_NAME: "chat", TTFT: 0.25})
    inner = request_span(request=1, attributes={semconv.GEN_AI_OPERATION_NAME: "chat", TTFT: 0.2})
    inner.span_id, inner.parent_span_id = span_id(99), span_id(1)
    assert [row["ttft_s"] for row in rows(export(wrapper, inner))] == [0.25, 0.2]


# Where the numbers go.


def test_a_judged_span_is_in_the_windows_and_the_figures(tmp_path: Path) -> None:
    times = [T0_NS + at * S for at in (1, 2, 13)]
    path = tmp_path / "others.pb"
    path.write_bytes(
        export(
            request_span(request=1, end_ns=times[-1], events=chunks(times)),
            request_span(request=2, end_ns=T0_NS + S, events=chunks(times[:1]), dropped_events=3),
            request_span(request=3, attributes={semconv.GEN_AI_LATENCY_TTFT: 0.25}),
        ).SerializeToString()
    )
    audit = otel_llm.audit.load(path, window="10s")
    judged_row, partial, stated = audit.rows
    assert [(row["tokens"], row["met"], row["coverage"]) for row in audit.rows] == [
        (3, False, 1.0),
        (1, None, 0.25),
        (None, None, None),
    ]
    assert [
        (row["requests_started"], row["requests_ended"], row["met_false"], row["incomplete"], row["tokens_read"])
        for row in audit.window_rows
    ] == [(2, 1, 0, 1, 2), (0, 1, 1, 0, 1)]
    assert sum(float(str(row["idle_s_sum"])) for row in audit.window_rows) == pytest.approx(judged_row["idle_s"])
    client = audit.summary()["classes"]["chat"]["client"]
    assert (client["requests"], client["tokens"], client["incomplete"], client["attainment"]) == (3, 4, 1, 0.0)
    assert client["ttft_p99_s"] == 1.0
    assert known(partial).keys() & {"ttft_s", "idle_s", "benefit"} == set()
    assert stated["ttft_s"] == 0.25


def test_what_is_known_of_a_whole_stream_and_of_a_part() -> None:
    times = [T0_NS + S // 2, T0_NS + S // 4]
    whole, part = (
        judged(export(request_span(events=chunks(times), dropped_events=dropped)))[0][0].assembled for dropped in (0, 1)
    )
    assert (whole.resolved.known_tokens, whole.resolved.known_until_ns) == (2, T0_NS + S)
    assert whole.times_ns == sorted(times)
    assert (part.resolved.known_tokens, part.resolved.known_until_ns) == (0, None)
    assert part.times_ns == times


def test_a_clock_far_off_is_shifted_for_them_too() -> None:
    span = request_span(events=chunks([T0_NS + S // 2]))
    late_ns = 3600 * S
    shifts = []
    for receipt_ns in (span.end_time_unix_nano + S, span.end_time_unix_nano + late_ns):
        assembler = Assembler()
        assembler.add(decode(export(span), receipt_ns))
        shifts += [one.resolved.shift_ns(5 * S) for one in assembler.finish()]
    assert shifts == [0, -late_ns]
