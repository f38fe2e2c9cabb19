"""The rows of what real instrumentations and engines send (see captured/README.md)."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.formats.foreign_rows import S, captured, judged, known, rows

from otel_llm import semconv
from otel_llm.formats.otlp.export_json import from_object
from otel_llm.formats.otlp.export_request import parse
from otel_llm.formats.rows import Row
from otel_llm.slo.metrics import COMPUTED

EMITTERS = ("traceloop", "openinference", "genai_openai", "langfuse", "vllm", "sglang")
IDENTITY = {"trace_id", "span_id", "tenant", "slo_class", "measured_at", "outcome", "start_unix_nano"}


def spans(emitter: str) -> list[Span]:
    return [
        span
        for resource_spans in captured(emitter).resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


def of_model(found: list[Row], model: str) -> Row:
    (row,) = (row for row in found if row["model"] == model)
    return row


def times_of(row: Row) -> dict[str, Any]:
    return {
        name: value
        for name, value in known(row).items()
        if name not in IDENTITY | {"model", "finish_reason", "input_tokens"}
    }


@pytest.mark.parametrize("emitter", EMITTERS)
def test_one_row_a_span_and_nothing_refused(emitter: str) -> None:
    found, counts = judged(captured(emitter))
    assert {one.row["span_id"] for one in found} == {span.span_id.hex() for span in spans(emitter)}
    assert len(found) == len(spans(emitter))
    assert not [name for name in counts if name.startswith("refused.")]
    assert all(one.row["choice"] is None for one in found)


@pytest.mark.parametrize("emitter", EMITTERS)
@pytest.mark.parametrize("numbers", [True, False], ids=["enums as numbers", "enums by name"])
def test_every_door_gives_the_same_rows(emitter: str, numbers: bool) -> None:
    message = captured(emitter)
    document = json_format.MessageToDict(message, use_integers_for_enums=numbers)
    for span in (one for scope in document["resourceSpans"][0]["scopeSpans"] for one in scope["spans"]):
        for name in ("traceId", "spanId", "parentSpanId"):
            span[name] = b64decode(span.get(name, "")).hex()
    assert rows(from_object(document)) == rows(parse(message.SerializeToString())) == rows(message)


def test_traceloop_s_chunks_are_judged() -> None:
    row = of_model(rows(captured("traceloop")), "short")
    (span,) = (span for span in spans("traceloop") if len(span.events) == 9)
    assert known(row).keys() >= set(COMPUTED)
    # Nine events, with those of framing: the usage says six tokens, from the first event to the last.
    assert (row["tokens"], row["tokens_recorded"], row["token_basis"]) == (6, 9, "estimated")
    assert (row["coverage"], row["outcome"]) == (1.0, "completed")
    assert row["measured_at"] == "client"
    assert row["ttft_s"] == (span.events[0].time_unix_nano - span.start_time_unix_nano) / S
    assert row["e2e_s"] == (span.end_time_unix_nano - span.start_time_unix_nano) / S
    assert row["tpot_s"] == pytest.approx((span.events[-1].time_unix_nano - span.events[0].time_unix_nano) / 5 / S)
    assert (row["met"], row["idle_s"], row["fluidity_index"], row["benefit"]) == (True, 0.0, 1.0, 6.0)


def test_of_chunks_that_were_dropped_nothing_is_scored() -> None:
    row = of_model(rows(captured("traceloop")), "long")
    assert times_of(row).keys() == {"tokens", "tokens_read", "tokens_recorded", "token_basis", "coverage", "e2e_s"}
    assert (row["tokens"], row["coverage"]) == (128, 128 / 152)


def test_chunks_of_two_choices_are_not_one_stream() -> None:
    found, counts = judged(captured("traceloop"))
    row = of_model([one.row for one in found], "choices")
    assert times_of(row).keys() == {"ttft_s"}
    assert counts["anomaly.choices_not_told_apart"] == 1


def test_the_status_alone_says_how_a_stream_of_others_ended() -> None:
    # Traceloop calls a stream that broke OK; the others call it an error, or nothing.
    outcomes = {emitter: Counter(row["outcome"] for row in rows(captured(emitter))) for emitter in EMITTERS[:4]}
    assert outcomes == {
        "traceloop": Counter(completed=4),
        "openinference": Counter(completed=3, error=1),
        "genai_openai": Counter(completed=3, error=1),
        "langfuse": Counter(completed=4),
    }


@pytest.mark.parametrize("emitter", ["openinference", "genai_openai", "langfuse"])
def test_clients_that_say_when_the_first_chunk_came(emitter: str) -> None:
    for row, span in zip(rows(captured(emitter)), spans(emitter), strict=True):
        assert times_of(row).keys() == {"ttft_s"}
        assert 0 < float(row["ttft_s"] or 0) < (span.end_time_unix_nano - span.start_time_unix_nano) / S
        assert row["measured_at"] == "client"
        assert row["model"] in ({"served"} if emitter != "genai_openai" else {"short", "long", "cut", "choices"})


def test_openinference_s_event_is_the_first_token() -> None:
    for row, span in zip(rows(captured("openinference")), spans("openinference"), strict=True):
        assert row["ttft_s"] == (span.events[0].time_unix_nano - span.start_time_unix_nano) / S


@pytest.mark.parametrize(
    ("emitter", "columns"),
    [("vllm", {"ttft_s", "e2e_s", "queue_s", "prefill_s"}), ("sglang", {"ttft_s", "e2e_s", "prefill_s"})],
)
def test_engines_state_their_summaries(emitter: str, columns: set[str]) -> None:
    stated = {
        "ttft_s": semconv.GEN_AI_LATENCY_TTFT,
        "e2e_s": semconv.GEN_AI_LATENCY_E2E,
        "queue_s": semconv.GEN_AI_LATENCY_QUEUE,
        "prefill_s": semconv.GEN_AI_LATENCY_PREFILL,
    }
    for row in rows(captured(emitter)):
        (span,) = (span for span in spans(emitter) if span.span_id.hex() == row["span_id"])
        values = {attribute.key: attribute.value.double_value for attribute in span.attributes}
        assert times_of(row) == {column: values[stated[column]] for column in columns}
        assert row["measured_at"] == "server"
        assert row["model"] == (None if emitter == "vllm" else "meta-llama/Llama-3.1-8B-Instruct")


def test_vllm_has_a_row_for_each_choice() -> None:
    found = rows(captured("vllm"))
    assert len(found) == 3
    assert len({(row["trace_id"], row["span_id"]) for row in found}) == 3
