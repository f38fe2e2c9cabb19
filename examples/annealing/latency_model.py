"""The paper's latency model: equations 14 and 15 with their eight coefficients, as a profile of an engine.

python examples/annealing/latency_model.py      # writes v100x2-qwen2.5-7b.csv, the table of the profile beside it
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.scheduling.profiles.grid import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.annealing.prediction import Profile

HERE: Final = Path(__file__).parent
PROFILE: Final = HERE / "v100x2-qwen2.5-7b.yaml"
MS: Final = 1_000_000
BATCHES: Final = (1, 32)
CONTEXTS: Final = (1, 2000)
CHUNKS: Final = (1, 2000)
"""Sizes of the table. The model is linear in each, so that two are enough."""


@dataclass(frozen=True)
class Coefficients:
    """alpha x B x l + beta x B + gamma x l + delta, in ms: B requests of l tokens each (equations 14 and 15)."""

    alpha: float
    beta: float
    gamma: float
    delta: float

    def ms(self, requests: float, tokens: float) -> float:
        """Return the length of an iteration of requests of so many tokens each."""
        return self.alpha * requests * tokens + self.beta * requests + self.gamma * tokens + self.delta


PREFILL: Final = Coefficients(0.1, 5.7, 0.01, 43.67)
DECODE: Final = Coefficients(0.0002, 0.275, 0.00088, 15.85)
"""Table 2: Qwen2.5-7B on two V100."""


@dataclass(frozen=True)
class LatencyModel:
    """A profile by the equations; a chunk counts as one prompt, as a profile does not know how many it holds."""

    prefill: Coefficients = PREFILL
    decode: Coefficients = DECODE
    kv_tokens: int = 200_000
    max_batch: int = 32

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:  # noqa: ARG002
        """Return the length of one iteration in ns; `prior` has no part in the equations."""
        length_ms = self.decode.ms(decodes, kv_tokens / decodes) if decodes else 0.0
        return round((length_ms + (self.prefill.ms(1, chunk) if chunk else 0.0)) * MS)


def fit(samples: Sequence[tuple[float, float, float]]) -> tuple[Coefficients, float]:
    """Return the coefficients with the least squares for (requests, tokens each, ms), and R squared (section 4.2)."""
    requests, tokens, measured = np.array(samples, dtype=float).T
    terms = np.column_stack([requests * tokens, requests, tokens, np.ones_like(tokens)])
    found, *_ = np.linalg.lstsq(terms, measured, rcond=None)
    rest = measured - terms @ found
    return Coefficients(*map(float, found)), float(1 - (rest**2).sum() / ((measured - measured.mean()) ** 2).sum())


def samples(profile: Profile, phase: str) -> list[tuple[float, float, float]]:
    """Return iterations of a profile: up to 32 decodes, one prompt to four, 100 to 2,000 tokens each."""
    lengths = range(100, 2001, 100)
    if phase == "decode":
        return [(b, each, profile.iteration_ns(b, b * each) / MS) for b in (1, 2, 4, 8, 16, 32) for each in lengths]
    return [(b, each, profile.iteration_ns(0, 0, b * each) / MS) for b in (1, 2, 4) for each in lengths]


def table() -> list[tuple[str, ...]]:
    """Return the rows of the profile's table; a prefill beside decodes adds its length."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for decodes, context in [(0, 0)] + [(size, length) for size in BATCHES for length in CONTEXTS]:
        for chunk in (0, *CHUNKS):
            length_ms = (DECODE.ms(decodes, context) if decodes else 0.0) + (PREFILL.ms(1, chunk) if chunk else 0.0)
            if length_ms:
                rows.append((str(decodes), str(decodes * context), str(chunk), "0", f"{length_ms:.6f}"))
    return rows


if __name__ == "__main__":
    with PROFILE.with_suffix(".csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out, lineterminator="\n").writerows(table())
