"""The requests of a load: Poisson arrivals, lengths as in a chat. The same for the real engine and the model."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

PROMPT: Final = (60.0, 0.8, 16, 400)
REPLY: Final = (70.0, 0.6, 16, 192)
"""Median, sigma of the logarithm, least and most of the tokens: many short ones and some long, as in ShareGPT, and
within the 512 tokens of the model's context. An assumption."""


class Request(NamedTuple):
    """One request: when it arrives, the tokens of its prompt and of its reply (at least one)."""

    at_ns: int
    prompt: int
    output: int


def poisson(per_s: float, seconds: float, seed: int) -> list[Request]:
    """Return the requests that arrive within so many seconds; ns from the start of the load."""
    draw = random.Random(seed)
    found: list[Request] = []
    at_s = draw.expovariate(per_s)
    while at_s < seconds:
        found.append(Request(round(at_s * 1e9), _length(draw, *PROMPT), _length(draw, *REPLY)))
        at_s += draw.expovariate(per_s)
    return found


def _length(draw: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return min(most, max(least, round(median * draw.lognormvariate(0.0, sigma))))
