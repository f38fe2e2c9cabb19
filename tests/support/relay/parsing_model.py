"""A model that thinks and calls tools by a script, behind parsers as vLLM has them for its chats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from support.relay.fake_model import (
    ANSWER,
    CALL,
    CALLED,
    EOS,
    PAUSE,
    SPECIAL,
    THINK,
    THOUGHT,
    Detokenizer,
    FakeModel,
    Json,
    detokenize,
    tokenize,
)


def script(*parts: str | int) -> list[int]:
    """Return output ids: a text is cut into a token a byte, a number is a marker; the end is added."""
    ids = [one for part in parts for one in (tokenize(part) if isinstance(part, str) else [part])]
    return [*ids, EOS]


def call(name: str, **arguments: str) -> list[str | int]:
    """Return the parts of a tool call."""
    return [CALL, json.dumps({"name": name, "arguments": arguments}), CALLED]


def _answer(prompt: list[int]) -> list[int]:
    """Return the ids behind the last marker of an answer."""
    return prompt[len(prompt) - prompt[::-1].index(ANSWER) :] if ANSWER in prompt else []


class _Parser:
    """Parsers of reasoning and of tools, which hold back what may be the beginning of a marker.

    That of reasoning begins as the ids of the prompt say, that of tools empty; text that begins within a character is
    behind that of the whole prompt.
    """

    def __init__(self, prompt: list[int], prefix: str) -> None:
        answer = _answer(prompt)
        self._thinks = answer.count(THINK) > answer.count(THOUGHT)
        self._calls = 0
        self._call: str | None = None
        self._named = False
        self._held = ""
        self._prefix = prefix
        text = detokenize(prompt)
        self._leak = text.removesuffix("\ufffd") if text.endswith("\ufffd") else ""
        self._detokenizer = Detokenizer()

    def __call__(self, ids: list[int], _text: str, finish: str | None) -> Json:
        delta: Json = {}
        for token in ids:
            if token == THINK:
                self._thinks = True
            elif token == THOUGHT:
                self._thinks = False
            elif token == CALL:
                self._call, self._named = "", False
            elif token == CALLED:
                self._call = None
                self._calls += 1
            elif token < SPECIAL:
                text = self._leak + self._detokenizer.feed(token)
                if text:
                    self._leak = ""
                    self._add(delta, text)
        if finish is not None and self._held:
            delta["content"] = delta.get("content", "") + self._held
        if finish is not None and not delta:
            return {"content": ""}
        return delta

    def _add(self, delta: Json, text: str) -> None:
        if self._thinks:
            delta["reasoning"] = delta.get("reasoning", "") + text
        elif self._call is None:
            text, self._held = self._held + text, ""
            if text.endswith("<"):
                text, self._held = text[:-1], "<"
            if text:
                delta["content"] = delta.get("content", "") + text
        else:
            self._call += text
            begins = self._call.find('"arguments": ')
            if begins >= 0 and not self._named:
                self._named = True
                name = json.loads(self._call[: begins - 2] + "}")["name"]
                self._tool(delta, {"id": f"call-{self._prefix}{self._calls}", "type": "function"}, {"name": name})
            elif self._named:
                self._tool(delta, {}, {"arguments": text})

    def _tool(self, delta: Json, stated: Json, function: Json) -> None:
        delta.setdefault("tool_calls", []).append({"index": self._calls, **stated, "function": function})


@dataclass
class ParsingModel(FakeModel):
    """`output`: the ids of every reply, whatever the prompt is."""

    output: list[int] = field(default_factory=list)

    def tokens(self, body: Json, prompt: list[int]) -> Iterator[tuple[int, str | None, int | None]]:
        """Go on with the script behind the ids that follow the prompt's last marker; with nonsense if they differ."""
        limit = self.limit(body, len(prompt))
        out = _answer(prompt)
        rest = self.output[len(out) :] if self.output[: len(out)] == out else [PAUSE] * 9 + [EOS]
        for count, token in enumerate(rest[:limit], start=1):
            finish = "stop" if token == EOS else "length" if count == limit else None
            yield token, finish, None

    def parser(self, prompt: list[int]) -> Callable[[list[int], str, str | None], Json]:
        """Return the parsers of one reply."""
        return _Parser(prompt, self.prefix)
