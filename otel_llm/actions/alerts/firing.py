"""Alerts made of decisions: one for each name and set of labels, however many streams fire. No clock, no I/O.

A stream that begins to fire joins an alert; it leaves when its firing ends. The alert fires from its first member to
its last. It resolves when it had no member for the settling time: if readers of an instance starve one after the
other, for a moment each, there is one alert and not one a second.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from otel_llm.actions.alerts.places import Places

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.actions.alerts.places import Key, Member, Step
    from otel_llm.rules.decisions.decision_records import Decision, Subject
    from otel_llm.rules.language.facts import Scope
    from otel_llm.rules.language.tokens import Value

SAMPLES: Final = 5
"""How many trace ids an alert shows."""
_ON_THE_WAY_NS: Final = 5_000_000_000
"""How long after its instant a decision may be taken at most."""

Status = Literal["firing", "resolved"]


@dataclass(slots=True)
class Alert:
    """One alert from its first member to its end; instants in unix ns of the collector's clock.

    `empty_ns`: since when it has no member, None while it has; `ends_ns`: when it ended, None while it fires. `version`
    grows whenever it begins or ends. `total`: how many streams (or instances, classes) joined it so far.
    """

    key: Key
    scope: Scope
    starts_ns: int
    version: int = 0
    empty_ns: int | None = None
    ends_ns: int | None = None
    total: int = 0
    rules: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)
    facts: dict[str, Value | None] = field(default_factory=dict)
    members: set[Member] = field(default_factory=set)
    subjects: Counter[Subject] = field(default_factory=Counter)
    begun_ns: int = 0
    since_ns: int = 0
    """When the first member, or the first after a time without, was decided; and since when it fired."""

    @property
    def status(self) -> Status:
        """Return whether it fires; one whose last member left recently still does."""
        return "firing" if self.ends_ns is None else "resolved"

    @property
    def count(self) -> int:
        """Return how many streams, instances or classes fire now."""
        return len(self.subjects)


class Event(NamedTuple):
    """The beginning or the end of an alert."""

    alert: Alert
    status: Status


class Firing:
    """The alerts in memory: `take` every decision in order; `begin` once, when sending may start; then `poll`.

    If two threads share it, one makes the steps of `places`, and the other does the rest, with `apply` for `take`.
    """

    def __init__(self, settle_ns: int, keep_ns: int) -> None:
        self._settle_ns = settle_ns
        self._keep_ns = keep_ns
        self.places = Places()
        self._alerts: dict[Key, Alert] = {}
        self._untold: list[Event] = []
        self._version = 0
        self._begun = False

    def take(self, decision: Decision) -> None:
        """Let a decision's subject join or leave its alerts."""
        self.apply(self.places.take(decision))

    def apply(self, step: Step) -> None:
        """Take a step; an alert that gives way while it fires ends."""
        decision, member = step.decision, step.member
        at_ns = min(decision.flip_ns - decision.offset_ns, decision.now_ns)
        for key in step.gave_way:
            self._give_way(key, at_ns)
        for key in step.leaves:
            joined = self._alerts[key]
            joined.members.discard(member)
            joined.subjects[member[1]] -= 1
            if not joined.subjects[member[1]]:
                del joined.subjects[member[1]]
            if not joined.members:
                joined.empty_ns = max(at_ns, joined.starts_ns)
        if step.joins is None:
            return
        alert = self._alerts.get(step.joins)
        if alert is None or alert.ends_ns is not None:
            alert = self._new(Alert(step.joins, decision.scope, at_ns, facts=dict(decision.facts)))
        if member not in alert.members:
            self._join(alert, member, decision, at_ns)

    def begin(self, saved: Iterable[Alert], saved_ns: int | None, now_ns: int) -> None:
        """Go on from the alerts that an earlier run had sent when it last saved, at `saved_ns`; None: there was none.

        What was taken until now is what fires. An alert that fires both then and now goes on; one that fires no more
        ends like any other. One that began and ended after that instant is sent now; any older one was sent then.
        """
        reported = {alert.key: alert for alert in saved}
        untold_from_ns = now_ns if saved_ns is None else saved_ns - _ON_THE_WAY_NS
        for key, alert in list(self._alerts.items()):
            was = reported.pop(key, None)
            if was is not None and was.ends_ns is None:
                alert.starts_ns = min(was.starts_ns, alert.starts_ns)
                alert.total = max(was.total, alert.count)
                alert.samples, alert.facts = was.samples, was.facts
            elif alert.members or (alert.begun_ns > untold_from_ns and not _covers(was, alert.since_ns)):
                self._untold.append(Event(alert, "firing"))
            elif was is not None:
                self._alerts[key] = was
            else:
                del self._alerts[key]
        for key, was in reported.items():
            if was.ends_ns is None and was.empty_ns is None:
                was.empty_ns = max(now_ns, was.starts_ns)
            self._alerts[key] = was
        for alert in self._alerts.values():
            self._version += 1
            alert.version = self._version
        self._begun = True

    def poll(self, now_ns: int) -> list[Event]:
        """End the alerts that have settled, forget those that ended long ago; return what has begun and ended since."""
        for key, alert in list(self._alerts.items()):
            if alert.ends_ns is not None:
                if alert.ends_ns + self._keep_ns <= now_ns:
                    del self._alerts[key]
            elif alert.empty_ns is not None and alert.empty_ns + self._settle_ns <= now_ns:
                self._end(alert, alert.empty_ns)
        events, self._untold = self._untold, []
        return events

    def next_ns(self) -> int | None:
        """Return when `poll` has something to end, if nothing is taken."""
        empty = [one.empty_ns for one in self._alerts.values() if one.empty_ns is not None and one.ends_ns is None]
        return min(empty, default=None) if not empty else min(empty) + self._settle_ns

    def alerts(self) -> list[Alert]:
        """Return those that fire and those that ended recently."""
        return list(self._alerts.values())

    def _new(self, alert: Alert) -> Alert:
        self._version += 1
        alert.version = self._version
        self._alerts[alert.key] = alert
        if self._begun:
            self._untold.append(Event(alert, "firing"))
        return alert

    def _end(self, alert: Alert, ends_ns: int) -> None:
        alert.ends_ns = ends_ns
        self._version += 1
        alert.version = self._version
        self._untold.append(Event(alert, "resolved"))

    def _give_way(self, key: Key, at_ns: int) -> None:
        alert = self._alerts.pop(key, None)
        if alert is not None and alert.ends_ns is None and self._begun:
            self._end(alert, max(at_ns, alert.starts_ns) if alert.empty_ns is None else alert.empty_ns)

    def _begin_anew(self, alert: Alert, at_ns: int) -> None:
        """Begin an alert anew: nothing ends before the first sending, so the one before the pause was another."""
        alert.starts_ns, alert.total = at_ns, 0
        alert.rules.clear()
        alert.samples.clear()

    def _join(self, alert: Alert, member: Member, decision: Decision, at_ns: int) -> None:
        if not alert.members:
            if not self._begun and alert.empty_ns is not None and alert.empty_ns + self._settle_ns <= at_ns:
                self._begin_anew(alert, at_ns)
            alert.begun_ns, alert.since_ns = decision.now_ns, at_ns
        alert.empty_ns = None
        alert.members.add(member)
        alert.subjects[member[1]] += 1
        alert.total += alert.subjects[member[1]] == 1
        if decision.rule not in alert.rules:
            alert.rules.append(decision.rule)
        if decision.stream is not None and len(alert.samples) < SAMPLES:
            trace_id = decision.stream[0].hex()
            if trace_id not in alert.samples:
                alert.samples.append(trace_id)


def _covers(was: Alert | None, at_ns: int) -> bool:
    """Tell whether an alert that has ended had covered a firing at this instant."""
    return was is not None and was.ends_ns is not None and at_ns <= was.ends_ns
