"""The verdict on one request: exact integers of nanoseconds, and the columns of a row derived from them."""

from __future__ import annotations

from typing import NamedTuple

from otel_llm.slo.columns import VERDICT_COLUMNS

Cell = int | float | bool | None


class Verdict(NamedTuple):
    """The verdict on one request; None is "not defined" or "cannot say", never zero.

    Times are ns since the commit or lengths in ns; seconds are ns / 1e9. `end_ns` is e, known even where `e2e_ns` is
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
    def normalized_latency_s(self) -> float | None:
        """Return the seconds of the whole reply per token of any kind."""
        return None if self.e2e_ns is None or self.tokens == 0 else self.e2e_ns / self.tokens / 1e9

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time of a token after the first, in seconds."""
        return None if self.span_ns is None or self.tokens < 2 else self.span_ns / (self.tokens - 1) / 1e9

    @property
    def fluidity_index(self) -> float | None:
        """Return the share of met deadlines, with resets (Etalon, section 4.1); None while nothing was due."""
        if not self.deadlines or self.deadline_misses is None:
            return None
        return (self.deadlines - self.deadline_misses) / self.deadlines

    @property
    def fluidity_line(self) -> float | None:
        """Return the share of met deadlines on the line without resets, which no delay can raise."""
        if self.line_misses is None or self.tokens_read + self.line_misses == 0:
            return None
        return self.tokens_read / (self.tokens_read + self.line_misses)

    def columns(self) -> dict[str, Cell]:
        """Return the computed columns of a row, in the order of VERDICT_COLUMNS; times in seconds."""
        return dict(zip(VERDICT_COLUMNS, self.cells(), strict=True))

    def cells(self) -> tuple[Cell, ...]:
        """Return the values of VERDICT_COLUMNS."""
        return (
            self.tokens,
            self.tokens_read,
            seconds(self.ttft_ns),
            seconds(self.ttfo_ns),
            seconds(self.e2e_ns),
            self.normalized_latency_s,
            self.tpot_s,
            seconds(self.tbt_p50_ns),
            seconds(self.tbt_p99_ns),
            seconds(self.tbt_max_ns),
            seconds(self.idle_ns),
            seconds(self.idle_decode_ns),
            self.stalls,
            self.deadlines,
            self.deadline_misses,
            self.fluidity_index,
            self.fluidity_line,
            self.met,
            self.benefit,
        )


def seconds(value_ns: int | None) -> float | None:
    """Return ns as seconds, keeping None."""
    return None if value_ns is None else value_ns / 1e9
