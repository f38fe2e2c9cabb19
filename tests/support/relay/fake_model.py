"""A deterministic language model with vLLM's streaming shapes, in memory: a request in, the chunks of its reply out.

The next token is a function of all ids before it and of the sampling parameters, so that the same prompt and output ids
continue alike on every engine, and one id more or less continues otherwise. Parameters that an engine counts over its
own output only (penalties, a seed, `min_tokens`) make it depend on where the output began, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Final

Json = dict[str, Any]

_FRAGMENTS: Final = (
    " the", " a", " def", "ing", "\n", " 42", ", ", ".", "é", " 你", "好", " 😀", '"', "\\", " </s", "\u2028", "é ",
    b"\xe4\xbd", b"\xa0", b"\xf0\x9f", b"\xf0", b"\x98", b"\x80", b"\x98\x80", b"\x98\x80 x", b"\xc3", b"\xa9",
    b"\xa9\xc3", b"\x80\xf0\x9f", b" \xe4", b"\xbd\xa0", b"!\xc3",
)  # fmt: skip
"""Whole words, and lines of characters: what begins one, goes on with it, ends it, ends it and begins the next."""

FIRST_FRAGMENT: Final = 256
SPECIAL: Final = FIRST_FRAGMENT + len(_FRAGMENTS)
"""The first of the ids without text in a stream: begin of text, of a turn, of the answer, and one in mid-reply."""
BEGIN, TURN, ANSWER, PAUSE = range(SPECIAL, SPECIAL + 4)
EOS: Final = SPECIAL + 4
THINK, THOUGHT, CALL, CALLED = range(EOS + 1, EOS + 5)
"""Markers that a parser takes out of a stream; a model of this module never writes them."""
VOCABULARY: Final = EOS + 5
_NAMES: Final = {
    BEGIN: "<|begin|>", TURN: "<|turn|>", ANSWER: "<|answer|>", PAUSE: "<|pause|>", EOS: "<|end|>",
    THINK: "<think>", THOUGHT: "</think>", CALL: "<tool_call>", CALLED: "</tool_call>",
}  # fmt: skip

_PRIME: Final = (1 << 61) - 1
_MATTERS: Final = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias", "allowed_token_ids", "seed",
    "frequency_penalty", "presence_penalty", "min_tokens",
)  # fmt: skip


class RefusedError(Exception):
    """The engine answers a request with 400."""


def token_bytes(token: int) -> bytes:
    """Return the bytes of a token; none for a special one."""
    if token < FIRST_FRAGMENT:
        return bytes([token])
    if token < SPECIAL:
        fragment = _FRAGMENTS[token - FIRST_FRAGMENT]
        return fragment.encode() if isinstance(fragment, str) else fragment
    return b""


def detokenize(ids: list[int]) -> str:
    """Return the text of ids as `/detokenize` does: special tokens by name, incomplete characters as U+FFFD."""
    parts = (_NAMES[i].encode() if i >= SPECIAL else token_bytes(i) for i in ids)
    return b"".join(parts).decode("utf-8", "replace")


def tokenize(text: str) -> list[int]:
    """Return a token a byte."""
    return list(text.encode("utf-8", "replace"))


class Detokenizer:
    """The text of a stream as it grows: a character whose bytes have not all come is held back, for ever if need be."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, token: int) -> str:
        self._held += token_bytes(token)
        text = self._held.decode("utf-8", "replace")
        if not text or text.endswith("\ufffd"):
            return ""
        self._held = b""
        return text


@cache
def _continues(held: bytes) -> list[int]:
    """Return the tokens that go on with a character that begins with the bytes `held`."""
    wanted = []
    for token in range(FIRST_FRAGMENT, SPECIAL):
        joined = held + token_bytes(token)
        text = joined.decode("utf-8", "replace")
        head = text[: len(held)] if text.count("\ufffd") else text
        if "\ufffd" not in text or (
            "\ufffd" not in head[:-1] and text.endswith("\ufffd") and text.count("\ufffd") == 1
        ):
            wanted.append(token)
    return wanted


