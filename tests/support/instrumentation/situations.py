"""What servers in the wild send: one table of situations, each in the chunks of every API that can have it.

A situation changes the chunks of a reply, or how they stand on the wire. The reply is `WORDS` words, a chunk each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]
Chunk = tuple[str, Json]
"""The name of an event, "" for none, and its data."""

WORDS: Final = 4
BOM: Final = b"\xef\xbb\xbf"
DONE: Final = b"data: [DONE]\n\n"
EVENTS: Final = {"Content-Type": "text/event-stream"}


class Chat:
    """OpenAI's chat completions."""

    path = "/v1/chat/completions"
    asks: Json = {"model": "m", "messages": [], "stream": True}  # noqa: RUF012
    done = DONE
    """What ends a body, b"" if the last event does."""

    def head(self) -> list[Chunk]:
        return [("", self._chunk({"role": "assistant", "content": ""}))]

    def word(self, number: int, reason: object = None) -> Chunk:
        return "", self._chunk({"content": f"w{number} "}, reason)

    def end(self, reason: object = "stop") -> list[Chunk]:
        return [("", self._chunk({}, reason))]

    def error(self) -> Chunk:
        return "", {**self._chunk({}, "error"), "error": {"code": 502, "message": "gone"}}

    def _chunk(self, delta: Json, reason: object = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "served", "choices": [choice]}


class Responses:
    """OpenAI's responses."""

    path = "/v1/responses"
    asks: Json = {"model": "m", "input": "hi", "stream": True}  # noqa: RUF012
    done = b""

    def head(self) -> list[Chunk]:
        return [self._event("response.created", response=self._response("in_progress"))]

    def word(self, number: int, reason: object = None) -> Chunk:
        more = {"item_id": "i", "output_index": 0, "content_index": 0, "logprobs": []}
        return self._event("response.output_text.delta", delta=f"w{number} ", **more)

    def end(self, reason: object = "stop") -> list[Chunk]:
        if reason is None:
            return []
        return [self._event("response.completed", response=self._response("completed"))]

    def error(self) -> Chunk:
        failed = {**self._response("failed"), "error": {"code": "server_error", "message": "gone"}}
        return self._event("response.failed", response=failed)

    @staticmethod
    def _event(name: str, **more: object) -> Chunk:
        return name, {"type": name, "sequence_number": 1, **more}

    @staticmethod
    def _response(status: str) -> Json:
        return {
            "id": "c1",
            "object": "response",
            "created_at": 1,
            "model": "served",
            "status": status,
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }


class Messages:
    """Anthropic's messages."""

    path = "/v1/messages"
    asks: Json = {"model": "m", "max_tokens": 99, "messages": [], "stream": True}  # noqa: RUF012
    done = b""

    def head(self) -> list[Chunk]:
        message = {"id": "c1", "type": "message", "role": "assistant", "model": "served", "content": []}
        more = {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        block = {"type": "text", "text": ""}
        return [
            self._event("message_start", message={**message, **more}),
            self._event("content_block_start", index=0, content_block=block),
        ]

    def word(self, number: int, reason: object = None) -> Chunk:
        return self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": f"w{number} "})

    def end(self, reason: object = "end_turn") -> list[Chunk]:
        delta = {"stop_reason": reason, "stop_sequence": None}
        found = [self._event("content_block_stop", index=0)]
        if reason is None:
            return found
        found.append(self._event("message_delta", delta=delta, usage={"output_tokens": WORDS}))
        return [*found, self._event("message_stop")]

    def error(self) -> Chunk:
        return self._event("error", error={"type": "overloaded_error", "message": "gone"})

    @staticmethod
    def _event(name: str, **more: object) -> Chunk:
        return name, {"type": name, **more}


class Gemini:
    """Gemini's streamGenerateContent, as events."""

    path = "/v1beta/models/m:streamGenerateContent?alt=sse"
    asks: Json = {"contents": [{"parts": [{"text": "hi"}]}]}  # noqa: RUF012
    done = b""

    def head(self) -> list[Chunk]:
        return []

    def word(self, number: int, reason: object = None) -> Chunk:
        candidate: Json = {"index": 0, "content": {"role": "model", "parts": [{"text": f"w{number} "}]}}
        if reason is not None:
            candidate["finishReason"] = reason
        return "", {"candidates": [candidate], "responseId": "c1", "modelVersion": "served"}

    def end(self, reason: object = "STOP") -> list[Chunk]:
        candidates = [{"index": 0, "content": {}, "finishReason": reason}]
        return [] if reason is None else [("", {"candidates": candidates, "responseId": "c1"})]

    def error(self) -> Chunk:
        return "", {"error": {"code": 503, "message": "gone", "status": "UNAVAILABLE"}}


Api = Chat | Responses | Messages | Gemini
CHAT, RESPONSES, MESSAGES, GEMINI = Chat(), Responses(), Messages(), Gemini()
APIS: Final[Mapping[str, Api]] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES, "gemini": GEMINI}


def words(api: Api, reason: object = None) -> list[Chunk]:
    return [api.word(number, reason) for number in range(WORDS)]


def whole(api: Api) -> list[Chunk]:
    return [*api.head(), *words(api), *api.end()]


def framed(chunks: Iterable[Chunk], end: bytes = b"\n") -> list[bytes]:
    """Return events of one line of data each."""
    return [(b"event: " + name.encode() + end if name else b"") + data_line(data) + end * 2 for name, data in chunks]


