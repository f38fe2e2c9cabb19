"""Totals of one event-time window and group; they add up over streams, collectors and windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Self

from otel_llm.slo.classes import ABORTED
from otel_llm.slo.exact import ExactSum
from otel_llm.slo.metrics import WINDOW_COLUMNS, WINDOWS
from otel_llm.slo.quantiles import Sketch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.slo.ledger import Charge
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


COUNTS: Final = (
    "requests_started", "requests_ended", "met_true", "met_false", "met_null", "incomplete", "aborted", "tokens_read",
    "goodput_tokens", "idle_ns",
)  # fmt: skip
"""The fields that are integers: requests, tokens, and ns of idle time."""
SKETCHES: Final = {"fluidity": "fluidity_index", "idle": "idle_s"}
"""The fields that are sketches, and the columns of a request that they are of."""


@dataclass(slots=True)
class WindowTotals(EndedTotals):
    """The sum of requests' charges to one window; counts and ns are integers, sums of benefit exact in any order."""

    COUNTS: ClassVar = COUNTS
    SKETCHES: ClassVar = tuple(SKETCHES)
    requests_started: int = 0
    incomplete: int = 0
    tokens_read: int = 0
    idle_ns: int = 0
    fluidity: Sketch = field(default_factory=Sketch)

    @property
    def empty(self) -> bool:
        """Tell whether nothing is charged: all charges were given back."""
        return not any(getattr(self, name) for name in COUNTS) and not self.benefit.value

    def charge(self, charge: Charge) -> None:
        """Add one request's charge."""
        self.tokens_read += charge.tokens_read
        self.idle_ns += charge.idle_ns
        for term in charge.terms:
            self.benefit.add(term)

    def started(self) -> None:
        """Count a request that was committed in this window."""
        self.requests_started += 1

    def ended(self, outcome: str, verdict: Verdict | None) -> None:
        """Count a request that ended in this window; no verdict where some of its tokens are missing."""
        EndedTotals.ended(self, outcome, verdict)  # no super(): a dataclass with slots is created anew
        self.incomplete += verdict is None
        if verdict is not None and verdict.fluidity_index is not None:
            self.fluidity.add(verdict.fluidity_index)

    def row(
        self, window_start_ns: int, window_ns: int, group: Mapping[str, str | None]
    ) -> dict[str, int | float | str | None]:
        """Return the window's row, in the order of WINDOW_COLUMNS; `group` has its class, model, instance and view."""
        window_s = window_ns / 1e9
        cells: dict[str, int | float | str | None] = {
            **group,
            "window_start_unix_nano": window_start_ns,
            "window_s": window_s,
        }
        for column in WINDOW_COLUMNS:
            if column.value is not None:
                value = column.value(self)
                cells[column.name] = value / window_s if column.per_second else value
        return {name: cells[name] for name in WINDOWS}
