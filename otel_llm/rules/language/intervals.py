"""Interval arithmetic over facts: intervals that hold every value a fact, or an expression of facts, may have.

Rounding to nearest is monotonic, so the bounds of a result are the operation's own results at the bounds of its
operands, rounded as they are: an interval is exact at its ends. If NaN is possible, it is all numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.rules.language.arithmetic import ARITHMETIC
from otel_llm.rules.language.facts import FACTS, Fact
from otel_llm.rules.language.tokens import INT_MAX, INT_MIN

if TYPE_CHECKING:
    from otel_llm.rules.language.tokens import Value


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers from `low` to `high`, both included; `whole`: ints. `nan`: perhaps not a number."""

    low: float
    high: float
    whole: bool
    nan: bool = False

    def meet(self, other: Span) -> Span | None:
        """Return the numbers in both; None if there are none."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Span(low, high, self.whole, self.nan and other.nan) if low <= high else None

    def join(self, other: Span) -> Span:
        """Return the shortest span that holds both."""
        return Span(min(self.low, other.low), max(self.high, other.high), self.whole, self.nan or other.nan)

    def below(self) -> Span | None:
        """Return all that is less than some number in it."""
        if self.high == -math.inf:
            return None
        return Span(-math.inf, self.high - 1 if self.whole else math.nextafter(self.high, -math.inf), self.whole)

    def above(self) -> Span | None:
        """Return all that is more than some number in it."""
        if self.low == math.inf:
            return None
        return Span(self.low + 1 if self.whole else math.nextafter(self.low, math.inf), math.inf, self.whole)

    def up_to(self) -> Span:
        """Return all that is at most some number in it."""
        return Span(-math.inf, self.high, self.whole)

    def from_on(self) -> Span:
        """Return all that is at least some number in it."""
        return Span(self.low, math.inf, self.whole)

    def without(self, other: Span) -> Span | None:
        """Return what may be left if the one number of `other` goes; all if it has several or lies inside."""
        if other.low != other.high:
            return self
        if self.low == self.high == other.low:
            return None
        if self.low == other.low:
            above = other.above()
            return self if above is None else self.meet(above)
        below = other.below() if self.high == other.high else None
        return self if below is None else self.meet(below)

    def text(self) -> str:
        """Return the interval in words."""
        if self.high == math.inf or (self.whole and self.high >= INT_MAX):
            return "any number" if self.low == -math.inf else f"{number(self.low)} or more"
        return f"{number(self.low)} to {number(self.high)}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of texts or truths: those `allowed` (None: any) less those `excluded`."""

    allowed: frozenset[Value] | None
    excluded: frozenset[Value] = frozenset()

    def only(self, values: frozenset[Value]) -> Choice | None:
        """Return the allowed ones of these values; None if there are none."""
        left = values - self.excluded if self.allowed is None else values & self.allowed
        return Choice(left) if left else None

    def without(self, value: Value) -> Choice | None:
        """Return the set without one value; None if nothing is left."""
        if self.allowed is None:
            return Choice(None, self.excluded | {value})
        left = self.allowed - {value}
        return Choice(left) if left else None

    def meet(self, other: Choice) -> Choice | None:
        """Return the values in both; None if there are none."""
        if other.allowed is not None:
            return self.only(other.allowed - other.excluded)
        if self.allowed is None:
            return Choice(None, self.excluded | other.excluded)
        left = self.allowed - other.excluded
        return Choice(left) if left else None

    def join(self, other: Choice) -> Choice:
        """Return a set that holds both."""
        if self.allowed is None or other.allowed is None:
            mine = self.excluded if self.allowed is None else self.excluded - self.allowed
            theirs = other.excluded if other.allowed is None else other.excluded - other.allowed
            if self.allowed is None and other.allowed is None:
                return Choice(None, mine & theirs)
            open_, closed = (mine, other.allowed) if self.allowed is None else (theirs, self.allowed)
            return Choice(None, open_ - (closed or frozenset()))
        return Choice(self.allowed | other.allowed)

    def text(self) -> str:
        """Return the set in words."""
        if self.allowed is None:
            return "any text"
        shown = sorted(f'"{value}"' if isinstance(value, str) else str(value).lower() for value in self.allowed)
        return " or ".join(shown)


Domain = Span | Choice
Box = dict[str, Domain]
"""The possible values of each fact, each independent of the others."""

