"""Totals of one event-time window and group: they add up over streams, collectors and windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.slo.classes import ABORTED
from otel_llm.slo.columns import WINDOW_COLUMNS
from otel_llm.slo.exact import ExactSum
from otel_llm.slo.ledger import Charge, Ledger, window_charges, window_start
from otel_llm.slo.quantiles import Sketch
from otel_llm.slo.ranks import P50, P99

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.slo.verdict import Verdict

__all__ = ["Charge", "ExactSum", "Ledger", "Sketch", "WindowTotals", "window_charges", "window_start"]

_GROUP = ("slo_class", "model", "instance", "measured_at")


@dataclass(slots=True)
class WindowTotals:
    """Add up what requests owe one window; counts and ns are integers, sums of benefit exact in any order.

    `met_null` counts every request that ended here without a verdict on its deadlines, incomplete ones included;
    `goodput_tokens` are the tokens read of met requests, where they end.
    """

    requests_started: int = 0
    requests_ended: int = 0
    met_true: int = 0
    met_false: int = 0
    met_null: int = 0
    incomplete: int = 0
    aborted: int = 0
    tokens_read: int = 0
    goodput_tokens: int = 0
    idle_ns: int = 0
    benefit: ExactSum = field(default_factory=ExactSum)
    fluidity: Sketch = field(default_factory=Sketch)
    idle: Sketch = field(default_factory=Sketch)

    @property
    def empty(self) -> bool:
        """Tell whether nothing is owed: what was has been given back."""
        return not any(getattr(self, name) for name in COUNTS) and not self.benefit.value

    def charge(self, charge: Charge) -> None:
        """Add what one request owes this window."""
        self.tokens_read += charge.tokens_read
        self.idle_ns += charge.idle_ns
        for term in charge.terms:
            self.benefit.add(term)

    def started(self) -> None:
        """Count a request that was committed in this window."""
        self.requests_started += 1

    def ended(self, outcome: str, verdict: Verdict | None) -> None:
        """Count a request that ended in this window; no verdict where tokens of it are missing."""
        self.requests_ended += 1
        self.aborted += outcome in ABORTED
        self.incomplete += verdict is None
        met = None if verdict is None else verdict.met
        self.met_true += met is True
        self.met_false += met is False
        self.met_null += met is None
        if verdict is None:
            return
        if met:
            self.goodput_tokens += verdict.tokens_read
        if verdict.fluidity_index is not None:
            self.fluidity.add(verdict.fluidity_index)
        if verdict.idle_ns is not None:
            self.idle.add(verdict.idle_ns / 1e9)

    def merge(self, other: WindowTotals) -> None:
        """Add all that another total holds."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.benefit.merge(other.benefit)
        self.fluidity.merge(other.fluidity)
        self.idle.merge(other.idle)

    def row(
        self, window_start_ns: int, window_ns: int, group: Mapping[str, str | None]
    ) -> dict[str, int | float | str | None]:
        """Return the window's row, in the order of WINDOW_COLUMNS; `group` has its class, model, instance and view."""
        window_s = window_ns / 1e9
        cells: dict[str, int | float | str | None] = {name: getattr(self, name) for name in COUNTS}
        cells |= {name: group[name] for name in _GROUP}
        cells |= {
            "window_start_unix_nano": window_start_ns,
            "window_s": window_s,
            "throughput_tok_s": self.tokens_read / window_s,
            "goodput_tok_s": self.goodput_tokens / window_s,
            "smooth_goodput_tok_s": self.benefit.value / window_s,
            "idle_s_sum": self.idle_ns / 1e9,
            "fluidity_p50": self.fluidity.quantile(P50),
            "idle_p50_s": self.idle.quantile(P50),
            "idle_p99_s": self.idle.quantile(P99),
        }
        return {name: cells[name] for name in WINDOW_COLUMNS}


COUNTS: Final = (
    "requests_started", "requests_ended", "met_true", "met_false", "met_null", "incomplete", "aborted", "tokens_read",
    "goodput_tokens", "idle_ns",
)  # fmt: skip
"""What is counted in whole numbers: requests, tokens, and ns of idle time."""
