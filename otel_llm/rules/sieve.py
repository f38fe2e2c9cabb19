"""Tell, for many streams at once, of which no rule can change its state now, and until when that is certain.

Nearly every look at a healthy stream finds nothing. The sieve makes that look over columns, with the engine's own
integers and thresholds, and leaves to the engine what it cannot rule out: it decides nothing itself, so the decisions
are those of an engine that looks at everything. A rule with arithmetic on facts that move, or one that does not hold
while facts are missing, is never ruled out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.rules.compile import compile_expression, used_facts
from otel_llm.rules.condition import is_identity
from otel_llm.rules.facts import FACTS
from otel_llm.rules.linear import MIRRORED, Threshold, comparison
from otel_llm.rules.machine import State
from otel_llm.rules.sieve_facts import ALWAYS, CAN_MISS, NEVER, Bools, Columns, Ints
from otel_llm.rules.snapshot import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from otel_llm.rules.cell import Cell
    from otel_llm.rules.ruleset import Rule, RuleSet
    from otel_llm.rules.tokens import Value
    from otel_llm.rules.types import Typed

CALM: Final = 0
"""The rule is inactive on the stream."""
SETTLED: Final = 1
"""It fires, and no token that is still under way can refute that."""
OPEN: Final = 2
"""It fires, and a token that is still under way may refute that: nothing is to be done before one comes."""
AT_WORK: Final = 3
"""Anything else: the engine looks at it."""

_COMPARE: Final[dict[str, Any]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_LOGIC: Final[dict[str, Callable[[list[Bools]], Bools]]] = {
    "&&": np.logical_and.reduce,
    "||": np.logical_or.reduce,
    "!": lambda parts: ~parts[0],
}
_IDENTITIES: Final = 4096
_MOST_FIXED: Final = 62
"""Terms that identity decides, over all rules: a bit each."""


class _Opaque(Exception):  # noqa: N818 - a way out of a tree
    """Say that a condition cannot be looked at by columns."""


@dataclass(frozen=True, slots=True)
class _Term:
    """A part of a condition over columns, facts that are missing taken as false.

    `opens` gives an instant not after a stream's now where the part holds, else the first at which it may, if no token
    comes, NEVER for none; `changes` the first after now at which the part may be found changed.
    """

    opens: Callable[[Columns], Ints]
    changes: Callable[[Columns], Ints]
    truth: Callable[[Columns], Bools] | None = None
    """Whether it holds, of a term that nothing but a token changes."""


@dataclass(frozen=True, slots=True)
class _Sieved:
    """One rule: the terms that must all hold for it to hold, and which facts can be missing.

    `steps` are the terms on deadlines: between segments they are looked at every 100 ms.
    """

    terms: tuple[_Term, ...]
    steps: tuple[_Term, ...]
    max_age_ns: int | None
    facts: tuple[str, ...]

    def look(self, columns: Columns) -> tuple[Bools, Ints]:
        """Return where the condition may hold now, and when it is next looked at and may, on each stream's axis."""
        opens = _latest(self.terms, columns)
        if self.steps:
            opens = np.maximum(opens, columns.look_from(_latest(self.steps, columns)))
        holds = opens <= columns.x_ns
        if self.max_age_ns is not None:
            until_ns, fresh = columns.fresh(self.max_age_ns)
            # Where all terms hold and a fact is missing, only another token can tell.
            return holds & fresh, np.where(holds | (opens > until_ns), NEVER, opens)
        return holds, np.where(holds, NEVER, opens)

    def look_firing(self, columns: Columns) -> tuple[Bools, Ints]:
        """Return where a rule that fires goes on firing now, and when it first may not."""
        holds = np.ones(len(columns), dtype=bool)
        changes = np.full(len(columns), NEVER)
        for term in (*self.terms, *self.steps):
            holds &= term.opens(columns) <= columns.x_ns
            changes = np.minimum(changes, term.changes(columns))
        if self.max_age_ns is not None:
            until_ns, fresh = columns.fresh(self.max_age_ns)
            return holds | ~fresh | ~columns.present(self.facts), np.where(changes > until_ns, NEVER, changes)
        return holds | ~columns.present(self.facts), changes


