"""Find, among many streams at once, those on which no rule can change its state now, and until when that holds.

Nearly every evaluation of a healthy stream changes nothing. The prefilter writes the conditions of rules into tables;
a kernel evaluates the streams' rows by them, with the engine's own integers and thresholds. What it cannot rule out is
left to the engine, and it decides nothing, so the decisions are those of an engine that evaluates everything. A set
with a rule that has arithmetic on changing facts, or whose `on_missing` is not hold, is left to the engine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_llm.core import rule_tables as table
from otel_llm.rules.engine.applicable_rules import holds
from otel_llm.rules.engine.state_machine import Phase
from otel_llm.rules.language.compile import compile_expression, used_facts
from otel_llm.rules.language.condition import is_identity
from otel_llm.rules.language.crossings import MIRRORED, Threshold, comparison
from otel_llm.rules.language.facts import FACTS
from otel_llm.rules.language.snapshot import COUNTING, IDENTITY
from otel_llm.slo.live.columns import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from otel_llm.rules.engine.rule_state import RuleState
    from otel_llm.rules.files.ruleset import Rule, RuleSet
    from otel_llm.rules.language.tokens import Value
    from otel_llm.rules.language.types import Typed

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

_FACTS: Final = {name: fact.kernel for name, fact in FACTS.items() if fact.kernel is not None}
_ORDERS: Final = {
    "<": table.LESS,
    "<=": table.LESS | table.EQUAL,
    "==": table.EQUAL,
    "!=": table.LESS | table.GREATER,
    ">=": table.GREATER | table.EQUAL,
    ">": table.GREATER,
}
_JOINTS: Final = {"&&": table.AND, "||": table.OR}
_IDENTITIES: Final = 4096
_MOST_FIXED: Final = 62
"""The number of terms of identity, over all rules: a bit each."""


class _Opaque(Exception):  # noqa: N818 - a way out of a tree
    """A condition cannot be evaluated by columns."""


class _Row(NamedTuple):
    """A row of the terms, as the columns of `rule_tables` but for SIZE, and the constant of a double."""

    fact: int
    order: int = 0
    edge: int = 0
    second_edge: int = 0
    constant: float = 0.0


_Part = list[_Row]


class PrefilterResult(NamedTuple):
    """The result of an evaluation by the prefilter.

    `may_change` (S, rules): whether a rule's state may change now; `opens_ns` (S, rules): when that of another rule may
    next, on the stream's axis; `unchanged` (S,): whether no rule's state may change now; `earliest_ns`: the first of
    the instants that were noted in `due_ns`.
    """

    unchanged: Bools
    may_change: Bools
    opens_ns: Ints
    earliest_ns: int


class Prefilter:
    """Look at the stream rules of a set over the rows of streams."""

    def __init__(self, rules: RuleSet) -> None:
        self._fixed: list[tuple[tuple[str, ...], Callable[..., Value]]] = []
        self.count = len(rules.stream_rules)
        try:
            found = [self._parts(rule) for rule in rules.stream_rules]
        except _Opaque:
            found = []
        self.clear = len(found) == self.count
        """Whether every rule can be evaluated by columns."""
        self.stepping = tuple(bool(steps) for _, steps in found)
        """Which rules are about deadlines: but for segments they are evaluated every 100 ms only."""
        self.bits = lru_cache(maxsize=_IDENTITIES)(self._bits)
        self._rules, self._terms, self._constants = _tables(rules.stream_rules, found)
        if self.clear and self.count:
            from otel_llm.core.rule_prefilter import evaluate  # here, since most commands never evaluate a stream

            self._evaluate = evaluate

    def evaluate(
        self, rows: Ints, states: npt.NDArray[np.int8], due_ns: Ints, slots: Ints, at_ns: Ints
    ) -> PrefilterResult:
        """Look at the streams in `slots` (S,), each at its own instant `at_ns`; called only if `clear`.

        `rows`: those of all streams; `states` (slots, rules): INACTIVE, FIRING_FINAL or FIRING_REFUTABLE. Written:
        `due_ns`, at each slot, when to evaluate the stream next, NEVER if it is not unchanged. `at_ns` and `due_ns`
        are on the collector's axis.
        """
        number = len(slots)
        if not self.count:
            due_ns[slots] = NEVER
            nothing = np.zeros((number, 0), dtype=bool)
            return PrefilterResult(np.ones(number, dtype=bool), nothing, nothing.astype(np.int64), NEVER)
        unchanged = np.empty(number, dtype=bool)
        may_change = np.empty((number, self.count), dtype=bool)
        opens_ns = np.empty((number, self.count), dtype=np.int64)
        earliest_ns = self._evaluate(
            self._rules,
            self._terms,
            self._constants,
            rows,
            states,
            due_ns,
            slots,
            at_ns,
            unchanged,
            may_change,
            opens_ns,
        )
        return PrefilterResult(unchanged, may_change, opens_ns, earliest_ns)

    def _bits(self, identity: tuple[Value | None, ...]) -> int:
        """Return what a stream's identity decides, a bit a term."""
        named = dict(zip(IDENTITY, identity, strict=True))
        return sum(holds(run, [named[name] for name in names]) << at for at, (names, run) in enumerate(self._fixed))

    def _parts(self, rule: Rule) -> tuple[list[_Part], list[_Part]]:
        """Return what must hold for a rule to hold, and apart from it what it compares with facts of deadlines."""
        if rule.on_missing != "hold":
            raise _Opaque
        typed = rule.when.program.typed
        terms = typed.args if typed.op == "&&" else (typed,)
        steps = [term for term in terms if term.op in _ORDERS and any(map(_steps, term.args))]
        others = [term for term in terms if term not in steps]
        if any(map(_steps, others)):
            raise _Opaque  # deadlines inside another condition
        if steps and any(FACTS[name].linear for name in rule.when.facts):
            raise _Opaque  # the engine evaluates deadlines whenever such a fact crosses a threshold, too
        parts = list(map(self._rows, others))
        if missing := tuple(name for name in rule.when.facts if name in COUNTING):
            parts.append([self._fix(missing, _known)])
        return parts, list(map(self._rows, steps))

    def _rows(self, typed: Typed) -> _Part:
        """Return a condition's comparisons and joints, in postfix order."""
        if typed.op == "literal":
            return [_Row(table.TOKENS, _ORDERS[">=" if typed.value else "<"])]  # of 0 tokens: always, never
        if is_identity(typed):
            return [self._identity(typed)]
        if typed.op == "!":
            return [*self._rows(typed.args[0]), _Row(table.NOT)]
        if typed.op in _JOINTS:
            first, *others = map(self._rows, typed.args)
            joint = _Row(_JOINTS[typed.op])
            return first + [row for other in others for row in (*other, joint)]
        return [_compared(typed)]

    def _identity(self, typed: Typed) -> _Row:
        program = compile_expression(typed)
        return self._fix(program.facts, program.run)

    def _fix(self, names: tuple[str, ...], run: Callable[..., Value]) -> _Row:
        if len(self._fixed) == _MOST_FIXED:
            raise _Opaque
        self._fixed.append((names, run))
        return _Row(table.IDENTITY, edge=len(self._fixed) - 1)


