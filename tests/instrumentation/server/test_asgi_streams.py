"""What the middleware records of replies that a real uvicorn sends, and how they end."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest
from opentelemetry.trace import SpanKind
from support.instrumentation.asgi_server import Application, AsgiServer, Step, sent, until
from support.instrumentation.recorded import Recorded, Stream
from support.instrumentation.stack_anthropic import AnthropicMessages
from support.instrumentation.stack_openai import OpenAIResponses
from support.sse_server import DONE, Raw, chunk, usage

from otel_llm import semconv
from otel_llm.export.records import REASONING, TOOL
from otel_llm.instrumentation.core import server_context
from otel_llm.instrumentation.server.asgi import StreamMiddleware
from otel_llm.instrumentation.server.exchange import MAX_BODY

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
QUESTION = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
WORDS: list[Step] = [
    chunk({"role": "assistant", "content": ""}),
    *(chunk({"content": word}) for word in ("one ", "two ", "three ")),
    chunk({}, finish="stop"),
    DONE,
]


def ask(application: Application, body: Any = QUESTION, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    with AsgiServer(StreamMiddleware(application.app, provider="here", instance="one")) as server:
        return server.post(body, path, **headers)


def test_a_reply(recorder: Recorded) -> None:
    application = Application(WORDS)
    ask(application, traceparent=f"00-{TRACE}-{SPAN}-01", x_slo_class="voice", x_request_id="r-1")
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == ("completed", 3, "chunk")
    first = dict(stream.segments[0].attributes or {})
    assert first[semconv.MEASURED_AT] == "server"
    assert first[semconv.SLO_CLASS] == "voice"
    assert first[semconv.GEN_AI_REQUEST_MODEL] == "tiny"
    assert first[semconv.GEN_AI_PROVIDER_NAME] == "here"
    assert first[semconv.INSTANCE] == "one"
    [request] = recorder.requests()
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None
    assert request.context is not None
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == SPAN
    assert stream.parents == [(request.context.trace_id, request.context.span_id)]
    assert dict(request.attributes or {})[semconv.GEN_AI_REQUEST_ID] == "r-1"


def test_client_and_server_share_the_trace(recorder: Recorded) -> None:
    with AsgiServer(StreamMiddleware(Application(WORDS).app)) as server:
        with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            for _ in client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True
            ):
                pass
        until(lambda: len(recorder.requests()) == 2)
    by_side = {str((span.attributes or {})[semconv.MEASURED_AT]): span for span in recorder.requests()}
    theirs, ours = by_side["client"].context, by_side["server"].parent
    assert theirs is not None
    assert ours is not None
    assert (theirs.trace_id, theirs.span_id) == (ours.trace_id, ours.span_id)
    assert [stream.last[semconv.TOKENS] for stream in recorder.streams()] == [3, 3]


def test_nothing_is_changed_on_the_wire(recorder: Recorded) -> None:
    def replies(wrapped: bool) -> list[bytes]:
        pairs: list[tuple[Application, Any]] = [
            (Application(WORDS), QUESTION),
            (Application(), {**QUESTION, "stream": False}),
            (Application(status=429), QUESTION),
            (Application(), b"{not json"),
        ]
        got = []
        for application, body in pairs:
            with AsgiServer(StreamMiddleware(application.app) if wrapped else application.app) as server:
                got.append(re.sub(rb"date: [^\r]*", b"", server.post(body)))
        return got

    assert replies(wrapped=True) == replies(wrapped=False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**QUESTION, "stream": False}),
        ("/v1/chat/completions", b"{not json"),
        ("/v1/embeddings", QUESTION),
    ],
)
def test_what_is_no_stream_is_not_recorded(recorder: Recorded, path: str, body: Any) -> None:
    ask(Application(), body, path)
    assert recorder.spans() == ()


def test_a_stream_that_nobody_asked_for_in_words_we_know(recorder: Recorded) -> None:
    ask(Application(WORDS), {"model": "tiny"}, "/v1/chat/completions?always=1")
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 3)


def test_a_long_request_is_recorded_by_its_reply(recorder: Recorded) -> None:
    application = Application(WORDS)
    ask(application, {**QUESTION, "user": "x" * MAX_BODY})
    assert len(application.asked[0]["user"]) == MAX_BODY
    assert recorder.stream().last[semconv.TOKENS] == 3
    [request] = recorder.requests()
    assert dict(request.attributes or {})[semconv.GEN_AI_RESPONSE_MODEL] == "served"


def test_counts_of_the_server(recorder: Recorded) -> None:
    steps: list[Step] = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "one two"}, token_ids=[1, 2]),
        chunk({"content": " three"}, token_ids=[3]),
        chunk({}, finish="stop", token_ids=[4]),
        usage(4),
        DONE,
    ]
    ask(Application(steps))
    stream = recorder.stream()
    assert (stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == (4, "exact")
    assert stream.last[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 7


def test_kinds_are_told_apart(recorder: Recorded) -> None:
    steps: list[Step] = [
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "yes"}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        chunk({}, finish="tool_calls"),
        DONE,
    ]
    ask(Application(steps))
    events = [event for segment in recorder.stream().segments for event in segment.events]
    kinds = [(event.attributes or {}).get(semconv.TOKEN_KIND) for event in events]
    assert kinds == ["reasoning", None, "tool"]


def test_a_stream_for_each_choice(recorder: Recorded) -> None:
    steps: list[Step] = [
        *(chunk({"content": "a"}, index=i) for i in (0, 1, 1, 2)),
        *(chunk({}, index=i, finish="stop") for i in (0, 1, 2)),
        DONE,
    ]
    ask(Application(steps), {**QUESTION, "n": 3})
    assert [stream.last[semconv.TOKENS] for stream in recorder.streams()] == [1, 2, 1]
    assert [stream.outcome for stream in recorder.streams()] == ["completed"] * 3


def test_pieces_of_events(recorder: Recorded) -> None:
    wire = b"".join(sent(WORDS))
    ask(Application([Raw(wire[i : i + 7]) for i in range(0, len(wire), 7)]))
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 3)


def test_a_refusal(recorder: Recorded) -> None:
    assert b"429" in ask(Application(status=429))
    [request] = recorder.requests()
    assert recorder.stream().outcome == "error"
    assert dict(request.attributes or {})[semconv.ERROR_TYPE] == "429"


def test_an_error_in_the_stream(recorder: Recorded) -> None:
    steps: list[Step] = [*WORDS[:3], {"error": {"type": "EngineDeadError", "message": "private words"}}, DONE]
    ask(Application(steps))
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 2)
    [request] = recorder.requests()
    assert dict(request.attributes or {})[semconv.ERROR_TYPE] == "EngineDeadError"
    assert "private" not in str([span.to_json() for span in recorder.spans()])


OTHER_APIS = pytest.mark.parametrize(
    ("api", "path", "counts"), [(OpenAIResponses(), "/v1/responses", 7), (AnthropicMessages(), "/v1/messages", 7)]
)


@OTHER_APIS
def test_replies_of_other_apis(recorder: Recorded, api: Any, path: str, counts: int) -> None:
    ask(Application([*api.before(), *api.words(4), *api.after()]), path=path)
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 4)
    assert stream.last[semconv.GEN_AI_USAGE_INPUT_TOKENS] == counts


@OTHER_APIS
def test_replies_of_other_apis_that_fail(recorder: Recorded, api: Any, path: str, counts: int) -> None:
    ask(Application([*api.before(), *api.words(2), *api.error()]), path=path)
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("error", 2)


def test_a_response_that_failed(recorder: Recorded) -> None:
    api: Any = OpenAIResponses()
    failed = Raw(
        b'event: response.failed\ndata: {"type":"response.failed","response":{"error":'
        b'{"code":"server_error","message":"private words"}}}\n\n'
    )
    ask(Application([*api.before(), *api.words(2), failed]), path="/v1/responses")
    assert recorder.stream().outcome == "error"
    [request] = recorder.requests()
    assert dict(request.attributes or {})[semconv.ERROR_TYPE] == "server_error"
    assert "private" not in str([span.to_json() for span in recorder.spans()])


@pytest.mark.parametrize(
    ("path", "thinks", "calls"),
    [
        (
            "/v1/responses",
            b'{"type":"response.reasoning_text.delta","delta":"hm"}',
            b'{"type":"response.function_call_arguments.delta","delta":"{"}',
        ),
        (
            "/v1/messages",
            b'{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}',
            b'{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{"}}',
        ),
    ],
)
def test_kinds_of_an_engines_tokens_in_other_apis(recorder: Recorded, path: str, thinks: bytes, calls: bytes) -> None:
    seen: list[int] = []

    def adopt() -> None:
        request = server_context.current_server_context()
        assert request is not None
        request.adopt()

    def look() -> None:
        request = server_context.current_server_context()
        assert request is not None
        seen.append(request.kind)

    told = [Raw(b"data: " + event + b"\n\n") for event in (thinks, calls)]
    ask(Application([adopt, told[0], look, told[1], look]), path=path)
    assert seen == [REASONING, TOOL]


def test_an_engines_id_is_told_with_the_next_segment_while_the_request_runs(recorder: Recorded) -> None:
    def adopt() -> None:
        request = server_context.current_server_context()
        assert request is not None
        assert request.recording is not None
        request.recording.identify({semconv.GEN_AI_REQUEST_ID: "chatcmpl-1"})
        request.recording.tick(request.recording.clock_ns() + 10**9)  # a silent stream says that it is there

    ask(Application([adopt, Raw(b"data: [DONE]\n\n")]))
    said = [dict(segment.attributes or {}).get(semconv.GEN_AI_REQUEST_ID) for segment in recorder.stream().segments]
    # A stream that is silent for longer says so, on a slow machine, in segments of its own.
    assert (said[0], [one for one in said[1:-1] if one is not None], said[-1]) == (None, ["chatcmpl-1"], None)
    [request] = recorder.requests()
    assert dict(request.attributes or {})[semconv.GEN_AI_REQUEST_ID] == "chatcmpl-1"


def test_an_exception_before_the_reply(recorder: Recorded) -> None:
    application = Application(fails=RuntimeError("private words"))

    async def body_first(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            message = await receive()

            async def again() -> Any:
                return message

            await application.app(scope, again, send)
        else:
            await application.app(scope, receive, send)

    with AsgiServer(StreamMiddleware(body_first)) as server:
        assert b"500" in server.post(QUESTION)
    assert recorder.stream().outcome == "error"


def test_an_exception_in_the_stream(recorder: Recorded) -> None:
    application = Application([*WORDS[:3], RuntimeError("private words")])
    ask(application)
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 2)
    assert application.closed == 1
    assert "private" not in str([span.to_json() for span in recorder.spans()])


def test_a_client_that_goes_away(recorder: Recorded) -> None:
    application = Application(endless=True)
    with AsgiServer(StreamMiddleware(application.app)) as server:
        with server.connect(QUESTION) as connection:
            got = b""
            while got.count(b"tick") < 3:
                got += connection.recv(65536)
        until(lambda: application.closed)
        until(lambda: recorder.streams() and recorder.streams()[0].outcome)
    stream = recorder.stream()
    assert stream.outcome == "cancelled"
    assert int(str(stream.last[semconv.TOKENS])) >= 3


def test_a_client_that_goes_away_before_the_first_token(recorder: Recorded) -> None:
    application = Application([Raw(b": wait\n\n")], endless=True)
    application.endless = False
    held: list[Stream] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await application.app(scope, receive, send)
        while (await receive())["type"] != "http.disconnect":
            pass
        held.append(recorder.streams()[0])
        return None

    with AsgiServer(StreamMiddleware(waits)) as server:
        server.connect(QUESTION).close()
        until(lambda: held)
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("cancelled", 0)


def test_tokens_of_an_engine(recorder: Recorded) -> None:
    """An engine under the middleware tells the tokens; the text tells their kind, and HTTP how it ended."""
    times: list[int] = []

    def adopt() -> None:
        request = server_context.current_server_context()
        assert request is not None
        request.adopt()
        request.add_facts(lambda: {semconv.GEN_AI_LATENCY_QUEUE: 0.25})

    def makes(count: int) -> None:
        request = server_context.current_server_context()
        assert request is not None
        assert request.recording is not None
        times.append(request.recording.clock_ns())
        request.recording.append((times[-1], ((0, request.kind, count, False),)))

    steps: list[Step] = [
        adopt,
        chunk({"reasoning_content": "hm"}),
        lambda: makes(5),
        chunk({"content": "one"}),
        lambda: makes(1),
        chunk({"content": "two"}),
        chunk({}, finish="stop"),
        DONE,
    ]
    ask(Application(steps))
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == ("completed", 6, "exact")
    events = [event for segment in stream.segments for event in segment.events]
    assert [(event.attributes or {}).get(semconv.TOKEN_KIND) for event in events] == ["reasoning", None]
    assert events[1].timestamp - events[0].timestamp == times[1] - times[0]
    [request] = recorder.requests()
    assert dict(request.attributes or {})[semconv.GEN_AI_LATENCY_QUEUE] == 0.25