def _latest(terms: tuple[_Term, ...], columns: Columns) -> Ints:
    """Return when the last of the terms opens; always, where there is none."""
    found: Ints | None = None
    for term in terms:
        if term.truth is not None:
            truth = term.truth(columns)
            if not truth.any():
                return columns.never  # nearly always: of a rule on first tokens, say
            if truth.all():
                continue
            opens = np.where(truth, ALWAYS, NEVER)
        else:
            opens = term.opens(columns)
        found = opens if found is None else np.maximum(found, opens)
    return columns.always if found is None else found


class Sieve:
    """Look at the stream rules of a set over columns."""

    def __init__(self, rules: RuleSet) -> None:
        self._fixed: list[tuple[tuple[str, ...], Callable[..., object]]] = []
        self._rules: list[_Sieved | None] = []
        self._opaque: list[Callable[[tuple[Value, ...]], bool]] = []
        for rule in rules.stream_rules:
            try:
                self._rules.append(self._sieved(rule))
            except _Opaque:
                self._rules.append(None)
        self.count = len(self._rules)
        self.clear = all(rule is not None for rule in self._rules)
        """Whether every rule can be looked at by columns."""
        self.stepping = tuple(rule is not None and bool(rule.steps) for rule in self._rules)
        """Which rules are about deadlines: but for segments they are looked at every 100 ms only."""
        self.bits = lru_cache(maxsize=_IDENTITIES)(self._bits)

    def look(self, columns: Columns, states: npt.NDArray[np.int8]) -> tuple[Bools, Ints]:
        """Return where each rule's state may change now, and when that of one that may not next may, both (rules, S).

        Instants on each stream's axis. `states`: (S, rules) CALM, SETTLED or OPEN.
        """
        stirred = np.zeros((len(self._rules), len(columns)), dtype=bool)
        due_ns = np.empty(stirred.shape, dtype=np.int64)
        firing: list[int] | None = states.max(axis=0).tolist() if states.any() else None
        for at, rule in enumerate(self._rules):
            assert rule is not None  # noqa: S101 - asked only where all rules are clear
            may, opens_ns = rule.look(columns)
            if firing is not None and firing[at]:
                fires = states[:, at] != CALM
                stays, changes_ns = rule.look_firing(columns)
                may, opens_ns = np.where(fires, ~stays, may), np.where(fires, changes_ns, opens_ns)
                if firing[at] == OPEN:
                    may |= (states[:, at] == OPEN) & columns.has_more_tokens
            stirred[at] = may
            due_ns[at] = opens_ns
        return stirred, due_ns

    def _bits(self, identity: tuple[Value, ...]) -> int:
        """Return what a stream's identity decides, a bit a term."""
        named = dict(zip(IDENTITY, identity, strict=True))
        return sum(bool(run(*(named[name] for name in names))) << at for at, (names, run) in enumerate(self._fixed))

    def _sieved(self, rule: Rule) -> _Sieved:
        if rule.on_missing != "hold":
            raise _Opaque
        typed = rule.when.program.typed
        terms = typed.args if typed.op == "&&" else (typed,)
        steps = [term for term in terms if term.op in _COMPARE and any(map(_steps, term.args))]
        if any(_steps(term) for term in terms if term not in steps):
            raise _Opaque  # deadlines inside another condition
        if steps and any(FACTS[name].linear for name in rule.when.facts):
            raise _Opaque  # the engine looks at deadlines whenever such a fact crosses a threshold, too
        return _Sieved(
            tuple(self._term(term) for term in terms if term not in steps),
            tuple(self._term(term) for term in steps),
            rule.max_fact_age_ns if rule.when.ages else None,
            rule.when.facts,
        )

    def _term(self, typed: Typed) -> _Term:
        if typed.op == "literal":
            return _fixed(lambda columns: np.full(len(columns), bool(typed.value)))
        if is_identity(typed):
            return self._identity(typed)
        if typed.op in ("&&", "||", "!"):
            return _logic(typed.op, [self._term(arg) for arg in typed.args])
        return _compared(typed)

    def _identity(self, typed: Typed) -> _Term:
        if len(self._fixed) == _MOST_FIXED:
            raise _Opaque
        program = compile_expression(typed)
        bit = len(self._fixed)
        self._fixed.append((program.facts, program.run))
        return _fixed(lambda columns: (columns.identity >> bit) & 1 == 1)