def state_of(state: RuleState) -> int:
    """Return what the prefilter has to know of a rule's state on a stream."""
    if state.phase is Phase.INACTIVE:
        return table.INACTIVE
    if state.phase is Phase.FIRING and not state.missing:
        return table.FIRING_FINAL if state.flip_known is None else table.FIRING_REFUTABLE
    return table.BY_ENGINE


def _known(*_values: Value) -> bool:
    """Hold for any facts; a term does not hold for missing ones."""
    return True


def _steps(typed: Typed) -> bool:
    """Tell whether an expression has a fact that moves by steps."""
    return any(FACTS[name].steps for name in used_facts(typed))


def _compared(typed: Typed) -> _Row:
    if typed.op not in _ORDERS:
        raise _Opaque
    op: str = typed.op
    left, right = typed.args
    if left.op == "literal":
        op, left, right = MIRRORED[op], right, left
    if left.op != "fact" or right.op != "literal":
        raise _Opaque
    fact, order, value = _FACTS.get(left.name), _ORDERS[op], right.value
    if fact is None:
        raise _Opaque
    if FACTS[left.name].linear:
        threshold = comparison(op, left, right)
        if not isinstance(threshold, Threshold) or not threshold.edges_ns:
            raise _Opaque
        return _Row(fact, order, threshold.edges_ns[0], threshold.edges_ns[-1])
    if isinstance(value, float):
        return _Row(fact, order, constant=value)
    if not isinstance(value, int) or abs(value) >= NEVER:
        raise _Opaque
    return _Row(fact, order, value)


def _tables(
    rules: tuple[Rule, ...], found: list[tuple[list[_Part], list[_Part]]]
) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Return the tables of rules, of terms, and of the terms' constants."""
    of_rules: list[tuple[int, ...]] = []
    of_terms: list[tuple[int, ...]] = []
    constants: list[float] = []
    for rule, (others, steps) in zip(rules, found, strict=False):
        begin = len(of_terms)
        for part in (*others, *steps):
            of_terms += [(*row[:4], len(part)) for row in part]
            constants += [row.constant for row in part]
        needs = sum(1 << _FACTS[name] for name in rule.when.facts if FACTS[name].can_miss and name in _FACTS)
        max_age_ns = rule.max_fact_age_ns if rule.when.ages else NEVER
        of_rules.append((begin, begin + sum(map(len, others)), len(of_terms), max_age_ns, needs))
    return (
        np.array(of_rules, dtype=np.int64).reshape(-1, table.RULE_COLUMNS),
        np.array(of_terms, dtype=np.int64).reshape(-1, table.TERM_COLUMNS),
        np.array(constants, dtype=np.float64),
    )
