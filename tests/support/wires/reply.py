"""What a fake reply is: its tokens, its pace and its end; written by hand or in the grammar of a model's name.

A model name such as `tokens-300-pace-2ms` states the reply. Every part is a word and a value:

    tokens-N      N tokens of content                     pace-T   time between two tokens (`2ms`, `1s`)
    reasoning-N   N tokens of reasoning before them       ttft-T   time before the first token
    tools-N       N tokens of one tool call after them    status-S HTTP status S instead of a reply
    cut-N         reset the connection after N tokens     end-N    end the body after N tokens, without an end marker
    error-N       send an error event after N tokens      hang-N   send no more after N tokens, keep the connection open
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["content", "reasoning", "tool"]
End = Literal["complete", "cut", "end", "error", "hang"]

_PART = re.compile(r"(tokens|reasoning|tools|pace|ttft|status|cut|end|error|hang)-(\d+)(ms|s)?(?![a-z\d])")
_ENDS: tuple[End, ...] = ("cut", "end", "error", "hang")


class Token(NamedTuple):
    """What is sent in one chunk: one generated token, or several."""

    kind: Kind
    text: str
    tokens: int = 1


def words(count: int, kind: Kind = "content") -> list[Token]:
    """Return `count` tokens that are one word each; those of a tool call together are one JSON object."""
    if kind != "tool":
        return [Token(kind, f"w{number} ") for number in range(count)]
    return split('{"text":"' + " ".join(f"w{number}" for number in range(count)) + '"}', count, kind)


def split(text: str, count: int, kind: Kind = "content") -> list[Token]:
    """Return a text as `count` tokens, or one a character if it is shorter."""
    count = min(count, len(text))
    cuts = [len(text) * number // count for number in range(count + 1)] if count else []
    return [Token(kind, text[start:end]) for start, end in itertools.pairwise(cuts)]


@dataclass(frozen=True)
class Reply:
    """One reply; times in seconds.

    `ends_after`: the number of tokens after which an end other than `complete` happens; None is after all of them.
    `gates`: number of a token to the event that must be set before it is sent.
    `finish_with_last`: the last token's chunk names the finish reason, as at vLLM and SGLang; else one without a token.
    """

    tokens: Sequence[Token] = ()
    pace_s: float = 0.0
    first_s: float = 0.0
    status: int = 200
    end: End = "complete"
    ends_after: int | None = None
    gates: dict[int, threading.Event] = field(default_factory=dict)
    finish_with_last: bool = False

    def text(self, kind: Kind = "content") -> str:
        """Return the text of all tokens of one kind."""
        return "".join(token.text for token in self.tokens if token.kind == kind)


def named(name: str) -> Reply | None:
    """Return the reply that a name states, None if it states none."""
    parts = {word: float(number) / (1000 if unit == "ms" else 1) for word, number, unit in _PART.findall(name)}
    if not parts:
        return None
    counts: list[tuple[str, Kind]] = [("reasoning", "reasoning"), ("tokens", "content"), ("tools", "tool")]
    end: End = next((end for end in _ENDS if end in parts), "complete")
    return Reply(
        tokens=[token for part, kind in counts for token in words(int(parts.get(part, 0)), kind)],
        pace_s=parts.get("pace", 0.0),
        first_s=parts.get("ttft", 0.0),
        status=int(parts.get("status", 200)),
        end=end,
        ends_after=int(parts[end]) if end in parts else None,
    )
