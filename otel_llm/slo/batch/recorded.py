"""Recorded requests as arrays: the input of `judge_many` and of the fluid token rate."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.slo.batch.judged import Masked
from otel_llm.slo.classes import CONTENT, KINDS, OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_llm.slo.batch.judged import Ints


@dataclass(frozen=True, slots=True)
class Recorded:
    """R recorded requests of N tokens in all.

    `tokens_ns` (N,) int64: arrival times, request r's from `offsets[r]` to `offsets[r + 1]` (R+1,), in any order
    within it; `commit_ns`, `end_ns` (R,) int64 on the request's own axis; `outcomes` (R,) uint8 codes; `kinds` (N,)
    uint8 codes, None if all is content; `input_tokens` (R,) with its mask, None if all are unknown.

    Raises:
        ValueError: shapes, offsets or codes that do not fit.
    """

    tokens_ns: Ints
    offsets: Ints
    commit_ns: Ints
    end_ns: Ints
    outcomes: NDArray[np.uint8]
    kinds: NDArray[np.uint8] | None = None
    input_tokens: Masked | None = None

    def __post_init__(self) -> None:
        count, total = len(self.offsets) - 1, len(self.tokens_ns)
        if count < 0 or self.offsets[0] != 0 or self.offsets[-1] != total or (np.diff(self.offsets) < 0).any():
            raise ValueError(f"offsets must rise from 0 to the number of tokens, {total}")
        if not len(self.commit_ns) == len(self.end_ns) == len(self.outcomes) == count:
            raise ValueError(f"commits, ends and outcomes must be {count} each, one a request")
        if count and self.outcomes.max() >= len(OUTCOMES):
            raise ValueError(f"outcome codes are 0 to {len(OUTCOMES) - 1}")
        if self.kinds is not None and (len(self.kinds) != total or (total and self.kinds.max() >= len(KINDS))):
            raise ValueError(f"kinds must be {total} codes from 0 to {len(KINDS) - 1}, one a token")

    @classmethod
    def of(
        cls,
        tokens_ns: Sequence[Sequence[int]],
        commit_ns: Sequence[int],
        end_ns: Sequence[int],
        outcomes: Sequence[str],
        kinds: Sequence[Sequence[int] | None] | None = None,
        input_tokens: Sequence[int | None] | None = None,
    ) -> Recorded:
        """Build the arrays from lists, one entry a request; kinds None if a request is all content."""
        lengths = [len(times) for times in tokens_ns]
        codes = None
        if kinds is not None:
            whole = ((CONTENT,) * length if kind is None else kind for kind, length in zip(kinds, lengths, strict=True))
            codes = np.fromiter(chain.from_iterable(whole), np.uint8)
        prompts = None
        if input_tokens is not None:
            known = np.array([count is not None for count in input_tokens], np.bool_)
            prompts = Masked(np.array([count or 0 for count in input_tokens], np.int64), known)
        return cls(
            tokens_ns=np.fromiter(chain.from_iterable(tokens_ns), np.int64, sum(lengths)),
            offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            commit_ns=np.array(commit_ns, np.int64),
            end_ns=np.array(end_ns, np.int64),
            outcomes=np.array([OUTCOMES.index(outcome) for outcome in outcomes], np.uint8),
            kinds=codes,
            input_tokens=prompts,
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1
