"""The running judgement of one stream in a row of its own."""

from __future__ import annotations

from collections.abc import Sequence

from otel_llm.slo.classes import SloClass
from otel_llm.slo.live.running import OneRow, Running, advance, ones, start
from otel_llm.slo.token_events import tokens_of


class Judgement:
    """Apply read tokens, in any kind, to a row."""

    def __init__(self, slo: SloClass, commit_ns: int, input_tokens: int | None = None) -> None:
        self.slo, self.commit_ns = slo, commit_ns
        self._row = OneRow()
        start(self._row, 0, slo, commit_ns, input_tokens)

    def apply(self, times_ns: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Apply sorted events."""
        number = len(times_ns)
        every = ones(number) if counts is None else counts
        advance(self._row.cells, 0, times_ns, every, 0, number, tokens_of(times_ns, counts))

    @property
    def now(self) -> Running:
        """Return the judgement."""
        return self._row.running_of(0)
