"""Anthropic's messages API.

Source: docs.anthropic.com, "Streaming messages", and the event types of the anthropic package.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from support.wires.reply import Kind
from support.wires.wire import PROMPT_TOKENS, EngineRequest, Frame, Json, Wire, event, wants_stream

_DELTAS: dict[Kind, tuple[str, str]] = {
    "content": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool": ("input_json_delta", "partial_json"),
}

_WHERE: dict[Kind, str] = {"content": "text", "reasoning": "thinking", "tool": "input"}


def _event(name: str, tokens: int = 0, **members: Any) -> Frame:
    return Frame(event({"type": name, **members}, name), tokens)


def _opened(asked: EngineRequest, kind: Kind) -> Json:
    if kind == "content":
        return {"type": "text", "text": ""}
    if kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": "toolu_wire", "name": asked.tool(), "input": {}}


def _usage(output_tokens: int) -> Json:
    return {
        "input_tokens": PROMPT_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _message(asked: EngineRequest, content: list[Json], stop: str | None, output_tokens: int) -> Json:
    return {
        "id": "msg_wire",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": _usage(output_tokens),
    }


def _stop(asked: EngineRequest) -> str:
    return "tool_use" if asked.count("tool") else "end_turn"


def _frames(asked: EngineRequest) -> Iterator[Frame]:
    yield _event("message_start", message=_message(asked, [], None, 1))
    for index, (kind, tokens) in enumerate(itertools.groupby(asked.tokens, key=lambda token: token.kind)):
        yield _event("content_block_start", index=index, content_block=_opened(asked, kind))
        if index == 0:
            yield _event("ping")
        name, where = _DELTAS[kind]
        if kind == "tool":  # the API begins a tool's input with an empty piece
            yield _event("content_block_delta", index=index, delta={"type": name, where: ""})
        for token in tokens:
            yield _event("content_block_delta", tokens=1, index=index, delta={"type": name, where: token.text})
        if kind == "reasoning":
            signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
            yield _event("content_block_delta", index=index, delta=signed)
        yield _event("content_block_stop", index=index)
    closing = {"stop_reason": _stop(asked), "stop_sequence": None}
    yield _event("message_delta", delta=closing, usage={"output_tokens": asked.count()})
    yield _event("message_stop")


def _whole(asked: EngineRequest) -> Json:
    content = []
    for kind, tokens in itertools.groupby(asked.tokens, key=lambda token: token.kind):
        text = "".join(token.text for token in tokens)
        block = _opened(asked, kind)
        block[_WHERE[kind]] = json.loads(text) if kind == "tool" else text
        content.append(block)
    return _message(asked, content, _stop(asked), asked.count())


def _error(asked: EngineRequest) -> bytes:
    return event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")


def _refused(status: int) -> Json:
    return {"type": "error", "error": {"type": "api_error", "message": f"refused with {status}"}}


WIRES = (Wire("anthropic", re.compile(r".*/messages"), _frames, _whole, _error, _refused, wants_stream),)
