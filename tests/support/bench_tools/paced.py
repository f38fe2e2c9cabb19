"""A paced server that every benchmark tool can load, and a tokenizer that counts its replies as the server does."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.wires.reply import Reply, Token, words
from support.wires.server import WireServer
from support.wires.wire import DONE, PROMPT_TOKENS, EngineRequest, Frame, Json, Wire, event

REQUESTS = 101
"""One more than a hundred: percentiles 50, 90 and 99 of so many are values of requests, interpolated or not."""
RATE = 25.25
"""Requests/s; all of them begin within four seconds."""
ASKED_TOKENS = 16
"""The length that tools ask for; the server's replies are shorter and longer."""
MODEL = "m"


def reply(number: int, together: int = 1) -> Reply:
    """Return the reply to a request of this number: 12 to 18 tokens, the first after 20 to 50 ms.

    Chunks of `together` tokens each, but for the last, are 6 to 14 ms apart.
    """
    tokens = words(12 + number % 7)
    chunks = [tokens[at : at + together] for at in range(0, len(tokens), together)]
    return Reply(
        [Token("content", "".join(token.text for token in chunk), len(chunk)) for chunk in chunks],
        pace_s=0.006 + 0.002 * (number % 5),
        first_s=0.02 + 0.003 * (number % 11),
        finish_with_last=True,
    )


def _meta(asked: EngineRequest, tokens: int) -> Json:
    last = tokens == asked.count()
    reason = {"type": "stop", "matched": 0} if last else None
    return {"id": "wire", "finish_reason": reason, "prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}


def _frames(asked: EngineRequest) -> Iterator[Frame]:
    text, tokens = "", 0
    for token in asked.tokens:
        text += token.text
        tokens += token.tokens
        yield Frame(event({"text": text, "meta_info": _meta(asked, tokens)}), tokens=1)
    yield DONE


def _whole(asked: EngineRequest) -> Json:
    return {"text": asked.reply.text(), "meta_info": _meta(asked, asked.count())}


SGLANG = Wire(
    "sglang",
    re.compile(r"/generate"),
    _frames,
    _whole,
    lambda _: event({"error": {"message": "an error"}}),
    lambda status: {"error": {"message": f"refused with {status}"}},
    lambda asked: asked.body.get("stream") is True,
)
"""SGLang's own API: each event has the text so far and the count of its tokens."""


class PacedServer(WireServer):
    """A server whose replies differ by the order in which requests come; it sends so many tokens together."""

    def __init__(self, together: int = 1) -> None:
        super().__init__(more=(SGLANG,))
        self.together = together
        self._lock = threading.Lock()
        self._served = 0

    def reply_for(self, asked: EngineRequest, headers: Mapping[str, str]) -> Reply:
        """Return the reply to the next request."""
        with self._lock:
            self._served += 1
            return reply(self._served, self.together)


def prompts() -> list[str]:
    """Return a prompt for each request."""
    return [f"tell me of number {number}" for number in range(REQUESTS)]


def tokenizer(folder: Path) -> Path:
    """Write a tokenizer whose tokens are words, as those of the server are; return its folder."""
    folder.mkdir()
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    for name, content in (("tokenizer", whole), ("tokenizer_config", settings), ("config", {"model_type": "llama"})):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
