"""The verdict on one request: exact integers of nanoseconds, and the columns of a row derived from them."""

from __future__ import annotations

from typing import NamedTuple

from otel_llm.slo.metrics import COMPUTED, Cell


class Verdict(NamedTuple):
    """The verdict on one request; None is "not defined" or "cannot say", never zero.

    Times are ns since the commit or lengths in ns; seconds are ns / 1e9. `end_ns` is e, known even if `e2e_ns` is
    not (a stream whose end was never seen); `skewed` counts tokens that were recorded before the commit; `span_ns` is
    the time from the first to the last token; `line_misses` are the missed deadlines on the line without resets;
    `abort_penalty` is in tokens, 0 but for aborts.
    `judged` is false for a completed reply without anything to read.
    """

    outcome: str
    tokens: int
    tokens_read: int
    skewed: int
    end_ns: int
    e2e_ns: int | None
    ttft_ns: int | None
    ttfo_ns: int | None
    span_ns: int | None
    tbt_p50_ns: int | None
    tbt_p99_ns: int | None
    tbt_max_ns: int | None
    judged: bool
    idle_ns: int | None
    idle_decode_ns: int | None
    stalls: int | None
    deadlines: int | None
    deadline_misses: int | None
    line_misses: int | None
    met: bool | None
    abort_penalty: float
    benefit: float | None

    @property
    def fluidity_index(self) -> float | None:
        """Return the share of met deadlines, with resets (Etalon, section 4.1); None while nothing was due."""
        share: float | None = COMPUTED["fluidity_index"].of(self)
        return share

    def columns(self) -> dict[str, Cell]:
        """Return the computed columns of a row, in the order of COMPUTED; times in seconds."""
        return {name: formula.of(self) for name, formula in COMPUTED.items()}


def seconds(value_ns: int | None) -> float | None:
    """Return ns as seconds, keeping None."""
    return None if value_ns is None else value_ns / 1e9
