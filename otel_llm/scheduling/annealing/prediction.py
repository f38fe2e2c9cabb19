"""The latency predictor: when the jobs of a batch have their first and their last token, by a profile.

A batch starts all its prefills in one iteration, decodes together, and ends with its longest job (section 4.2). A job
that has all its tokens leaves the batch, as in the engine. Times are sums of `Profile.iteration_ns`, without overheads.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from otel_llm.scheduling.annealing.jobs import Job


def line_sum(count: int, divisor: int, step: int, start: int, floor: int) -> int:
    """Return the sum over i < `count` of max(`floor`, (`start` + i x `step`) // `divisor`); `divisor` is positive.

    The time is logarithmic in `divisor`.
    """
    if step < 0:
        start, step = start + step * (count - 1), -step
    lacking = floor * divisor - start
    low = 0 if lacking <= 0 else min(count, -(-lacking // step)) if step else count
    return low * floor + floor_sum(count - low, divisor, step, start + low * step)


def floor_sum(count: int, divisor: int, step: int, start: int) -> int:
    """Return the sum over i < `count` of (`start` + i x `step`) // `divisor`; `divisor` is positive.

    Euclid's algorithm on the lattice points below the line, as `floor_sum` of AtCoder's library.
    """
    total = 0
    while count > 0:
        whole, step = divmod(step, divisor)
        total += whole * (count * (count - 1) // 2)
        whole, start = divmod(start, divisor)
        total += whole * count
        count, start = divmod(step * count + start, divisor)
        step, divisor = divisor, step
    return total


BLOCK: Final = 64
"""Decode steps whose sums are kept together."""
BLOCKS: Final = 16_384
"""Blocks that a predictor keeps: about 50 MB."""


class Profile(Protocol):
    """What the predictor needs of a profile."""

    @property
    def kv_tokens(self) -> int:
        """The tokens that the KV cache holds."""

    @property
    def max_batch(self) -> int:
        """The most requests that run at once."""

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        """Return how long one iteration lasts."""


class Terms(Protocol):
    """The coefficients of a linear profile that a decode needs (ns)."""

    @property
    def base(self) -> Fraction:
        """Of any iteration."""

    @property
    def per_decode(self) -> Fraction:
        """For each request."""

    @property
    def per_kv_token(self) -> Fraction:
        """For each token of their contexts."""

    @property
    def floor_ns(self) -> int:
        """The least that an iteration lasts."""


@runtime_checkable
class LinearProfile(Protocol):
    """A profile that says that it is linear, and by which terms."""

    @property
    def terms(self) -> Terms:
        """Its coefficients."""


class _Line(NamedTuple):
    """The terms of a decode over a common divisor; the base includes the half that rounds."""

    base: int
    per_decode: int
    per_kv_token: int
    divisor: int
    floor_ns: int

    @classmethod
    def of(cls, terms: Terms) -> _Line:
        factors = (terms.base, terms.per_decode, terms.per_kv_token)
        divisor = 2 * math.lcm(*(one.denominator for one in factors))
        base, per_decode, per_kv_token = (int(one * divisor) for one in factors)
        return cls(base + divisor // 2, per_decode, per_kv_token, divisor, terms.floor_ns)


class BatchTimes(NamedTuple):
    """The first token of all jobs of a batch, and the last of each, from the start of the batch (ns)."""

    first_ns: int
    ends_ns: tuple[int, ...]


class Predictor:
    """Predict the times of batches by a profile; sums over decode steps are kept from call to call.

    A linear profile needs no loop over tokens. The sums of others are exact as well: each iteration is asked for once,
    in blocks of consecutive steps. A predictor that serves many searches is given to them in place of its profile.
    """

    def __init__(self, profile: Profile, blocks: int = BLOCKS) -> None:
        self.profile = profile
        self._line = _Line.of(profile.terms) if isinstance(profile, LinearProfile) else None

        @lru_cache(maxsize=blocks)
        def block(decodes: int, start: int) -> tuple[int, ...]:
            steps = range(start, start + BLOCK * decodes, decodes)
            return tuple(accumulate((profile.iteration_ns(decodes, kv_tokens) for kv_tokens in steps), initial=0))

        self._block = block

    def times(self, jobs: Sequence[Job]) -> BatchTimes:
        """Return when the jobs of one batch have their tokens, in the order of the jobs."""
        kv_tokens = sum(job.input for job in jobs)
        first_ns = now_ns = self.profile.iteration_ns(0, 0, kv_tokens, 0)
        ends_ns = [0] * len(jobs)
        decoded = 1
        for left, at in enumerate(sorted(range(len(jobs)), key=lambda at: jobs[at].output)):
            running = len(jobs) - left
            steps = jobs[at].output - decoded
            now_ns += self.decodes_ns(running, kv_tokens + running * decoded, steps)
            decoded += steps
            kv_tokens -= jobs[at].input
            ends_ns[at] = now_ns
        return BatchTimes(first_ns, tuple(ends_ns))

    def decodes_ns(self, decodes: int, kv_tokens: int, steps: int) -> int:
        """Return how long `steps` decode iterations last (ns).

        The first has contexts of `kv_tokens` together, each later one a token for each decode more.
        """
        if steps == 0:
            return 0
        if self._line is not None:
            base, per_decode, per_kv_token, divisor, floor_ns = self._line
            start = base + per_decode * decodes + per_kv_token * kv_tokens
            return line_sum(steps, divisor, per_kv_token * decodes, start, floor_ns)
        index, residue = divmod(kv_tokens, decodes)
        total_ns = 0
        while steps:
            number, skipped = divmod(index, BLOCK)
            taken = min(steps, BLOCK - skipped)
            sums = self._block(decodes, residue + number * BLOCK * decodes)
            total_ns += sums[skipped + taken] - sums[skipped]
            index += taken
            steps -= taken
        return total_ns


def as_predictor(profile: Profile | Predictor) -> Predictor:
    """Return the predictor itself, or one for the profile."""
    return profile if isinstance(profile, Predictor) else Predictor(profile)
