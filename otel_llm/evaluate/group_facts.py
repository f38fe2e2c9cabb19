"""Rules of scopes instance and class: their facts are updated while streams run, and evaluated every second.

A segment costs nothing here. A request that ends is added to its group's totals of the second. On each whole second of
the virtual clock the totals are added to the windows of their labels, streams in flight are counted by columns, and the
rules are evaluated. A second without a possible change is skipped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.evaluate.subjects import MAX_SUBJECTS, Subjects
from otel_llm.evaluate.usage import Charged
from otel_llm.formats.spans.finish_reasons import CUT
from otel_llm.rules.engine.scope_engine import ScopeEngine
from otel_llm.rules.engine.scope_facts import GROUP_SCOPES, SECOND_NS, ScopeFacts, needs
from otel_llm.rules.engine.sliding_window import Totals
from otel_llm.slo.classes import UnknownClassError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    import numpy.typing as npt

    from otel_llm.evaluate.streams.final_verdict import EndedStream
    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.evaluate.subjects import Subject
    from otel_llm.rules.decisions.decision_records import Decision, Labels
    from otel_llm.rules.engine.rule_engine import RuleEngine
    from otel_llm.slo.classes import Objective, SloClasses
    from otel_llm.slo.verdict import Verdict

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]


class Groups:
    """The facts of instances and classes, and the evaluation of their rules; without such rules it does nothing.

    `paused`: facts are updated without evaluating rules, while a restart reads a journal from its middle.
    """

    def __init__(
        self,
        table: StreamTable,
        engine: RuleEngine,
        classes: SloClasses,
        counts: Counter[str],
        most_subjects: int = MAX_SUBJECTS,
    ) -> None:
        self._table = table
        self.paused = False
        self.next_tick_ns: int | None = None
        self._last_tick_ns = 0
        self._counts, self._most_subjects = counts, most_subjects
        self._subjects = Subjects(counts, most_subjects)
        self._pending: dict[Group, Totals] = {}
        """Totals since the last tick, by group; the next tick adds them to the windows of both scopes."""
        self._heard_ns: dict[Group, int] = {}
        """The last receipt time of streams that have ended since the last tick."""
        self._charged = Charged(table, "windowed")
        """The charges of each stream in flight to the windows."""
        self._set(engine, classes)

    def subjects(self) -> list[Subject]:
        """Return the instances and classes that are followed, in one order."""
        return self._subjects.all()

    def use(self, engine: RuleEngine, classes: SloClasses, now_ns: int) -> list[Decision]:
        """Use the rules of another engine; return the decisions that end firings of removed rules."""
        former, charged = self.engine, self._benefit
        # Facts for these decisions, before those that only removed rules need are dropped.
        self._count_in_flight(now_ns)
        subjects = [self._facts(one, now_ns) for one in self._subjects.all()]
        self._set(engine, classes, charged=charged)
        decisions = self.engine.succeed(former, subjects)
        if self._active:
            for subject in self._subjects.all():
                subject.use(self._needs[subject.scope], now_ns)
        else:
            self._subjects = Subjects(self._counts, self._most_subjects)
            self._forget_pending()
            self.next_tick_ns = None
        self.wake(now_ns)
        return decisions

    def _set(self, engine: RuleEngine, classes: SloClasses, *, charged: bool = False) -> None:
        self.engine = ScopeEngine(engine.rules, engine.decision_maker, engine.decided)
        self._active = bool(engine.rules.group_rules)
        self._classes = classes
        self._needs = {scope: needs(self.engine.of(scope)) for scope in GROUP_SCOPES}
        self._benefit = any(found.benefit for found in self._needs.values())
        if self._benefit and not charged:
            self._charged.reset()

    def wake(self, now_ns: int) -> None:
        """Schedule a tick at the next whole second."""
        if not self._active:
            return
        tick_ns = max(_second(now_ns), self._last_tick_ns + SECOND_NS)
        if self.next_tick_ns is None or tick_ns < self.next_tick_ns:
            self.next_tick_ns = tick_ns

    def ended(self, ended: Sequence[EndedStream[StreamInFlight]], now_ns: int) -> None:
        """Count requests that have ended, and the rest of their benefit."""
        if not self._active:
            return
        for stream, ending, verdict, resolved, _ in ended:
            group, cut = stream.group, ending.finish_reason in CUT
            objective = stream.slo.objective.fluidity_index
            self._of(group).count(ending.outcome, verdict, objective, cut=cut, queue_s=resolved().queue_s)
            self._heard_ns[group] = max(self._heard_ns.get(group, 0), stream.last_receipt_ns)
        self.close([(one.stream, one.verdict) for one in ended])
        self.wake(now_ns)

    def close(self, ended: Sequence[tuple[StreamInFlight, Verdict | None]]) -> None:
        """Charge the rest of the verdicts' benefit; without a verdict, refund all charges of a stream."""
        if not self._benefit:
            return
        for stream, tokens, before_ns, idle_ns, abort in self._charged.close(ended):
            total, benefit = self._of(stream.group).benefit, stream.slo.benefit
            for term in (tokens, benefit.penalty_tokens(before_ns), -benefit.penalty_tokens(idle_ns), -abort):
                total.add(term)

    def charge(self, slots: Ints) -> None:
        """Charge tokens and idle time of some streams so far, before the group of one changes; `slots`: (S,) int64."""
        if self._benefit:
            for group, tokens, _, costs in self._charged.charge(slots):
                total = self._of(group).benefit
                total.add(int(tokens.sum()))
                total.add(-math.fsum(costs.tolist()))  # exact, so independent of the order of slots

    def tick(self, now_ns: int) -> list[Decision]:
        """Evaluate all rules at a whole second, and return the decisions."""
        self._last_tick_ns = now_ns
        self.charge(self._table.slots_in_flight())
        changed = bool(self._pending)
        self._subjects.begin_tick({*self._table.groups_in_flight(), *self._pending})
        for group, totals in self._pending.items():
            for subject in self._of_group(group, now_ns, self._heard_ns.get(group, 0)):
                for rolling in subject.windows.values():
                    rolling.add(totals, now_ns)
        self._forget_pending()
        in_flight = self._count_in_flight(now_ns)
        gone = self._subjects.take_gone()
        decisions: list[Decision] = []
        if not self.paused:
            for subject in gone:
                decisions += self.engine.end_firings(self._facts(subject, now_ns))
            for subject in self._subjects.all():
                decisions += self._evaluate(subject, now_ns)
        self.next_tick_ns = now_ns + SECOND_NS if in_flight or changed else self._next_tick_ns(now_ns)
        return decisions

    def resume(self, now_ns: int) -> None:
        """Begin to evaluate rules after a restart: windows are empty, and earlier firings continue."""
        self.paused = False
        self._last_tick_ns = max(self._last_tick_ns, now_ns - now_ns % SECOND_NS)
        self._forget_pending()
        if self._benefit:
            self._charged.reset()
        for scope, labels in self.engine.left_firing:
            self._subjects.restore(scope, labels, self._needs[scope], now_ns)
        for subject in self._subjects.all():
            subject.restart(now_ns)
        self._count_in_flight(now_ns)
        for subject in self._subjects.all():
            self.engine.follow(self._facts(subject, now_ns))
        self.next_tick_ns = None
        self.wake(now_ns)

    # A tick's parts.

    def _evaluate(self, subject: Subject, now_ns: int) -> list[Decision]:
        facts = self._facts(subject, now_ns)
        decisions = self.engine.evaluate(facts)
        if now_ns >= subject.expires_ns:
            decisions += self.engine.end_firings(facts)
            self._subjects.drop(subject)
        return decisions

    def _count_in_flight(self, now_ns: int) -> int:
        """Count the streams in flight, and the starving ones, of every subject; return the number in flight."""
        for subject in self._subjects.all():
            subject.reset_streams()
        table = self._table
        slots = table.slots_in_flight()
        if not slots.size:
            return 0
        groups = table.group[slots]
        streams = np.bincount(groups)
        heard_ns = np.zeros(len(streams), dtype=np.int64)
        np.maximum.at(heard_ns, groups, table.receipt_ns[slots])
        ages = {age for found in self._needs.values() for age in found.starving_ns}
        known = self._starving(slots, groups, ages, len(streams), now_ns) if ages else {}
        for index in np.flatnonzero(streams).tolist():
            for subject in self._of_group(table.groups[index], now_ns, int(heard_ns[index])):
                counts = subject.in_flight
                counts.streams += int(streams[index])
                for age, (some, hungry) in counts.known.items():
                    more, starving = known[age]
                    counts.known[age] = (some + int(more[index]), hungry + int(starving[index]))
        return len(slots)

    def _starving(
        self, slots: Ints, groups: Ints, ages: set[int], length: int, now_ns: int
    ) -> dict[int, tuple[Ints, Ints]]:
        """Count by group the streams with facts younger than each age, and the starving ones among them.

        `slots`, `groups`: (S,) int64. `length`: the number of groups. Returns by age two counts, (length,) int64.
        """
        table = self._table
        x_ns = table.now_ns(slots, now_ns)
        age_ns = x_ns - table.watermark_ns[slots]
        hungry = table.runway_at(slots, x_ns) < 0
        whole = np.ones(len(slots), dtype=bool)
        for index in np.flatnonzero(table.ready[slots] == 0).tolist():
            stream = table.streams[slots[index]]
            whole[index] = stream is not None and not stream.has_gap
        found = {}
        for age in ages:
            known: Bools = whole & (age_ns <= age)
            found[age] = (
                np.bincount(groups[known], minlength=length),
                np.bincount(groups[known & hungry], minlength=length),
            )
        return found

    def _next_tick_ns(self, now_ns: int) -> int | None:
        """Return the next second at which facts can change while no stream is in flight; None if there is none."""
        instants = []
        for subject in self._subjects.all():
            facts = self._facts(subject, now_ns)
            due_ns = self.engine.next_due_ns(subject.scope, subject.labels, now_ns)
            instants += [subject.expires_ns, facts.next_change_ns(rates=subject.needs.rates), due_ns]
        earliest = min((instant for instant in instants if instant is not None), default=None)
        return None if earliest is None else max(_second(earliest), now_ns + SECOND_NS)

    def _facts(self, subject: Subject, now_ns: int) -> ScopeFacts:
        return ScopeFacts(
            scope=subject.scope,
            labels=subject.labels,
            now_ns=now_ns,
            heard_ns=subject.heard_ns,
            in_flight=subject.in_flight,
            windows=subject.windows,
            since_ns=subject.since_ns,
            objective=self._objective(subject.labels),
        )

    def _objective(self, labels: Labels) -> Objective | None:
        try:
            return self._classes.get(dict(labels)["slo_class"]).objective
        except UnknownClassError:
            return None

    def _of_group(self, group: Group, now_ns: int, heard_ns: int) -> list[Subject]:
        """Return the subjects of a group with a stream, in the scopes that have a rule."""
        found = []
        for scope, needed in self._needs.items():
            if self.engine.of(scope):
                subject = self._subjects.of(scope, group, needed, now_ns)
                subject.busy_ns, subject.heard_ns = now_ns, max(subject.heard_ns, heard_ns)
                found.append(subject)
        return found

    def _of(self, group: Group) -> Totals:
        return self._pending.setdefault(group, Totals())

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._heard_ns.clear()


def _second(instant_ns: int) -> int:
    """Return the first whole second not before an instant."""
    return -(-instant_ns // SECOND_NS) * SECOND_NS