def _steps(typed: Typed) -> bool:
    """Tell whether an expression has a fact that moves by steps."""
    return any(FACTS[name].steps for name in used_facts(typed))


def state_of(cell: Cell) -> int:
    """Return what the sieve has to know of a rule's state on a stream."""
    if cell.state is State.INACTIVE:
        return CALM
    if cell.state is State.FIRING and not cell.missing and cell.retries is None:
        return SETTLED if cell.flip_tokens is None else OPEN
    return AT_WORK


def _fixed(truth: Callable[[Columns], Bools]) -> _Term:
    return _Term(lambda columns: np.where(truth(columns), ALWAYS, NEVER), lambda columns: columns.never, truth)


def _logic(op: str, terms: list[_Term]) -> _Term:
    def changes(columns: Columns) -> Ints:
        found: Ints = np.minimum.reduce([term.changes(columns) for term in terms])
        return found

    def opens(columns: Columns) -> Ints:
        parts = [term.opens(columns) <= columns.x_ns for term in terms]
        holds = _LOGIC[op](parts)
        return np.where(holds, ALWAYS, changes(columns))

    return _Term(opens, changes)


def _compared(typed: Typed) -> _Term:
    if typed.op not in _COMPARE:
        raise _Opaque
    op: str = typed.op
    left, right = typed.args
    if left.op == "literal":
        op, left, right = MIRRORED[op], right, left
    if left.op != "fact" or right.op != "literal":
        raise _Opaque
    fact, value = FACTS[left.name], right.value
    if fact.linear:
        threshold = comparison(op, left, right)
        if not isinstance(threshold, Threshold) or not threshold.edges_ns:
            raise _Opaque
        return _threshold(left.name, op, threshold.edges_ns)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= NEVER:
        raise _Opaque
    compare = _COMPARE[op]

    def truth(columns: Columns) -> Bools:
        found: Bools = compare(columns.value(left.name), value)
        return found & columns.present((left.name,)) if left.name in CAN_MISS else found

    if not fact.steps:
        return _fixed(truth)
    return _Term(
        lambda columns: np.where(truth(columns), ALWAYS, columns.next_deadline),
        lambda columns: columns.look_from(columns.next_deadline),
    )


def _threshold(name: str, op: str, edges_ns: tuple[int, ...]) -> _Term:
    """Return the term of a linear fact, which between tokens goes one way, and a constant."""

    def changes(columns: Columns) -> Ints:
        line = columns.line(name)
        found = columns.never
        for edge_ns in edges_ns:
            instant = line.reaches(edge_ns)
            found = np.where(instant > columns.x_ns, np.minimum(found, instant), found)
        return found

    def opens(columns: Columns) -> Ints:
        line = columns.line(name)
        if op in ("==", "!="):
            first, second = (line.reaches(edge_ns) for edge_ns in edges_ns)
            if not line.rises:
                first, second = second, first
            between = (first <= columns.x_ns) & (columns.x_ns < second)
            return np.where(between == (op == "=="), ALWAYS, changes(columns))
        instant = line.reaches(edges_ns[0])
        if (op in (">", ">=")) is line.rises:
            return instant
        return np.where(columns.x_ns < instant, ALWAYS, NEVER)

    return _Term(opens, changes)
