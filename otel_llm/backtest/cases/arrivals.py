"""Parse scripts of token arrivals: `300ms, 20x50ms, wait 600ms, 20x50ms, end` to instants since the commit.

    script  = item *("," item)
    item    = [count "x"] duration [kind]      tokens, each so long after the one before
            | "wait" duration                  no token; what follows counts from its end
            | "end" [outcome] | "vanish"       the last item: its outcome, or that the sender is never heard again

The first item counts from the commit. Durations are those of rule files; kind is content (default), reasoning or tool.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from otel_llm.config.durations import DURATION_ADVICE, parse_duration_ns
from otel_llm.config.yaml_file import did_you_mean
from otel_llm.rules.language.tokens import ExpressionError
from otel_llm.slo.classes import KINDS

OUTCOMES: Final = ("completed", "cancelled", "abandoned", "disconnected", "error")
"""The outcomes that a script may state; `completed` is the default."""
MOST_TOKENS: Final = 100_000
"""The most tokens of one script."""
LONGEST_SCRIPT: Final = 4096
_TOKENS: Final = re.compile(r"(?:(?P<count>\d+)\s*x\s*)?(?P<length>[\d.]+[a-z]*)(?:\s+(?P<kind>[A-Za-z_]+))?", re.ASCII)
_WAIT: Final = re.compile(r"wait\s+(?P<length>\S+)")
_END: Final = re.compile(r"end(?:\s+(?P<outcome>[A-Za-z_]+))?")
_ITEM_ADVICE: Final = "write `50ms`, `20x50ms`, `20x50ms reasoning`, `wait 1s`, `end`, `end error` or `vanish`"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The tokens of a stream: ns since the commit, not decreasing, and each token's kind, as its index in `KINDS`.

    `end_ns`: when the stream ends, None if it stays open; `outcome`: None for a sender that vanishes.
    """

    times_ns: tuple[int, ...]
    kinds: tuple[int, ...]
    end_ns: int | None
    outcome: str | None


def parse_arrivals(text: str) -> Arrivals:
    """Parse a script; raises ExpressionError with the position of the error."""
    if len(text) > LONGEST_SCRIPT:
        raise ExpressionError(f"more than {LONGEST_SCRIPT} characters", "make several streams of it", 0, len(text))
    if not text.strip():
        return Arrivals((), (), None, None)  # a stream that is committed, without tokens
    times: list[int] = []
    kinds: list[int] = []
    at_ns = 0  # of the last token, or the end of the last wait
    end: tuple[int, str | None] | None = None
    start = 0
    for item in text.split(","):
        part = _ScriptItem(start + len(item) - len(item.lstrip()), item.strip())
        start += len(item) + 1
        words = part.words
        if end is not None:
            raise part.wrong("something follows the end", "make `end` or `vanish` the last item")
        if words == "vanish":
            end = at_ns, None
        elif ended := _END.fullmatch(words):
            end = at_ns, _outcome(part, ended)
        elif wait := _WAIT.fullmatch(words):
            at_ns += _length_ns(part, wait)
        elif tokens := _TOKENS.fullmatch(words):
            length_ns, kind, count = _length_ns(part, tokens), _kind(part, tokens), int(tokens["count"] or 1)
            if not 0 < count <= MOST_TOKENS - len(times):
                raise part.wrong(f"{count} tokens", f"a script has from 1 to {MOST_TOKENS}")
            times += [at_ns + length_ns * number for number in range(1, count + 1)]
            kinds += [kind] * count
            at_ns = times[-1]
        else:
            raise part.wrong(f"{words!r} is no item of a script" if words else "an empty item", _ITEM_ADVICE)
    return Arrivals(tuple(times), tuple(kinds), *(end or (None, None)))


@dataclass(frozen=True, slots=True)
class _ScriptItem:
    start: int
    words: str

    def wrong(self, message: str, advice: str, at: int = 0, length: int | None = None) -> ExpressionError:
        start = self.start + at
        return ExpressionError(message, advice, start, start + (len(self.words) - at if length is None else length))


def _length_ns(part: _ScriptItem, found: re.Match[str]) -> int:
    text = found["length"]
    try:
        return parse_duration_ns(float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text)
    except ValueError as error:
        raise part.wrong(str(error), DURATION_ADVICE, found.start("length"), len(text)) from None


def _kind(part: _ScriptItem, found: re.Match[str]) -> int:
    word = found["kind"] or KINDS[0]
    if word not in KINDS:
        raise part.wrong(f"{word!r} is no kind of token", did_you_mean(word, KINDS), found.start("kind"), len(word))
    return KINDS.index(word)


def _outcome(part: _ScriptItem, found: re.Match[str]) -> str:
    word = found["outcome"] or OUTCOMES[0]
    if word not in OUTCOMES:
        raise part.wrong(f"{word!r} is no outcome", did_you_mean(word, OUTCOMES), found.start("outcome"), len(word))
    return word
