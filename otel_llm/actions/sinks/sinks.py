"""Pass the evaluator's findings to their sinks in one order: counters, files, alerts, actions, the console."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from otel_llm.actions.execute.open_actions import Completion, completed_decision
from otel_llm.actions.sinks.write_limits import WriteLimits
from otel_llm.config.secret_files import MAX_TOKENS
from otel_llm.live.felt import Felt
from otel_llm.live.history import Totals
from otel_llm.live.user_metrics import EndedReply, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from otel_llm.actions.alerts.alerts import Alerts
    from otel_llm.actions.execute.events import Candidate, Order
    from otel_llm.actions.sinks.action_context import ActionContext
    from otel_llm.actions.sinks.console import Console
    from otel_llm.evaluate.streams.final_verdict import EndedStream
    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.usage import Metered
    from otel_llm.formats.records import StreamKey
    from otel_llm.formats.rows import Row
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.shared.clock import Clock
    from otel_llm.slo.stated_total import StatedReply

HOLD_EVERY_NS: Final = 1_000_000_000
"""How often the label sets with streams in flight are noted, while new ones need others to give way."""
log = logging.getLogger(__name__)
T = TypeVar("T")

MOST: Final = 1000
MOST_OF_TENANT: Final = 200
MOST_TENANTS: Final = MAX_TOKENS
"""As many as a file of tokens can name; of more, the tenants without a recent finding are forgotten."""


class Recent(Generic[T]):
    """The newest items; a tenant that has many displaces no other tenant's from its own list."""

    def __init__(self, most: int = MOST, most_of_tenant: int = MOST_OF_TENANT) -> None:
        self._every: deque[T] = deque(maxlen=most)
        self._of: OrderedDict[str, deque[T]] = OrderedDict()
        self._most_of_tenant = most_of_tenant

    def add(self, tenant: str, item: T) -> None:
        """Add the newest item."""
        self._every.append(item)
        own = self._of.get(tenant)
        if own is None:
            own = self._of[tenant] = deque(maxlen=self._most_of_tenant)
            if len(self._of) > MOST_TENANTS:
                self._of.popitem(last=False)
        own.append(item)
        self._of.move_to_end(tenant)

    def of(self, tenant: str | None = None) -> list[T]:
        """Return the newest items of a tenant, or of all tenants (None), oldest first."""
        return list(self._every if tenant is None else self._of.get(tenant, ()))


class UserCounters(Protocol):
    """Counters of what readers felt, by the labels of their streams."""

    def charge(self, key: Key, tokens_read: int, idle_ns: int, penalty_tokens: float, refunded_tokens: float) -> None:
        """Add what readers got and waited, or take back a part of it."""

    def judged(self, key: Key, replies: Sequence[EndedReply]) -> None:
        """Count the verdicts on replies."""

    def stated(self, reply: StatedReply) -> str | None:
        """Count the length of a reply as it states it; return the note on its model, once."""

    @property
    def notes(self) -> Sequence[str]:
        """Return the notes on models."""

    def foreign(self, row: Row) -> None:
        """Count a row of another instrumentation's span."""

    def families(self) -> Iterator[Metric]:
        """Yield the counters and histograms."""

    def gauges(self, counts: Mapping[Key, Sequence[int]]) -> Iterator[Metric]:
        """Yield the numbers of streams in flight; `counts`: by labels, in each band of runways."""

    @property
    def is_full(self) -> bool:
        """Return whether new labels need others to give way."""

    @property
    def gave_way(self) -> Mapping[str, int]:
        """Return how many labels gave way to others, by table."""

    def hold(self, keys: Iterable[Key]) -> None:
        """Note the labels of streams in flight: they do not give way, but to a tenant with fewer."""


class Latency(Protocol):
    """The time of decisions from the flip to the written record."""

    def observe_ns(self, ns: int) -> None:
        """Count one decision."""

    def families(self) -> Iterator[Metric]:
        """Yield the histogram."""


