"""Satisfiability of conditions: can one hold at all, and for which facts? Sound, and exact for simple rules.

`boxes` returns boxes that together hold every combination of facts for which an expression has the wanted truth; they
may hold more, as two facts in one comparison are not tied to each other. So no box means: never.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from otel_llm.rules.language.arithmetic import Undefined
from otel_llm.rules.language.compile import compile_expression, used_facts
from otel_llm.rules.language.crossings import MIRRORED
from otel_llm.rules.language.intervals import Choice, Span, agree, at_most, box, calculated, consistent, negated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_llm.rules.language.intervals import Box, Domain
    from otel_llm.rules.language.tokens import Value
    from otel_llm.rules.language.types import Typed

MOST_BOXES: Final = 64
"""With more boxes they become one around all of them: still sound, less exact, and fast for every expression."""
_PASSES: Final = 3
_TRIES: Final = 200
_NOT: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def full_box(*nodes: Typed, classes: frozenset[str] | None = None) -> list[Box]:
    """Return, as one box, all values that the facts of these expressions may have while none is missing."""
    return [box(tuple(dict.fromkeys(name for node in nodes for name in used_facts(node))), classes)]


def boxes(node: Typed, want: bool, given: Sequence[Box]) -> list[Box]:
    """Return boxes, within those given, that hold all facts for which a condition is `want`; none: it never is."""
    if not given:
        return []
    if node.op == "literal":
        return list(given) if node.value is want else []
    if node.op == "fact":
        return _each(given, lambda one: _choose(node, Choice(frozenset((want,))), one))
    if node.op == "!":
        return boxes(node.args[0], not want, given)
    if node.op in ("&&", "||"):
        return _all(node.args, want, given) if (node.op == "&&") is want else _any(node.args, want, given)
    if node.op == "in":
        pairs = [(node.args[0], item) for item in node.args[1:]]
        return _in(pairs, want, given)
    return _compared(node.op, node.args[0], node.args[1], want, given)


def extent(name: str, found: Sequence[Box]) -> Span | None:
    """Return the span of a number over boxes; None if it does not occur in one of them."""
    spans = [one[name] for one in found if isinstance(one.get(name), Span)]
    whole: Span | None = None
    for span in spans:
        if isinstance(span, Span):
            whole = span if whole is None else whole.join(span)
    return whole if len(spans) == len(found) else None


def example(nodes: Sequence[Typed], given: Sequence[Box]) -> dict[str, Value] | None:
    """Return facts for which all conditions hold, if the search among likely values finds some."""
    programs = [compile_expression(node) for node in nodes]
    for values in _points(given):
        if not agree(values):
            continue
        try:
            if all(program.run(*(values[name] for name in program.facts)) for program in programs):
                return values
        except Undefined:
            continue
    return None


def _all(terms: Sequence[Typed], want: bool, given: Sequence[Box]) -> list[Box]:
    found = list(given)
    for _ in range(_PASSES):
        before = found
        for term in terms:
            found = boxes(term, want, found)
            if not found:
                return []
        if found == before:
            break
    return found


def _any(terms: Iterable[Typed], want: bool, given: Sequence[Box]) -> list[Box]:
    return _bounded([one for term in terms for one in boxes(term, want, given)])


def _in(pairs: Sequence[tuple[Typed, Typed]], want: bool, given: Sequence[Box]) -> list[Box]:
    if want:
        return _bounded([one for left, right in pairs for one in _compared("==", left, right, True, given)])
    found = list(given)
    for left, right in pairs:
        found = _compared("==", left, right, False, found)
    return found


def _compared(op: str, left: Typed, right: Typed, want: bool, given: Sequence[Box]) -> list[Box]:
    if left.type == "bool":
        same = (op == "==") is want
        sides = [boxes(right, truth is same, boxes(left, truth, given)) for truth in (True, False)]
        return _bounded([one for side in sides for one in side])
    if left.type == "string":
        return _each(given, lambda one: _texts(op if want else _NOT[op], left, right, one))
    return _each(given, lambda one: _numbers(op, want, left, right, one))


def _texts(op: str, left: Typed, right: Typed, one: Box) -> Box | None:
    mine, theirs = _text(left, one), _text(right, one)
    if op == "==":
        both = mine.meet(theirs)
        found = None if both is None else _choose(left, both, one)
        return None if found is None or both is None else _choose(right, both, found)
    if op == "!=":
        if left == right or (left.op == "fact" and left.name == right.name):
            return None
        for this, other, node in ((mine, theirs, left), (theirs, mine, right)):
            if other.allowed is not None and len(other.allowed) == 1:
                rest = this.without(next(iter(other.allowed)))
                return None if rest is None else _choose(node, rest, one)
        return one
    for node, literal, turned in ((left, right, op), (right, left, MIRRORED[op])):
        values = _text(node, one).allowed
        if values is not None and literal.op == "literal":
            kept = frozenset(value for value in values if _ordered(turned, str(value), str(literal.value)))
            return _choose(node, Choice(kept), one) if kept else None
    return one


def _ordered(op: str, left: str, right: str) -> bool:
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]


def _text(node: Typed, one: Box) -> Choice:
    if node.op == "literal" and node.value is not None:
        return Choice(frozenset((node.value,)))
    found = one[node.name]
    return found if isinstance(found, Choice) else Choice(None)


def _numbers(op: str, want: bool, left: Typed, right: Typed, one: Box) -> Box | None:
    mine, theirs = _span(left, one), _span(right, one)
    if mine is None or theirs is None:
        return None
    # Beside NaN every comparison is false but `!=`.
    if (mine.nan or theirs.nan) and (op == "!=") is want:
        return one
    op = op if want else _NOT[op]
    if left.op == right.op == "fact":
        if left.name == right.name and op in ("<", ">", "!="):
            return None
        if (op == ">" and at_most(left.name, right.name)) or (op == "<" and at_most(right.name, left.name)):
            return None
    found: tuple[Span | None, Span | None]
    if op == "!=":
        found = mine.without(theirs), theirs.without(mine)
    elif op == "==":
        found = mine.meet(theirs), theirs.meet(mine)
    else:
        strict = op in ("<", ">")
        low, high = (mine, theirs) if op in ("<", "<=") else (theirs, mine)
        less, more = (high.below(), low.above()) if strict else (high.up_to(), low.from_on())
        narrowed = None if less is None else low.meet(less), None if more is None else high.meet(more)
        found = narrowed if op in ("<", "<=") else (narrowed[1], narrowed[0])
    result: Box | None = one
    for node, span in zip((left, right), found, strict=True):
        if span is None or result is None:
            return None
        if node.op == "fact":
            result = consistent({**result, node.name: span})
    return result


def _span(node: Typed, one: Box) -> Span | None:
    """Return the values of a number; None if it has none."""
    if node.op == "literal" and isinstance(node.value, int | float):
        return Span(node.value, node.value, node.type == "int")
    if node.op == "fact":
        found = one[node.name]
        return found if isinstance(found, Span) else None
    args = [_span(arg, one) for arg in node.args]
    if args[0] is None or args[-1] is None:
        return None
    return negated(args[0]) if node.op == "negate" else calculated(node.op, args[0], args[1])  # type: ignore[arg-type]


def _choose(node: Typed, values: Choice, one: Box) -> Box | None:
    if node.op != "fact":
        return one
    here = one[node.name]
    narrowed = here.meet(values) if isinstance(here, Choice) else None
    return None if narrowed is None else {**one, node.name: narrowed}


def _each(given: Iterable[Box], narrowed: Callable[[Box], Box | None]) -> list[Box]:
    return [one for one in map(narrowed, given) if one is not None]


def _bounded(found: list[Box]) -> list[Box]:
    if len(found) <= MOST_BOXES:
        return found
    around = dict(found[0])
    for one in found[1:]:
        for name, values in one.items():
            around[name] = _joined(around[name], values)
    return [around]


def _joined(left: Domain, right: Domain) -> Domain:
    if isinstance(left, Span) and isinstance(right, Span):
        return left.join(right)
    if isinstance(left, Choice) and isinstance(right, Choice):
        return left.join(right)
    raise TypeError("a fact is a number or it is not")


def _points(given: Sequence[Box]) -> Iterator[dict[str, Value]]:
    """Yield likely combinations of facts: round values, those at the ends, then random ones; always the same."""
    chance = random.Random(0)  # noqa: S311 - a search, nothing secret
    choices = [{name: _likely(values) for name, values in one.items()} for one in given]
    if not choices:
        return
    for at in range(3):
        for one in choices:
            yield {name: values[min(at, len(values) - 1)] for name, values in one.items()}
    for _ in range(_TRIES):
        yield {name: chance.choice(values) for name, values in chance.choice(choices).items()}


def _likely(values: Domain) -> list[Value]:
    if isinstance(values, Choice):
        if values.allowed is not None:
            return sorted(values.allowed, key=str, reverse=True)
        return [text for text in ("any", "some", "other") if text not in values.excluded] or [""]
    low = values.low if abs(values.low) < _FAR else min(values.high - 2, 0) if values.high < _FAR else 0
    high = values.high if abs(values.high) < _FAR else max(values.low + 2, 0) if values.low > -_FAR else 0
    middle = (low + high) / 2
    likely: list[float]
    if values.whole:
        likely = [(int(low) + int(high)) // 2, int(low), int(high)]
    else:
        likely = [*map(float, (round(middle, 1), round(middle, 3), middle, low, high))]
    return [value for value in likely if values.low <= value <= values.high] or [values.low]


_FAR: Final = 1e15
