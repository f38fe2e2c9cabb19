"""What SDKs and frameworks ask for beside a reply: lists of models, embeddings, counts of tokens."""

from __future__ import annotations

import re
from typing import Any

from support.wires.wire import PROMPT_TOKENS, Json

VECTOR = [0.1, 0.2, 0.3, 0.4]


def _vectors(body: Json, *keys: str) -> list[list[float]]:
    given = next((body[key] for key in keys if key in body), [""])
    return [VECTOR] * (len(given) if isinstance(given, list) else 1)


def _openai_embeddings(body: Json) -> Json:
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(_vectors(body, "input"))
    ]
    usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
    return {"object": "list", "data": data, "model": body.get("model"), "usage": usage}


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 1, "owned_by": "wire", "type": "chat", "display_name": name}


_POSTS: tuple[tuple[str, Any], ...] = (
    (r"/api/embed", lambda body: {"model": body.get("model"), "embeddings": _vectors(body, "input")}),
    (r"/api/embeddings", lambda _: {"embedding": VECTOR}),
    (
        r"/api/show",
        lambda _: {"capabilities": ["completion", "tools"], "details": {"family": "wire"}, "model_info": {}},
    ),
    (r"/v2/embed", lambda body: {"id": "wire", "embeddings": {"float": _vectors(body, "texts")}, "texts": []}),
    (r"/embeddings", _openai_embeddings),
    (r":embedContent", lambda _: {"embedding": {"values": VECTOR}}),
    (r":batchEmbedContents", lambda body: {"embeddings": [{"values": VECTOR}] * len(body.get("requests", [1]))}),
    (r":countTokens", lambda _: {"totalTokens": PROMPT_TOKENS}),
    (r"/messages/count_tokens", lambda _: {"input_tokens": PROMPT_TOKENS}),
)
_GETS: tuple[tuple[str, Any], ...] = (
    (r"/api/tags", lambda _: {"models": [{"name": "wire", "model": "wire", "size": 1, "details": {}}]}),
    (r"/api/version", lambda _: {"version": "0.9.0"}),
    (r"/info", lambda _: {"model_id": "wire", "max_input_length": 4096, "version": "3.0.0"}),
    (r"/health", lambda _: {}),
    (r"/models", lambda _: {"object": "list", "data": [_model("wire")], "has_more": False}),
    (r"/models/(?P<model>[^/]+)", lambda found: _model(found["model"])),
)


def stub(method: str, path: str, body: Json) -> Json | None:
    """Return the answer to a request that is for no reply, None if there is none."""
    for ending, make in _POSTS if method == "POST" else _GETS:
        if (found := re.fullmatch(".*" + ending, path)) is not None:
            made: Json = make(body if method == "POST" else found.groupdict())
            return made
    return None
