"""What the chunks of an application's own endpoint are without callbacks: text, thoughts, framing, errors, ends."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.instrumentation.asgi_by_hand import Message, Server, scope_of, serve
from support.instrumentation.recorded import Recorded
from support.sse_server import chunk

from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.server.forms import Chunk, Events, Form, Lines
from otel_llm.instrumentation.server.own import (
    ARGUMENTS,
    COMPLETE,
    ENDS,
    OTHER_ROLES,
    TEXTS,
    THOUGHTS,
    OwnReader,
)

Event = Any
"""The data of an event, or its name and its data; an object is written as JSON."""


def parts(event: Event) -> tuple[str, str]:
    name, data = event if isinstance(event, tuple) else ("", event)
    return name, data if isinstance(data, str) else json.dumps(data)


def read(*events: Event, **callbacks: Any) -> list[tuple[int, int]]:
    """Return the kinds and sizes that a reader finds in events."""
    reader = OwnReader(callbacks.get("kind"), callbacks.get("count"))
    return [(mark[1], abs(mark[2])) for name, data in map(parts, events) for mark in reader(Chunk(data, name))]


def body_of(events: Sequence[Event]) -> bytes:
    lines = [(f"event: {name}\n" if name else "") + f"data: {data}\n\n" for name, data in map(parts, events)]
    return "".join(lines).encode()


def answered(events: Sequence[Event], recorder: Recorded, *, whole: bool = True, **settings: Any) -> dict[str, object]:
    """Stream events from `/chat`; return the last segment's attributes. Not `whole`: the client leaves behind them."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": body_of(events), "more_body": True})
        if whole:
            await send({"type": "http.response.body"})
        else:
            await receive()

    messages: list[Message] = [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}]
    serve(app, Server(*messages), scope_of("/chat"), **{"paths": ["/chat"], **settings})
    return recorder.stream().last


# Text and thoughts.


@pytest.mark.parametrize("name", TEXTS)
def test_members_with_text(name: str) -> None:
    assert read({name: "three"}) == [(CONTENT, 5)]
    assert read({name: {"content": "three"}}) == [(CONTENT, 5)]
    assert read({name: [{"type": "text", "text": "three"}]}) == [(CONTENT, 5)]


@pytest.mark.parametrize("name", THOUGHTS)
def test_members_with_thoughts(name: str) -> None:
    assert read({name: "hm"}) == [(REASONING, 2)]
    assert read({name: True, "text": "hm"}) == [(REASONING, 2)]
    assert read({name: False, "text": "three"}) == [(CONTENT, 5)]
    assert sorted(read({name: "hm", "text": "three"})) == [(CONTENT, 5), (REASONING, 2)]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "thinking", "text": "hm"},
        {"kind": "reasoning", "content": "hm"},
        {"type": "reasoning-delta", "delta": "hm"},
        {"event": "thought", "data": "hm"},
        {"delta": {"type": "thinking_delta", "text": "hm"}},
        {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
        ("thinking", "hm"),
        ("thinking", {"text": "hm"}),
        ("reasoning_delta", {"type": "text", "text": "hm"}),
    ],
)
def test_thoughts_are_no_content(event: Event) -> None:
    assert read(event) == [(REASONING, 2)]


@pytest.mark.parametrize(
    "event",
    [
        {"done": True},
        {"type": "done"},
        {"session": "abc", "created": 17},
        {},
        [],
        {"status": "searching"},
        {"type": "status", "text": "Searching"},
        {"type": "start", "message": {"id": "m1"}},
        {"type": "text-end", "id": "0"},
        {"type": "sources", "content": ["a document"]},
        {"type": "image", "data": "iVBORw0KGgo="},
        {"role": "user", "content": "the question"},
        {"role": "assistant", "content": ""},
        {"text": None},
        {"tool": "search", "type": "tool_output", "output": "found"},
        "[DONE]",
        ("ping", "2026-01-01"),
        ("heartbeat", "."),
        ("metadata", {"text": "run 7"}),
        ("done", {"text": "all of it again"}),
        ("message_stop", {"type": "message_stop"}),
        ("end", ""),
    ],
    ids=str,
)
def test_framing(event: Event, recorder: Recorded) -> None:
    assert answered(["one", event, {"text": "two"}], recorder)[semconv.TOKENS] == 2


