"""A profile in a few figures: iterations of decodes and of prefills, and how many decodes a TPOT allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.profiles.profile import Profile

CONTEXTS: Final = (512, 1024, 2048, 4096, 8192)
"""Tokens of the context of one decode."""
PRIORS: Final = (0, 4096, 16_384)
"""Tokens of the prompts that were prefilled before."""
TPOTS_MS: Final = (20, 30, 50, 100)
"""The tiers of PolyServe, section 5.1."""
_BATCHES: Final = (1, 8, 32, 64, 128, 256, 512, 1024)
_CHUNKS: Final = (128, 512, 2048, 8192, 32_768)


class Most(NamedTuple):
    """The most decodes that a TPOT allows, and what allows no more."""

    decodes: int
    limit: str
    """`TPOT`, `KV` (the cache is full) or `batch` (`max_batch` run)."""


def batches_of(profile: Profile) -> list[int]:
    """Return the batch sizes to show, up to `max_batch`."""
    return [size for size in _BATCHES if size < profile.max_batch] + [profile.max_batch]


def chunks_of(profile: Profile) -> list[int]:
    """Return the chunks to show, up to `max_batched_tokens`."""
    return [size for size in _CHUNKS if size < profile.max_batched_tokens] + [profile.max_batched_tokens]


def contexts_of(profile: Profile) -> list[int]:
    """Return the contexts to show that one decode has room for; the whole cache where it has room for none."""
    return [context for context in CONTEXTS if context <= profile.kv_tokens] or [profile.kv_tokens]


def decodes_ns(profile: Profile, batches: Sequence[int], context: int) -> list[int | None]:
    """Return the length of an iteration of each batch at one context; None where the KV cache cannot hold it."""
    return [
        profile.iteration_ns(size, size * context) if size * context <= profile.kv_tokens else None for size in batches
    ]


def prefills_ns(profile: Profile, chunks: Sequence[int], prior: int) -> list[int]:
    """Return the length of an iteration of each chunk alone."""
    return [profile.iteration_ns(0, 0, chunk, prior) for chunk in chunks]


def most_decodes(profile: Profile, context: int, tpot_ns: int) -> Most:
    """Return the most decodes of one context whose iteration, overhead included, is no longer than `tpot_ns`.

    It is found by bisection: where a table dips, a larger batch may do, too.
    """
    room = profile.kv_tokens // context
    most, limit = (room, "KV") if room < profile.max_batch else (profile.max_batch, "batch")

    def holds(decodes: int) -> bool:
        return profile.iteration_ns(decodes, decodes * context) + profile.step_overhead_ns <= tpot_ns

    if holds(most):
        return Most(most, limit)
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Most(low, "TPOT")
