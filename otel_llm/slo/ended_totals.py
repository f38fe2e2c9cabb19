"""Totals of ended requests: the common part of event-time windows and sliding windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from otel_llm.slo.classes import ABORTED
from otel_llm.slo.exact import ExactSum
from otel_llm.slo.quantiles import Sketch

if TYPE_CHECKING:
    from otel_llm.slo.verdict import Verdict


@dataclass(slots=True)
class EndedTotals:
    """Counts of ended requests, and the sum of the benefit that readers got; exact in any order.

    `met_null` counts every request without a verdict on its deadlines, incomplete ones included; `goodput_tokens` are
    the read tokens of met requests; `idle`: seconds. A subclass names its own fields in COUNTS and SKETCHES.
    """

    COUNTS: ClassVar[tuple[str, ...]] = (
        "requests_ended", "met_true", "met_false", "met_null", "aborted", "goodput_tokens",
    )  # fmt: skip
    SKETCHES: ClassVar[tuple[str, ...]] = ("idle",)
    requests_ended: int = 0
    met_true: int = 0
    met_false: int = 0
    met_null: int = 0
    aborted: int = 0
    goodput_tokens: int = 0
    benefit: ExactSum = field(default_factory=ExactSum)
    idle: Sketch = field(default_factory=Sketch)

    def ended(self, outcome: str, verdict: Verdict | None) -> None:
        """Count a request; no verdict where some of its tokens are missing."""
        met = None if verdict is None else verdict.met
        self.requests_ended += 1
        self.aborted += outcome in ABORTED
        self.met_true += met is True
        self.met_false += met is False
        self.met_null += met is None
        if verdict is None:
            return
        if met:
            self.goodput_tokens += verdict.tokens_read
        if verdict.idle_ns is not None:
            self.idle.add(verdict.idle_ns / 1e9)

    def merge(self, other: Self) -> None:
        """Add another total."""
        for name in self.COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.benefit.merge(other.benefit)
        for name in self.SKETCHES:
            sketch: Sketch = getattr(other, name)
            if sketch.count:
                getattr(self, name).merge(sketch)
