"""OpenAI's responses API.

Source: platform.openai.com/docs/api-reference/responses-streaming, and the event types of the openai package.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from support.wires.openai_chat import CREATED, refused
from support.wires.reply import Kind, Token
from support.wires.wire import PROMPT_TOKENS, EngineRequest, Frame, Json, Wire, event, wants_stream

_ITEMS: dict[Kind, str] = {"content": "msg_wire", "reasoning": "rs_wire", "tool": "fc_wire"}
_DELTAS: dict[Kind, str] = {
    "content": "response.output_text.delta",
    "reasoning": "response.reasoning_summary_text.delta",
    "tool": "response.function_call_arguments.delta",
}


def _usage(asked: EngineRequest) -> Json:
    return {
        "input_tokens": PROMPT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": asked.count(),
        "output_tokens_details": {"reasoning_tokens": asked.count("reasoning")},
        "total_tokens": PROMPT_TOKENS + asked.count(),
    }


def _response(asked: EngineRequest, status: str, output: Sequence[Json] = (), usage: Json | None = None) -> Json:
    return {
        "id": "resp_wire",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": asked.model,
        "output": list(output),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage,
        "user": None,
        "metadata": {},
    }


def _part(kind: Kind, text: str) -> Json:
    if kind == "content":
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    return {"type": "summary_text", "text": text}


def _item(asked: EngineRequest, kind: Kind, text: str | None) -> Json:
    """Return an item of the output; `text` None is one that only begins."""
    status = "in_progress" if text is None else "completed"
    made: Json = {"id": _ITEMS[kind]}
    if kind == "content":
        content = [] if text is None else [_part(kind, text)]
        return {**made, "type": "message", "status": status, "content": content, "role": "assistant"}
    if kind == "reasoning":
        return {**made, "type": "reasoning", "summary": [] if text is None else [_part(kind, text)]}
    called = {"arguments": text or "", "call_id": "call_wire", "name": asked.tool()}
    return {**made, "type": "function_call", "status": status, **called}


class _Events:
    """Numbers the events of one reply."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def __call__(self, kind: str, /, tokens: int = 0, **members: Any) -> Frame:
        return Frame(event({"type": kind, "sequence_number": next(self._numbers), **members}, kind), tokens)


def _item_frames(
    asked: EngineRequest, events: _Events, at: int, kind: Kind, tokens: Sequence[Token]
) -> Iterator[Frame]:
    text = "".join(token.text for token in tokens)
    where: Json = {"item_id": _ITEMS[kind], "output_index": at}
    part = {"content": "response.content_part", "reasoning": "response.reasoning_summary_part"}.get(kind)
    yield events("response.output_item.added", output_index=at, item=_item(asked, kind, None))
    if kind != "tool":
        where["content_index" if kind == "content" else "summary_index"] = 0
        yield events(f"{part}.added", **where, part=_part(kind, ""))
    logprobs: Json = {"logprobs": []} if kind == "content" else {}
    for token in tokens:
        yield events(_DELTAS[kind], tokens=1, **where, delta=token.text, **logprobs)
    done: Json = {"arguments": text, "name": asked.tool()} if kind == "tool" else {"text": text}
    yield events(_DELTAS[kind].replace(".delta", ".done"), **where, **done, **logprobs)
    if kind != "tool":
        yield events(f"{part}.done", **where, part=_part(kind, text))
    yield events("response.output_item.done", output_index=at, item=_item(asked, kind, text))


def _output(asked: EngineRequest) -> list[Json]:
    groups = itertools.groupby(asked.tokens, key=lambda token: token.kind)
    return [_item(asked, kind, "".join(token.text for token in tokens)) for kind, tokens in groups]


def _frames(asked: EngineRequest) -> Iterator[Frame]:
    events = _Events()
    yield events("response.created", response=_response(asked, "in_progress"))
    yield events("response.in_progress", response=_response(asked, "in_progress"))
    for at, (kind, tokens) in enumerate(itertools.groupby(asked.tokens, key=lambda token: token.kind)):
        yield from _item_frames(asked, events, at, kind, list(tokens))
    yield events("response.completed", response=_response(asked, "completed", _output(asked), _usage(asked)))


def _whole(asked: EngineRequest) -> Json:
    return _response(asked, "completed", _output(asked), _usage(asked))


def _error(asked: EngineRequest) -> bytes:
    told = {"code": "server_error", "message": "The server had an error", "param": None}
    return event({"type": "error", "sequence_number": len(asked.tokens), **told}, "error")


WIRES = (Wire("openai-responses", re.compile(r".*/responses"), _frames, _whole, _error, refused, wants_stream),)
