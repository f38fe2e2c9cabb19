"""Take what the evaluator finds to everyone who wants it, in one order: counters, files, people."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_llm.collector.self_metrics import DecisionLatency

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.collector.clock import Clock
    from otel_llm.collector.console import Console
    from otel_llm.collector.metering import Metered
    from otel_llm.collector.metrics_user import Key, UserMetrics
    from otel_llm.collector.streams import LiveStream
    from otel_llm.collector.table import Group
    from otel_llm.readers.rows import Row
    from otel_llm.rules.decisions import Decision, DecisionLog
    from otel_llm.slo.verdict import Verdict

RECENT_ROWS = 1000
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outlets:
    """Count, record and say what is found; see `Sink`.

    While `replaying`, what the run before has counted and said already is not counted and said again.
    """

    clock: Clock
    console: Console
    metrics: UserMetrics
    decisions: DecisionLog | None
    latency: DecisionLatency = field(default_factory=DecisionLatency)
    recent: deque[Row] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    recent_decisions: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    decided_count: int = 0
    unwritten: int = 0
    """Lines of decisions or windows that could not be written."""
    replaying: bool = False
    mute: bool = False

    def charged(self, metered: Metered) -> None:
        """Count what readers got or waited, or what is given back of it."""
        if not self.replaying:
            self.metrics.charge(
                key_of(metered.group),
                metered.tokens_read,
                metered.idle_ns,
                metered.penalty_tokens,
                metered.refunded_tokens,
            )

    def stream_judged(self, stream: LiveStream, row: Row, verdict: Verdict | None) -> None:
        """Count the verdict, keep the row for those who look, and say it."""
        self.recent.append(row)
        if self.replaying:
            return
        gaps_ns = stream.tokens_so_far.gaps_ns if stream.begun else ()
        self.metrics.judged(key_of(stream.group), row, verdict, gaps_ns)
        self._say(lambda: self.console.row(row))

    def foreign_judged(self, row: Row) -> None:
        """Count and keep a row of another instrumentation's span."""
        self.recent.append(row)
        if not self.replaying:
            self.metrics.foreign(row)

    def decided(self, decisions: list[Decision]) -> None:
        """Record decisions: in the file first, then for people."""
        for decision in decisions:
            self.decided_count += 1
            written_ns = self.clock.now_ns()
            record = decision.record(written_ns)
            self.recent_decisions.append(record)
            self._record(record)
            if not self.replaying:
                self.latency.observe_ns(written_ns - (decision.flip_ns - decision.offset_ns))
                self._say(lambda decision=decision: self.console.decision(decision))  # type: ignore[misc]

    def not_written(self, what: str, problem: Exception) -> None:
        """Count a line that could not be written; said once."""
        if not self.unwritten:
            log.error("otel-llm: %s cannot be written: %s", what, problem)
        self.unwritten += 1

    def _say(self, line: Callable[[], None]) -> None:
        """Write to the terminal as long as there is one: a closed pipe must not stop the following of streams."""
        if self.mute:
            return
        try:
            line()
        except (OSError, ValueError):
            self.mute = True

    def _record(self, record: dict[str, Any]) -> None:
        if self.decisions is None:
            return
        try:
            self.decisions.write(record)
        except (OSError, ValueError) as problem:
            self.not_written("decisions", problem)


def key_of(group: Group) -> Key:
    """Return what the counters tell streams apart by."""
    slo_class, model, instance, measured_at = group
    return (slo_class, model, measured_at, instance)
