"""Every rule stays valid CEL: our language gives what Google's implementation gives, on random expressions."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import pytest
from cel_expr_python import cel

from otel_llm.rules.language.arithmetic import Undefined
from otel_llm.rules.language.compile import compile_expression
from otel_llm.rules.language.facts import Fact, FactType
from otel_llm.rules.language.tokens import ExpressionError
from otel_llm.rules.language.types import check

TYPES: dict[str, FactType] = {
    "d0": "double", "d1": "double", "d2": "double",
    "i0": "int", "i1": "int", "i2": "int",
    "s0": "string", "s1": "string",
    "b0": "bool", "b1": "bool",
}  # fmt: skip
FACTS = {name: Fact(name, type_, "", ("stream",), "a fact") for name, type_ in TYPES.items()}
CEL_TYPES = {"double": cel.Type.DOUBLE, "int": cel.Type.INT, "string": cel.Type.STRING, "bool": cel.Type.BOOL}
ENVIRONMENT = cel.NewEnv(variables={name: CEL_TYPES[type_] for name, type_ in TYPES.items()})

DOUBLES = [0.0, -0.0, 1.0, -1.5, 0.1, 0.2, 0.30000000000000004, 1e308, -1e308, 5e-324, 1e9]
ODD_DOUBLES = [*DOUBLES, math.nan, math.inf, -math.inf]
INTS = [0, 1, -1, 2, -7, 3, 2**31, 2**63 - 1, -(2**63), 2**62, 10]
STRINGS = ["", "chat", "Chat", 'a"b', "a'b", "a\\b", "é", "\U0001f600", "\n\t", "\x00", "z\uffff"]
UNDEFINED = "undefined"


class Writer:
    """Writes random well-typed expressions, in the forms that people and machines write."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def expression(self, type_: str, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.12:
            return self.leaf(type_)
        text = getattr(self, f"write_{type_}")(depth - 1)
        return f"({text})" if self.random.random() < 0.7 else text

    def leaf(self, type_: str) -> str:
        if self.random.random() < 0.6:
            return self.random.choice([name for name, kind in TYPES.items() if kind == type_])
        if type_ == "double":
            return self.random.choice(["0.0", "-0.0", ".5", "1e3", "1.5E-3", "2.25e+2", "-1.5", "1.0", "4.9e-324"])
        if type_ == "int":
            return str(self.random.choice(INTS))
        if type_ == "bool":
            return self.random.choice(["true", "false"])
        return self.quoted(self.random.choice(STRINGS))

    def quoted(self, value: str) -> str:
        quote = self.random.choice("\"'")
        return quote + "".join(self.character(char, quote) for char in value) + quote

    def character(self, char: str, quote: str) -> str:
        code = ord(char)
        forms = [f"\\U{code:08x}"]
        if code < 0x10000:
            forms.append(f"\\u{code:04X}")
        if code < 0x100:
            forms += [f"\\x{code:02x}", f"\\{code:03o}"]
        if char in (quote, "\\"):
            forms.append("\\" + char)
        elif char.isprintable():
            forms += [char] * 6
        return self.random.choice(forms)

    def write_bool(self, depth: int) -> str:
        kind = self.random.choice(["and", "or", "not", "compare", "compare", "compare", "in", "equal"])
        if kind in ("and", "or"):
            terms = [self.expression("bool", depth) for _ in range(self.random.choice([2, 2, 3]))]
            return f" {'&&' if kind == 'and' else '||'} ".join(terms)
        if kind == "not":
            return f"!({self.expression('bool', depth)})"
        if kind == "in":
            type_ = self.random.choice(["int", "double", "string", "bool"])
            items = ", ".join(self.expression(type_, depth - 1) for _ in range(self.random.randint(1, 3)))
            return f"{self.expression(type_, depth)} in [{items}]"
        if kind == "equal":
            left, right = (self.expression("bool", depth) for _ in "lr")
            return f"({left}) {self.random.choice(['==', '!='])} ({right})"
        type_ = self.random.choice(["int", "double", "double", "string"])
        operator = self.random.choice(["==", "!=", "<", "<=", ">", ">="])
        return f"{self.expression(type_, depth)} {operator} {self.expression(type_, depth)}"

    def write_double(self, depth: int) -> str:
        return self.arithmetic("double", depth)

    def write_int(self, depth: int) -> str:
        return self.arithmetic("int", depth)

    def write_string(self, depth: int) -> str:
        return self.leaf("string")

    def arithmetic(self, type_: str, depth: int) -> str:
        if self.random.random() < 0.2:
            return f"-({self.expression(type_, depth)})"
        space = self.random.choice(["", " ", "\n", "\t"])
        operator = self.random.choice("+-*/")
        return f"{self.expression(type_, depth)}{space}{operator}{space}{self.expression(type_, depth)}"

    def facts(self) -> dict[str, Any]:
        # The Python binding of Google's implementation cuts the value of a variable at a NUL; literals it keeps whole.
        strings = [value for value in STRINGS if "\0" not in value]
        choices: dict[str, list[Any]]
        choices = {"double": ODD_DOUBLES, "int": INTS, "string": strings, "bool": [True, False]}
        return {name: self.random.choice(choices[type_]) for name, type_ in TYPES.items()}


