"""Bodies of streamed replies, as bytes, for clients that read them raw."""

from __future__ import annotations

import json
from typing import Any

from support.sse_server import chunk, usage

QUESTION: dict[str, Any] = {"model": "m", "messages": [], "stream": True}
"""The request of a chat completion; `served` is the model that answers."""
DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any], end: str = "\n\n") -> bytes:
    return f"data: {json.dumps(data)}{end}".encode()


ODD = ('"index": 1', "\n\ndata: x", '\u2028"id":', '"delta":{')
"""Texts that look like other parts of a body: short, so that a chunk counts as one token."""


def word(number: int, index: int = 0) -> bytes:
    return event(chunk({"content": ODD[number % len(ODD)]}, index=index))


def chat(words: int = 4, choices: int = 1) -> list[bytes]:
    """Return a chat completion of so many words in each choice, with its usage, piece by piece."""
    return [
        b": keep-alive\n\n",
        *[event(chunk({"role": "assistant", "content": ""}, index=index)) for index in range(choices)],
        *[word(number, index) for number in range(words) for index in range(choices)],
        *[event(chunk(finish="stop", index=index)) for index in range(choices)],
        event(usage(words * choices)),
        DONE,
    ]


def text(words: int = 4) -> list[bytes]:
    """Return a text completion."""
    made = [{"index": 0, "text": f"w{number} ", "finish_reason": None} for number in range(words)]
    made.append({"index": 0, "text": "", "finish_reason": "stop"})
    return [*[event({"id": "cmpl-1", "model": "served", "choices": [one]}) for one in made], DONE]


def responses(words: int = 4) -> list[bytes]:
    """Return a reply of the responses API, which has no end marker of its own."""
    reply = {"id": "resp-1", "model": "served", "usage": {"input_tokens": 7, "output_tokens": words}}
    made: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "resp-1", "model": "served"}}]
    made += [{"type": "response.output_text.delta", "delta": f"w{number} "} for number in range(words)]
    made.append({"type": "response.completed", "response": reply})
    return [f"event: {one['type']}\r\n".encode() + event(one, "\r\n\r\n") for one in made]


def messages(words: int = 4) -> list[bytes]:
    """Return a reply of Anthropic's messages API."""
    made: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg-1", "model": "served", "usage": {"input_tokens": 7}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    made += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f"w{number} "}}
        for number in range(words)
    ]
    made += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": words}},
        {"type": "message_stop"},
    ]
    return [f"event: {one['type']}\n".encode() + event(one) for one in made]
