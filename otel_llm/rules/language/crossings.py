"""Crossing times: the instants at which conditions flip between tokens, computed since facts are linear in time.

A condition's truth is a function of its comparisons' truth. A comparison of a linear fact with a constant flips where
the fact, an integer of ns, crosses an integer that is known at load; one of sums and products with constants is
monotonic between the knees of its facts and is searched. Any other condition that changes in time is polled.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.rules.language.arithmetic import COMPARISONS
from otel_llm.rules.language.compile import Program, compile_expression
from otel_llm.rules.language.facts import FACTS, SILENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.rules.language.tokens import Value
    from otel_llm.rules.language.types import Typed
    from otel_llm.slo.live.inflight import Line

_FARTHEST_S: Final = 10**9
"""Constants beyond 31 years are never reached by an age."""
MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_REACHES: Final = ">="
_EXCEEDS: Final = ">"
_EDGES: Final[dict[str, tuple[str, ...]]] = {
    "<": (_REACHES,),
    ">=": (_REACHES,),
    "<=": (_EXCEEDS,),
    ">": (_EXCEEDS,),
    "==": (_REACHES, _EXCEEDS),
    "!=": (_REACHES, _EXCEEDS),
}
"""A comparison with a constant can change its truth only if the value reaches it or begins to exceed it."""


class Facts(Protocol):
    """The facts of a stream, as far as this module needs them."""

    def line(self, name: str) -> Line:
        """Return a linear fact's line."""

    def value(self, name: str, x_ns: int) -> Value | None:
        """Return a fact at an instant; None if it is missing."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The comparison of one linear fact with a constant; `edges_ns`: it may flip where the fact first is so long."""

    fact: str
    edges_ns: tuple[int, ...]

    def instants(self, facts: Facts, after_ns: int, until_ns: int) -> list[int]:
        """Return the instants in (after, until] at which a new truth begins."""
        floor, slope, zero = facts.line(self.fact)
        if slope == 0:
            return []
        found = []
        for edge in self.edges_ns:
            if floor is not None and edge <= floor:
                continue
            x = zero + edge if slope > 0 else zero - edge + 1
            if after_ns < x <= until_ns:
                found.append(x)
        return found


@dataclass(frozen=True, slots=True)
class Crossing:
    """The comparison of two sides that are affine in linear facts, each a compiled expression."""

    left: Program
    right: Program
    moving: tuple[str, ...]
    edges: tuple[str, ...]

    def instants(self, facts: Facts, after_ns: int, until_ns: int) -> list[int]:
        """Return the instants in (after, until] at which a new truth begins."""
        # Of the rising facts only idle time has a floor: it is constant until the reader has read everything.
        lines = [facts.line(name) for name in self.moving]
        knees = {line.zero_ns + line.floor_ns for line in lines if line.floor_ns is not None}
        if SILENCE in self.moving:
            knees.add(facts.line(SILENCE).zero_ns)  # it is missing before
        stops = sorted({after_ns, until_ns, *(knee for knee in knees if after_ns < knee < until_ns)})
        found = []
        for edge in self.edges:
            holds = partial(self._holds, facts, COMPARISONS[edge])
            for start, stop in pairwise(stops):
                x = _first(holds, start, stop)
                if x is not None:
                    found.append(x)
        return found

    def _holds(self, facts: Facts, compare: Callable[[object, object], bool], x_ns: int) -> bool:
        left = [facts.value(name, x_ns) for name in self.left.facts]
        right = [facts.value(name, x_ns) for name in self.right.facts]
        if None in left or None in right:
            return False
        return compare(self.left.run(*left), self.right.run(*right))


@dataclass(frozen=True, slots=True)
class Gate:
    """A term of a `&&` that holds only while one linear fact is at least (`above`) or below an edge."""

    fact: str
    edge_ns: int
    above: bool

    def is_shut(self, facts: Facts, from_ns: int, until_ns: int) -> bool:
        """Tell whether the term holds at no instant in [from, until]; a linear fact is extreme at one of the ends."""
        line = facts.line(self.fact)
        extreme_ns = line.value(until_ns if (line.slope >= 0) is self.above else from_ns)
        return (extreme_ns < self.edge_ns) is self.above


@dataclass(frozen=True, slots=True)
class Motion:
    """The behaviour of a condition between tokens: computed flips, and whether the rest must be polled.

    `gates`: terms that must all hold for the condition to hold, and are cheap to rule out for a while. `stays`: once
    the polled part holds, it holds until the next token: deadlines pass, and none is met without a token.
    """

    comparisons: tuple[Threshold | Crossing, ...]
    polled: bool
    gates: tuple[Gate, ...]
    stays: bool

    def is_shut(self, facts: Facts, from_ns: int, until_ns: int) -> bool:
        """Tell whether the condition certainly holds at no instant in [from, until] before another token."""
        return any(gate.is_shut(facts, from_ns, until_ns) for gate in self.gates)

    def instants(self, facts: Facts, after_ns: int, until_ns: int) -> list[int]:
        """Return, sorted, the instants in (after, until] at which the condition may have changed."""
        found: set[int] = set()
        if until_ns > after_ns:
            for comparison in self.comparisons:
                found.update(comparison.instants(facts, after_ns, until_ns))
        return sorted(found)