def data_line(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode()


def several_lines(chunks: Iterable[Chunk]) -> list[bytes]:
    """Return events whose JSON has a data line for each of its own lines."""
    found = []
    for name, data in chunks:
        lines = [b"data: " + line for line in json.dumps(data, indent=1).encode().splitlines()]
        found.append(b"\n".join([*([b"event: " + name.encode()] if name else []), *lines]) + b"\n\n")
    return found


@dataclass(frozen=True)
class Situation:
    """One way to send a reply.

    `body` returns its pieces. `tokens`: those read; `outcome`: how it ends. `sdks`: the real SDKs read it like clients
    that read lines.
    """

    body: Callable[[Api], Sequence[bytes]]
    headers: Mapping[str, str] = field(default_factory=lambda: EVENTS)
    outcome: str = "completed"
    tokens: int = WORDS
    apis: Sequence[str] = tuple(APIS)
    sdks: bool = True


def _ended(chunks: Callable[[Api], Iterable[Chunk]]) -> Callable[[Api], list[bytes]]:
    return lambda api: [*framed(chunks(api)), *([api.done] if api.done else [])]


def _bytes_of(api: Api) -> bytes:
    return b"".join([*framed(whole(api)), api.done])


def _commented(api: Api) -> list[bytes]:
    return [b": ping\nid: 7\nretry: 10\n" + piece for piece in [*framed(whole(api)), *([api.done] if api.done else [])]]


def _unnamed(api: Api) -> list[Chunk]:
    first = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": []}
    return [("", first), *whole(api)]


def _in_choice(_api: Api) -> list[Chunk]:
    bad = {"index": 0, "delta": {}, "finish_reason": None, "error": {"code": "rate_limited"}}
    return [*CHAT.head(), *words(CHAT), ("", {"id": "c1", "choices": [bad]})]


_REASONED: Final = ("chat", "gemini")
"""The APIs whose chunks of text have a reason."""

SITUATIONS: Final[Mapping[str, Situation]] = {
    "as documented": Situation(_ended(whole)),
    # What ends a reply.
    "an empty reason in every chunk": Situation(
        _ended(lambda api: [*api.head(), *words(api, ""), *api.end()]), apis=_REASONED
    ),
    "a reason null as a text": Situation(
        _ended(lambda api: [*api.head(), *words(api, "null"), *api.end()]), apis=_REASONED
    ),
    "an unspecified reason": Situation(
        _ended(lambda api: [*words(api, "FINISH_REASON_UNSPECIFIED"), *api.end()]), apis=_REASONED
    ),
    "a reason in every chunk": Situation(_ended(lambda api: [*api.head(), *words(api, "STOP")]), apis=_REASONED),
    "a reason before the text": Situation(
        _ended(lambda api: [*api.head(), *api.end(), *words(api), *api.end()]), apis=_REASONED
    ),
    "text behind the reason, and none again": Situation(
        lambda api: framed([*api.head(), *api.end(), *words(api)]), outcome="disconnected", apis=_REASONED
    ),
    "empty reasons, and cut": Situation(
        lambda api: framed([*api.head(), *words(api, "")]), outcome="disconnected", apis=_REASONED
    ),
    # The end without a reason.
    "done without a reason": Situation(_ended(lambda api: [*api.head(), *words(api)]), apis=("chat",)),
    "neither done nor a reason": Situation(lambda api: framed([*api.head(), *words(api)]), outcome="disconnected"),
    # Errors.
    "an error in the finishing chunk": Situation(
        _ended(lambda api: [*api.head(), *words(api), api.error()]), outcome="error"
    ),
    "a reason that is an error": Situation(
        _ended(lambda api: [*api.head(), *words(api), *api.end("error")]), outcome="error", apis=_REASONED
    ),
    "a reason that is an abort": Situation(
        _ended(lambda api: [*api.head(), *words(api), *api.end("abort")]), outcome="error", apis=("chat",)
    ),
    "an error in a choice": Situation(_ended(_in_choice), outcome="error", apis=("chat",)),
    "an error as a whole body": Situation(
        lambda api: [json.dumps({"error": {"type": "overloaded", "message": "no"}}, indent=1).encode()],
        {"Content-Type": "application/json"},
        "error",
        0,
    ),
    # Events.
    "data on several lines": Situation(lambda api: [*several_lines(whole(api)), api.done]),
    "a byte order mark": Situation(lambda api: [BOM + _bytes_of(api)]),
    "no blank line": Situation(
        lambda api: [data_line(data) + b"\n" for _, data in whole(api)] + [api.done.strip() + b"\n"], sdks=False
    ),
    "carriage returns": Situation(lambda api: [_bytes_of(api).replace(b"\n", b"\r")]),
    "both": Situation(lambda api: [_bytes_of(api).replace(b"\n", b"\r\n")]),
    "comments, ids and retries": Situation(_commented),
    "a byte at a time": Situation(lambda api: [bytes([byte]) for byte in _bytes_of(api)]),
    "at once": Situation(lambda api: [_bytes_of(api)]),
    "no blank line at the end": Situation(lambda api: [_bytes_of(api).rstrip(b"\n")], sdks=False),
    # Content.
    "plain text": Situation(_ended(whole), {"Content-Type": "text/plain"}),
    "no content type": Situation(_ended(whole), {}),
    "a content type in capitals": Situation(_ended(whole), {"Content-Type": "TEXT/EVENT-STREAM ;charset=UTF-8"}),
    "coding none": Situation(_ended(whole), {**EVENTS, "Content-Encoding": "none"}),
    "an empty coding": Situation(_ended(whole), {**EVENTS, "Content-Encoding": ""}),
    "coding Identity": Situation(_ended(whole), {**EVENTS, "Content-Encoding": "Identity"}),
    "a first chunk without names": Situation(_ended(_unnamed), apis=("chat",)),
}
"""The situations, by name."""
