"""The interface of a profile of an engine, and the profile whose iterations are linear."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class Profile(ABC):
    """An engine as the scheduler and the simulator know it.

    Sizes are in tokens, `max_batch` in requests, overheads in ns.
    """

    name: str
    model: str
    accelerator: str
    engine: str
    tensor_parallel: int
    source: str
    """Where the numbers are from."""
    kv_tokens: int
    """The KV cache holds this many tokens."""
    max_batch: int
    """The most requests that run at once."""
    max_batched_tokens: int
    """The most tokens of an iteration: one a decode, and the prefill chunks."""
    step_overhead_ns: int
    """Each iteration lasts this much longer than `iteration_ns`."""
    request_overhead_ns: int
    """A request reaches the engine's queue this long after it was sent."""

    @property
    def batch_edges(self) -> tuple[int, ...]:
        """The batches between which `iteration_ns(batch, batch x context)` is a line in the batch, but for a floor."""
        return ()

    @property
    def chunk_edges(self) -> tuple[int, ...]:
        """The chunks between which `iteration_ns(0, 0, chunk, prior)` is a line in the chunk, but for a floor."""
        return ()

    @abstractmethod
    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        """Return how long one iteration lasts, without `step_overhead_ns`; any numbers from 0 are answered.

        Args:
            decodes: requests that each get one token.
            kv_tokens: the tokens of their contexts, together.
            chunk: prefill tokens.
            prior: the tokens of those prompts that were prefilled before.
        """


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