def motion(typed: Typed) -> Motion:
    """Find the comparisons of a condition that change with time."""
    comparisons: list[Threshold | Crossing] = []

    def visit(node: Typed) -> bool:
        """Collect what can be computed; return whether anything must be polled."""
        polled = False
        for op, left, right in _comparisons(node):
            degree = max(_degree(left), _degree(right))
            if degree == 1:
                comparisons.append(comparison(op, left, right))
            polled = polled or degree > 1
        return any([polled, *(visit(arg) for arg in node.args)])

    terms = typed.args if typed.op == "&&" else (typed,)
    polled = [term for term in terms if visit(term)]
    gates = [gate for term in terms for gate in _gates(term)]
    return Motion(tuple(comparisons), bool(polled), tuple(gates), stays=all(map(_stays, polled)))


def first_reaching_ns(threshold_s: float) -> int:
    """Return the smallest integer of ns that as seconds, ns / 1e9 in doubles, is at least the threshold."""
    return _first_ns(lambda seconds: seconds >= threshold_s, threshold_s)


def first_exceeding_ns(threshold_s: float) -> int:
    """Return the smallest integer of ns that as seconds, ns / 1e9 in doubles, is more than the threshold."""
    return _first_ns(lambda seconds: seconds > threshold_s, threshold_s)


def _first_ns(beyond: Callable[[float], bool], threshold_s: float) -> int:
    # The quotient is rounded, so that several integers may mean the same double: step to the first of them.
    value = int(Fraction(threshold_s) * 10**9)
    while beyond(value / 1e9):
        value -= 1
    while not beyond(value / 1e9):
        value += 1
    return value


_ONE_WAY: Final = {
    "deadlines": (">", ">="),
    "deadline_misses": (">", ">="),
    "fluidity_index": ("<", "<="),
}
"""By fact that changes by steps: the comparisons with a constant that time alone can make true and never false."""


def _stays(term: Typed) -> bool:
    """Tell whether a term that holds does so until the next token."""
    if term.op not in MIRRORED:
        return False
    left, right = term.args
    op: str = term.op
    if left.op == "literal":
        op, left, right = MIRRORED[op], right, left
    return left.op == "fact" and right.op == "literal" and op in _ONE_WAY.get(left.name, ())


def _comparisons(node: Typed) -> Sequence[tuple[str, Typed, Typed]]:
    if node.op == "in":
        return [("==", node.args[0], item) for item in node.args[1:]]
    if node.op in _EDGES:
        return [(node.op, node.args[0], node.args[1])]
    return []


def comparison(op: str, left: Typed, right: Typed) -> Threshold | Crossing:
    """Return the finder of flips for a comparison that changes with time."""
    if left.op == "literal":
        op, left, right = MIRRORED[op], right, left
    if left.op == "fact" and right.op == "literal" and isinstance(right.value, float):
        if abs(right.value) > _FARTHEST_S:
            return Threshold(left.name, ())
        first = {_REACHES: first_reaching_ns, _EXCEEDS: first_exceeding_ns}
        return Threshold(left.name, tuple(first[edge](right.value) for edge in _EDGES[op]))
    programs = compile_expression(left), compile_expression(right)
    used = dict.fromkeys((*programs[0].facts, *programs[1].facts))
    return Crossing(*programs, tuple(name for name in used if FACTS[name].linear), _EDGES[op])


def _gates(term: Typed) -> list[Gate]:
    if term.op not in ("<", "<=", ">", ">="):
        return []
    left, right = term.args
    op = MIRRORED[term.op] if left.op == "literal" else term.op
    found = comparison(term.op, left, right) if max(_degree(left), _degree(right)) == 1 else None
    if not isinstance(found, Threshold) or not found.edges_ns:
        return []
    return [Gate(found.fact, found.edges_ns[0], above=op in (">", ">="))]


def _degree(node: Typed) -> int:
    """Return 0 for what is constant between tokens, 1 for what is piecewise linear, 2 for any other change."""
    if node.op == "fact":
        fact = FACTS[node.name]
        return 2 if fact.steps else int(fact.linear)
    if node.type == "bool":
        return 0  # its own comparisons are found on their own
    degrees = [_degree(arg) for arg in node.args]
    if node.op == "*":
        return min(2, sum(degrees))
    if node.op == "/":
        return 2 if degrees[1] else degrees[0]
    return max(degrees, default=0)


def _first(holds: Callable[[int], bool], start: int, stop: int) -> int | None:
    """Bisect for the first instant in (start, stop] at which a truth that changes at most once has changed."""
    before = holds(start)
    if holds(stop) is before:
        return None
    while stop - start > 1:
        middle = (start + stop) // 2
        if holds(middle) is before:
            start = middle
        else:
            stop = middle
    return stop
