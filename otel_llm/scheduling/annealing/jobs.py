"""What is scheduled, and what a scheduler returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NS_PER_S: Final = 1_000_000_000
SHORTEST_S: Final = 1e-9
LONGEST_S: Final = 1e15


@dataclass(frozen=True, slots=True)
class Job:
    """A waiting request: its lengths (tokens, from 1) and its targets (s, inclusive).

    `e2e` bounds the time to the last token, `ttft` that to the first, both from now; `tpot` the mean time between
    tokens. None promises nothing; a job without any target is met wherever it runs.

    Raises: ValueError for a length that is no whole number from 1, or a target outside of 1e-9 to 1e15 s.
    """

    input: int
    output: int
    e2e: float | None = None
    ttft: float | None = None
    tpot: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            tokens = getattr(self, name)
            if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
                raise ValueError(f"{name} is {tokens!r}; give a whole number of tokens, at least 1")
        for name in ("e2e", "ttft", "tpot"):
            target_s = getattr(self, name)
            if target_s is not None and not _is_target(target_s):
                raise ValueError(f"{name} is {target_s!r}; give seconds, 1e-9 to 1e15, or None if nothing is promised")


@dataclass(frozen=True, slots=True)
class Plan:
    """Batches that run one after another, each a list of indexes into the jobs, ascending.

    `met`: the jobs that meet all their targets; `g`: `met` over the sum of the end-to-end latencies (1/s), 0.0 if
    there are no jobs.
    """

    batches: list[list[int]]
    g: float
    met: int


def to_ns(seconds: float | None) -> int | None:
    """Convert a target to ns, half to even."""
    return None if seconds is None else round(seconds * NS_PER_S)


def _is_target(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and SHORTEST_S <= value <= LONGEST_S
