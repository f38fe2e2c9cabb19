"""Amazon Bedrock's streams as bytes: `application/vnd.amazon.eventstream`, checksums included.

    frames(kind, tokens)        the messages of a whole reply, each with at most one token; an iterator of bytes
    error(kind)                 the message that ends a reply which fails in mid-stream
    PATHS                       how a request's path ends, to the kind `converse`; a request to invoke a model has the
                                kind of the model's family, one of `FAMILIES`

A server sends them with the content type `CONTENT_TYPE`. Sources: "Event stream encoding" of the AWS Transcribe
developer guide for the frames, botocore's model of `bedrock-runtime` for the events.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CONTENT_TYPE = "application/vnd.amazon.eventstream"
PATHS: Mapping[str, str] = {"/converse-stream": "converse", "/invoke-with-response-stream": "invoke"}
STRING = 7
"""Code of a header's type."""
METRICS = "amazon-bedrock-invocationMetrics"
PROMPT_TOKENS = 7

Json = dict[str, Any]


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return one message: prelude with its CRC, headers, payload, CRC of all."""
    head = b"".join(
        struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), STRING, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    unsigned = prelude + struct.pack("!I", binascii.crc32(prelude)) + head + payload
    return unsigned + struct.pack("!I", binascii.crc32(unsigned))


def event(name: str, data: Json) -> bytes:
    """Return an event of an operation."""
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return message(headers, json.dumps(data).encode())


def chunk(data: Json) -> bytes:
    """Return a chunk of a model that was invoked."""
    return event("chunk", {"bytes": base64.b64encode(json.dumps(data).encode()).decode()})


def error(name: str = "modelStreamErrorException") -> bytes:
    """Return the exception that a reply ends with which fails in mid-stream."""
    headers = {":exception-type": name, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, json.dumps({"message": "the model failed"}).encode())


def text(word: str) -> Json:
    """Return the Converse event of a piece of text."""
    return {"delta": {"text": word}, "contentBlockIndex": 0}


def frames(kind: str, tokens: Sequence[str]) -> Iterator[bytes]:
    """Yield the messages of a reply of `kind`, one token each but for the framing."""
    yield from before(kind)
    yield from (token(kind, word) for word in tokens)
    yield from after(kind, len(tokens))


def before(kind: str) -> list[bytes]:
    """Return the framing before the first token."""
    if kind == "converse":
        return [event("messageStart", {"role": "assistant"})]
    return [chunk(data) for data in FAMILIES[kind][0]]


def token(kind: str, word: str) -> bytes:
    """Return the message of one token."""
    return event("contentBlockDelta", text(word)) if kind == "converse" else chunk(FAMILIES[kind][1](word))


def after(kind: str, tokens: int) -> list[bytes]:
    """Return how a reply of so many tokens ends that is complete."""
    if kind == "converse":
        usage = {"inputTokens": PROMPT_TOKENS, "outputTokens": tokens, "totalTokens": PROMPT_TOKENS + tokens}
        return [
            event("contentBlockStop", {"contentBlockIndex": 0}),
            event("messageStop", {"stopReason": "end_turn"}),
            event("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
        ]
    metrics = {
        "inputTokenCount": PROMPT_TOKENS, "outputTokenCount": tokens, "invocationLatency": 9, "firstByteLatency": 1
    }  # fmt: skip
    *framing, last = FAMILIES[kind][2](tokens)
    return [*(chunk(data) for data in framing), chunk({**last, METRICS: metrics})]


FAMILIES: Mapping[str, tuple[list[Json], Any, Any]] = {
    "anthropic": (
        [
            {"type": "message_start", "message": {"id": "m", "model": "served", "usage": {"input_tokens": 7}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ],
        lambda word: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}},
        lambda tokens: [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": tokens}},
            {"type": "message_stop"},
        ],
    ),
    "nova": (
        [{"messageStart": {"role": "assistant"}}],
        lambda word: {"contentBlockDelta": text(word)},
        lambda tokens: [
            {"contentBlockStop": {"contentBlockIndex": 0}},
            {"messageStop": {"stopReason": "end_turn"}},
            {"metadata": {"usage": {"inputTokens": PROMPT_TOKENS, "outputTokens": tokens}}},
        ],
    ),
    "llama": (
        [],
        lambda word: {"generation": word, "prompt_token_count": None, "generation_token_count": 1, "stop_reason": None},
        lambda _: [{"generation": "", "generation_token_count": 1, "stop_reason": "stop"}],
    ),
    "mistral": (
        [],
        lambda word: {"outputs": [{"text": word, "stop_reason": None}]},
        lambda _: [{"outputs": [{"text": "", "stop_reason": "stop"}]}],
    ),
    "mistral chat": (
        [],
        lambda word: {"choices": [{"index": 0, "message": {"role": "assistant", "content": word}}]},
        lambda _: [{"choices": [{"index": 0, "message": {"content": ""}, "stop_reason": "stop"}]}],
    ),
    "openai": (
        [{"id": "c", "model": "served", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}],
        lambda word: {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]},
        lambda _: [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}],
    ),
    "titan": (
        [],
        lambda word: {"outputText": word, "index": 0, "completionReason": None},
        lambda _: [{"outputText": "", "completionReason": "FINISH"}],
    ),
    "cohere": (
        [{"is_finished": False, "event_type": "stream-start", "generation_id": "g"}],
        lambda word: {"is_finished": False, "event_type": "text-generation", "text": word},
        lambda _: [{"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE"}],
    ),
}
"""Model family to its chunks: before the first token, of one token, and at the end of so many."""
