"""What is recorded of the responses API: kinds, framing, usage, how the server says that it failed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_openai import OpenAIResponses, event, response
from support.sse_server import Raw, Reply, SseServer, Step

from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.parse.responses import ResponsesReader
from otel_llm.instrumentation.stacks.sdk_stream import RECORDING

STACK = OpenAIResponses()
QUESTION: dict[str, Any] = {"model": "m", "input": "hello", "stream": True}
WHERE: dict[str, Any] = {"output_index": 0, "item_id": "i"}
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 42,
    "output_tokens_details": {"reasoning_tokens": 30},
    "total_tokens": 53,
}


@pytest.fixture
def client(server: SseServer) -> Iterator[Any]:
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        yield client


def consume(client: Any, server: SseServer, *steps: Step) -> None:
    server.replies["m"] = Reply([*STACK.before(), *steps])
    for _ in client.responses.create(**QUESTION):
        pass


KINDS: list[tuple[str, int | None]] = [
    ("response.output_text.delta", CONTENT),
    ("response.refusal.delta", CONTENT),
    ("response.reasoning_text.delta", REASONING),
    ("response.reasoning_summary_text.delta", REASONING),
    ("response.function_call_arguments.delta", TOOL),
    ("response.custom_tool_call_input.delta", TOOL),
    ("response.mcp_call_arguments.delta", TOOL),
    ("response.code_interpreter_call_code.delta", TOOL),
    ("response.shell_call_output_content.delta", None),
    ("response.audio.delta", None),
    ("response.output_text.done", None),
    ("response.output_text.annotation.added", None),
    ("response.created", None),
    ("response.in_progress", None),
    ("response.queued", None),
    ("keepalive", None),
]


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=[name for name, _ in KINDS])
def test_deltas_are_tokens_of_their_kind_and_all_else_is_framing(name: str, kind: int | None) -> None:
    reader = ResponsesReader()
    read = reader(SimpleNamespace(type=name, delta="a", text="a"))
    assert read == (() if kind is None else ((0, kind, -1, False),))
    assert reader(SimpleNamespace(type=name, delta="")) == ()
    assert reader.plain_size(SimpleNamespace(type=name, delta="a")) == (
        1 if name == "response.output_text.delta" else 0
    )


def test_what_is_no_event_carries_nothing() -> None:
    reader = ResponsesReader()
    for thing in (None, 3, "text", SimpleNamespace(), SimpleNamespace(type=None), SimpleNamespace(type=["a"])):
        assert reader(thing) == ()
        assert not reader.plain_size(thing)


def test_kinds_usage_and_names_of_a_whole_response(client: Any, server: SseServer, recorder: Recorded) -> None:
    consume(
        client,
        server,
        event("response.reasoning_summary_text.delta", delta="hm", summary_index=0, **WHERE),
        event("response.output_text.delta", delta="Five", content_index=0, logprobs=[], **WHERE),
        event("response.output_text.delta", delta="", content_index=0, logprobs=[], **WHERE),
        event("response.function_call_arguments.delta", delta="{", **WHERE),
        event("response.output_text.done", text="Five", content_index=0, logprobs=[], **WHERE),
        event("response.completed", response=response("completed", usage=USAGE)),
    )
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == ("completed", 3, "chunk")
    [request] = recorder.requests()
    attributes = dict(request.attributes or {})
    assert request.name == "chat m"
    assert attributes[semconv.GEN_AI_PROVIDER_NAME] == "openai"
    assert attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 11
    assert attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 42
    assert attributes[semconv.GEN_AI_RESPONSE_ID] == "resp_1"
    assert attributes[semconv.GEN_AI_RESPONSE_MODEL] == "served"
    assert stream.last[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 11
    assert server.requests == [{"model": "m", "input": "hello", "stream": True}]  # nothing added to the body


def test_cut_off_by_its_limit_is_complete(client: Any, server: SseServer, recorder: Recorded) -> None:
    reason = {"reason": "max_output_tokens"}
    end = event("response.incomplete", response=response("incomplete", incomplete_details=reason))
    consume(client, server, *STACK.words(2), end)
    assert recorder.stream().outcome == "completed"


FAILED = {"code": "rate_limit_exceeded", "message": "no more"}
FAILURES = {
    "response.failed": (event("response.failed", response=response("failed", error=FAILED)), "rate_limit_exceeded"),
    "failed without a code": (event("response.failed", response=response("failed", error=None)), "_OTHER"),
    "error event": (event("error", code="server_error", message="no", param=None), "server_error"),
}


@pytest.mark.parametrize("name", list(FAILURES))
def test_a_failure_that_the_sdk_only_hands_on_is_an_error(
    name: str, client: Any, server: SseServer, recorder: Recorded
) -> None:
    step, code = FAILURES[name]
    consume(client, server, *STACK.words(2), step)
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 2)
    [request] = recorder.requests()
    assert not request.status.is_ok
    assert (request.attributes or {})[semconv.ERROR_TYPE] == code
    assert (request.attributes or {})[semconv.GEN_AI_RESPONSE_ID] == "resp_1"


def test_a_failure_that_the_sdk_raises_is_an_error(client: Any, server: SseServer, recorder: Recorded) -> None:
    step = Raw(b'event: error\ndata: {"type": "error", "error": {"code": "x", "message": "no"}}\n\n')
    with pytest.raises(openai.APIError):
        consume(client, server, *STACK.words(2), step)
    assert recorder.stream().outcome == "error"


@pytest.mark.usefixtures("own_garbage")
def test_a_response_leaves_nothing_for_the_garbage_collector(
    client: Any, server: SseServer, recorder: Recorded
) -> None:
    server.replies["m"] = Reply([*STACK.before(), *STACK.words(1), *STACK.after()])
    gc.disable()
    try:
        stream = client.responses.create(**QUESTION)
        recording = weakref.ref(getattr(stream, RECORDING))
        for _ in stream:
            pass
        del stream
        assert recorder.stream().outcome == "completed"
        assert recording() is None
    finally:
        gc.enable()
