"""Ollama's `/api/chat` and `/api/generate`: a line of JSON for each token. Both stream unless `stream` is false.

Source: github.com/ollama/ollama, docs/api.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from support.wires.reply import Kind
from support.wires.wire import PROMPT_TOKENS, EngineRequest, Frame, Json, Wire, compact

_TIMES = {"total_duration": 9_000_000, "load_duration": 1_000_000, "prompt_eval_duration": 1_000_000}


def _line(asked: EngineRequest, said: Json, **more: object) -> bytes:
    made = {"model": asked.model, "created_at": "2026-01-01T00:00:00.123456789Z", **said, "done": False, **more}
    return compact(made).encode() + b"\n"


def _end(asked: EngineRequest) -> Json:
    counts = {"prompt_eval_count": PROMPT_TOKENS, "eval_count": asked.count(), "eval_duration": 7_000_000}
    return {"done": True, "done_reason": "stop", **_TIMES, **counts}


def _call(asked: EngineRequest) -> Json:
    return {"function": {"name": asked.tool(), "arguments": json.loads(asked.reply.text("tool"))}}


def _message(content: str = "", **more: object) -> Json:
    return {"message": {"role": "assistant", "content": content, **more}}


def _chat_said(kind: Kind, text: str) -> Json:
    return _message(thinking=text) if kind == "reasoning" else _message(text)


def _generate_said(kind: Kind, text: str) -> Json:
    return {"response": "", "thinking": text} if kind == "reasoning" else {"response": text}


def _streamed(said: Callable[[Kind, str], Json]) -> Callable[[EngineRequest], Iterator[Frame]]:
    def frames(asked: EngineRequest) -> Iterator[Frame]:
        for token in asked.tokens:
            if token.kind != "tool":
                yield Frame(_line(asked, said(token.kind, token.text)), tokens=1)
        if called := asked.count("tool"):  # a call comes in one piece
            yield Frame(_line(asked, _message(tool_calls=[_call(asked)])), tokens=called)
        closing = {} if said is _chat_said else {"context": [1, 2, 3]}
        yield Frame(_line(asked, said("content", ""), **_end(asked), **closing))

    return frames


def _chat_whole(asked: EngineRequest) -> Json:
    more: Json = {"thinking": asked.reply.text("reasoning")} if asked.count("reasoning") else {}
    if asked.count("tool"):
        more["tool_calls"] = [_call(asked)]
    made: Json = json.loads(_line(asked, _message(asked.reply.text(), **more), **_end(asked)))
    return made


def _generate_whole(asked: EngineRequest) -> Json:
    made: Json = json.loads(_line(asked, _generate_said("content", asked.reply.text()), **_end(asked)))
    return made


def _error(asked: EngineRequest) -> bytes:
    return b'{"error":"an error was encountered while running the model"}\n'


def _refused(status: int) -> Json:
    return {"error": f"refused with {status}"}


def _wire(name: str, path: str, said: Callable[[Kind, str], Json], whole: Callable[[EngineRequest], Json]) -> Wire:
    return Wire(
        name,
        re.compile(path),
        _streamed(said),
        whole,
        _error,
        _refused,
        streams=lambda asked: asked.body.get("stream") is not False,
        content_type=lambda _: "application/x-ndjson",
    )


WIRES = (
    _wire("ollama-chat", r".*/api/chat", _chat_said, _chat_whole),
    _wire("ollama-generate", r".*/api/generate", _generate_said, _generate_whole),
)
