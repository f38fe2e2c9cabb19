"""Pass the evaluator's findings to their sinks in one order: counters, files, alerts, actions, the console."""

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
    from otel_llm.live.history import Totals
    from otel_llm.readers.rows import Row
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.language.snapshot import StreamKey
    from otel_llm.shared.clock import Clock
    from otel_llm.slo.stated_total import StatedReply
    from otel_llm.slo.verdict import Verdict

RECENT_ROWS = 1000
Labels = tuple[str, str, str, str]
"""(slo_class, model, measured_at, instance) of a stream; "" where unknown."""
log = logging.getLogger(__name__)


class UserCounters(Protocol):
    """Counters of what readers felt, by the labels of their streams."""

    def charge(
        self, key: Labels, tokens_read: int, idle_ns: int, penalty_tokens: float, refunded_tokens: float
    ) -> None:
        """Add what readers got and waited, or take back a part of it."""

    def judged(self, key: Labels, outcome: str, met: object, verdict: Verdict | None, gaps_ns: Sequence[int]) -> None:
        """Count a verdict; `gaps_ns`: the gaps between the tokens of the request, ascending."""

    def stated(self, reply: StatedReply) -> str | None:
        """Count the length of a reply as it states it; return the note on its model, once."""

    @property
    def notes(self) -> Sequence[str]:
        """Return the notes on models."""

    def foreign(self, row: Row) -> None:
        """Count a row of another instrumentation's span."""

    def families(self) -> Iterator[Metric]:
        """Yield the counters and histograms."""

    def gauges(self, counts: Mapping[Labels, Sequence[int]]) -> Iterator[Metric]:
        """Yield the numbers of streams in flight; `counts`: by labels, in each band of runways."""

    def totals(self) -> Mapping[tuple[str, str], Totals]:
        """Return the counters by class and place of measurement."""


class Latency(Protocol):
    """The time of decisions from the flip to the written record."""

    def observe_ns(self, ns: int) -> None:
        """Count one decision."""

    def families(self) -> Iterator[Metric]:
        """Yield the histogram."""


class Records(Protocol):
    """A file of decision records."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record; raises OSError or ValueError where it is not."""


class Dispatcher(Protocol):
    """The interface to what does enforced actions; called in the evaluator's thread, it neither waits nor raises."""

    def take(self, order: Order, settled: Callable[[Settled], None]) -> None:
        """Do an order; `settled` is called once, now or later, in any thread."""

    def withdraw(self, decision: Decision) -> None:
        """Withdraw the unsent actions of a firing that has ended."""

    def ended(self, stream: StreamKey, outcome: str) -> None:
        """Settle the actions on a stream that has ended."""


@dataclass(slots=True)
class Sinks:
    """The sink of a service: count, record and print findings; see `Sink`.

    While `replaying`, findings that the run before has counted, printed and done are skipped. `context` and
    `dispatcher` do enforced actions; without them none is done, and the record says `unconfirmed`. `later(step)`
    runs a step in the evaluator's thread; other threads call it.
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
    """A decision before this instant may have been done by an earlier run."""
    later: Callable[[Callable[[], None]], None] | None = None

    def charged(self, metered: Metered) -> None:
        """Add what readers got or waited, or take back a part of it."""
        if not self.replaying:
            self.metrics.charge(
                key_of(metered.group),
                metered.tokens_read,
                metered.idle_ns,
                metered.penalty_tokens,
                metered.refunded_tokens,
            )

    def stream_judged(self, stream: StreamInFlight, row: Callable[[], Row], verdict: Verdict | None) -> None:
        """Count the verdict, keep the row for the web port, and print it."""
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

    def reply_stated(self, reply: StatedReply) -> None:
        """Count the length of a reply as it states it, and say once if a model's recorded tokens are off."""
        if not self.replaying and (note := self.metrics.stated(reply)) is not None:
            self._say(lambda: self.console.note(note))

    def foreign_judged(self, row: Row) -> None:
        """Count and keep a row of another instrumentation's span."""
        self.recent.append(lambda: row)
        if not self.replaying:
            self.metrics.foreign(row)

    def decided(self, decisions: list[Decision]) -> None:
        """Record decisions, in the file first, then for people; dispatch enforced actions.

        The decision of an action is recorded when its outcome is known: one line an action.
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
        """Dispatch an enforced action; return whether it is one, and will be recorded."""
        if self.dispatcher is None or self.context is None or self.replaying:
            return False
        if decision.action is None:
            self.dispatcher.withdraw(decision)
            return False
        if decision.action == "alert" or decision.mode != "enforce" or decision.outcome != "unconfirmed":
            return False
        if decision.now_ns < self.live_since_ns:
            self._decided(decision, "not sent: its instant is before this run, and the run before may have done it")
            return True
        order = self.context.order(decision)
        evaluator_thread = threading.current_thread()

        def settled(how: Settled) -> None:
            if threading.current_thread() is evaluator_thread or self.later is None:
                self._settled(order, how)
            else:
                self.later(lambda: self._settled(order, how))

        self.dispatcher.take(order, settled)
        return True

    def _settled(self, order: Order, how: Settled) -> None:
        self._decided(settled_decision(order.decision, how), how.detail, order.candidates)

    def _decided(self, decision: Decision, detail: str = "", candidates: Sequence[Candidate] | None = None) -> None:
        """Record one decision; `detail`: how its action went."""
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
        """Count a line that could not be written; logged once."""
        if not self.unwritten:
            log.error("otel-llm: %s cannot be written: %s", what, problem)
        self.unwritten += 1

    def _say(self, line: Callable[[], None]) -> None:
        """Write to the terminal while there is one: a closed pipe must not stop the evaluation."""
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
    """Return the labels by which the counters group streams."""
    slo_class, model, instance, measured_at = group
    return (slo_class, model, measured_at, instance)