_ALL_DOUBLES: Final = Span(-math.inf, math.inf, whole=False, nan=True)
_AT_MOST: Final = (
    ("tokens_read", "tokens"),
    ("deadline_misses", "deadlines"),
    ("starving", "streams"),
    ("gap_seconds", "age_seconds"),
    ("silence_seconds", "gap_seconds"),
    ("ttft_seconds", "age_seconds"),
)
"""Pairs of facts whose first is never more than the second."""
_NEEDS: Final = {
    "ttft_seconds": ("tokens", 1),
    "rate_tokens_per_second": ("tokens_read", 2),
    "fluidity_index": ("deadlines", 1),
}
"""Facts that are missing until another has reached a number; no condition holds while one of its facts is missing."""


def domain(name: str, classes: frozenset[str] | None = None) -> Domain:
    """Return the possible values of a fact; `classes`: the names of the SLO classes, None if they are not known."""
    fact = FACTS[name]
    if fact.type == "bool":
        return Choice(frozenset((True, False)))
    if fact.type == "string":
        known = classes if name == "slo_class" else _texts(fact) if fact.values else None
        return Choice(None if known is None else frozenset(known))
    if fact.type == "int":
        return Span(INT_MIN if fact.signed else 0, INT_MAX, whole=True)
    return Span(-math.inf if fact.signed else 0.0, 1.0 if fact.unit == "0..1" else math.inf, whole=False)


def _texts(fact: Fact) -> frozenset[str]:
    return frozenset(fact.values) if fact.can_miss else frozenset((*fact.values, ""))


def box(names: tuple[str, ...], classes: frozenset[str] | None = None) -> Box:
    """Return the values that these facts may have together while none of them is missing."""
    found = {name: domain(name, classes) for name in names}
    for name in names:
        other, least = _NEEDS.get(name, ("", 0))
        narrowed = found.get(other)
        if isinstance(narrowed, Span):
            found[other] = Span(max(narrowed.low, least), narrowed.high, narrowed.whole)
    return found


def at_most(less: str, more: str) -> bool:
    """Tell whether one fact is never more than another."""
    return (less, more) in _AT_MOST


def needing(name: str) -> str:
    """Return the fact that must have reached a number before this one is known; "" if none must."""
    return _NEEDS.get(name, ("", 0))[0]


def consistent(values: Box) -> Box | None:
    """Narrow a box by the known pairs of facts; None if nothing is left."""
    for less, more in _AT_MOST:
        low, high = values.get(less), values.get(more)
        if isinstance(low, Span) and isinstance(high, Span) and (low.high > high.high or high.low < low.low):
            lower, upper = low.meet(high.up_to()), high.meet(low.from_on())
            if lower is None or upper is None:
                return None
            values = {**values, less: lower, more: upper}
    return values


def agree(values: dict[str, Value]) -> bool:
    """Tell whether single values of facts can occur together."""
    point = {
        name: Span(value, value, isinstance(value, int))
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    for name in values:
        other, least = _NEEDS.get(name, ("", 0))
        if other in point and point[other].low < least:
            return False
    return consistent(dict(point)) is not None


def calculated(op: str, left: Span, right: Span) -> Span | None:
    """Return the interval of `left op right`; None if it has no value (ints beyond 64 bits, divided by zero)."""
    if left.whole:
        return _int_result(op, left, right)
    if left.nan or right.nan or (op == "/" and _has_zero(right)):
        return _ALL_DOUBLES
    if op == "*" and ((_has_zero(left) and _is_endless(right)) or (_has_zero(right) and _is_endless(left))):
        return _ALL_DOUBLES
    ends = [ARITHMETIC[op](a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    return _ALL_DOUBLES if any(math.isnan(end) for end in ends) else Span(min(ends), max(ends), whole=False)


def negated(span: Span) -> Span | None:
    """Return the interval of `-span`; None if it has no value."""
    return _clipped(-span.high, -span.low) if span.whole else Span(-span.high, -span.low, whole=False, nan=span.nan)


def number(value: float) -> str:
    """Format a number for people."""
    return repr(value)


def _int_result(op: str, left: Span, right: Span) -> Span | None:
    lefts = (int(left.low), int(left.high))
    rights = [int(right.low), int(right.high)]
    if op == "/":
        # Rounding towards zero is monotonic on either side of zero, and by zero there is no value.
        rights = [end for end in (*rights, -1, 1) if end and right.low <= end <= right.high]
        quotients = [abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) for a in lefts for b in rights]
        return _clipped(min(quotients), max(quotients)) if quotients else None
    apply = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[op]
    ends = [apply(a, b) for a in lefts for b in rights]
    return _clipped(min(ends), max(ends))


def _clipped(low: float, high: float) -> Span | None:
    low, high = max(low, INT_MIN), min(high, INT_MAX)
    return Span(low, high, whole=True) if low <= high else None


def _has_zero(span: Span) -> bool:
    return span.low <= 0.0 <= span.high


def _is_endless(span: Span) -> bool:
    return span.low == -math.inf or span.high == math.inf
