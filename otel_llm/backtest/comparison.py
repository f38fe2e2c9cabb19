"""Compare two sides of a backtest, firing by firing and decision by decision.

A firing is one rule about one subject (a stream, an instance, a class) from its flip to its end. Two firings of rules
of one name about one subject are the same if they begin at the same instant, and the same but moved if they overlap.

What a backtest cannot know: the journal holds what happened, not what would have happened if an action of the new rules
had been done. After such an action, the journal's records of its request did not happen so; its records of other
streams of that instance, and with less weight of everything else, are based on another load.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from otel_llm.backtest.decision_store import NEW, THEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_llm.backtest.decision_store import Store


MOST_SHIFTS: Final = 100_000
"""The most shifts for the median: the first so many."""
EXAMPLES: Final = 5
"""The number of firings and decisions listed for each difference."""
Rests = Literal["as_recorded", "elsewhere", "same_instance", "same_request"]
"""The basis of a firing: the record as it is, or one with an action before it: elsewhere, on its instance, on its own
request."""


@dataclass(slots=True)
class Side:
    """One rule's firings under one set of rules."""

    hash: str = ""
    firings: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """Ends of firings, by outcome: resolved, ended, refuted."""
    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Decided actions by verb and outcome; `acted`: let through, whatever their real outcome."""


@dataclass(slots=True)
class RuleCompared:
    """One rule, by its name, then and under the new rules."""

    name: str
    group: str
    scope: str
    then: Side = field(default_factory=Side)
    new: Side = field(default_factory=Side)
    same: int = 0
    earlier: int = 0
    later: int = 0
    shifts_ns: list[int] = field(default_factory=list)
    """Shifts of moved firings: the new flip less that of then."""
    only_then: int = 0
    only_new: int = 0
    rests: Counter[str] = field(default_factory=Counter)
    """The new rule's firings by basis; see `Rests`."""
    examples: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """The first few of `moved`, `only_then` and `only_new`: subject and flip (unix ns, on its own axis)."""

    @property
    def shift_s(self) -> float | None:
        """Return the median shift of moved firings, in seconds; None if none moved."""
        return median(self.shifts_ns) / 1e9 if self.shifts_ns else None


@dataclass(slots=True)
class Actions:
    """Actions that would have changed what followed."""

    hypothetical: int = 0
    """By the new rules; not done when this was recorded."""
    first: dict[str, Any] | None = None
    done_both: int = 0
    """Done when this was recorded, and decided by the new rules too: the record holds what followed."""
    done_then_only: int = 0
    """Done when this was recorded, and not decided by the new rules: the record holds what followed them."""


@dataclass(slots=True)
class Comparison:
    """The comparison firing by firing."""

    rules: list[RuleCompared]
    records: Records
    actions: Actions
    compared: bool
    """Whether there is another side."""


def compare(store: Store, *, compared: bool) -> Comparison:
    """Compare both sides; `compared`: whether there is a side of then."""
    store.flush()
    store.database.execute("CREATE INDEX by_body ON decisions (body, side, seq)")
    store.database.execute("CREATE INDEX by_subject ON decisions (rule, subject, side, seq)")
    rules = _rules(store)
    actions = _actions(store)
    _count_by_basis(store, rules)
    if compared:
        _firings(store, rules)
    records = records_of(store, compared=compared)
    return Comparison([rules[name] for name in sorted(rules)], records, actions, compared)


def _rules(store: Store) -> dict[str, RuleCompared]:
    found: dict[str, RuleCompared] = {}
    question = """SELECT side, rule, group_name, scope, hash, state, action, outcome, COUNT(*) FROM decisions
        GROUP BY side, rule, group_name, scope, hash, state, action, outcome ORDER BY rule, side, MIN(seq)"""
    for side, name, group, scope, rule_hash, state, action, outcome, number in store.rows(question):
        rule = found.setdefault(name, RuleCompared(name, group, scope))
        rule.group, rule.scope = group, scope  # the new one's, if there is one
        one = rule.then if side == THEN else rule.new
        one.hash = rule_hash
        if state == "resolved":
            one.ends[outcome] += number
        else:
            one.actions[action, outcome] += number
    question = """SELECT side, rule, COUNT(*) FROM
        (SELECT DISTINCT side, rule, subject, flip_ns FROM decisions WHERE state = 'firing') GROUP BY side, rule"""
    for side, name, number in store.rows(question):
        (found[name].then if side == THEN else found[name].new).firings = number
    return found


