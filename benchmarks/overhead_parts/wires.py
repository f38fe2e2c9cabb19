"""What the servers of each API put on the wire: a frame that bears no text, the tokens one a part, and the end."""

from __future__ import annotations

import binascii
import json
import struct
from typing import Any

Json = dict[str, Any]
TEXTLESS = 1
"""Parts before the first token."""
WORDS = (" the", " reader", " does", " not", " wait", " for", " all", " of", " it", ",", " and", " reads", " on")
"""Texts as long as tokens are."""


def word(number: int) -> str:
    """Return the text of a token."""
    return WORDS[number % len(WORDS)]


def _event(data: Json, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(data).encode() + b"\n\n"


def chat(tokens: int) -> list[bytes]:
    """Return a streamed chat completion of OpenAI's API, usage at its end."""

    def chunk(delta: Json, finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**envelope, "choices": [choice], **more})

    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": tokens + 7}
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": word(i)}) for i in range(tokens)),
        chunk({}, "stop"),
        _event({**envelope, "choices": [], "usage": usage}),
        b"data: [DONE]\n\n",
    ]


def responses(tokens: int) -> list[bytes]:
    """Return a streamed response of OpenAI's responses API."""
    base: Json = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress"}
    base |= {"output": [], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    usage: Json = {"input_tokens": 7, "output_tokens": tokens, "total_tokens": tokens + 7}
    usage["input_tokens_details"] = {"cached_tokens": 0, "cache_write_tokens": 0}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}

    def event(kind: str, number: int, **more: Any) -> bytes:
        return _event({"type": kind, "sequence_number": number, **more}, kind)

    return [
        event("response.created", 0, response=base),
        *(event("response.output_text.delta", 1 + i, delta=word(i), logprobs=[], **place) for i in range(tokens)),
        event("response.completed", tokens + 1, response={**base, "status": "completed", "usage": usage}),
    ]


def messages(tokens: int) -> list[bytes]:
    """Return a streamed message of Anthropic's API."""
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 1}}

    def event(kind: str, **more: Any) -> bytes:
        return _event({"type": kind, **more}, kind)

    start = event("message_start", message=message)
    start += event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    return [
        start,
        *(event("content_block_delta", index=0, delta={"type": "text_delta", "text": word(i)}) for i in range(tokens)),
        event("content_block_stop", index=0)
        + event(
            "message_delta",
            delta={"stop_reason": "end_turn", "stop_sequence": None},
            usage={"output_tokens": tokens},
        )
        + event("message_stop"),
    ]


def converse(tokens: int) -> list[bytes]:
    """Return a reply of Bedrock's ConverseStream, in frames of its event stream."""

    def event(kind: str, data: Json) -> bytes:
        head = b"".join(
            struct.pack(f"!B{len(name)}sBH", len(name), name, 7, len(value)) + value
            for name, value in ((b":event-type", kind.encode()), (b":message-type", b"event"))
        )
        payload = json.dumps(data).encode()
        prelude = struct.pack("!II", len(head) + len(payload) + 16, len(head))
        unsigned = prelude + struct.pack("!I", binascii.crc32(prelude)) + head + payload
        return unsigned + struct.pack("!I", binascii.crc32(unsigned))

    usage = {"inputTokens": 7, "outputTokens": tokens, "totalTokens": tokens + 7}
    return [
        event("messageStart", {"role": "assistant"}),
        *(event("contentBlockDelta", {"delta": {"text": word(i)}, "contentBlockIndex": 0}) for i in range(tokens)),
        event("messageStop", {"stopReason": "end_turn"})
        + event("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
    ]
