"""Limits on what findings write: records and lines of decisions, lines of verdicts; what is left out is counted.

A few bytes of telemetry make a stream that starves, and this makes kilobytes of records: without a limit, a sender
fills the disk with a hundredth of what it holds. Each tenant has an allowance for each rule, and one for its verdicts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from otel_llm.rules.decisions.decision_records import LeftOut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.rules.decisions.decision_records import Decision, Subject

BURST: Final = 100
"""How many firings of a rule on a tenant's streams, or verdicts of a tenant, are written at once."""
PER_S: Final = 5
"""How many more are written each second."""
SAY_EVERY_NS: Final = 10_000_000_000
"""How long what was left out is collected, from its first, before its count is written."""
MOST_ALLOWANCES: Final = 4096
MOST_FIRINGS: Final = 200_000
"""Firings without a record whose end is awaited; the end of one that is forgotten has a record."""

Firing: TypeAlias = "tuple[str, Subject]"


@dataclass(slots=True)
class _Allowance:
    """One allowance: `spent_until_ns`: when all of it would be back; and what was left out since the last count."""

    spent_until_ns: int = 0
    count: int = 0
    first_ns: int = 0
    last_ns: int = 0


class WriteLimits:
    """The allowances of all tenants; called in the evaluator's thread, with its times (unix ns).

    A firing is written whole, with the records of all its actions and of its end, or left out whole. One with an action
    in `mode: enforce` is always written.
    """

    def __init__(self, burst: int = BURST, per_s: float = PER_S) -> None:
        self.decisions_left_out = 0
        self.verdicts_left_out = 0
        self._step_ns = round(1e9 / per_s)
        self._ahead_ns = (burst - 1) * self._step_ns
        self._allowances: OrderedDict[tuple[str, str, str], _Allowance] = OrderedDict()
        """By tenant, rule and its hash; the last two are empty for verdicts."""
        self._unwritten: OrderedDict[Firing, None] = OrderedDict()
        """Firings that were left out and have not ended."""
        self._forgotten: list[LeftOut] = []
        self._due_ns: int | None = None
        """When the first count is due; None: there is none."""

    def __len__(self) -> int:
        """Return the number of allowances that are kept."""
        return len(self._allowances)

    def admit(self, decisions: Sequence[Decision]) -> list[bool]:
        """Return for each decision whether it is written; all decisions of a flip come in one call."""
        enforced = {_firing(one) for one in decisions if one.mode == "enforce"}
        begun: dict[tuple[Firing, int], bool] = {}
        found = []
        for one in decisions:
            firing = _firing(one)
            if firing in enforced:
                self._unwritten.pop(firing, None)
                written = True
            elif one.action is None:
                written = firing not in self._unwritten
                self._unwritten.pop(firing, None)
            else:
                flip = firing, one.flip_ns
                if flip not in begun:
                    begun[flip] = self._take(self._allowance(one.tenant, one.rule, one.rule_hash), one.now_ns)
                    if not begun[flip]:
                        self._await_end(firing)
                written = begun[flip]
            if not written:
                self.decisions_left_out += 1
                self._leave_out(self._allowance(one.tenant, one.rule, one.rule_hash), one.now_ns)
            found.append(written)
        return found

    def admit_verdict(self, tenant: str, now_ns: int) -> bool:
        """Return whether the line of a verdict is written."""
        allowance = self._allowance(tenant)
        written = self._take(allowance, now_ns)
        if not written:
            self.verdicts_left_out += 1
            self._leave_out(allowance, now_ns)
        return written

    def due(self, now_ns: int | None = None) -> list[LeftOut]:
        """Return, once, the counts that are due by now, all without an instant; `rule` is empty for verdicts."""
        found, self._forgotten = self._forgotten, []
        if self._due_ns is None or (now_ns is not None and now_ns < self._due_ns):
            return found
        waiting = []
        for key, one in self._allowances.items():
            if one.count and (now_ns is None or now_ns - one.first_ns >= SAY_EVERY_NS):
                found.append(LeftOut(*key, one.count, one.first_ns, one.last_ns))
                one.count = 0
            elif one.count:
                waiting.append(one.first_ns + SAY_EVERY_NS)
        self._due_ns = min(waiting, default=None)
        return found

    def _allowance(self, tenant: str, rule: str = "", rule_hash: str = "") -> _Allowance:
        key = tenant, rule, rule_hash
        found = self._allowances.get(key)
        if found is None:
            found = self._allowances[key] = _Allowance()
            if len(self._allowances) > MOST_ALLOWANCES:
                old, gone = self._allowances.popitem(last=False)
                if gone.count:
                    self._forgotten.append(LeftOut(*old, gone.count, gone.first_ns, gone.last_ns))
        self._allowances.move_to_end(key)
        return found

    def _take(self, allowance: _Allowance, now_ns: int) -> bool:
        if allowance.spent_until_ns - now_ns > self._ahead_ns:
            return False
        allowance.spent_until_ns = max(allowance.spent_until_ns, now_ns) + self._step_ns
        return True

    def _await_end(self, firing: Firing) -> None:
        self._unwritten[firing] = None
        if len(self._unwritten) > MOST_FIRINGS:
            self._unwritten.popitem(last=False)

    def _leave_out(self, allowance: _Allowance, now_ns: int) -> None:
        if not allowance.count:
            allowance.first_ns = allowance.last_ns = now_ns
            self._due_ns = min(self._due_ns or now_ns + SAY_EVERY_NS, now_ns + SAY_EVERY_NS)
        allowance.count += 1
        allowance.last_ns = max(allowance.last_ns, now_ns)


def _firing(decision: Decision) -> Firing:
    return decision.rule_hash, decision.subject
