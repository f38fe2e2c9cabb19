"""The type checker of expressions: types for all nodes, constants folded, and errors where CEL has them.

CEL's overloads for the four types of facts, less what the subset leaves out: strings are not added, booleans have
no order. int and double never mix. A constant sub-expression is computed here and must come out finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from otel_llm.rules.language.arithmetic import ARITHMETIC, COMPARISONS, Undefined, negate
from otel_llm.rules.language.facts import FACTS, WINDOWS
from otel_llm.rules.language.parser import Node, parse
from otel_llm.rules.language.tokens import ExpressionError, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_llm.rules.language.facts import Fact, FactType
    from otel_llm.rules.language.parser import Op

_NUMBERS: Final = ("int", "double")
_ORDERED: Final = ("int", "double", "string")


@dataclass(frozen=True, slots=True)
class Typed:
    """A node with its type; `op` literal has `value`, `op` fact has `name`."""

    op: Op
    type: FactType
    start: int
    end: int
    args: tuple[Typed, ...] = ()
    name: str = ""
    value: Value | None = None


def check(text: str, facts: Mapping[str, Fact], result: Literal["bool"] | None = "bool") -> Typed:
    """Parse and type-check `text` over `facts`; `result` is the required type, None for any.

    Raises ExpressionError.
    """
    typed = _Checker(text, facts).visit(parse(text))
    if result is not None and typed.type != result:
        raise ExpressionError(
            f"the expression is {typed.type}, a condition is bool", "compare it with something", typed.start, typed.end
        )
    return typed


class _Checker:
    def __init__(self, text: str, facts: Mapping[str, Fact]) -> None:
        self._text = text
        self._facts = facts

    def visit(self, node: Node) -> Typed:
        if node.op == "literal":
            return _literal(node, node.value)
        if node.op == "fact":
            return self._fact(node)
        args = tuple(self.visit(arg) for arg in node.args)
        if node.op in ("&&", "||", "!"):
            for arg in args:
                self._need_bool(node, arg)
            return self._folded(node, "bool", args)
        if node.op == "in":
            for item in args[1:]:
                self._same(node, args[0], item)
            return self._folded(node, "bool", args)
        if node.op == "negate":
            if args[0].type not in _NUMBERS:
                self._refuse(node, f"`-` of a {args[0].type}", "negate a number; `!` negates a condition")
            return self._folded(node, args[0].type, args)
        return self._binary(node, args)

    def _binary(self, node: Node, args: tuple[Typed, ...]) -> Typed:
        left, right = args
        self._same(node, left, right)
        if node.op in ARITHMETIC:
            if left.type not in _NUMBERS:
                self._refuse(node, f"`{node.op}` of two values of type {left.type}", "only numbers are calculated with")
            return self._folded(node, left.type, args)
        if node.op not in ("==", "!=") and left.type not in _ORDERED:
            self._refuse(node, f"`{node.op}` of two values of type {left.type}", "true and false have no order here")
        return self._folded(node, "bool", args)

    def _fact(self, node: Node) -> Typed:
        fact = self._facts.get(node.name)
        if fact is None:
            self._unknown(node)
        return Typed("fact", fact.type, node.start, node.end, name=node.name)

    def _unknown(self, node: Node) -> NoReturn:
        rest = self._text[node.end :]
        if rest.lstrip().startswith("("):
            self._refuse(node, f"`{node.name}(` is a call", "there are no functions here, only facts and operators")
        if rest.startswith("."):
            self._refuse(node, f"`{node.name}.` is a field", "there are no fields here; a fact is one name")
        if node.name in FACTS:
            advice = f"it belongs in a group of scope {' or '.join(FACTS[node.name].scopes)}"
            self._refuse(node, f"`{node.name}` is no fact of this scope", advice)
        near = get_close_matches(node.name, (*self._facts, "true", "false"), n=1, cutoff=0.6)
        advice = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(_shortened(self._facts))}"
        self._refuse(node, f"unknown fact `{node.name}`", advice)

    def _need_bool(self, node: Node, arg: Typed) -> None:
        if arg.type != "bool":
            shown = self._shown(arg)
            self._refuse(arg, f"`{node.op}` needs conditions, {shown} is {arg.type}", f"compare {shown} with something")

    def _same(self, node: Node, left: Typed, right: Typed) -> None:
        if left.type == right.type:
            return
        if {left.type, right.type} == {"int", "double"}:
            self._mixed(left, right)
        message = f"`{node.op}` of {left.type} and {right.type}: {self._shown(left)}, {self._shown(right)}"
        self._refuse(right, message, "both sides have one type")

    def _mixed(self, left: Typed, right: Typed) -> NoReturn:
        whole, broken = (left, right) if left.type == "int" else (right, left)
        message = f"int and double do not mix: {self._shown(whole)} is int, {self._shown(broken)} is double"
        if whole.op == "literal":
            self._refuse(whole, message, f"write `{whole.value}.0`")
        if broken.op == "literal" and isinstance(broken.value, float) and broken.value.is_integer():
            self._refuse(broken, message, f"write `{int(broken.value)}`")
        self._refuse(right, message, "compare each with a literal of its own type; nothing converts one to the other")

    def _folded(self, node: Node, type_: FactType, args: tuple[Typed, ...]) -> Typed:
        typed = Typed(node.op, type_, node.start, node.end, args)
        if not all(arg.op == "literal" for arg in args):
            return typed
        try:
            value = _constant(typed)
        except Undefined as error:
            self._refuse(node, f"this constant has no value: {error}", "constants are finite numbers")
        if isinstance(value, float) and not math.isfinite(value):
            self._refuse(node, f"this constant is {value}", "constants are finite numbers")
        return _literal(node, value)

    def _shown(self, node: Typed) -> str:
        text = self._text[node.start : node.end]
        return f"`{text}`" if len(text) <= 40 else f"`{text[:37]}...`"

    @staticmethod
    def _refuse(node: Node | Typed, message: str, advice: str) -> NoReturn:
        raise ExpressionError(message, advice, node.start, node.end)


def _shortened(names: Iterable[str]) -> list[str]:
    """Return the facts, with one window for those that differ only in it."""
    others = tuple(f"_{window}" for window in WINDOWS[1:])
    return [name for name in names if not name.endswith(others)]


def _literal(node: Node, value: Value | None) -> Typed:
    kinds: dict[type, FactType] = {bool: "bool", int: "int", float: "double", str: "string"}
    return Typed("literal", kinds[type(value)], node.start, node.end, value=value)


def _constant(node: Typed) -> Any:
    values = [arg.value for arg in node.args if arg.value is not None]
    if node.op == "&&":
        return all(values)
    if node.op == "||":
        return any(values)
    if node.op == "!":
        return not values[0]
    if node.op == "in":
        return any(values[0] == item for item in values[1:])
    if node.op == "negate":
        return negate(values[0])
    if node.op in ARITHMETIC:
        return ARITHMETIC[node.op](values[0], values[1])
    return COMPARISONS[node.op](values[0], values[1])
