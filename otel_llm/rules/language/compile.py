"""Compile a typed expression to one Python code object, built from its tree and never from the user's text.

Most nodes become the Python operator of the same meaning; if Python and CEL part (int range and division,
division of doubles by zero, NaN in a list, a term without a value beside one that decides) a helper stands in.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.rules.language.arithmetic import add, divide, every, member, multiply, negate, some, subtract

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.rules.language.types import Typed

_HELPERS: Final[dict[str, Any]] = {
    "_add": add, "_subtract": subtract, "_multiply": multiply, "_divide": divide, "_negate": negate,
    "_member": member, "_every": every, "_some": some,
}  # fmt: skip
_COMPARE: Final[dict[str, type[ast.cmpop]]] = {
    "==": ast.Eq, "!=": ast.NotEq, "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE,
}  # fmt: skip
_CALCULATE: Final[dict[str, tuple[type[ast.operator], str]]] = {
    "+": (ast.Add, "_add"),
    "-": (ast.Sub, "_subtract"),
    "*": (ast.Mult, "_multiply"),
    "/": (ast.Div, "_divide"),
}


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression.

    `run` takes the facts named in `facts`, in that order, and returns the value; it raises Undefined if CEL has an
    error (an int out of range, an int divided by zero).
    """

    typed: Typed
    facts: tuple[str, ...]
    run: Callable[..., Any]


def compile_expression(typed: Typed) -> Program:
    """Compile a typed tree."""
    facts = used_facts(typed)
    arguments = ast.arguments([], [ast.arg(_parameter(name)) for name in facts], None, [], [], None, [])
    tree = ast.Expression(ast.Lambda(arguments, _python(typed)))
    ast.fix_missing_locations(tree)
    code = compile(tree, "<rule>", "eval")
    run = eval(code, {"__builtins__": {}, **_HELPERS})  # noqa: S307 - the code was built above, node by node
    return Program(typed, facts, run)


def used_facts(typed: Typed) -> tuple[str, ...]:
    """Return the facts of a tree, each once, in order of appearance."""
    names: dict[str, None] = {}

    def visit(node: Typed) -> None:
        if node.op == "fact":
            names[node.name] = None
        for arg in node.args:
            visit(arg)

    visit(typed)
    return tuple(names)


def can_fail(typed: Typed) -> bool:
    """Return whether the expression can have no value: int arithmetic on facts."""
    own = typed.type == "int" and typed.op in (*_CALCULATE, "negate")
    return own or any(can_fail(arg) for arg in typed.args)


def _parameter(name: str) -> str:
    # A prefix separates facts from the helpers and from Python's keywords, whatever facts the table gets.
    return f"f_{name}"


def _python(node: Typed) -> ast.expr:
    if node.op == "literal":
        return ast.Constant(node.value)
    if node.op == "fact":
        return ast.Name(_parameter(node.name), ast.Load())
    if node.op in ("&&", "||"):
        return _logic(node)
    args = [_python(arg) for arg in node.args]
    if node.op == "!":
        return ast.UnaryOp(ast.Not(), args[0])
    if node.op == "negate":
        return _call("_negate", args) if node.type == "int" else ast.UnaryOp(ast.USub(), args[0])
    if node.op == "in":
        items = ast.Tuple(args[1:], ast.Load())
        plain = node.args[0].type != "double" or all(arg.op == "literal" for arg in node.args[1:])
        return ast.Compare(args[0], [ast.In()], [items]) if plain else _call("_member", [args[0], items])
    if node.op in _COMPARE:
        return ast.Compare(args[0], [_COMPARE[node.op]()], [args[1]])
    operator, helper = _CALCULATE[node.op]
    if node.type == "int" or (node.op == "/" and not _is_nonzero(node.args[1])):
        return _call(helper, args)
    return ast.BinOp(args[0], operator(), args[1])


def _logic(node: Typed) -> ast.expr:
    terms = [_python(arg) for arg in node.args]
    if any(can_fail(arg) for arg in node.args[:-1]):
        nothing = ast.arguments([], [], None, [], [], None, [])
        return _call("_every" if node.op == "&&" else "_some", [ast.Lambda(nothing, term) for term in terms])
    return ast.BoolOp(ast.And() if node.op == "&&" else ast.Or(), terms)


def _is_nonzero(node: Typed) -> bool:
    return node.op == "literal" and bool(node.value)


def _call(helper: str, args: list[ast.expr]) -> ast.expr:
    return ast.Call(ast.Name(helper, ast.Load()), args, [])
