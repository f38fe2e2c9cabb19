"""OpenAI chat completions, and the dialects of those who serve the same API: Azure, Groq, Mistral and Together.

Sources: platform.openai.com/docs/api-reference/chat-streaming, and the chunk types of the SDKs (openai, groq,
mistralai, together).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from support.wires.reply import Token
from support.wires.wire import DONE, PROMPT_TOKENS, EngineRequest, Frame, Json, Wire, event, wants_stream

CREATED = 1_750_000_000
Edit = Callable[[Json], None]


def usage(asked: EngineRequest, tokens: int) -> Json:
    """Return the usage of a reply."""
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": asked.count("reasoning"),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def choices_of(asked: EngineRequest) -> int:
    """Return how many choices a request wants."""
    return int(asked.body.get("n") or 1)


def _chunk(asked: EngineRequest, index: int, delta: Json, finish: str | None = None) -> Json:
    made: Json = {
        "id": "chatcmpl-wire",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": asked.model,
        "service_tier": "default",
        "system_fingerprint": "fp_wire",
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        made["usage"] = None
    return made


def _finish(asked: EngineRequest) -> str:
    return "tool_calls" if asked.count("tool") else "stop"


def _tool_opening(asked: EngineRequest) -> Json:
    function = {"name": asked.tool(), "arguments": ""}
    return {"tool_calls": [{"index": 0, "id": "call_wire", "type": "function", "function": function}]}


def _delta(token: Token, reasoning: str = "reasoning_content") -> Json:
    if token.kind == "tool":
        return {"tool_calls": [{"index": 0, "function": {"arguments": token.text}}]}
    return {"content" if token.kind == "content" else reasoning: token.text}


def _frames(asked: EngineRequest) -> Iterator[Frame]:
    choices = range(choices_of(asked))
    for index in choices:
        yield Frame(event(_chunk(asked, index, {"role": "assistant", "content": "", "refusal": None})))
    called = False
    for token in asked.tokens:
        if token.kind == "tool" and not called:
            called = True
            for index in choices:
                yield Frame(event(_chunk(asked, index, _tool_opening(asked))))
        for index in choices:
            finish = _finish(asked) if asked.finishes_with(token) else None
            yield Frame(event(_chunk(asked, index, _delta(token), finish)), index == 0, index > 0)
    for index in choices if not asked.reply.finish_with_last else ():
        yield Frame(event(_chunk(asked, index, {}, _finish(asked))))
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        closing = {**_chunk(asked, 0, {}), "choices": [], "usage": usage(asked, asked.count() * len(choices))}
        yield Frame(event(closing))
    yield DONE


def _azure_frames(asked: EngineRequest) -> Iterator[Frame]:
    filters = {name: {"filtered": False, "severity": "safe"} for name in ("hate", "self_harm", "sexual", "violence")}
    results = [{"prompt_index": 0, "content_filter_results": filters}]
    opening = {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": results}
    yield Frame(event(opening))
    yield from _frames(asked)


def _plain_chunk(asked: EngineRequest, delta: Json, finish: str | None = None, **more: Any) -> Json:
    """Return a chunk as Groq, Mistral and Together write it, who leave out what they have no value for."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    made = {"id": "wire", "object": "chat.completion.chunk", "created": CREATED, "model": asked.model}
    return {**made, "choices": [choice], **more}


def _plain_usage(asked: EngineRequest) -> Json:
    tokens = asked.count()
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
    }


def _whole_tool_call(asked: EngineRequest) -> Json:
    function = {"name": asked.tool(), "arguments": asked.reply.text("tool")}
    return {"index": 0, "id": "call_wire", "type": "function", "function": function}


def _groq_frames(asked: EngineRequest) -> Iterator[Frame]:
    yield Frame(event(_plain_chunk(asked, {"role": "assistant", "content": ""}, x_groq={"id": "req_wire"})))
    for token in asked.tokens:
        if token.kind != "tool":
            yield Frame(event(_plain_chunk(asked, _delta(token, "reasoning"))), tokens=1)
    if asked.count("tool"):
        yield Frame(event(_plain_chunk(asked, {"tool_calls": [_whole_tool_call(asked)]})), tokens=asked.count("tool"))
    told = {"id": "req_wire", "usage": _plain_usage(asked)}
    yield Frame(event(_plain_chunk(asked, {}, _finish(asked), x_groq=told)))
    yield DONE


