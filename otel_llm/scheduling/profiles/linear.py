"""A profile by a linear formula, in exact decimal arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from otel_llm.scheduling.profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class Terms:
    """The coefficients, in ns; each defaults to 0, an iteration lasts at least `floor_ns`."""

    base: Fraction = Fraction(0)
    per_decode: Fraction = Fraction(0)
    per_kv_token: Fraction = Fraction(0)
    per_chunk_token: Fraction = Fraction(0)
    per_chunk_kv: Fraction = Fraction(0)
    """Times chunk x prior."""
    floor_ns: int = 1


@dataclass(frozen=True, kw_only=True)
class LinearProfile(Profile):
    """A profile by a formula: the terms are added exactly, and their sum is rounded once, half up."""

    terms: Terms
    _scaled: tuple[int, int, int, int, int, int, int] = field(init=False, repr=False, compare=False)
    """Base (with the half of the rounding) and coefficients over twice their common denominator, it, and the floor."""

    def __post_init__(self) -> None:
        terms = self.terms
        factors = (terms.base, terms.per_decode, terms.per_kv_token, terms.per_chunk_token, terms.per_chunk_kv)
        common = math.lcm(*(one.denominator for one in factors))
        base, *others = (int(2 * common * one) for one in factors)
        object.__setattr__(self, "_scaled", (base + common, *others, 2 * common, terms.floor_ns))

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        """Return how long one iteration lasts, without overhead."""
        base, per_decode, per_kv_token, per_chunk_token, per_chunk_kv, divisor, floor_ns = self._scaled
        total = base + per_decode * decodes + per_kv_token * kv_tokens
        if chunk:
            total += (per_chunk_token + per_chunk_kv * prior) * chunk
        length_ns = total // divisor
        if length_ns < floor_ns:
            return floor_ns
        return length_ns
