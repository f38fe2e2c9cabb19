"""Chance that hypothesis chooses: whatever is drawn from it by the methods of `random.Random` shrinks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
STEPS = 128
"""Numbers that `random` gives: hypothesis draws so many alike."""


class Chance(Random):
    """Draw by hypothesis; of a choice the first is the simplest, and what happens rarely does not happen.

    Hypothesis' own `randoms` draws floats so that half of them are tiny: what should be rare is not.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        super().__init__(0)

    def random(self) -> float:
        return 1.0 - (1 + self._below(STEPS)) / STEPS

    def getrandbits(self, k: int, /) -> int:
        return self._below(1 << k)

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[self._below(len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        places = range(start) if stop is None else range(start, stop, step)
        return places[self._below(len(places))]

    def _below(self, number: int) -> int:
        return self._draw(st.integers(0, number - 1))


@st.composite
def chances(draw: st.DrawFn) -> Random:
    """Draw a source of chance; what a test draws from it is part of its example."""
    return Chance(draw)
