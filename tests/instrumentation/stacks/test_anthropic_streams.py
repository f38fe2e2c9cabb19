"""What is recorded of Anthropic's messages: kinds, framing, usage, beside the SDK's own spans."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anthropic
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_anthropic import QUESTION, AnthropicMessages, block, event, start, stop
from support.sse_server import Gate, Raw, Reply, SseServer, Step

import otel_llm
from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.parse.messages import MessagesReader

STACK = AnthropicMessages()


def settings(server: SseServer) -> dict[str, Any]:
    return {"api_key": "none", "base_url": server.url.removesuffix("/v1"), "max_retries": 0}


@pytest.fixture
def client(server: SseServer) -> Iterator[Any]:
    with anthropic.Anthropic(**settings(server)) as client:
        yield client


def consume(client: Any, server: SseServer, *steps: Step) -> None:
    server.replies["m"] = Reply(steps)
    for _ in client.messages.create(**QUESTION, stream=True):
        pass


def made(**members: Any) -> Any:
    return SimpleNamespace(**{k: made(**v) if isinstance(v, dict) else v for k, v in members.items()})


DELTAS: list[tuple[dict[str, Any], int | None]] = [
    ({"type": "text_delta", "text": "a"}, CONTENT),
    ({"type": "thinking_delta", "thinking": "a"}, REASONING),
    ({"type": "input_json_delta", "partial_json": "{"}, TOOL),
    ({"type": "text_delta", "text": ""}, None),
    ({"type": "input_json_delta", "partial_json": ""}, None),
    ({"type": "signature_delta", "signature": "abc"}, None),
    ({"type": "citations_delta", "citation": {"text": "a"}}, None),
    ({"type": "of tomorrow", "text": "a"}, None),
]


@pytest.mark.parametrize(("delta", "kind"), DELTAS, ids=[f"{d['type']} {i}" for i, (d, _) in enumerate(DELTAS)])
def test_deltas_are_tokens_of_their_kind(delta: dict[str, Any], kind: int | None) -> None:
    reader = MessagesReader()
    got = made(type="content_block_delta", index=0, delta=delta)
    assert reader(got) == (() if kind is None else ((0, kind, -1, False),))
    assert reader.plain_size(got) == (1 if kind == CONTENT else 0)


def test_all_else_is_framing_and_what_is_no_event_carries_nothing() -> None:
    reader = MessagesReader()
    framing = [
        made(type="ping"),
        made(type="content_block_start", index=0, content_block={"type": "tool_use", "name": "f", "input": {}}),
        made(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        made(type="content_block_stop", index=0),
        made(type="message_delta", delta={"stop_reason": None}, usage={"output_tokens": 3}),
        None,
        3,
        SimpleNamespace(),
        SimpleNamespace(type=["a"]),
        made(type="content_block_delta"),
    ]
    for thing in framing:
        assert reader(thing) == ()
        assert not reader.plain_size(thing)
    assert reader(made(type="message_stop")) == ((0, CONTENT, 0, True),)
    assert reader(made(type="content_block_start", content_block={"type": "text", "text": "a"})) == (
        (0, CONTENT, -1, False),
    )


def test_kinds_usage_and_names_of_a_whole_message(client: Any, server: SseServer, recorder: Recorded) -> None:
    consume(
        client,
        server,
        start(11, cache_read_input_tokens=100, cache_creation_input_tokens=1000),
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "hm"}),
        event("ping"),
        *block(1, {"type": "text", "text": ""}, *[{"type": "text_delta", "text": t} for t in ("Five", "!")]),
        *block(
            2,
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            *[{"type": "input_json_delta", "partial_json": t} for t in ("", "{", "}")],
        ),
        *stop(42, "tool_use"),
    )
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == ("completed", 5, "chunk")
    told = [dict(event.attributes or {}) for segment in stream.segments for event in segment.events]
    assert [attributes.get(semconv.TOKEN_KIND) for attributes in told] == ["reasoning", None, None, "tool", "tool"]
    [request] = recorder.requests()
    attributes = dict(request.attributes or {})
    assert request.name == "chat m"
    assert attributes[semconv.GEN_AI_PROVIDER_NAME] == "anthropic"
    assert attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 1111
    assert attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 42
    assert attributes[semconv.GEN_AI_RESPONSE_ID] == "msg_1"
    assert attributes[semconv.GEN_AI_RESPONSE_MODEL] == "served"
    assert stream.last[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 1111
    assert server.requests == [{**QUESTION, "stream": True}]


def test_complete_with_the_stop_reason_even_if_the_caller_stops_there(
    client: Any, server: SseServer, recorder: Recorded
) -> None:
    gate = Gate()
    server.replies["m"] = Reply([*STACK.before(), *STACK.words(2), stop(2)[0], gate, stop(2)[1]])
    for got in client.messages.create(**QUESTION, stream=True):
        if got.type == "message_delta":
            break
    assert recorder.stream().outcome == "completed"
    gate.open()


@pytest.mark.parametrize("mode", ["beta", "beta helper"])
def test_the_beta_resources_are_recorded(mode: str, client: Any, server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = Reply([*STACK.before(), *STACK.words(4), *STACK.after()])
    if mode == "beta":
        for _ in client.beta.messages.create(**QUESTION, stream=True):
            pass
    else:
        with client.beta.messages.stream(**QUESTION) as helper:
            assert "".join(helper.text_stream) == "w0 w1 w2 w3 "
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 4)


def test_another_request_that_a_middleware_makes_is_not_taken_for_the_stream(
    server: SseServer, recorder: Recorded
) -> None:
    def ask_first(request: Any, call_next: Any) -> Any:
        if request.options.json_data["model"] == "m":
            for _ in asking.messages.create(**{**QUESTION, "model": "other"}, stream=True):
                pass
        return call_next(request)

    server.replies["other"] = Reply([*STACK.before(), *STACK.words(1), *STACK.after()])
    server.replies["m"] = Reply([*STACK.before(), *STACK.words(2), *STACK.after()])
    with anthropic.Anthropic(**settings(server), middleware=[ask_first]) as asking:
        for _ in asking.messages.create(**QUESTION, stream=True):
            pass
    assert len(server.requests) == 2
    assert recorder.stream().last[semconv.TOKENS] == 2


def test_a_middleware_that_asks_and_answers_itself_leaves_nothing_open(server: SseServer, recorder: Recorded) -> None:
    def answer(request: Any, call_next: Any) -> Any:
        call_next(request).http_response.close()
        return "instead"

    server.replies["m"] = Reply([*STACK.before(), *STACK.words(2), *STACK.after()])
    with anthropic.Anthropic(**settings(server), middleware=[answer]) as client:
        assert str(client.messages.create(**QUESTION, stream=True)) == "instead"
    assert recorder.stream().outcome == "abandoned"


def test_segments_hang_from_the_sdks_own_span_where_it_makes_one(server: SseServer) -> None:
    theirs, ours = InMemorySpanExporter(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    otel_llm.instrument(exporter=ours, tracer_provider=provider)
    try:
        with anthropic.Anthropic(**settings(server), open_telemetry={"tracer_provider": provider}) as client:
            consume(client, server, *STACK.before(), *STACK.words(3), *STACK.after())
        stream = Recorded(ours).stream()
        [request] = theirs.get_finished_spans()
    finally:
        otel_llm.uninstrument()
    assert request.name == "anthropic.messages.create"
    assert request.context is not None
    assert stream.parents == [(request.context.trace_id, request.context.span_id)]
    assert (request.attributes or {})[semconv.MEASURED_AT] == "client"
    trace_id, span_id = stream.parents[0]
    assert f"{trace_id:032x}-{span_id:016x}" in dict(server.headers[0])["traceparent"]


@pytest.mark.usefixtures("own_garbage")
def test_a_dropped_stream_is_let_go_at_once(client: Any, server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = Reply([*STACK.before(), *STACK.words(3), Gate(), *STACK.after()])
    gc.disable()
    try:
        stream = client.messages.create(**QUESTION, stream=True)
        next(stream)
        gone = weakref.ref(stream)
        response = stream.response
        del stream
        assert gone() is None
        assert response.is_closed  # as bare: the SDK takes care that no cycle keeps the connection
    finally:
        gc.enable()
    assert recorder.stream().outcome == "abandoned"


RAW_ERROR = Raw(b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}\n\n')


def test_an_error_event_is_an_error(client: Any, server: SseServer, recorder: Recorded) -> None:
    with pytest.raises(anthropic.APIStatusError):
        consume(client, server, *STACK.before(), *STACK.words(1), RAW_ERROR)
    assert recorder.stream().outcome == "error"
    [request] = recorder.requests()
    assert str((request.attributes or {})[semconv.ERROR_TYPE]).startswith("anthropic.")
