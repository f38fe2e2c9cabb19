"""OpenAI's legacy text completions, as vLLM and others serve them too.

Source: platform.openai.com/docs/api-reference/completions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from support.wires.openai_chat import CREATED, choices_of, error, refused, usage
from support.wires.wire import DONE, EngineRequest, Frame, Json, Wire, event, wants_stream


def _made(asked: EngineRequest, choices: list[Json], **more: Any) -> Json:
    made = {"id": "cmpl-wire", "object": "text_completion", "created": CREATED, "choices": choices}
    return {**made, "model": asked.model, **more}


def _choice(text: str, index: int, finish: str | None = None) -> Json:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish}


def _frames(asked: EngineRequest) -> Iterator[Frame]:
    choices = range(choices_of(asked))
    for token in asked.tokens:
        finish = "stop" if asked.finishes_with(token) else None
        for index in choices:
            yield Frame(event(_made(asked, [_choice(token.text, index, finish)])), index == 0, index > 0)
    for index in choices if not asked.reply.finish_with_last else ():
        yield Frame(event(_made(asked, [_choice("", index, "stop")])))
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        yield Frame(event(_made(asked, [], usage=usage(asked, asked.count() * len(choices)))))
    yield DONE


def _whole(asked: EngineRequest) -> Json:
    text = "".join(token.text for token in asked.tokens)
    choices = [_choice(text, index, "stop") for index in range(choices_of(asked))]
    return _made(asked, choices, usage=usage(asked, asked.count() * len(choices)))


WIRES = (Wire("openai-completions", re.compile(r".*/completions"), _frames, _whole, error, refused, wants_stream),)