@dataclass
class FakeModel:
    """One engine's model. `salt` is what chance is where a request samples without a seed."""

    name: str = "fake"
    max_model_len: int = 4096
    stream_interval: int = 1
    fingerprint: str | None = "vllm-0.32.0-fa4e0000"
    created: int = 1_795_581_346
    prefix: str = "a"
    salt: int = 0
    eos_every: int = 60
    empty_delta: bool = False
    """Held-back tokens of a chat come as `delta: {}`, as if a parser is at work, instead of `content: ""`."""
    cached_tokens: bool = False
    continues_chats: bool = False
    """A chat goes on from `kv_transfer_params.prompt_token_ids`; else these are ignored."""
    pauses: bool = True
    """A special token, without text in a stream and with one in `/detokenize`, comes now and then."""
    served: int = field(default=0, init=False)
    of_output: ClassVar[tuple[str, ...]] = ("frequency_penalty", "presence_penalty", "min_tokens", "seed")
    """Parameters that the engine counts over its own output."""

    def prompt_ids(self, body: Json) -> list[int]:
        """Return the ids of a request's prompt. Raises: RefusedError."""
        if "messages" in body:
            stated = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
            if stated and self.continues_chats:
                return list(stated)
            ids = [BEGIN]
            for message in body["messages"]:
                content = message["content"]
                text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
                ids += [TURN, *tokenize(f"{message['role']}\n{text}")]
            return [*ids, ANSWER]
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            return [BEGIN, *tokenize(prompt)]
        if isinstance(prompt, list) and prompt and all(isinstance(i, int) and 0 <= i < VOCABULARY for i in prompt):
            return list(prompt)
        raise RefusedError("prompt must be a text or ids")

    def limit(self, body: Json, prompt: int) -> int:
        """Return how many tokens a reply may have. Raises: RefusedError."""
        chat = "messages" in body
        asked = body.get("max_completion_tokens") if chat else None
        asked = body.get("max_tokens") if asked is None else asked
        if asked is None:
            asked = self.max_model_len - prompt if chat else 16
        if type(asked) is not int or asked < 1:
            raise RefusedError(f"max_tokens must be at least 1, got {asked}")
        if prompt + asked > self.max_model_len:
            raise RefusedError(f"max_tokens={asked} and a prompt of {prompt} exceed {self.max_model_len}")
        return asked

    def tokens(self, body: Json, prompt: list[int]) -> Iterator[tuple[int, str | None, int | None]]:
        """Yield each output token, the finish reason with the last one, and the stop token that was asked for."""
        limit = self.limit(body, len(prompt))
        chosen = {key: body[key] for key in _MATTERS if body.get(key) not in (None, 0, 0.0, [], {})}
        sampled = bool(chosen.get("temperature", 1 if body.get("temperature") is None else 0))
        if not sampled:
            chosen.pop("seed", None)
        of_output = any(key in chosen for key in self.of_output)
        chance = self.salt if sampled and "seed" not in chosen else 0
        mix = sum((i + 1) * b for i, b in enumerate(json.dumps(chosen, sort_keys=True).encode())) + 7919 * chance
        stops = set(body.get("stop_token_ids") or ())
        state, held = 17, b""
        for token in prompt:
            state, held = self._after(state, held, token)
        for count in range(1, limit + 1):
            token = self._next(state, held, mix + (count * 65_537 if of_output else 0), bool(body.get("ignore_eos")))
            state, held = self._after(state, held, token)
            if token in stops:
                yield token, "stop", token
                return
            if token == EOS and not body.get("ignore_eos"):
                yield token, "stop", None
                return
            yield token, "length" if count == limit else None, None

    @staticmethod
    def _after(state: int, held: bytes, token: int) -> tuple[int, bytes]:
        held += token_bytes(token)
        text = held.decode("utf-8", "replace")
        return (state * 1_000_003 + token + 1) % _PRIME, held[-3:] if text.endswith("\ufffd") else b""

    def _next(self, state: int, held: bytes, mix: int, endless: bool) -> int:
        draw = ((state + mix) * 0x9E3779B97F4A7C15 + 0x1234567) % (1 << 64)
        draw ^= draw >> 29
        draw = (draw * 0xBF58476D1CE4E5B9) % (1 << 64) >> 16
        if not held and self.eos_every and draw % self.eos_every == 0 and not endless:
            return EOS
        draw //= 64
        if held and draw % 16:
            choices = _continues(held)
            if choices:
                return choices[draw // 16 % len(choices)]
        pick = draw // 16 % (SPECIAL - FIRST_FRAGMENT + 3)
        if pick < SPECIAL - FIRST_FRAGMENT:
            return FIRST_FRAGMENT + pick
        return PAUSE if self.pauses and pick == SPECIAL - FIRST_FRAGMENT else draw // 1024 % 95 + 32

    def events(self, body: Json) -> Iterator[Json]:
        """Yield the chunks of a reply as JSON. Raises: RefusedError."""
        chat = "messages" in body
        prompt = self.prompt_ids(body)
        self.limit(body, len(prompt))
        self.served += 1
        shown = body.get("return_token_ids") is True
        options = body.get("stream_options") or {}
        usage = bool(options.get("include_usage"))
        running = usage and bool(options.get("continuous_usage_stats"))
        head: Json = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.prefix}{self.served:06x}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": self.created,
            "model": self.name,
        }
        if chat:
            delta = {"role": "assistant", "content": ""}
            role = {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
            if running:
                role["usage"] = _usage(len(prompt), 0) | {"completion_tokens_details": None}
            yield {**role, "prompt_token_ids": prompt if shown else None, "prompt_text": None}
        count = 0
        delta_of = self.parser(prompt)
        for ids, text, finish, stop in self._batches(body, prompt):
            first = count == 0
            count += len(ids)
            choice: Json = {"index": 0}
            if chat:
                choice["delta"] = delta_of(ids, text, finish)
                if not choice["delta"] and finish is None and not shown:
                    continue
            else:
                choice["text"] = text
            entries = (
                [{"token": detokenize([i]), "logprob": -i / 8} for i in ids] if body.get("logprobs") is True else []
            )
            choice |= {"logprobs": {"content": entries} if entries else None, "finish_reason": finish}
            if finish is not None or not chat:
                choice["stop_reason"] = stop
            if not chat:
                choice["prompt_token_ids"] = prompt if shown and first else None
            choice["token_ids"] = ids if shown else None
            chunk = {**head, "choices": [choice]}
            if running:
                chunk["usage"] = _usage(len(prompt), count) | ({"completion_tokens_details": None} if chat else {})
            if finish is not None and not usage and self.fingerprint:
                chunk["system_fingerprint"] = self.fingerprint
            yield chunk
        if usage:
            last = {**head, "choices": [], "usage": _usage(len(prompt), count)}
            if self.cached_tokens:
                last["usage"]["prompt_tokens_details"] = {"cached_tokens": len(prompt) // 2}
            yield last | ({"system_fingerprint": self.fingerprint} if self.fingerprint else {})

    def parser(self, prompt: list[int]) -> Callable[[list[int], str, str | None], Json]:
        """Return what makes the delta of a chat's chunk of ids, text and finish."""

        def delta_of(_ids: list[int], text: str, finish: str | None) -> Json:
            return {} if self.empty_delta and not text and finish is None else {"content": text}

        return delta_of

    def _batches(self, body: Json, prompt: list[int]) -> Iterator[tuple[list[int], str, str | None, int | None]]:
        every = max(self.stream_interval, body.get("stream_interval") or 1)
        text, ids, sent = "", list[int](), False
        detokenizer = Detokenizer()
        for token, finish, stop in self.tokens(body, prompt):
            ids.append(token)
            if finish != "stop":  # the text of what stopped the reply is not part of it
                text += detokenizer.feed(token)
            if finish is not None or not sent or len(ids) >= every:
                yield ids, text, finish, stop
                text, ids, sent = "", [], True

    def chunks(self, body: Json) -> Iterator[bytes]:
        """Yield the reply as the bytes of SSE events, the last of them `[DONE]`. Raises: RefusedError."""
        for event in self.events(body):
            yield sse(event)
        yield b"data: [DONE]\n\n"

    def detokenized(self, body: Json) -> Json:
        """Return the answer of `/detokenize`."""
        return {"prompt": detokenize(body["tokens"])}

    def whole(self, body: Json) -> Json:
        """Return the reply as one object, for a request without `stream`. Raises: RefusedError."""
        events = list(self.events(body | {"stream_options": {"include_usage": True}}))
        chat = "messages" in body
        choices = [choice for event in events for choice in event["choices"]]
        text = "".join(choice["delta"].get("content", "") if chat else choice["text"] for choice in choices)
        reported: Json = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        head = {key: events[0][key] for key in ("id", "created", "model")}
        choice = {"index": 0, **reported, "finish_reason": choices[-1]["finish_reason"]}
        kind = "chat.completion" if chat else "text_completion"
        shown = {"prompt_token_ids": events[0].get("prompt_token_ids")} if body.get("return_token_ids") else {}
        return {**head, "object": kind, "choices": [choice], "usage": events[-1]["usage"], **shown}


def _usage(prompt: int, output: int) -> Json:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


def sse(event: Json) -> bytes:
    """Return an event's bytes, written as vLLM writes them."""
    return b"data: " + json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
