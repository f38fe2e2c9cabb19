"""The recorded tokens of a reply resampled to the total that the reply stated of itself.

A recorder that counts chunks, or estimates their tokens, knows when text arrived but not how much of it; the provider's
usage knows how much but not when. The verdict takes the times from the one and the number from the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_llm.semconv import MAX_STREAM_TOKENS, STATED_TIMES_FEWER, STATED_TIMES_MORE
from otel_llm.slo.classes import KINDS
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Kinds = NDArray[np.uint8]

REASONING: Final = KINDS.index("reasoning")
RESAMPLED: Final = "estimated"
"""The basis of resampled tokens."""


class Stated(NamedTuple):
    """How a stream ended, how its tokens were counted, and what the reply stated of them.

    `output_tokens`: all of the reply, reasoning included, and `reasoning_tokens`: that part of them; None if it did not
    state them, or has other choices.
    """

    outcome: str
    coverage: float | None
    basis: str | None
    output_tokens: int | None
    reasoning_tokens: int | None = None

    @property
    def may_apply(self) -> bool:
        """Return whether the recorded tokens may have to be resampled."""
        return (
            self.output_tokens is not None
            and self.basis in STATED_TIMES_MORE
            and self.outcome == "completed"
            and self.coverage == 1.0
        )


class StatedReply(NamedTuple):
    """A reply that states its length: its model and provider, "" if unknown, its recorded tokens, and all of them.

    `learned`: the recorded ones were estimated with what earlier replies of the model had stated. `tenant`: its
    sender's.
    """

    model: str
    provider: str
    recorded: int
    tokens: int
    learned: bool
    tenant: str = "default"


class Restated(NamedTuple):
    """Resampled token events in order, n of them: times (n,) int64, kinds (n,) uint8 or None, tokens of each (n,)."""

    times_ns: Ints
    kinds: Kinds | None
    counts: Ints

    def events(self) -> TokenEvents:
        """Return them as plain events."""
        kinds = None if self.kinds is None else self.kinds.tobytes()
        counts = self.counts.tolist()
        return TokenEvents(self.times_ns.tolist(), kinds, None if max(counts) == 1 else counts)

    def expanded(self) -> tuple[Ints, bytes | None]:
        """Return a time and a kind for each token."""
        kinds = None if self.kinds is None else np.repeat(self.kinds, self.counts).tobytes()
        return np.repeat(self.times_ns, self.counts), kinds


def restated(
    times_ns: Sequence[int] | Ints,
    kinds: bytes | None,
    counts: Sequence[int] | None,
    commit_ns: int,
    stated: Stated,
) -> Restated | None:
    """Return the token events of a reply resampled to its stated total; None if the recorded tokens stand.

    `times_ns`, `kinds`, `counts`: as in `TokenEvents`, in any order. No resampled event is before the commit.
    """
    if not stated.may_apply or not len(times_ns):
        return None
    times, codes, tokens = _in_order(times_ns, kinds, counts, commit_ns)
    output_tokens, reasoning_tokens = stated.output_tokens or 0, stated.reasoning_tokens
    text_tokens = output_tokens - (reasoning_tokens or 0)
    groups: list[tuple[Any, int]] = [(slice(None), text_tokens)]
    if codes is not None and (thought := codes == REASONING).any():
        if reasoning_tokens is None:
            return None
        groups = [(~thought, text_tokens), (thought, reasoning_tokens)]
    kept = np.zeros_like(tokens)
    changed = False
    for own, wanted in groups:
        upto = np.cumsum(tokens[own])
        if not len(upto):
            continue  # of hidden reasoning, or of text, no time is known
        recorded = int(upto[-1])
        most = min(STATED_TIMES_MORE[stated.basis or ""] * recorded, MAX_STREAM_TOKENS)
        if not (0 < wanted <= most and recorded <= STATED_TIMES_FEWER * wanted):
            return None
        kept[own] = _resampled(upto, wanted, None if codes is None else codes[own])
        changed |= wanted != recorded
    if not changed:
        return None
    if kept.all():
        return Restated(times, codes, kept)
    some = kept > 0
    return Restated(times[some], None if codes is None else codes[some], kept[some])


def _in_order(
    times_ns: Sequence[int] | Ints, kinds: bytes | None, counts: Sequence[int] | None, commit_ns: int
) -> tuple[Ints, Kinds | None, Ints]:
    """Return times, kinds and tokens of events, (n,) each, ordered by time and kind, none before the commit."""
    times = np.maximum(np.asarray(times_ns, np.int64), commit_ns)
    codes = None if kinds is None else np.frombuffer(kinds, np.uint8)
    tokens = np.ones(len(times), np.int64) if counts is None else np.asarray(counts, np.int64)
    if codes is None and (times[1:] >= times[:-1]).all():
        return times, codes, tokens
    order = np.argsort(times, kind="stable") if codes is None else np.lexsort((codes, times))
    return times[order], None if codes is None else codes[order], tokens[order]


def _resampled(upto: Ints, wanted: int, codes: Kinds | None) -> Ints:
    """Return how many of `wanted` tokens arrive with each event, (n,); `upto`: (n,), the recorded ones up to it.

    Token i of w recorded ones is resampled as the tokens k of n with floor(k w / n) = i, or, if fewer are wanted,
    floor(k (w - 1) / (n - 1)) = i; both count from 0. More tokens: each recorded one stands for n / w, so that every
    arrival stays. Fewer: the first and the last arrival stay.
    """
    recorded = int(upto[-1])
    if wanted >= recorded or wanted == 1:
        kept = -(-upto * wanted // recorded)
    else:
        kept = np.minimum(-(-upto * (wanted - 1) // (recorded - 1)), wanted)
    kept[1:] -= kept[:-1].copy()
    if codes is not None and 2 < wanted < recorded:
        lost = np.setdiff1d(codes, codes[kept > 0]).tolist()
        return _with_kinds(lost, upto, wanted, codes) if lost else kept
    return kept


def _with_kinds(lost: Sequence[int], upto: Ints, wanted: int, codes: Kinds) -> Ints:
    """Return how many tokens arrive with each event, (n,), if each kind in `lost` gets one back.

    It takes the place of the nearest resampled token whose own kind has others; the first and the last arrival stay.
    `upto`: (n,), the recorded tokens up to each event.
    """
    chosen = np.arange(wanted) * (int(upto[-1]) - 1) // (wanted - 1)
    for kind in lost:
        event = np.searchsorted(upto, chosen, "right")
        own = codes[event]
        inner = np.flatnonzero(np.bincount(own, minlength=len(KINDS))[own] > 1)
        inner = inner[(inner > 0) & (inner < wanted - 1)]
        if not len(inner):
            continue
        first = int(np.flatnonzero(codes == kind)[0])
        begin = int(upto[first - 1]) if first else 0
        chosen[inner[np.argmin(np.abs(chosen[inner] - begin))]] = begin
        chosen.sort()
    return np.bincount(np.searchsorted(upto, chosen, "right"), minlength=len(upto))