@pytest.mark.parametrize(
    ("event", "size"),
    [
        ("plain words", 11),
        (" {not json", 10),
        ("42", 2),
        ("null", 4),
        (json.dumps("three"), 5),
        ({"token": {"id": 5, "text": "three"}, "generated_text": "all of it"}, 5),
        ({"delta": "three", "content": "one two three"}, 5),
        ({"event": "on_chat_model_stream", "data": {"chunk": {"content": "three"}}}, 5),
        (("message", {"type": "content", "text": "three"}), 5),
        ({"response": "three", "done": False, "model": "llama"}, 5),
        ({"content": "数"}, 1 << 80),
    ],
    ids=str,
)
def test_the_size_of_a_text(event: Event, size: int) -> None:
    assert read(event) == [(CONTENT, size)]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "tool_call", "name": "f", "arguments": '{"a": 1}'},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": '{"a": 1}'}}]},
        ("tool_use", {"input": '{"a": 1}'}),
    ],
)
def test_a_tool_call(event: Event) -> None:
    assert read(event) == [(TOOL, 8)]


def test_depth_is_bounded() -> None:
    deep: Any = "text"
    for _ in range(200):
        deep = {"content": deep}
    assert read(deep) == []
    assert read("[" * 100_000 + "]" * 100_000) == []


MEMBERS = [*TEXTS, *THOUGHTS, "type", "choices", "error", "role", "done"]
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=8,
)
NAMES = ["", "message", "error", "content_block_delta", "thinking", "done"]


@given(value=VALUES, name=st.sampled_from(NAMES))
@example(value={"delta": None, "role": []}, name="")
def test_any_json_is_read(value: Any, name: str) -> None:
    assert all(size > 0 for _, size in read((name, json.dumps(value))))


# Chunks of the known APIs.

CHAT = [
    chunk({"role": "assistant", "content": ""}),
    *(chunk({"content": word}) for word in ("one ", "two ")),
    chunk(finish="stop"),
]
MESSAGE = {"id": "m1", "model": "claude", "usage": {"input_tokens": 3}}
ANTHROPIC = [
    ("message_start", {"type": "message_start", "message": MESSAGE}),
    ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    *(("content_block_delta", {"delta": {"type": "text_delta", "text": word}}) for word in ("one ", "two ")),
    ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}),
    ("message_stop", {"type": "message_stop"}),
]
RESPONSES = [
    {"type": "response.created", "response": {"id": "r1", "model": "gpt"}},
    *({"type": "response.output_text.delta", "delta": word} for word in ("one ", "two ")),
    {"type": "response.output_text.done", "text": "one two "},
    {"type": "response.completed", "response": {"usage": {"output_tokens": 2}}},
]


@pytest.mark.parametrize("reply", [CHAT, ANTHROPIC, RESPONSES], ids=["chat", "messages", "responses"])
@pytest.mark.parametrize("whole", [True, False])
def test_chunks_of_the_known_apis(reply: list[Event], whole: bool, recorder: Recorded) -> None:
    last = answered(reply, recorder, whole=whole)
    assert (last[semconv.OUTCOME], last[semconv.TOKENS]) == ("completed", 2)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.GEN_AI_RESPONSE_MODEL] in ("served", "claude", "gpt")


@pytest.mark.parametrize("reply", [CHAT, ANTHROPIC, RESPONSES], ids=["chat", "messages", "responses"])
def test_an_agent_that_passes_several_replies_on(reply: list[Event], recorder: Recorded) -> None:
    last = answered([*reply, {"type": "tool_output", "output": "found"}, *reply, {"text": "three"}], recorder)
    assert (last[semconv.OUTCOME], last[semconv.TOKENS]) == ("completed", 5)
    assert semconv.GEN_AI_USAGE_OUTPUT_TOKENS not in last


