"""Lints of the numbers in a condition: units that do not fit together, and comparisons more exact than measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.rules.language.facts import FACTS
from otel_llm.rules.language.intervals import number
from otel_llm.rules.lint.lints import LintFinding, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.config.yaml_file import KeyPath
    from otel_llm.rules.language.condition import Condition
    from otel_llm.rules.language.types import Typed

COMPARES: Final = ("==", "!=", "<", "<=", ">", ">=", "in")
_LONG_S: Final = 200.0
"""A wait of so many seconds looks like milliseconds: no reader waits that long."""
_LONG_AGE_S: Final = 10_000.0
_SLOW: Final = 0.5
"""A rate below so many tokens per second looks like the seconds per token."""
_PER_SECOND: Final = {"s": 1, "tokens/s": -1}


def unit_lints(condition: Condition, path: KeyPath) -> Iterator[LintFinding]:
    """Find seconds combined with other units, numbers of another unit, and doubles compared for equality."""
    node, text = tree(condition), condition.text
    for part in parts(node):
        if part.op in (*COMPARES, "+", "-"):
            units = {unit: arg for arg in part.args if (unit := _seconds(arg)) is not None}
            if len(units) > 1:
                shows = " and ".join(shown(text, arg) for arg in units.values())
                message = f"`{part.op}` of {shows}, which are not of one unit"
                yield LintFinding("unit", path, message, "seconds go with seconds", text, part)
        for fact, literal in with_literals(part):
            if isinstance(literal.value, float):
                yield from _size(fact.name, literal.value, path, text, part)
        if part.op in ("==", "!=", "in") and any(map(_is_measured, part.args)) and not _is_floor(part):
            yield LintFinding("exact-comparison", path, f"`{part.op}` of doubles that are measured", "", text, part)


def _size(name: str, value: float, path: KeyPath, text: str, part: Typed) -> Iterator[LintFinding]:
    unit = FACTS[name].unit
    if unit == "s" and abs(value) >= (_LONG_AGE_S if name == "age_seconds" else _LONG_S):
        message = f"{shown(text, part)}: {number(value)} looks like milliseconds, {name} is in seconds"
        yield LintFinding("unit", path, message, f"write {number(value / 1000)}", text, part)
    if unit == "tokens/s" and name.startswith("rate_") and 0 < value < _SLOW:
        message = f"{shown(text, part)}: {number(value)} looks like seconds per token, {name} is tokens per second"
        yield LintFinding("unit", path, message, f"write {number(round(1 / value, 3))}", text, part)


def _seconds(node: Typed) -> int | None:
    """Return the power of seconds of an expression; None for a literal, which fits any unit."""
    if node.op == "literal":
        return None
    if node.op == "fact":
        return _PER_SECOND.get(FACTS[node.name].unit, 0) if node.type in ("int", "double") else None
    if node.op not in ("+", "-", "*", "/", "negate"):
        return None
    powers = [_seconds(arg) for arg in node.args]
    if node.op in ("*", "/"):
        return (powers[0] or 0) + (1 if node.op == "*" else -1) * (powers[1] or 0)
    return next((power for power in powers if power is not None), None)


def _is_measured(node: Typed) -> bool:
    return any(part.op == "fact" and FACTS[part.name].unit in _PER_SECOND for part in parts(node))


def _is_floor(node: Typed) -> bool:
    """Tell whether a fact is compared with 0.0, its floor, as for a reader who never waited."""
    pairs = list(with_literals(node))
    return bool(pairs) and all(literal.value == 0 and not FACTS[fact.name].signed for fact, literal in pairs)


def parts(node: Typed) -> Iterator[Typed]:
    """Yield an expression and all its parts."""
    yield node
    for arg in node.args:
        yield from parts(arg)


def with_literals(node: Typed) -> Iterator[tuple[Typed, Typed]]:
    """Yield the pairs of a fact and a literal that an expression compares."""
    if node.op in COMPARES:
        for other in node.args[1:]:
            for fact, literal in ((node.args[0], other), (other, node.args[0])):
                if fact.op == "fact" and literal.op == "literal":
                    yield fact, literal


def tree(condition: Condition) -> Typed:
    """Return the typed tree of a condition."""
    return condition.program.typed