class Records(Protocol):
    """A file of decision records."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record; raises OSError or ValueError if it is not."""


class Dispatcher(Protocol):
    """The interface to what does enforced actions; called in the evaluator's thread, it neither waits nor raises."""

    def take(self, order: Order, completed: Callable[[Completion], None]) -> None:
        """Do an order; `completed` is called once, now or later, in any thread."""

    def keep(self, decision: Decision) -> bool:
        """Keep a decided action until its firing ends; return whether it will be recorded."""

    def withdraw(self, decision: Decision) -> None:
        """Withdraw the unsent actions of a firing that has ended."""

    def ended(self, stream: StreamKey, outcome: str) -> None:
        """Complete the actions on a stream that has ended."""

    def notes(self) -> Sequence[str]:
        """Return a sentence for each receiver to which nothing is sent now."""


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
    recent: Recent[Callable[[], Row]] = field(default_factory=Recent)
    recent_decisions: Recent[dict[str, Any]] = field(default_factory=Recent)
    felt: Felt = field(default_factory=Felt)
    judged_of: Counter[str] = field(default_factory=Counter)
    """Verdicts by tenant."""
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
    limits: WriteLimits = field(default_factory=WriteLimits)
    """Which decisions and verdicts are written; counters, alerts and the page have all of them."""
    groups_in_flight: Callable[[], Iterable[Group]] = tuple
    """Returns the groups of the streams in flight."""
    _held_ns: int = 0

    def charged(self, metered: Metered) -> None:
        """Add what readers got or waited, or take back a part of it."""
        if self.replaying:
            return
        self._hold_in_flight()
        group, read, idle_ns = metered.group, metered.tokens_read, metered.idle_ns
        self.metrics.charge(key_of(group), read, idle_ns, metered.penalty_tokens, metered.refunded_tokens)
        smooth = read - metered.penalty_tokens + metered.refunded_tokens
        self._feel(group, Totals(tokens_read=read, smooth_tokens=smooth, idle_ns=idle_ns))

    def streams_judged(self, ended: Sequence[EndedStream[StreamInFlight]]) -> None:
        """Count verdicts, keep the rows for the web port, and print them."""
        for one in ended:
            self.recent.add(one.stream.group.tenant, one.row)
            self.judged_of[one.stream.group.tenant] += 1
        if self.replaying:
            return
        self._hold_in_flight()
        found: dict[Group, list[EndedReply]] = {}
        for stream, _, verdict, _, row in ended:
            outcome = stream.outcome or "lost"
            if self.dispatcher is not None:
                self.dispatcher.ended(stream.key, outcome)
            met = row()["met"] if verdict is None else verdict.met
            if verdict is None or self.console.wants(outcome, met):
                self._say_verdict(stream.group.tenant, row())
            gaps = ((), 0) if verdict is None else (stream.stream.gaps_ns, stream.stream.joint_tokens)
            found.setdefault(stream.group, []).append(EndedReply(outcome, met, verdict, *gaps))
        for group, replies in found.items():
            self.metrics.judged(key_of(group), replies)
            met_true, met_false = (sum(reply.met is word for reply in replies) for word in (True, False))
            self._feel(group, Totals(met=met_true, missed=met_false))

    def _hold_in_flight(self) -> None:
        if self.metrics.is_full and (now_ns := self.clock.now_ns()) >= self._held_ns + HOLD_EVERY_NS:
            self._held_ns = now_ns
            self.metrics.hold(map(key_of, self.groups_in_flight()))

    def _feel(self, group: Group, more: Totals) -> None:
        self.felt.add(group.slo_class, group.measured_at, group.tenant, more)

    def reply_stated(self, reply: StatedReply) -> None:
        """Count the length of a reply as it states it, and say once if a model's recorded tokens are off."""
        if not self.replaying and (note := self.metrics.stated(reply)) is not None:
            self._say(lambda: self.console.note(note))

    def foreign_judged(self, row: Row) -> None:
        """Count and keep a row of another instrumentation's span."""
        self.recent.add(str(row["tenant"]), lambda: row)
        if not self.replaying:
            self._hold_in_flight()
            self.metrics.foreign(row)

    def notes(self) -> list[str]:
        """Return sentences for people: on models, and on receivers to which no actions are sent."""
        return [*self.metrics.notes, *(() if self.dispatcher is None else self.dispatcher.notes())]

    def decided(self, decisions: list[Decision]) -> None:
        """Record decisions, in the file first, then for people; dispatch enforced actions.

        The decision of an action is recorded when its outcome is known: one line an action. `limits` says which
        of those in shadow are recorded.
        """
        self.tick(decisions[-1].now_ns)
        for decision, written in zip(decisions, self.limits.admit(decisions), strict=True):
            self.decided_count += 1
            if self.alerts is not None:
                decision = self.alerts.take(decision)  # noqa: PLW2901  with what becomes of its alert
            if self.latency is not None and not self.replaying:
                self.latency.observe_ns(self.clock.now_ns() - (decision.flip_ns - decision.offset_ns))
            if not self._do(decision):
                self._decided(decision, written=written)

    def tick(self, now_ns: int | None = None) -> None:
        """Write the counts of what was left out, those that are due at an instant (unix ns) or, at the stop, all."""
        for one in self.limits.due(now_ns):
            if one.rule:
                self._record(one.record(self.clock.now_ns()))
            self._say(partial(self.console.left_out, one))

    def _do(self, decision: Decision) -> bool:
        """Dispatch an enforced action; return whether it is one, and will be recorded."""
        if self.dispatcher is None or self.context is None or self.replaying:
            return False
        if decision.action is None:
            self.dispatcher.withdraw(decision)
            return False
        if self.dispatcher.keep(decision):
            return True
        if decision.action == "alert" or decision.mode != "enforce" or decision.outcome != "unconfirmed":
            return False
        if decision.now_ns < self.live_since_ns:
            self._decided(decision, "not sent: its instant is before this run, and the run before may have done it")
            return True
        order = self.context.order(decision)
        evaluator_thread = threading.current_thread()

        def completed(how: Completion) -> None:
            if threading.current_thread() is evaluator_thread or self.later is None:
                self._completed(order, how)
            else:
                self.later(lambda: self._completed(order, how))

        self.dispatcher.take(order, completed)
        return True

    def record(self, decision: Decision) -> None:
        """Record what became of a kept action."""
        self._decided(decision)

    def _completed(self, order: Order, how: Completion) -> None:
        self._decided(completed_decision(order.decision, how), how.detail, order.candidates)

    def _decided(
        self,
        decision: Decision,
        detail: str = "",
        candidates: Sequence[Candidate] | None = None,
        *,
        written: bool = True,
    ) -> None:
        """Record one decision, for the page alone if it is not to be `written`; `detail`: how its action went."""
        if candidates is None and self.context is not None:
            candidates = self.context.candidates(decision)
        record = decision.record(self.clock.now_ns())
        if decision.action == "preempt":
            record["candidates"] = [candidate.record() for candidate in candidates or ()]
        if detail:
            record["detail"] = detail
        self.recent_decisions.add(decision.tenant, record)
        if not written:
            return
        self._record(record)
        if not self.replaying:
            self._say(lambda: self.console.decision(decision))

    def not_written(self, what: str, problem: Exception) -> None:
        """Count a line that could not be written; logged once."""
        if not self.unwritten:
            log.error("otel-llm: %s cannot be written: %s", what, problem)
        self.unwritten += 1

    def _say_verdict(self, tenant: str, row: Row) -> None:
        if self.console.wants_row(row) and self.limits.admit_verdict(tenant, self.clock.now_ns()):
            self._say(lambda: self.console.row(row))

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


def key_of(group: Group) -> Key:
    """Return the labels by which the counters group streams."""
    return Key(group.slo_class, group.model, group.measured_at, group.instance, group.tenant)