# The effects of the new rules' actions, which are unknown.


def _actions(store: Store) -> Actions:
    """Find the actions that were not done when this was recorded; they are left in a table `acts`."""
    store.rows(
        """CREATE TEMP TABLE acts AS
        SELECT seq, at_ns, rule, action, subject, request, instance, done AND EXISTS (
            SELECT 1 FROM decisions AS other WHERE other.rule = decisions.rule AND other.subject = decisions.subject
              AND other.side = 0 AND other.flip_ns = decisions.flip_ns AND other.action = decisions.action
              AND other.done
          ) AS was_done
        FROM decisions WHERE side = 1 AND acts"""
    )
    store.rows("CREATE INDEX temp.by_request ON acts (request)")
    found = Actions()
    question = "SELECT COALESCE(SUM(was_done), 0), COALESCE(SUM(NOT was_done), 0) FROM acts"
    found.done_both, found.hypothetical = next(store.rows(question))
    question = "SELECT at_ns, rule, action, subject FROM acts WHERE NOT was_done ORDER BY seq LIMIT 1"
    for at_ns, rule, action, subject in store.rows(question):
        found.first = {"at_unix_nano": at_ns, "rule": rule, "action": action, "subject": subject}
    question = "SELECT COUNT(*) FROM decisions WHERE side = 0 AND done"
    (then,) = next(store.rows(question))
    found.done_then_only = max(0, then - found.done_both)
    return found


def _count_by_basis(store: Store, rules: dict[str, RuleCompared]) -> None:
    """Count the new rules' firings by the actions before them, and where these were."""
    first_ns = dict(store.rows("SELECT instance, MIN(at_ns) FROM acts WHERE NOT was_done GROUP BY instance"))
    anywhere_ns = min(first_ns.values(), default=None)
    question = """SELECT rule, instance, MIN(at_ns),
          (SELECT MIN(acts.at_ns) FROM acts
            WHERE NOT was_done AND acts.request = decisions.request AND decisions.scope = 'stream')
        FROM decisions WHERE side = 1 AND state = 'firing' GROUP BY rule, subject, flip_ns"""
    for rule, instance, decided_ns, request_ns in store.rows(question):
        rests: Rests = "as_recorded"
        if request_ns is not None and request_ns < decided_ns:
            rests = "same_request"
        elif instance in first_ns and first_ns[instance] < decided_ns:
            rests = "same_instance"
        elif anywhere_ns is not None and anywhere_ns < decided_ns:
            rests = "elsewhere"
        rules[rule].rests[rests] += 1


# Firing by firing.


class _Firing(NamedTuple):
    flip_ns: int
    end_ns: float


def _firings(store: Store, rules: dict[str, RuleCompared]) -> None:
    question = "SELECT rule, subject, side, state, flip_ns FROM decisions ORDER BY rule, subject"
    for (name, subject), rows in groupby(store.rows(question), key=lambda row: row[:2]):
        flips: tuple[set[int], set[int]] = (set(), set())
        ends: tuple[list[int], list[int]] = ([], [])
        for _, _, side, state, flip_ns in rows:
            if state == "firing":
                flips[side].add(flip_ns)
            else:
                ends[side].append(flip_ns)
        then, new = (_from_to(*both) for both in zip(flips, ends, strict=True))
        for kind, firing, shift_ns in _paired(then, new):
            _note(rules[name], kind, subject, firing.flip_ns, shift_ns)


def _from_to(flips: set[int], ends: list[int]) -> list[_Firing]:
    """Return firings in order; one ends with the first end not before it (a refuted one, at its flip)."""
    ends.sort()
    found = []
    for flip_ns in sorted(flips):
        index = bisect_left(ends, flip_ns)
        found.append(_Firing(flip_ns, ends[index] if index < len(ends) else float("inf")))
    return found


