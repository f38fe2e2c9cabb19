"""Text Generation Inference: `/generate_stream`, `/generate`, and `/` that is one or the other by `stream`.

Source: huggingface.github.io/text-generation-inference, and the stream types of huggingface_hub. There is no space
after `data:` and no end marker; the last event has the whole text and is a special token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from support.wires.wire import PROMPT_TOKENS, EngineRequest, Frame, Json, Wire, compact


def _line(data: Json) -> bytes:
    return f"data:{compact(data)}\n\n".encode()


def _details(asked: EngineRequest) -> Json:
    counts = {"generated_tokens": asked.count() + 1, "input_length": PROMPT_TOKENS}
    return {"finish_reason": "eos_token", "seed": None, **counts}


def _token(asked: EngineRequest, number: int, text: str, *, last: bool = False) -> Json:
    return {
        "index": number,
        "token": {"id": number, "text": text, "logprob": -0.5, "special": last},
        "generated_text": _text(asked) if last else None,
        "details": _details(asked) if last else None,
    }


def _text(asked: EngineRequest) -> str:
    return "".join(token.text for token in asked.tokens)


def _frames(asked: EngineRequest) -> Iterator[Frame]:
    for number, token in enumerate(asked.tokens, 1):
        yield Frame(_line(_token(asked, number, token.text)), tokens=1)
    yield Frame(_line(_token(asked, len(asked.tokens) + 1, "</s>", last=True)))


def _whole(asked: EngineRequest) -> object:
    made: Json = {"generated_text": _text(asked)}
    if (asked.body.get("parameters") or {}).get("details"):
        made["details"] = {**_details(asked), "prefill": [], "tokens": []}
    return made if asked.path.endswith("/generate") else [made]


def _error(asked: EngineRequest) -> bytes:
    return _line({"error": "Request failed during generation: out of memory", "error_type": "generation"})


def _refused(status: int) -> Json:
    return {"error": f"refused with {status}", "error_type": "overloaded"}


WIRES = (
    Wire(
        "tgi",
        re.compile(r"(.*/generate_stream|.*/generate|(?:/models/(?P<model>[^/]+))?/?)"),
        _frames,
        _whole,
        _error,
        _refused,
        streams=lambda asked: asked.path.endswith("/generate_stream") or asked.body.get("stream") is True,
    ),
)
"""A server serves one model and is not told its name; `/models/NAME` is how Hugging Face's own hosts tell it."""
