"""The server-sent events of a streamed reply in OpenAI's shapes, with vLLM's token ids where they were asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_llm.demo.vocabulary import detokenize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.demo.paced_requests import PacedRequest

DONE: Final = b"data: [DONE]\n\n"


@dataclass(slots=True)
class ReplyChunks:
    """The events of one reply in their order; `sent`: tokens so far."""

    request: PacedRequest
    sent: int = 0
    _prompt_told: bool = field(default=False, init=False)

    def opening(self) -> Iterator[bytes]:
        """Yield a chat's first chunk, which has a role and no text."""
        if self.request.endpoint == "chat":
            yield self._event(self._choice("", role="assistant"), self._prompt())

    def text(self, ids: list[int]) -> bytes:
        """Return the chunk of the next tokens."""
        self.sent += len(ids)
        return self._event(self._choice(detokenize(ids), ids), usage=self.request.running_usage)

    def closing(self) -> Iterator[bytes]:
        """Yield the finish, the usage where it was asked for, and the end."""
        yield self._event(self._choice(None, [], finish=self.request.finish), usage=self.request.running_usage)
        if self.request.final_usage:
            yield self._event(None, usage=True)
        yield DONE

    def _choice(
        self, text: str | None, ids: list[int] | None = None, *, role: str | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        if self.request.endpoint == "chat":
            choice["delta"] = ({} if role is None else {"role": role}) | ({} if text is None else {"content": text})
        else:
            choice |= {"text": text or ""}
        choice["finish_reason"] = finish
        if self.request.return_ids:
            if ids is not None:
                choice["token_ids"] = ids
            if self.request.endpoint == "completions":
                choice |= self._prompt()
        return choice

    def _prompt(self) -> dict[str, Any]:
        """Return the prompt's ids with the first chunk that asks for them."""
        if self._prompt_told or not self.request.return_ids:
            return {}
        self._prompt_told = True
        return {"prompt_token_ids": self.request.prompt_ids}

    def _event(
        self, choice: dict[str, Any] | None, more: dict[str, Any] | None = None, *, usage: bool = False
    ) -> bytes:
        chat = self.request.endpoint == "chat"
        event: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.request.delivery.name}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 0,
            "model": self.request.delivery.name,
            "choices": [] if choice is None else [choice],
            **(more or {}),
        }
        if usage:
            prompt = len(self.request.prompt_ids)
            event["usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": self.sent,
                "total_tokens": prompt + self.sent,
            }
        return f"data: {json.dumps(event)}\n\n".encode()