def ours(text: str, facts: dict[str, Any]) -> Any:
    program = compile_expression(check(text, FACTS, None))
    try:
        return program.run(*(facts[name] for name in program.facts))
    except Undefined:
        return UNDEFINED


def theirs(text: str, facts: dict[str, Any]) -> Any:
    value = ENVIRONMENT.compile(text).eval(data=facts)
    return UNDEFINED if value.type() == cel.Type.ERROR else value.plain_value()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and bool(left == right)


SEEDS = range(4)
COMPARED_EACH = 5_000
"""With each of the seeds: 20,000 random expressions together."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_we_accept_google_accepts_and_computes_alike(seed: int) -> None:
    writer = Writer(seed)
    compared = undefined = true = written = 0
    while compared < COMPARED_EACH:
        written += 1
        text = writer.expression(writer.random.choice(["bool", "bool", "bool", "double", "int"]), 4)
        facts = writer.facts()
        try:
            mine = ours(text, facts)
        except ExpressionError:
            continue
        google = theirs(text, facts)
        assert same(mine, google), (text, facts, mine, google)
        compared += 1
        undefined += mine is UNDEFINED
        true += mine is True
    # Most of what is written must be accepted and come to something, or the agreement means nothing.
    assert compared > 0.6 * written
    assert undefined > 50
    assert true > 500


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("i0 / i1 == 1 || b0", True),
        ("b0 || i0 / i1 == 1", True),
        ("i0 / i1 == 1 && b1", False),
        ("i0 / i1 == 1 && b0", UNDEFINED),
        ("!(i0 / i1 == 1) || b0", True),
        ("(i0 / i1 == 1 || b1) && b1", False),
        ("i0 in [3, i0 / i1]", UNDEFINED),
        ("-7 / 2 == -3 && 7 / -2 == -3", True),
        ("-9223372036854775808 < i0", True),
        ("- 9223372036854775808 == -9223372036854775807 - 1", True),
        ("i2 + 1 > 0", UNDEFINED),
        ("-d1 < 0.0", False),
        ("d0 / d1 > 1e300", True),
        ("d1 / d1 == d1 / d1", False),
        ("d2 in [d2]", False),
        ("d2 != d2", True),
        ("d1 in [-0.0]", True),
        ("1 < 2 == true", True),
        ("!b0 == b1", True),
        ("b0 || b1 && b1", True),
        ("-i0 * 2 == -6 && 1 - -1 == 2 && i0--1 == 4", True),
        ("b0\t&&\r\n\fb0", True),
        (r'"\x41\u0042\U00000043\104\a\b\f\n\r\t\v\\\"\'\`\?" != s0', True),
    ],
)
def test_worked_cases(text: str, value: Any) -> None:
    facts: dict[str, Any] = {"d0": 1.5, "d1": 0.0, "d2": math.nan, "i0": 3, "i1": 0, "i2": 2**63 - 1}
    facts |= {"s0": "chat", "s1": "", "b0": True, "b1": False}
    assert same(ours(text, facts), value)
    assert same(theirs(text, facts), value)