def _paired(then: Sequence[_Firing], new: Sequence[_Firing]) -> Iterator[tuple[str, _Firing, int]]:
    """Yield each firing, or pair of them, as (`same`, `moved`, `only_then` or `only_new`; a firing; its shift)."""
    here = there = 0
    while here < len(then) and there < len(new):
        one, other = then[here], new[there]
        if one.flip_ns == other.flip_ns:
            yield "same", other, 0
            here, there = here + 1, there + 1
        elif one.end_ns <= other.flip_ns:
            yield "only_then", one, 0
            here += 1
        elif other.end_ns <= one.flip_ns:
            yield "only_new", other, 0
            there += 1
        else:
            yield "moved", other, other.flip_ns - one.flip_ns
            here, there = here + 1, there + 1
    for one in then[here:]:
        yield "only_then", one, 0
    for other in new[there:]:
        yield "only_new", other, 0


def _note(rule: RuleCompared, kind: str, subject: str, flip_ns: int, shift_ns: int) -> None:
    match kind:
        case "same":
            rule.same += 1
            return
        case "only_then":
            rule.only_then += 1
        case "only_new":
            rule.only_new += 1
        case _:
            rule.earlier += shift_ns < 0
            rule.later += shift_ns > 0
            if len(rule.shifts_ns) < MOST_SHIFTS:
                rule.shifts_ns.append(shift_ns)
    examples = rule.examples.setdefault(kind, [])
    if len(examples) < EXAMPLES:
        examples.append((subject, flip_ns))


# Decision by decision.


@dataclass(slots=True)
class Records:
    """The comparison decision by decision."""

    then: int = 0
    new: int = 0
    same: int = 0
    in_order: bool = True
    """Whether the equal ones stand in the same order; two kinds are set aside: actions in `enforce`, which are written
    when their outcome is known, and decisions without a record."""
    fields: Counter[str] = field(default_factory=Counter)
    """The differing fields of decisions with the same rule, subject, flip and action."""
    examples: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Return whether both sides made exactly the same decisions, in the same order."""
        return self.in_order and self.then == self.new == self.same


def records_of(store: Store, *, compared: bool) -> Records:
    """Compare the decisions of both sides, or count those of the only side."""
    found = Records(_count(store, THEN), _count(store, NEW))
    if not compared:
        return found
    # The same body may stand more than once if a rule has two actions of one verb: they are numbered.
    store.rows(
        """CREATE TEMP TABLE numbered AS SELECT side, seq, body,
        ROW_NUMBER() OVER (PARTITION BY side, body ORDER BY seq) AS nth FROM decisions"""
    )
    store.rows("CREATE INDEX temp.by_nth ON numbered (body, nth, side)")
    both = """FROM numbered AS one JOIN numbered AS other ON one.body = other.body AND one.nth = other.nth
        AND one.side = 0 AND other.side = 1"""
    (found.same,) = next(store.rows(f"SELECT COUNT(*) {both}"))
    last = -1
    question = f"""SELECT other.seq {both} JOIN decisions ON decisions.side = 0 AND decisions.seq = one.seq
        WHERE NOT (decisions.acts AND decisions.mode = 'enforce') AND NOT decisions.counted ORDER BY one.seq"""
    for (seq,) in store.rows(question):
        found.in_order = found.in_order and seq > last
        last = seq
    store.rows(
        """CREATE TEMP TABLE odd AS SELECT decisions.* FROM decisions JOIN numbered AS one USING (side, seq)
        WHERE NOT EXISTS (SELECT 1 FROM numbered AS other
          WHERE other.body = one.body AND other.nth = one.nth AND other.side = 1 - one.side)"""
    )
    store.rows("CREATE INDEX temp.odd_ones ON odd (hash, subject, flip_ns)")
    question = """SELECT one.body, other.body FROM odd AS one JOIN odd AS other USING (hash, subject, flip_ns, state)
        WHERE one.action IS other.action AND one.side = 0 AND other.side = 1"""
    for one, other in store.rows(question):
        here, there = json.loads(one), json.loads(other)
        found.fields.update(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    for side, body in store.rows("SELECT side, body FROM odd ORDER BY seq, side LIMIT ?", EXAMPLES):
        found.examples.append(("then" if side == THEN else "new", json.loads(body)))
    return found


def _count(store: Store, side: int) -> int:
    return int(next(store.rows("SELECT COUNT(*) FROM decisions WHERE side = ?", side))[0])
