"""What the streams of the benchmark do: when each token comes, when the reply ends, whether silence is reported.

A script's times are ns since its commit. Token times fill the flushes of 250 ms, so that a segment has the wanted
number of tokens at the pace that the protocol prescribes: 64 tokens a flush are 256 tokens/s, 8 are 32 tokens/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLUSH_NS = 250_000_000
TTFT_NS = 300_000_000
REPLY_TOKENS = 512
BORDER_NS = 2_000_000
"""No token comes this close to a flush: it would be reported in another segment."""
STALLED_SHARE = 0.03
READING_NS = 200_000_000
"""Reading time of one token in the class `sample`: 5 tokens/s."""


@dataclass(frozen=True, slots=True)
class Script:
    """One reply; `end_ns` None: it goes on beyond the benchmark. `tells_silence`: it sends empty segments."""

    slo_class: str
    tokens_ns: list[int]
    end_ns: int | None
    tells_silence: bool = True
    dry_ns: int | None = None
    """When its reader runs out of text, if that is what is measured."""


def healthy(rng: np.random.Generator, segment_tokens: int, reply_tokens: int = REPLY_TOKENS) -> Script:
    """Return a reply, 300 ms to the first token; three in a hundred stall once for 2 to 6 s."""
    segments = -(-reply_tokens // segment_tokens)
    pauses = np.zeros(segments, np.int64)
    if segments > 1 and rng.random() < STALLED_SHARE:
        pauses[rng.integers(1, segments)] = rng.integers(8, 25)
    return _written(rng, "chat", segment_tokens, reply_tokens, pauses)


def starving(rng: np.random.Generator, segment_tokens: int, reply_tokens: int = REPLY_TOKENS) -> Script:
    """Return a reply that its class's reader outruns (`write_classes`), with stalls of 1.5 to 3 s in between."""
    segments = -(-reply_tokens // segment_tokens)
    pauses = np.zeros(segments, np.int64)
    pauses[rng.integers(1, 5) :: 8] = rng.integers(6, 13)
    return _written(rng, "starving", segment_tokens, reply_tokens, pauses)


def quiet(rng: np.random.Generator) -> Script:
    """Return a stream with text enough for the whole benchmark that says once a second that nothing comes."""
    return Script("quiet", (TTFT_NS + np.sort(rng.integers(0, 190_000_000, 100))).tolist(), None)


def parked(rng: np.random.Generator) -> Script:
    """Return a stream of 40 tokens in five segments that then says nothing: it is there to be held."""
    tokens = np.arange(5)[:, None] * FLUSH_NS + TTFT_NS + np.sort(rng.integers(0, 190_000_000, (5, 8)), axis=1)
    return Script("quiet", tokens.ravel().tolist(), None, tells_silence=False)


def sample(rng: np.random.Generator) -> Script:
    """Return a stream of eight tokens at once whose reader runs dry 1.6 s after the first, anywhere in a flush."""
    first_ns = TTFT_NS + int(rng.integers(0, FLUSH_NS))
    dry_ns = first_ns + 8 * READING_NS
    return Script("sample", [first_ns] * 8, dry_ns + 600_000_000, dry_ns=dry_ns)


def _written(
    rng: np.random.Generator, slo_class: str, segment_tokens: int, reply_tokens: int, pauses: NDArray[np.int64]
) -> Script:
    flushes = np.arange(1, len(pauses) + 1) + np.cumsum(pauses)
    within = (np.arange(segment_tokens) + rng.random((len(pauses), segment_tokens))) / segment_tokens
    starts = flushes * FLUSH_NS + BORDER_NS
    lengths = np.full(len(pauses), FLUSH_NS - 2 * BORDER_NS)
    if flushes[0] == 1:
        starts[0], lengths[0] = TTFT_NS, 2 * FLUSH_NS - BORDER_NS - TTFT_NS
    tokens = (starts[:, None] + (within * lengths[:, None]).astype(np.int64)).ravel()[:reply_tokens]
    return Script(slo_class, tokens.tolist(), int(tokens[-1]) + 200_000)