def _mistral_delta(token: Token) -> Json:
    if token.kind == "content":
        return {"content": token.text}
    return {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": token.text}]}]}


def _mistral_frames(asked: EngineRequest) -> Iterator[Frame]:
    yield Frame(event(_plain_chunk(asked, {"role": "assistant", "content": ""}, p="abcd")))
    for token in asked.tokens:
        if token.kind != "tool":
            yield Frame(event(_plain_chunk(asked, _mistral_delta(token), p="abcd")), tokens=1)
    # A tool call comes in one piece, with the reason of the end and the usage.
    last: Json = {"content": ""}
    if asked.count("tool"):
        last["tool_calls"] = [_whole_tool_call(asked)]
    closing = _plain_chunk(asked, last, _finish(asked), usage=_plain_usage(asked), p="abcd")
    yield Frame(event(closing), tokens=asked.count("tool"))
    yield DONE


def _together_chunk(asked: EngineRequest, delta: Json, **more: Any) -> Json:
    made = _plain_chunk(asked, {"token_id": 1, "role": "assistant", "content": "", "tool_calls": None, **delta}, **more)
    made["choices"][0].update(text=delta.get("content", ""), logprobs=None, seed=None)
    return {"usage": None, **made}


def _together_frames(asked: EngineRequest) -> Iterator[Frame]:
    if asked.count("tool"):
        yield Frame(event(_together_chunk(asked, _tool_opening(asked))))
    for token in asked.tokens:
        yield Frame(event(_together_chunk(asked, _delta(token, "reasoning"))), tokens=1)
    yield Frame(event(_together_chunk(asked, {}, finish=_finish(asked), usage=_plain_usage(asked))))
    yield DONE


def _whole(asked: EngineRequest) -> Json:
    message: Json = {"role": "assistant", "content": asked.reply.text() or None, "refusal": None, "annotations": []}
    if asked.count("reasoning"):
        message["reasoning_content"] = asked.reply.text("reasoning")
    if asked.count("tool"):
        message["tool_calls"] = [_whole_tool_call(asked)]
    choice = {"message": message, "logprobs": None, "finish_reason": _finish(asked)}
    return {
        "id": "chatcmpl-wire",
        "object": "chat.completion",
        "created": CREATED,
        "model": asked.model,
        "choices": [{"index": index, **choice} for index in range(choices_of(asked))],
        "usage": usage(asked, asked.count() * choices_of(asked)),
        "service_tier": "default",
        "system_fingerprint": "fp_wire",
    }


def error(asked: EngineRequest) -> bytes:
    """Return the event that tells of an error in mid-stream."""
    told = {"message": "The server had an error", "type": "server_error", "param": None, "code": None}
    return event({"error": told})


def refused(status: int) -> Json:
    """Return the body of an HTTP error."""
    return {"error": {"message": f"refused with {status}", "type": "wire_error", "param": None, "code": None}}


def _wire(name: str, path: str, frames: Callable[[EngineRequest], Iterator[Frame]]) -> Wire:
    return Wire(name, re.compile(path), frames, _whole, error, refused, wants_stream)


WIRES = (
    _wire("azure", r".*/openai/deployments/(?P<model>[^/]+)/chat/completions", _azure_frames),
    _wire("groq", r".*/groq/openai/v1/chat/completions", _groq_frames),
    _wire("mistral", r".*/mistral/v1/chat/completions", _mistral_frames),
    _wire("together", r".*/together/v1/chat/completions", _together_frames),
    _wire("openai-chat", r".*/chat/completions", _frames),
)
"""The first that fits a path answers. Groq, Mistral and Together serve the path of OpenAI under hosts of their own,
which a name in the path stands for here."""
