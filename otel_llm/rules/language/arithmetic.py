"""CEL's arithmetic on ints of 64 bits and IEEE doubles, if Python's own differs.

An int that overflows or is divided by zero has no value (CEL: an error); a double divided by zero is an infinity or
NaN (IEEE 754); int division rounds towards zero.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final

from otel_llm.rules.language.tokens import INT_MAX, INT_MIN

if TYPE_CHECKING:
    from collections.abc import Callable


class Undefined(ArithmeticError):  # noqa: N818 - a value that does not exist is not a fault
    """An expression has no value for these facts; a rule treats it as a missing fact."""


def add(left: Any, right: Any) -> Any:
    """Add two ints or two doubles."""
    return _in_range(left + right)


def subtract(left: Any, right: Any) -> Any:
    """Subtract two ints or two doubles."""
    return _in_range(left - right)


def multiply(left: Any, right: Any) -> Any:
    """Multiply two ints or two doubles."""
    return _in_range(left * right)


def negate(value: Any) -> Any:
    """Negate an int or a double."""
    return _in_range(-value)


def divide(left: Any, right: Any) -> Any:
    """Divide two ints, rounding towards zero, or two doubles."""
    if isinstance(left, float):
        if right:
            return left / right
        if not left or math.isnan(left) or math.isnan(right):
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)
    if right == 0:
        raise Undefined("division by zero")
    quotient = abs(left) // abs(right)
    return _in_range(quotient if (left < 0) == (right < 0) else -quotient)


def member(item: Any, items: tuple[Any, ...]) -> bool:
    """Return whether an equal of `item` is among `items`; unlike Python's `in`, NaN is not in a list of itself."""
    return any(item == other for other in items)


def every(*terms: Callable[[], bool]) -> bool:
    """Compute `&&` as CEL does: one false term outweighs terms that have no value."""
    undefined: Undefined | None = None
    for term in terms:
        try:
            if not term():
                return False
        except Undefined as error:
            undefined = error
    if undefined is not None:
        raise undefined
    return True


def some(*terms: Callable[[], bool]) -> bool:
    """Compute `||` as CEL does: one true term outweighs terms that have no value."""
    undefined: Undefined | None = None
    for term in terms:
        try:
            if term():
                return True
        except Undefined as error:
            undefined = error
    if undefined is not None:
        raise undefined
    return False


def _in_range(value: Any) -> Any:
    if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        raise Undefined("an int beyond 64 bits")
    return value


ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {"+": add, "-": subtract, "*": multiply, "/": divide}
COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
