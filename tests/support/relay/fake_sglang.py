"""The fake model behind SGLang's HTTP API: the same tokens, in the forms that the code of SGLang 0.5.23 gives them.

What differs from vLLM's: a streamed chat with `return_token_ids` is refused, and brings ids behind its finish if
`sglext` is asked for; a completion's ids stand in its choices; `matched_stop`, and the end of text is one; text is sent
up to its last space while a character is incomplete; `/detokenize` leaves special tokens out unless asked for them;
a repetition penalty counts over the output only; a completion template makes one text of prompt and suffix.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from aiohttp import web
from support.relay.fake_engine import FakeEngine
from support.relay.fake_model import SPECIAL, FakeModel, Json, RefusedError, detokenize, token_bytes

_CHINESE = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x20000, 0x2B81F), (0xF900, 0xFAFF))
"""Characters behind which a text may be cut, as no space follows them."""


def decode(ids: list[int], *, skip_special: bool = True) -> str:
    """Return the text of ids; incomplete characters as U+FFFD."""
    if not skip_special:
        return detokenize(ids)
    return b"".join(token_bytes(i) for i in ids if i < SPECIAL).decode("utf-8", "replace")


def printable(text: str) -> str:
    """Return what is sent of a text that ends within a character."""
    if len(text) > 1 and any(first <= ord(text[-2]) <= last for first, last in _CHINESE):
        return text[:-1]
    return text[: text.rfind(" ") + 1]


class GrowingText:
    """The text of a stream as its ids come, several at a time.

    Of bytes that never become a character, SGLang may send a text twice; this one does not.
    """

    def __init__(self, *, skip_special: bool) -> None:
        self._skip_special = skip_special
        self._held: list[int] = []
        self._sent = 0  # characters of the held ids' text

    def feed(self, ids: list[int], *, last: bool) -> str:
        self._held += ids
        text = decode(self._held, skip_special=self._skip_special)
        whole = last or (text != "" and not text.endswith("\ufffd"))
        ready = text if whole else printable(text)
        new = ready[self._sent :]
        self._sent = max(self._sent, len(ready))
        if whole:
            self._held, self._sent = [], 0
        return new


@dataclass
class FakeSglangModel(FakeModel):
    """One engine's model.

    `completion_template`: the server makes one text of `prompt` and `suffix`. `default_usage`: it tells the usage
    unasked.
    """

    fingerprint: str | None = None
    completion_template: bool = False
    default_usage: bool = False
    of_output: ClassVar[tuple[str, ...]] = (*FakeModel.of_output, "repetition_penalty")

    def prompt_ids(self, body: Json) -> list[int]:
        if self.completion_template and "prompt" in body and body.get("suffix") != "":
            body = {**body, "prompt": f"<before>{body['prompt']}<here>{body.get('suffix')}<after>"}
        return super().prompt_ids(body)

    def detokenized(self, body: Json) -> Json:
        return {"text": decode(body["tokens"], skip_special=body.get("skip_special_tokens", True))}

    def events(self, body: Json) -> Iterator[Json]:
        chat = "messages" in body
        if chat and body.get("stream") and body.get("return_token_ids"):
            raise RefusedError("return_token_ids is not supported with streaming on /v1/chat/completions")
        prompt = self.prompt_ids(body)
        self.limit(body, len(prompt))
        self.served += 1
        head = {
            "id": uuid.uuid5(uuid.NAMESPACE_URL, f"{self.prefix}{self.served}").hex,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": self.created,
            "model": body.get("model", "default"),
        }
        yield from (self._chat if chat else self._completion)(body, prompt, head)

    def _completion(self, body: Json, prompt: list[int], head: Json) -> Iterator[Json]:
        options = body.get("stream_options") or {}
        count = 0
        for ids, text, finish, matched in self._batches(body, prompt):
            choice: Json = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
            choice["matched_stop"] = matched
            if body.get("return_token_ids"):
                choice["token_ids"] = ids
                if not count:
                    choice["prompt_token_ids"] = prompt
            count += len(ids)
            running = self._usage(len(prompt), count, {}) if options.get("continuous_usage_stats") else None
            yield {**head, "choices": [choice], "usage": running}
        if options.get("include_usage") or self.default_usage:
            usage = self._usage(len(prompt), count, self._cached(prompt))
            yield {**head, "choices": [], "usage": {key: value for key, value in usage.items() if value is not None}}

    def _chat(self, body: Json, prompt: list[int], head: Json) -> Iterator[Json]:
        def chunk(delta: Json, finish: str | None = None, matched: int | None = None) -> Json:
            choice = {"index": 0, "delta": {"reasoning_content": None, **delta}, "logprobs": None}
            return {**head, "choices": [{**choice, "finish_reason": finish, "matched_stop": matched}]}

        options = body.get("stream_options") or {}
        output: list[int] = []
        yield chunk({"role": "assistant", "content": ""})
        for ids, text, finish, matched in self._batches(body, prompt):
            output += ids
            if text:
                event = chunk({"content": text})
                if options.get("continuous_usage_stats"):
                    event["usage"] = self._usage(len(prompt), len(output), {})
                yield event
            if finish is not None:
                yield chunk({}, finish, matched)
        extension: Json = {"input_ids": prompt} if body.get("return_input_ids_in_sglext") else {}
        if body.get("return_output_ids_in_sglext"):
            extension["output_ids"] = [output]
        if extension:
            yield {**head, "choices": [], "usage": None, "sglext": extension}
        if options.get("include_usage") or self.default_usage:
            yield {**head, "choices": [], "usage": self._usage(len(prompt), len(output), self._cached(prompt))}

    def _batches(self, body: Json, prompt: list[int]) -> Iterator[tuple[list[int], str, str | None, int | None]]:
        growing = GrowingText(skip_special=body.get("skip_special_tokens", True))
        ids, sent = list[int](), False
        for token, finish, _ in self.tokens(body, prompt):
            ids.append(token)
            if finish is None and sent and len(ids) < self.stream_interval:
                continue
            matched = token if finish == "stop" else None
            trimmed = ids[:-1] if matched is not None and not body.get("no_stop_trim") else ids
            yield ids, growing.feed(trimmed, last=finish is not None), finish, matched
            ids, sent = [], True

    def _cached(self, prompt: list[int]) -> Json:
        return {"prompt_tokens_details": {"cached_tokens": len(prompt) // 2}} if self.cached_tokens else {}

    @staticmethod
    def _usage(prompt: int, output: int, more: Json) -> Json:
        counted = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        rest = {"prompt_tokens_details": None, "reasoning_tokens": 0, "completion_tokens_details": None}
        return {**counted, **rest, **more}


class FakeSglangEngine(FakeEngine):
    """SGLang on a port of its own. `health_s`: how long `/health` takes, a second or more at a real one."""

    kind = "sglang"

    def __init__(self, model: FakeSglangModel | None = None, *, health_s: float = 0.0, **more: Any) -> None:
        super().__init__(FakeSglangModel() if model is None else model, **more)
        self.health_s = health_s

    async def _models(self, request: web.Request) -> web.Response:
        await self._ask(request)
        model = {"id": self.model.name, "object": "model", "created": 1, "owned_by": "sglang", "root": self.model.name}
        card = {**model, "parent": None, "max_model_len": self.model.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.health_s)
        return await super()._health(request)
