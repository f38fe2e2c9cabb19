"""The subjects of rules of scopes instance and class: their labels, windows and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.core.fair_shares import FairTable
from otel_llm.evaluate.streams.stream_table import MOST_GROUPS
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.rules.engine.scope_facts import GROUP_SCOPES, LABELS_OF, SECOND_NS, WINDOW_NS, InFlightCounts, Needs
from otel_llm.rules.engine.sliding_window import SlidingWindow

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection

    from otel_llm.evaluate.streams.stream_in_flight import Group
    from otel_llm.rules.decisions.decision_records import Labels
    from otel_llm.rules.language.facts import Scope

MAX_SUBJECTS: Final = 500
"""The most subjects of one scope."""
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
    """The subjects of both scopes, at most `most` of each (and `other` of each class), shared fairly by tenants.

    A subject is in use in a tick if it has a stream in flight, or one that ended since the last tick. Others give way
    to a new one. If none does, the new one counts as `other` in this tick.
    """

    def __init__(self, counts: Counter[str], most: int = MAX_SUBJECTS) -> None:
        self._counts = counts
        self._known: dict[Scope, dict[Labels, Subject]] = {scope: {} for scope in GROUP_SCOPES}
        self._tables: dict[Scope, FairTable[Labels]] = {scope: FairTable(most) for scope in GROUP_SCOPES}
        self._used: dict[Scope, set[Labels]] = {scope: set() for scope in GROUP_SCOPES}
        self._ordered: list[Subject] | None = None
        self._folded: set[Group] = set()
        self._gone: list[Subject] = []

    def all(self) -> list[Subject]:
        """Return the subjects in an order that does not depend on their arrival."""
        if self._ordered is None:
            self._ordered = [known[labels] for known in self._known.values() for labels in sorted(known)]
        return self._ordered

    def begin_tick(self, groups: Collection[Group]) -> None:
        """Note the groups that have a stream in this tick, before `of` is called for them; the other subjects idle."""
        for scope, table in self._tables.items():
            if table.is_full:
                known, used = self._known[scope], {labels_of(scope, group) for group in groups}
                # Ties by name, so that a replay gives the same.
                for labels in sorted(self._used[scope] - used, key=lambda one: (known[one].busy_ns, one)):
                    table.rest(labels)
                self._used[scope] &= used

    def of(self, scope: Scope, group: Group, needs: Needs, now_ns: int) -> Subject:
        """Return the subject of a group with a stream, created if it is new."""
        known, labels = self._known[scope], labels_of(scope, group)
        if labels not in known and not self._admit(scope, labels, group.tenant):
            if group not in self._folded and len(self._folded) < MOST_GROUPS:
                self._folded.add(group)
                self._counts["folded_groups"] += 1
            labels = labels_of(scope, group._replace(model=OTHER, instance=OTHER))
        elif labels not in self._used[scope] and labels in self._tables[scope]:
            self._tables[scope].hold(labels)
            self._used[scope].add(labels)
        return known.get(labels) or self._add(scope, labels, needs, now_ns)

    def restore(self, scope: Scope, labels: Labels, needs: Needs, now_ns: int) -> None:
        """Add the subject of a firing that an earlier run has left; also beyond the limit, until that ends."""
        if labels not in self._known[scope]:
            self._admit(scope, labels, dict(labels).get("tenant", DEFAULT_TENANT))
            self._add(scope, labels, needs, now_ns)

    def take_gone(self) -> list[Subject]:
        """Return the subjects that gave way since the last call: what fires on them ends."""
        gone, self._gone = self._gone, []
        return gone

    def drop(self, subject: Subject) -> None:
        """Remove a subject."""
        del self._known[subject.scope][subject.labels]
        self._tables[subject.scope].drop(subject.labels)
        self._used[subject.scope].discard(subject.labels)
        self._ordered = None

    def _admit(self, scope: Scope, labels: Labels, tenant: str) -> bool:
        table = self._tables[scope]
        for gone in table.admit(labels, tenant):
            self._gone.append(self._known[scope][gone])
            self._counts["gave_way.subjects"] += 1
            self.drop(self._gone[-1])
        return labels in table

    def _add(self, scope: Scope, labels: Labels, needs: Needs, now_ns: int) -> Subject:
        subject = self._known[scope][labels] = Subject(scope, labels)
        subject.use(needs, now_ns)
        self._ordered = None
        return subject


def labels_of(scope: Scope, group: Group) -> Labels:
    """Return the labels of a group in a scope, and its tenant if it has a name: each tenant has its own subjects."""
    names = (*LABELS_OF[scope], *(() if group.tenant == DEFAULT_TENANT else ("tenant",)))
    return tuple(sorted((name, getattr(group, name)) for name in names))
