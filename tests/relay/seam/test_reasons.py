"""Whether a reply is whole: finish reasons that are none or come too early, `[DONE]` alone, and stated errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.relay.fake_model import Json
from support.relay.resuming import owned

from otel_llm.relay.seam.chunk import parse
from otel_llm.relay.seam.leg import Leg
from otel_llm.relay.seam.reply import Reply
from otel_llm.relay.seam.stated_error import stated_error

CHAT: Json = {"model": "fake", "stream": True, "messages": [{"role": "user", "content": "x"}]}
DONE = b"data: [DONE]\n\n"


def line(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(text: str | None, finish: Any = None, index: int = 0, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return line({"id": "c", "choices": [{"index": index, "delta": delta, "finish_reason": finish, **more}]})


def taken(reply: Reply, leg: Leg, *data: bytes) -> bytes:
    return b"".join(reply.take(leg, piece) for part in data for piece in leg.feed(part))


@pytest.mark.parametrize("kind", ["openai", "vllm", "sglang"])
@pytest.mark.parametrize("none", ["", "null", "None", "finish_reason_unspecified", None, 0, False, []])
def test_a_reason_that_is_none_finishes_nothing(none: Any, kind: str) -> None:
    reply = Reply(owned(CHAT))
    leg = Leg(reply, kind)
    parts = [chunk("a", none), chunk("b", none)]
    assert taken(reply, leg, *parts) == b"".join(parts)
    assert not reply.over
    (piece,) = leg.feed(DONE)
    assert piece.done_without_finish is (kind != "openai")
    reply.take(leg, piece)
    assert (reply.finish is not None) is (kind == "openai")


def test_text_behind_a_reason_shows_that_the_choice_goes_on() -> None:
    reply = Reply(owned(CHAT))
    leg = Leg(reply, "vllm")
    parts = [chunk("a", "stop"), chunk("b"), chunk(None, "length")]
    taken(reply, leg, parts[0])
    assert reply.finish == "stop"
    assert taken(reply, leg, parts[1]) == parts[1]
    assert reply.finish is None
    assert leg.feed(DONE)[0].done_without_finish
    assert taken(reply, leg, parts[2]) == parts[2]
    assert reply.finish == "length"


def test_a_reason_in_each_chunk_ends_with_the_last() -> None:
    reply = Reply(owned({**CHAT, "n": 2}))
    leg = Leg(reply, "openai")
    parts = [chunk(text, "stop", index) for text in "ab" for index in (0, 1)]
    assert taken(reply, leg, *parts, DONE) == b"".join(parts) + DONE
    assert reply.finish == "stop"


@pytest.mark.parametrize("reason", ["abort", "error", "timeout", "Error"])
def test_a_failed_reason_completes_nothing(reason: str) -> None:
    reply = Reply(owned(CHAT))
    (piece,) = Leg(reply, "vllm").feed(chunk(None, reason))
    assert (piece.aborted, piece.finish, piece.ends) == (reason.lower(), None, None)


def test_an_error_completes_no_choice_whatever_its_chunk_states() -> None:
    error = {"message": "m", "code": 500}
    for value in (
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "error": error},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "error": error}]},
    ):
        (piece,) = Leg(Reply(owned(CHAT)), "openai").feed(line(value))
        assert piece.error == ("500", False, "m")
        assert (piece.finish, piece.ends) == (None, None)


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
    leg = Leg(reply, "vllm")
    error = line({"error": {"code": 400, "type": "BadRequestError", "message": "m"}})
    assert taken(reply, leg, chunk("a"), error, DONE) == chunk("a") + error + DONE
    assert (reply.over, reply.finish, reply.refused) == (True, None, "BadRequestError")


def test_an_error_of_the_client_behind_the_finish_refuses_nothing() -> None:
    reply = Reply(owned(CHAT))
    taken(reply, Leg(reply, "openai"), chunk("a", "stop"), line({"error": {"code": 400}}))
    assert (reply.finish, reply.refused) == ("stop", None)
