"""Totals of one event-time window and group; they add up over streams, collectors and windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Self

from otel_llm.slo.classes import ABORTED
from otel_llm.slo.exact import ExactSum
from otel_llm.slo.metrics import WINDOW_COLUMNS, WINDOWS
from otel_llm.slo.quantiles import Sketch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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

    def ended(self, requests: Sequence[tuple[str, Verdict | None]]) -> None:
        """Count requests by their outcomes and verdicts; no verdict if some tokens of a request are missing."""
        self.requests_ended += len(requests)
        never_waited = 0  # nearly all
        for outcome, verdict in requests:
            if outcome in ABORTED:
                self.aborted += 1
            if verdict is None or verdict.met is None:
                self.met_null += 1
            elif verdict.met:
                self.met_true += 1
                self.goodput_tokens += verdict.tokens_read
            else:
                self.met_false += 1
            if verdict is not None and verdict.idle_ns is not None:
                if verdict.idle_ns:
                    self.idle.add(verdict.idle_ns / 1e9)
                else:
                    never_waited += 1
        if never_waited:
            self.idle.add(0.0, never_waited)

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

    def charge(self, charges: Iterable[Charge]) -> None:
        """Add charges of requests."""
        tokens = 0
        for charge in charges:
            tokens += charge.tokens_read
            self.idle_ns += charge.idle_ns
            for cost in charge.costs:
                self.benefit.add(cost)
        if tokens:
            self.tokens_read += tokens
            self.benefit.add(tokens)

    def started(self) -> None:
        """Count a request that was committed in this window."""
        self.requests_started += 1

    def ended(self, requests: Sequence[tuple[str, Verdict | None]]) -> None:
        """Count requests that ended in this window, as `EndedTotals` does."""
        EndedTotals.ended(self, requests)  # no super(): a dataclass with slots is created anew
        fluid = 0  # nearly all
        for _, verdict in requests:
            if verdict is None:
                self.incomplete += 1
            elif (index := verdict.fluidity_index) == 1.0:
                fluid += 1
            elif index is not None:
                self.fluidity.add(index)
        if fluid:
            self.fluidity.add(1.0, fluid)

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
