"""Parse requests to the paced server: the prompt as ids, the script named by the model, and the reply's length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from otel_llm.demo.scripted_deliveries import Chunk, Delivery, by_name, resumed, up_to
from otel_llm.demo.vocabulary import VOCABULARY, chat_prompt, tokenize, written

Endpoint = Literal["chat", "completions"]

MAX_MODEL_LEN: Final = 32_768
"""Tokens of prompt and reply together, as `/v1/models` states it."""
COMPLETION_TOKENS: Final = 16
"""The `max_tokens` of a text completion that states none, as OpenAI has it."""


class RefusedError(Exception):
    """A refused request, with a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class PacedRequest:
    """One accepted request. `chunks`: those left; `finish`: the finish reason; `usage` options as OpenAI's."""

    endpoint: Endpoint
    delivery: Delivery
    prompt_ids: list[int]
    chunks: tuple[Chunk, ...]
    finish: Literal["stop", "length"]
    return_ids: bool
    final_usage: bool
    running_usage: bool

    @classmethod
    def read(cls, endpoint: Endpoint, body: object) -> PacedRequest:
        """Return the request of a parsed JSON body. Raises RefusedError if it cannot be served."""
        if not isinstance(body, dict):
            raise RefusedError(400, "the body is no JSON object")
        name = body.get("model", "")
        delivery = by_name(name) if isinstance(name, str) else None
        if delivery is None:
            raise RefusedError(404, "no such model; /v1/models lists them")
        if body.get("stream") is not True:
            raise RefusedError(400, "this server only streams: send stream=true")
        prompt_ids = _conversation(body.get("messages")) if endpoint == "chat" else prompt_of(body.get("prompt"))
        done = written(prompt_ids) if endpoint == "completions" else 0
        left = resumed(delivery.chunks, done)
        chunks = up_to(left, _most(endpoint, body, len(prompt_ids)))
        cut_short = sum(chunk.tokens for chunk in chunks) < sum(chunk.tokens for chunk in left)
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise RefusedError(400, "stream_options is no object")
        return cls(
            endpoint=endpoint,
            delivery=delivery,
            prompt_ids=prompt_ids,
            chunks=chunks,
            finish="length" if cut_short else "stop",
            return_ids=body.get("return_token_ids") is True,
            final_usage=options.get("include_usage") is True,
            running_usage=options.get("continuous_usage_stats") is True,
        )


def prompt_of(prompt: object) -> list[int]:
    """Return the ids of a prompt: a text, or ids. Raises RefusedError."""
    if isinstance(prompt, str):
        return tokenize(prompt)
    if not isinstance(prompt, list) or not all(type(i) is int and 0 <= i < VOCABULARY for i in prompt):
        raise RefusedError(400, f"prompt is neither a text nor a list of ids from 0 to {VOCABULARY - 1}")
    return prompt


def _conversation(messages: object) -> list[int]:
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise RefusedError(400, "messages is no list of objects")
    return chat_prompt([(str(one.get("role", "")), str(one.get("content", ""))) for one in messages])


def _most(endpoint: Endpoint, body: dict[str, Any], prompt: int) -> int:
    """Return the number of tokens that a request allows."""
    stated = body.get("max_completion_tokens") if endpoint == "chat" else None
    stated = body.get("max_tokens") if stated is None else stated
    if stated is None:
        stated = max(1, MAX_MODEL_LEN - prompt) if endpoint == "chat" else COMPLETION_TOKENS
    if type(stated) is not int or stated < 1:
        raise RefusedError(400, f"max_tokens must be at least 1, got {stated!r}")
    if prompt + stated > MAX_MODEL_LEN:
        raise RefusedError(400, f"{prompt} tokens of prompt and {stated} of reply are more than {MAX_MODEL_LEN}")
    return stated
