"""What a hostile or broken provider sends to an application: chunks of chat completions, by the name of the attack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HUGE = 10**12
CHOICES = 2_000
MEBIBYTE = 2**20


def event(**fields: Any) -> bytes:
    """Return one chunk as a server-sent event."""
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], **fields}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def content(text: str, index: int = 0, **fields: Any) -> bytes:
    """Return a chunk with text."""
    return event(choices=[{"index": index, "delta": {"content": text}, "finish_reason": None}], **fields)


def _usage(count: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}}


def _indexes(number: int) -> bytes:
    choices = [{"index": number * CHOICES + at, "delta": {"content": "a"}} for at in range(CHOICES)]
    return event(choices=choices)


def _tools(number: int) -> bytes:
    calls = [{"index": number * CHOICES + at, "function": {"name": "f", "arguments": "{"}} for at in range(CHOICES)]
    return event(choices=[{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}])


REPLIES: dict[str, Callable[[int], bytes]] = {
    "usage of 10^12": lambda number: content("a", **_usage(HUGE + number)),
    "usage that falls": lambda number: content("a", **_usage(-HUGE - number)),
    "ids of 10^12": lambda _: event(choices=[{"index": 0, "delta": {"content": "a"}, "token_ids": [HUGE] * 20_000}]),
    "thousands of choices": _indexes,
    "thousands of tool calls": _tools,
    "a character a chunk": lambda _: content("a"),
    "1 MiB a chunk": lambda _: content("word " * (MEBIBYTE // 5)),
    "1 MiB of Chinese": lambda _: content("\u8bcd" * (MEBIBYTE // 6)),
    "comments": lambda _: b": keep-alive\n\n" * 100,
    "open think tags": lambda _: content("<think>" * 100),
    "a new model a chunk": lambda number: content("a", model=f"model-{number}"),
    "broken UTF-8": lambda _: content("a").replace(b'"a"', b'"\xff\xfe' + b"\xed\xa0\x80" * 100 + b'"'),
}
"""The chunk of a number, which counts from 0."""
