"""The subjects of rules of scopes instance and class: their labels, windows and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.evaluate.streams.stream_table import MOST_GROUPS
from otel_llm.rules.engine.scope_facts import GROUP_SCOPES, LABELS_OF, SECOND_NS, WINDOW_NS, InFlightCounts, Needs
from otel_llm.rules.engine.sliding_window import SlidingWindow

if TYPE_CHECKING:
    from collections import Counter

    from otel_llm.evaluate.streams.stream_in_flight import Group
    from otel_llm.rules.decisions.decision_records import Labels
    from otel_llm.rules.language.facts import Scope

MAX_SUBJECTS: Final = 500
"""The most subjects of one scope; beyond them models and instances are `other`, as in metrics."""
OTHER: Final = "other"
LINGER_NS: Final = 60 * SECOND_NS
"""A subject exists for at least this long after its last stream."""


@dataclass(slots=True)
class Subject:
    """An instance or a class; instants are unix ns of the collector's clock.

    `since_ns`: the start of each window; `heard_ns`: the last receipt time of its streams; `busy_ns`: the last tick
    with a stream of it.
    """

    scope: Scope
    labels: Labels
    needs: Needs = field(default_factory=Needs)
    windows: dict[str, SlidingWindow] = field(default_factory=dict)
    since_ns: dict[str, int] = field(default_factory=dict)
    in_flight: InFlightCounts = field(default_factory=lambda: InFlightCounts(0, {}))
    heard_ns: int = 0
    busy_ns: int = 0

    def use(self, needs: Needs, now_ns: int) -> None:
        """Use these needs of rules from now on; new windows begin empty."""
        self.needs = needs
        self.since_ns = {window: self.since_ns.get(window, now_ns) for window in needs.windows}
        self.windows = {
            window: self.windows.get(window) or SlidingWindow(WINDOW_NS[window]) for window in needs.windows
        }
        self.reset_streams()

    def reset_streams(self) -> None:
        """Set the counts of streams in flight to 0."""
        self.in_flight = InFlightCounts(0, dict.fromkeys(self.needs.starving_ns, (0, 0)))

    def restart(self, now_ns: int) -> None:
        """Empty the windows, after a restart has read the journal."""
        self.windows, self.since_ns = {}, {}
        self.heard_ns, self.busy_ns = self.heard_ns or now_ns, self.busy_ns or now_ns
        self.use(self.needs, now_ns)

    @property
    def expires_ns(self) -> int:
        """Return the instant from which no rule can depend on the subject, unless it gets a stream."""
        return self.busy_ns + max(LINGER_NS, self.needs.lasting_ns)


class Subjects:
    """The subjects of both scopes, at most `most` of each (and `other` of each class)."""

    def __init__(self, counts: Counter[str], most: int = MAX_SUBJECTS) -> None:
        self._counts = counts
        self._most = most
        self._known: dict[Scope, dict[Labels, Subject]] = {scope: {} for scope in GROUP_SCOPES}
        self._ordered: list[Subject] | None = None
        self._folded: set[Group] = set()

    def all(self) -> list[Subject]:
        """Return the subjects in an order that does not depend on their arrival."""
        if self._ordered is None:
            self._ordered = [known[labels] for known in self._known.values() for labels in sorted(known)]
        return self._ordered

    def of(self, scope: Scope, group: Group, needs: Needs, now_ns: int) -> Subject:
        """Return the subject of a group, created where it is new."""
        known = self._known[scope]
        labels = labels_of(scope, group)
        if labels not in known and len(known) >= self._most:
            if group not in self._folded and len(self._folded) < MOST_GROUPS:
                self._folded.add(group)
                self._counts["folded_groups"] += 1
            slo_class, _, _, measured_at = group
            labels = labels_of(scope, (slo_class, OTHER, OTHER, measured_at))
        return known.get(labels) or self.add(scope, labels, needs, now_ns)

    def add(self, scope: Scope, labels: Labels, needs: Needs, now_ns: int) -> Subject:
        """Return the subject of these labels, created where it is new."""
        subject = self._known[scope].get(labels)
        if subject is None:
            subject = self._known[scope][labels] = Subject(scope, labels)
            subject.use(needs, now_ns)
            self._ordered = None
        return subject

    def drop(self, subject: Subject) -> None:
        """Remove a subject."""
        del self._known[subject.scope][subject.labels]
        self._ordered = None


def labels_of(scope: Scope, group: Group) -> Labels:
    """Return the labels of a group in a scope."""
    slo_class, model, instance, measured_at = group
    values = {"slo_class": slo_class, "model": model, "instance": instance, "measured_at": measured_at}
    return tuple(sorted((name, values[name]) for name in LABELS_OF[scope]))
