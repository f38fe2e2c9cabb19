"""Replies of known text, cut into chunks at the tokens of a real tokenizer, and delivered at instants of a script.

`tests/vectors/cut_text.json` has the texts, ours, as the tokens of OpenAI's o200k and of Claude's published tokenizer
(2023): a text for each token, or with its number of tokens if one character takes several.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, cycle
from pathlib import Path
from random import Random

from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.stream import Stream

VECTORS = Path(__file__).parents[2] / "vectors" / "cut_text.json"
TEXTS = ("English", "German", "Russian", "Chinese", "Japanese", "Hindi", "Arabic", "Python", "JSON")
NS = 1_000_000_000
IDLE_MET_S = 1.0
"""The idle time that the class `chat` allows."""


@cache
def _texts() -> dict[str, dict[str, list[tuple[str, int]]]]:
    found = json.loads(VECTORS.read_text(encoding="utf-8"))
    return {
        name: {
            tokenizer: [(piece, 1) if isinstance(piece, str) else (piece[0], piece[1]) for piece in pieces]
            for tokenizer, pieces in cut.items()
        }
        for name, cut in found.items()
    }


@dataclass(frozen=True)
class Chunk:
    """One chunk: its text, its tokens, and its arrival after the commit (ns)."""

    text: str
    tokens: int
    at_ns: int


def cut(name: str, tokenizer: str, tokens: int, sizes: Sequence[int], seed: int = 1) -> list[tuple[str, int]]:
    """Repeat a text to about `tokens` tokens and cut it into chunks whose sizes are drawn from `sizes`."""
    random, pieces = Random(seed), cycle(_texts()[name][tokenizer])
    chunks: list[tuple[str, int]] = []
    total = 0
    while total < tokens:
        wanted, text, number = random.choice(sizes), "", 0
        while number < wanted:
            piece, count = next(pieces)
            text, number = text + piece, number + count
        chunks.append((text, number))
        total += number
    return chunks


def paced(chunks: Sequence[tuple[str, int]], first_s: float, gaps_s: Sequence[float], seed: int = 1) -> list[Chunk]:
    """Return the chunks with their arrivals: the first one, and gaps drawn from `gaps_s`."""
    random = Random(seed)
    times = accumulate((random.choice(gaps_s) for _ in chunks[1:]), initial=first_s)
    return [Chunk(text, tokens, round(at_s * NS)) for (text, tokens), at_s in zip(chunks, times, strict=True)]


def at_reading_speed(chunks: Sequence[tuple[str, int]], tokens_per_s: float) -> list[Chunk]:
    """Return the chunks, each at the instant at which a reader has read the one before it."""
    read = accumulate((tokens for _, tokens in chunks[:-1]), initial=0)
    return [
        Chunk(text, tokens, round((0.3 + before / tokens_per_s) * NS))
        for (text, tokens), before in zip(chunks, read, strict=True)
    ]


def starving(chunks: Sequence[tuple[str, int]], stalls_s: float) -> list[Chunk]:
    """Return the chunks, each so long after the one before has been read."""
    return list(_late(chunks, stalls_s))


def _late(chunks: Sequence[tuple[str, int]], stalls_s: float) -> Iterator[Chunk]:
    at_s = 0.3
    for text, tokens in chunks:
        yield Chunk(text, tokens, round(at_s * NS))
        at_s += tokens / 5 + stalls_s


@dataclass(frozen=True)
class Truth:
    """What the reader of a reply felt, by its real tokens."""

    tokens: int
    idle_s: float
    met: bool


def truth(chunks: Sequence[Chunk]) -> Truth:
    """Return what the reader of these chunks felt, by the class `chat`."""
    slo = next(one for one in load_slo().classes if one.name == "chat")
    stream = Stream(slo, 0)
    stream.extend([chunk.at_ns for chunk in chunks for _ in range(chunk.tokens)])
    verdict = stream.finish(chunks[-1].at_ns, "completed")
    assert verdict.idle_ns is not None
    assert verdict.met is not None
    return Truth(verdict.tokens, verdict.idle_ns / 1e9, verdict.met)
