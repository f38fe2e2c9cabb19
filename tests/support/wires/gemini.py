"""Google's `generateContent` and `streamGenerateContent`, of Gemini and of Vertex; as events or as one JSON array.

Source: ai.google.dev/api/generate-content, and the google-genai package. `alt=sse` asks for events, which end in CRLF;
without it the body is a JSON array whose members come one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from support.wires.reply import Token
from support.wires.wire import EVENT_STREAM, PROMPT_TOKENS, EngineRequest, Frame, Json, Wire, event

_CRLF = "\r\n\r\n"


def _as_events(asked: EngineRequest) -> bool:
    return asked.query.get("alt") == "sse"


def _content_type(asked: EngineRequest) -> str:
    return EVENT_STREAM if _as_events(asked) else "application/json; charset=UTF-8"


def _usage(content: int, thoughts: int) -> Json:
    made: Json = {"promptTokenCount": PROMPT_TOKENS}
    if content:
        made["candidatesTokenCount"] = content
    made["totalTokenCount"] = PROMPT_TOKENS + content + thoughts
    made["promptTokensDetails"] = [{"modality": "TEXT", "tokenCount": PROMPT_TOKENS}]
    if thoughts:
        made["thoughtsTokenCount"] = thoughts
    return made


def _chunk(asked: EngineRequest, parts: list[Json], content: int, thoughts: int, finish: str | None = None) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(content, thoughts),
        "modelVersion": asked.model,
        "responseId": "wire",
    }


def _call(asked: EngineRequest) -> Json:
    return {"functionCall": {"name": asked.tool(), "args": json.loads(asked.reply.text("tool"))}}


def _part(token: Token) -> Json:
    return {"text": token.text, "thought": True} if token.kind == "reasoning" else {"text": token.text}


def _chunks(asked: EngineRequest) -> Iterator[tuple[Json, int]]:
    """Yield the chunks and how many tokens each has. The counts run on from chunk to chunk."""
    content = thoughts = 0
    for token in asked.tokens:
        if token.kind == "tool":
            continue
        thoughts += token.kind == "reasoning"
        content += token.kind == "content"
        yield _chunk(asked, [_part(token)], content, thoughts), 1
    if called := asked.count("tool"):  # a function call comes in one piece
        content += called
        yield _chunk(asked, [_call(asked)], content, thoughts), called
    yield _chunk(asked, [{"text": ""}], content, thoughts, "STOP"), 0


def _frames(asked: EngineRequest) -> Iterator[Frame]:
    if _as_events(asked):
        for chunk, tokens in _chunks(asked):
            yield Frame(event(chunk, end=_CRLF), tokens)
        return
    before = "["
    for chunk, tokens in _chunks(asked):
        yield Frame((before + json.dumps(chunk, indent=2)).encode(), tokens)
        before = "\n,\r\n"
    yield Frame(b"\n]")


def _whole(asked: EngineRequest) -> Json:
    parts: list[Json] = []
    if asked.count("reasoning"):
        parts.append({"text": asked.reply.text("reasoning"), "thought": True})
    if asked.count("content"):
        parts.append({"text": asked.reply.text()})
    if asked.count("tool"):
        parts.append(_call(asked))
    return _chunk(asked, parts, asked.count("content", "tool"), asked.count("reasoning"), "STOP")


def _told(code: int, message: str, status: str) -> Json:
    return {"error": {"code": code, "message": message, "status": status}}


def _error(asked: EngineRequest) -> bytes:
    told = _told(503, "The model is overloaded.", "UNAVAILABLE")
    return event(told, end=_CRLF) if _as_events(asked) else b"\n,\r\n" + json.dumps(told, indent=2).encode() + b"\n]"


def _refused(status: int) -> Json:
    names = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
    return _told(status, f"refused with {status}", names.get(status, "INTERNAL"))


WIRES = (
    Wire(
        "gemini",
        re.compile(r".*/models/(?P<model>[^/:]+):(?P<verb>generateContent|streamGenerateContent)"),
        _frames,
        _whole,
        _error,
        _refused,
        streams=lambda asked: asked.groups["verb"] == "streamGenerateContent",
        content_type=_content_type,
    ),
)
"""Vertex serves it under `/v1beta1/projects/P/locations/L/publishers/google/models/M:verb`, which the path fits."""
