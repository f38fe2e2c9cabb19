"""Take what the evaluator finds to everyone who wants it, in one order: counters, files, people."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from otel_llm.actions.execute.dispatcher import Settled, settled_decision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from otel_llm.actions.alerts.alerts import Alerts
    from otel_llm.actions.execute.events import Candidate, Order
    from otel_llm.actions.sinks.action_context import ActionContext
    from otel_llm.actions.sinks.console import Console
    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.usage import Metered
    from otel_llm.readers.rows import Row
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.language.snapshot import StreamKey
    from otel_llm.shared.clock import Clock
    from otel_llm.slo.verdict import Verdict

RECENT_ROWS = 1000
Labels = tuple[str, str, str, str]
"""(slo_class, model, measured_at, instance) of a stream; "" where unknown."""
log = logging.getLogger(__name__)


class UserCounters(Protocol):
    """What readers felt, counted by the labels of their streams."""

    def charge(
        self, key: Labels, tokens_read: int, idle_ns: int, penalty_tokens: float, refunded_tokens: float
    ) -> None:
        """Count what readers got and waited, or what is given back of it."""

    def judged(self, key: Labels, outcome: str, met: object, verdict: Verdict | None, gaps_ns: Sequence[int]) -> None:
        """Count a verdict; `gaps_ns`: the gaps between the tokens of the request, ascending."""

    def foreign(self, row: Row) -> None:
        """Count a row of another instrumentation's span."""

    def families(self) -> Iterator[Metric]:
        """Yield the counters and histograms."""

    def gauges(self, counts: Mapping[Labels, tuple[int, int]]) -> Iterator[Metric]:
        """Yield how many streams are in flight and of how many the reader waits; `counts`: both, by labels."""


class Latency(Protocol):
    """How long decisions take from the flip to the written record."""

    def observe_ns(self, ns: int) -> None:
        """Count one decision."""

    def families(self) -> Iterator[Metric]:
        """Yield the histogram."""


class Records(Protocol):
    """Where decisions are recorded."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record; raises OSError or ValueError where it is not."""


class Dispatcher(Protocol):
    """Do enforced actions; called in the evaluator's thread, it neither waits nor raises."""

    def take(self, order: Order, settled: Callable[[Settled], None]) -> None:
        """Do an order; `settled` is called once, now or later, in any thread."""

    def over(self, decision: Decision) -> None:
        """Withdraw what a firing that has ended began and what was not sent."""

    def ended(self, stream: StreamKey, outcome: str) -> None:
        """Take note that a stream has ended."""


@dataclass(slots=True)
class Sinks:
    """Count, record and say what is found; see `Sink`.

    While `replaying`, what the run before has counted and said already is not counted, said or done again. `context`
    and `dispatcher` do what is enforced; without them nothing is done, and the record says `unconfirmed`. `later` runs
    something in the evaluator's thread, and is called from others.
    """

    clock: Clock
    console: Console
    metrics: UserCounters
    decisions: Records | None
    latency: Latency | None = None
    recent: deque[Callable[[], Row]] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    recent_decisions: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT_ROWS))
    decided_count: int = 0
    unwritten: int = 0
    """Lines of decisions or windows that could not be written."""
    replaying: bool = False
    mute: bool = False
    alerts: Alerts | None = None
    context: ActionContext | None = None
    dispatcher: Dispatcher | None = None
    live_since_ns: int = 0
    """What was decided at an instant before this, a run before may have done."""
    later: Callable[[Callable[[], None]], None] | None = None

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

    def stream_judged(self, stream: StreamInFlight, row: Callable[[], Row], verdict: Verdict | None) -> None:
        """Count the verdict, keep the row for those who look, and say it."""
        self.recent.append(row)
        if self.replaying:
            return
        outcome = stream.outcome or "lost"
        if self.dispatcher is not None:
            self.dispatcher.ended(stream.key, outcome)
        gaps_ns = stream.tokens_so_far.gaps_ns if stream.begun else ()
        met = row()["met"] if verdict is None else verdict.met
        self.metrics.judged(key_of(stream.group), outcome, met, verdict, gaps_ns)
        if verdict is None or self.console.wants(outcome, met):
            self._say(lambda: self.console.row(row()))

    def foreign_judged(self, row: Row) -> None:
        """Count and keep a row of another instrumentation's span."""
        self.recent.append(lambda: row)
        if not self.replaying:
            self.metrics.foreign(row)

    def decided(self, decisions: list[Decision]) -> None:
        """Record decisions, in the file first, then for people; have done what is enforced, and record how that went.

        What is to be done is recorded when its outcome is known: one line an action.
        """
        for decision in decisions:
            self.decided_count += 1
            if self.alerts is not None:
                self.alerts.take(decision)
            if self.latency is not None and not self.replaying:
                self.latency.observe_ns(self.clock.now_ns() - (decision.flip_ns - decision.offset_ns))
            if not self._do(decision):
                self._decided(decision)

    def _do(self, decision: Decision) -> bool:
        """Have an enforced action done; return whether it is one, and will be recorded."""
        if self.dispatcher is None or self.context is None or self.replaying:
            return False
        if decision.action is None:
            self.dispatcher.over(decision)
            return False
        if decision.action == "alert" or decision.mode != "enforce" or decision.outcome != "unconfirmed":
            return False
        if decision.now_ns < self.live_since_ns:
            self._decided(decision, "not sent: its instant is before this run, and the run before may have done it")
            return True
        order = self.context.order(decision)
        evaluators = threading.current_thread()

        def settled(how: Settled) -> None:
            if threading.current_thread() is evaluators or self.later is None:
                self._settled(order, how)
            else:
                self.later(lambda: self._settled(order, how))

        self.dispatcher.take(order, settled)
        return True

    def _settled(self, order: Order, how: Settled) -> None:
        self._decided(settled_decision(order.decision, how), how.detail, order.candidates)

    def _decided(self, decision: Decision, detail: str = "", candidates: Sequence[Candidate] | None = None) -> None:
        """Record one decision; `detail`: words on how it was done."""
        if decision.action == "alert" and decision.outcome == "done" and self.alerts is not None and self.alerts.sends:
            decision = replace(decision, outcome="sent")
        if candidates is None and self.context is not None:
            candidates = self.context.candidates(decision)
        record = decision.record(self.clock.now_ns())
        if decision.action == "preempt":
            record["candidates"] = [candidate.record() for candidate in candidates or ()]
        if detail:
            record["detail"] = detail
        self.recent_decisions.append(record)
        self._record(record)
        if not self.replaying:
            self._say(lambda: self.console.decision(decision))

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


def key_of(group: Group) -> Labels:
    """Return what the counters tell streams apart by."""
    slo_class, model, instance, measured_at = group
    return (slo_class, model, measured_at, instance)
