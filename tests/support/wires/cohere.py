"""Cohere's `/v2/chat`.

Source: docs.cohere.com, "Streaming", and the event types of the cohere package.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from support.wires.wire import DONE, PROMPT_TOKENS, EngineRequest, Frame, Json, Wire, event, wants_stream


def _event(name: str, tokens: int = 0, **members: Any) -> Frame:
    return Frame(event({"type": name, **members}, name), tokens)


def _message(**members: Any) -> Json:
    return {"message": members}


def _usage(asked: EngineRequest) -> Json:
    counts = {"input_tokens": PROMPT_TOKENS, "output_tokens": asked.count()}
    return {"billed_units": counts, "tokens": counts, "cached_tokens": 0}


def _finish(asked: EngineRequest) -> str:
    return "TOOL_CALL" if asked.count("tool") else "COMPLETE"


def _call(asked: EngineRequest, arguments: str) -> Json:
    function = {"name": asked.tool(), "arguments": arguments}
    return {"id": "call_wire", "type": "function", "function": function}


def _frames(asked: EngineRequest) -> Iterator[Frame]:
    opening = _message(role="assistant", content=[], tool_plan="", tool_calls=[], citations=[])
    yield _event("message-start", id="wire", delta=opening)
    for index, (kind, tokens) in enumerate(itertools.groupby(asked.tokens, key=lambda token: token.kind)):
        if kind == "tool":
            yield _event("tool-call-start", index=index, delta=_message(tool_calls=_call(asked, "")))
            for token in tokens:
                said = _message(tool_calls={"function": {"arguments": token.text}})
                yield _event("tool-call-delta", tokens=1, index=index, delta=said)
            yield _event("tool-call-end", index=index)
            continue
        where = "text" if kind == "content" else "thinking"
        yield _event("content-start", index=index, delta=_message(content={"type": where, where: ""}))
        for token in tokens:
            yield _event("content-delta", tokens=1, index=index, delta=_message(content={where: token.text}))
        yield _event("content-end", index=index)
    yield _event("message-end", delta={"finish_reason": _finish(asked), "usage": _usage(asked)})
    yield DONE


def _whole(asked: EngineRequest) -> Json:
    content = []
    if asked.count("reasoning"):
        content.append({"type": "thinking", "thinking": asked.reply.text("reasoning")})
    content.append({"type": "text", "text": asked.reply.text()})
    message: Json = {"role": "assistant", "content": content}
    if asked.count("tool"):
        message["tool_calls"] = [_call(asked, asked.reply.text("tool"))]
    return {"id": "wire", "finish_reason": _finish(asked), "message": message, "usage": _usage(asked)}


def _error(asked: EngineRequest) -> bytes:
    return event({"type": "message-end", "delta": {"finish_reason": "ERROR", "error": "internal error"}}, "message-end")


def _refused(status: int) -> Json:
    return {"id": "wire", "message": f"refused with {status}"}


WIRES = (Wire("cohere", re.compile(r".*/v2/chat"), _frames, _whole, _error, _refused, wants_stream),)