# Ends.


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"error": "private words"}, "_OTHER"),
        ({"error": {"type": "overloaded_error", "message": "private words"}}, "overloaded_error"),
        ({"type": "error", "code": 529}, "529"),
        ({"kind": "error", "text": "private words"}, "_OTHER"),
        (("error", "private words"), "_OTHER"),
        (("error", {"code": "rate_limited"}), "rate_limited"),
        (("error", {"type": "error", "error": {"type": "api_error"}}), "api_error"),
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, "server_error"),
    ],
    ids=str,
)
@pytest.mark.parametrize("settings", [{}, {"kind": {"one": "content"}.__getitem__}, {"count": {"one": 1}.__getitem__}])
def test_an_error_ends_the_row(event: Event, error: str, settings: Any, recorder: Recorded) -> None:
    last = answered(["one", event], recorder, **settings)
    assert last[semconv.OUTCOME] == "error"
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == error
    assert "private" not in str([span.to_json() for span in recorder.spans()])


@pytest.mark.parametrize("nothing", [None, False, "", 0, {}, []])
def test_an_error_member_without_an_error(nothing: object, recorder: Recorded) -> None:
    last = answered([{"text": "one", "error": nothing}], recorder)
    assert (last[semconv.OUTCOME], last[semconv.TOKENS]) == ("completed", 1)


@pytest.mark.parametrize(
    "end",
    ["[DONE]", {"done": True}, {"text": "two", "done": True}, *((name, "{}") for name in sorted(COMPLETE))],
    ids=str,
)
def test_a_client_that_leaves_after_the_end_has_all(end: Event, recorder: Recorded) -> None:
    assert answered(["one", end, ("ping", "{}")], recorder, whole=False)[semconv.OUTCOME] == "completed"


def test_a_client_that_leaves_before_the_end(recorder: Recorded) -> None:
    assert answered(["one", {"done": True}, "two"], recorder, whole=False)[semconv.OUTCOME] == "cancelled"


# Callbacks.


def test_a_kind_alone_takes_the_size_of_the_known_members() -> None:
    def kind(text: str) -> str:
        return "reasoning"

    assert read({"text": "three"}, kind=kind) == [(REASONING, 5)]
    assert read({"unknown": "three"}, kind=kind) == [(REASONING, 1 << 160)]  # a token
    assert read({"text": "three"}, kind=kind, count=lambda text: 2) == [(REASONING, 2)]


# Forms.


def in_pieces(form: Form, data: bytes, size: int) -> list[Chunk]:
    found = [one for at in range(0, len(data), size) for one in form.feed(data[at : at + size])]
    return found + form.end()


def test_lines_in_any_pieces() -> None:
    data = b"\x1e{}\r\n\n  \n\x1e\nword\nrest"
    for size in range(1, len(data) + 1):
        assert in_pieces(Lines(), data, size) == [Chunk("{}"), Chunk("word"), Chunk("rest")]


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_named_events_in_any_pieces(ends: str) -> None:
    lines = [
        "event: a",
        "data: 1",
        "",
        "data: 2",
        "",
        "event:b",
        "",
        "data: 3",
        "event: c",
        "",
        "event: d" * 99,
        "data: 4",
    ]
    data = ends.join([*lines, "", "data: 5"]).encode()
    for size in range(1, len(data) + 1):
        found = in_pieces(Events(), data, size)
        assert found[:3] == [Chunk("1", "a"), Chunk("2"), Chunk("3", "c")]
        assert [one.text for one in found[3:]] == ["4", "5"]
        assert found[4].name == ""


# The page.

PAGE = Path(__file__).parents[3] / "docs" / "stacks" / "asgi.md"


@pytest.mark.parametrize("name", sorted({*TEXTS, *THOUGHTS, *ARGUMENTS, *ENDS, *COMPLETE, *OTHER_ROLES}))
def test_the_page_has_each_name(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert re.search(rf'[`"]{name}[`"]', page[page.index("### What counts") : page.index("### When")])
