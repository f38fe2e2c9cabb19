"""Predictions for an engine that runs: each iteration with the overhead of a step, which a profile keeps apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from otel_llm.scheduling.annealing.prediction import LinearProfile, Predictor

if TYPE_CHECKING:
    from otel_llm.scheduling.iteration_profile import IterationProfile


class _Terms(NamedTuple):
    base: Fraction
    per_decode: Fraction
    per_kv_token: Fraction
    floor_ns: int


@dataclass(frozen=True)
class WholeIterations:
    """A profile whose iterations contain the overhead of a step; `prefills`: whether prefills take any time."""

    profile: IterationProfile
    prefills: bool = True

    @property
    def kv_tokens(self) -> int:
        """Return the KV tokens of an instance."""
        return self.profile.kv_tokens

    @property
    def max_batch(self) -> int:
        """Return the most requests that run at once."""
        return self.profile.max_batch

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        """Return the time of an iteration with its overhead."""
        if not decodes and not self.prefills:
            return 0
        return self.profile.iteration_ns(decodes, kv_tokens, chunk, prior) + self.profile.step_overhead_ns


@dataclass(frozen=True)
class LinearIterations(WholeIterations):
    """The same of a linear profile, which says so by its `terms`."""

    terms: _Terms = field(default_factory=lambda: _Terms(Fraction(0), Fraction(0), Fraction(0), 0))


def predictor_of(profile: IterationProfile, *, prefills: bool = True) -> Predictor:
    """Return a predictor of iterations with their overhead; without `prefills` those take no time."""
    if not isinstance(profile, LinearProfile):
        return Predictor(WholeIterations(profile, prefills))
    terms, step_ns = profile.terms, profile.step_overhead_ns
    whole = _Terms(terms.base + step_ns, terms.per_decode, terms.per_kv_token, terms.floor_ns + step_ns)
    return Predictor(LinearIterations(profile, prefills, whole))
