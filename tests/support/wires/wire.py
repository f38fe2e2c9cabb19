"""What the modules of all wires share: what was asked for, the frames of a reply, and the two common framings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.wires.reply import Reply, Token

Json = dict[str, Any]
PROMPT_TOKENS = 7
"""What every fake reply says of its prompt."""
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True)
class EngineRequest:
    """One request for a reply.

    `groups` are the named groups of the wire's path, `query` the query string's last values.
    """

    path: str
    body: Json
    groups: Mapping[str, str]
    query: Mapping[str, str]
    reply: Reply = field(default_factory=Reply)

    @property
    def model(self) -> str:
        """Return the model's name, from the path or the body."""
        return str(self.groups.get("model") or self.body.get("model") or self.body.get("model_id") or "")

    @property
    def tokens(self) -> Sequence[Token]:
        """Return the tokens of the reply."""
        return self.reply.tokens

    def finishes_with(self, token: Token) -> bool:
        """Return whether the chunk of a token names the finish reason."""
        return self.reply.finish_with_last and token is self.tokens[-1]

    def count(self, *kinds: str) -> int:
        """Return how many tokens there are, of these kinds or of all."""
        return sum(token.tokens for token in self.tokens if not kinds or token.kind in kinds)

    def tool(self) -> str:
        """Return the name of the tool that a tool call names: the first that the request offers."""
        for tool in self.body.get("tools") or ():
            for offered in (tool, tool.get("function"), *(tool.get("functionDeclarations") or ())):
                if isinstance(offered, dict) and isinstance(offered.get("name"), str):
                    return str(offered["name"])
        return "tool"


class Frame(NamedTuple):
    """Bytes that are sent at once, with the tokens that they carry: of choice 0, and `also` of other choices."""

    data: bytes
    tokens: int = 0
    also: int = 0


class Wire(NamedTuple):
    """One streaming API.

    `path` is matched against the whole request path. `frames` gives a streamed reply, `whole` the reply to a request
    that wants no stream, `error` the frame that tells of an error in mid-stream, `refused` the body of an HTTP status.
    """

    name: str
    path: re.Pattern[str]
    frames: Callable[[EngineRequest], Iterator[Frame]]
    whole: Callable[[EngineRequest], Any]
    error: Callable[[EngineRequest], bytes]
    refused: Callable[[int], Any]
    streams: Callable[[EngineRequest], bool]
    content_type: Callable[[EngineRequest], str] = lambda _: EVENT_STREAM


def wants_stream(asked: EngineRequest) -> bool:
    """Return whether the body says `stream: true`."""
    return asked.body.get("stream") is True


def compact(data: Any) -> str:
    """Return JSON without spaces, as most servers write it."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def event(data: Any, name: str | None = None, end: str = "\n\n") -> bytes:
    """Return one server-sent event of JSON."""
    line = end[: len(end) // 2]
    return f"{'' if name is None else f'event: {name}{line}'}data: {compact(data)}{end}".encode()


DONE = Frame(b"data: [DONE]\n\n")
