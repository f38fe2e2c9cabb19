"""The places of alerts: which alert a firing joins, and which alert gives way if all places are taken.

One thread owns it, the evaluator's, so that the record of a decision can say what became of its alert. `Firing` tells
the story of the alerts; it takes the steps that are made here, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.core.fair_shares import FairTable
from otel_llm.formats.records import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_llm.rules.decisions.decision_records import Decision, Subject

MOST_ALERTS: Final = 10_000
"""Alerts that are kept at once, those recently resolved included."""

Key = tuple[tuple[str, str], ...]
"""An alert's labels, sorted, its name among them as `alertname`; labels without a value are left out."""
Member = tuple[str, "Subject"]
"""A rule, by its hash, and the stream or labels for which it fires."""


class Step(NamedTuple):
    """The effect of a decision: the alert that its member joins, those that it leaves, those that gave way.

    `begins`: the alert had no member. `refused`: it should have joined a new alert, and there was no place.
    """

    decision: Decision
    joins: Key | None = None
    leaves: Sequence[Key] = ()
    gave_way: Sequence[Key] = ()
    begins: bool = False
    refused: bool = False

    @property
    def member(self) -> Member:
        """Return the rule and the subject of the decision."""
        return self.decision.rule_hash, self.decision.subject


class Places:
    """The places: at most `most`, shared fairly by tenants. An alert is in use while it has a member.

    In a full table the alert gives way that has been without a member for longest, ended or about to; one with members
    only to a tenant with fewer alerts.
    """

    def __init__(self, most: int = MOST_ALERTS) -> None:
        self._table = FairTable[Key](most)
        self._of: dict[Member, list[Key]] = {}
        self._members: dict[Key, set[Member]] = {}
        self.left_out = 0
        """Firings that were left out: there was no place."""

    @property
    def gave_way(self) -> int:
        """Return how many alerts gave way to others."""
        return self._table.gave_way

    def take(self, decision: Decision) -> Step:
        """Let a decision's subject join or leave its alerts; shadow decisions and those over a budget join none."""
        member = (decision.rule_hash, decision.subject)
        if decision.state == "resolved":
            leaves = self._of.pop(member, ())
            for key in leaves:
                self._members[key].discard(member)
                if not self._members[key]:
                    self._table.rest(key)
            return Step(decision, leaves=leaves)
        if decision.action != "alert" or decision.outcome != "done":
            return Step(decision)
        key = key_of(str(decision.arguments["name"]), decision.arguments.get("by", ()), decision.identity)
        gone: list[Key] = []
        if key not in self._table:
            gone = self._table.admit(key, decision.tenant)
            self._leave(gone)
            if key not in self._table:
                self.left_out += 1
                return Step(decision, gave_way=gone, refused=True)
        members = self._members.setdefault(key, set())
        begins = not members
        if member not in members:
            members.add(member)
            self._of.setdefault(member, []).append(key)
        self._table.hold(key)
        return Step(decision, key, gave_way=gone, begins=begins)

    def _leave(self, gone: Iterable[Key]) -> None:
        for key in gone:
            for member in self._members.pop(key):
                self._of[member].remove(key)


def key_of(name: str, by: Iterable[str], identity: Mapping[str, str]) -> Key:
    """Return the labels of an alert: its name, the labels of `identity` that are named in `by`, and its tenant.

    The default tenant has no label. Tenants share no alert: what one sends must not hide what another's readers feel.
    """
    labels = {label: identity[label] for label in (*by, "tenant") if identity.get(label)}
    return tuple(sorted({**labels, "alertname": name}.items()))


def tenant_of(key: Key) -> str:
    """Return the tenant of an alert."""
    return dict(key).get("tenant", DEFAULT_TENANT)
