"""Whether a reply is whole: finish reasons that are none or come too early, `[DONE]` alone, and stated errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.relay.fake_model import Json
from support.relay.resuming import owned

from otel_llm.relay.splice.chunk import parse
from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.stated_error import stated_error
from otel_llm.relay.splice.upstream_response import UpstreamResponse

CHAT: Json = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "x"}]}
DONE = b"data: [DONE]\n\n"


def event_line(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(text: str | None, finish: Any = None, index: int = 0, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return event_line({"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish, **more}]})


def taken(reply: Reply, upstream_response: UpstreamResponse, *data: bytes) -> bytes:
    return b"".join(reply.take(upstream_response, line) for part in data for line in upstream_response.feed(part))


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang"])
@pytest.mark.parametrize("none", ["", "null", "None", "finish_reason_unspecified", None, 0, False, []])
def test_a_reason_that_is_none_finishes_nothing(none: Any, kind: str) -> None:
    reply = Reply(owned(CHAT))
    upstream_response = UpstreamResponse(reply, kind)
    parts = [chunk("a", none), chunk("b", none)]
    assert taken(reply, upstream_response, *parts) == b"".join(parts)
    assert not reply.over
    (line,) = upstream_response.feed(DONE)
    assert line.done_without_finish is (kind != "openai")
    reply.take(upstream_response, line)
    assert (reply.finish is not None) is (kind == "openai")


def test_text_behind_a_reason_shows_that_the_choice_goes_on() -> None:
    reply = Reply(owned(CHAT))
    upstream_response = UpstreamResponse(reply, "vllm")
    parts = [chunk("a", "stop"), chunk("b"), chunk(None, "length")]
    taken(reply, upstream_response, parts[0])
    assert reply.finish == "stop"
    assert taken(reply, upstream_response, parts[1]) == parts[1]
    assert reply.finish is None
    assert upstream_response.feed(DONE)[0].done_without_finish
    assert taken(reply, upstream_response, parts[2]) == parts[2]
    assert reply.finish == "length"


def test_a_reason_in_each_chunk_ends_with_the_last() -> None:
    reply = Reply(owned({**CHAT, "n": 2}))
    upstream_response = UpstreamResponse(reply, "openai")
    parts = [chunk(text, "stop", index) for text in "ab" for index in (0, 1)]
    assert taken(reply, upstream_response, *parts, DONE) == b"".join(parts) + DONE
    assert reply.finish == "stop"


@pytest.mark.parametrize("reason", ["abort", "error", "timeout", "Error"])
def test_a_failed_reason_completes_nothing(reason: str) -> None:
    reply = Reply(owned(CHAT))
    (line,) = UpstreamResponse(reply, "vllm").feed(chunk(None, reason))
    assert (line.aborted, line.finish, line.ends) == (reason.lower(), None, None)


def test_an_error_completes_no_choice_whatever_its_chunk_states() -> None:
    error = {"message": "m", "code": 500}
    for value in (
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "error": error},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "error": error}]},
    ):
        (line,) = UpstreamResponse(Reply(owned(CHAT)), "openai").feed(event_line(value))
        assert line.error == ("500", False, "m")
        assert (line.finish, line.ends) == (None, None)


@pytest.mark.parametrize(
    "value",
    [
        {"error": {"code": 400, "message": "m"}},
        {"error": {"message": "m", "type": "BadRequestError", "param": None, "code": 400}},
        {"object": "error", "message": "m", "type": "BadRequestError", "param": None, "code": 400},
        {"object": "error", "message": "m", "type": "BadRequestError"},
        {"error": {"object": "error", "message": "m", "type": "BAD_REQUEST", "param": None, "code": 413}},
        {"error": {"message": "m", "type": "invalid_request_error", "code": "context_length_exceeded"}},
        {"error": {"message": "m", "type": None, "code": "content_filter"}},
        {"error": {"message": "m", "type": "None", "code": "400"}},
        {"error": {"message": "m", "code": 404, "type": "NotFoundError"}},
        {"error": {"message": "m", "status": "INVALID_ARGUMENT"}},
        {"error": "m", "error_type": "validation"},
        {"error": {"message": "m", "type": "litellm.BadRequestError", "code": None}},
        {"error": "m", "status_code": 422},
        {"type": "error", "error": {"type": "authentication_error", "message": "m"}},
    ],
)
def test_errors_of_the_client(value: Json) -> None:
    found = stated_error(value)
    assert found is not None
    assert (found.clients, found.message) == (True, "m")


@pytest.mark.parametrize(
    "value",
    [
        {"error": {"message": "m", "type": "InternalServerError", "code": 500}},
        {"error": {"message": "m", "type": "BadRequestError", "code": 503}},
        {"error": {"message": "m", "type": "invalid_request_error", "code": 429}},
        {"error": {"message": "m", "code": 408}},
        {"error": {"message": "m", "code": 4000, "type": "x"}},
        {"error": {"message": "m", "type": "rate_limit_error"}},
        {"error": {"message": "m", "type": "overloaded_error"}},
        {"error": {"message": "m"}},
        {"error": "m"},
        {"object": "error", "message": "m"},
        {"error": {"message": "m", "code": True, "type": ["x"]}},
    ],
)
def test_errors_of_the_server(value: Json) -> None:
    found = stated_error(value)
    assert found is not None
    assert (found.clients, found.message) == (False, "m")


@pytest.mark.parametrize(
    "value", [{}, {"error": None}, {"error": {}}, {"error": ""}, {"error": False}, {"choices": []}]
)
def test_what_states_no_error(value: Json) -> None:
    assert stated_error(value) is None
    found = parse(json.dumps(value).encode())
    assert found is not None
    assert found.error is None


def test_a_reply_is_over_with_the_clients_error() -> None:
    reply = Reply(owned(CHAT))
    upstream_response = UpstreamResponse(reply, "vllm")
    error = event_line({"error": {"code": 400, "type": "BadRequestError", "message": "m"}})
    assert taken(reply, upstream_response, chunk("a"), error, DONE) == chunk("a") + error + DONE
    assert (reply.over, reply.finish, reply.refused) == (True, None, "BadRequestError")


def test_an_error_of_the_client_behind_the_finish_refuses_nothing() -> None:
    reply = Reply(owned(CHAT))
    taken(reply, UpstreamResponse(reply, "openai"), chunk("a", "stop"), event_line({"error": {"code": 400}}))
    assert (reply.finish, reply.refused) == ("stop", None)
