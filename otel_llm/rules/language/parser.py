"""Parse a rule's expression to a syntax tree, with a Pratt parser over CEL's precedences.

    ||  <  &&  <  == != < <= > >= in (one level, left to right)  <  + -  <  * /  <  ! - (prefix)

Chains of `&&` and of `||` are one node, so that depth measures nesting, not length.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from otel_llm.rules.language.tokens import INT_MAX, ExpressionError, Token, Value, tokenize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_CHARACTERS: Final = 4096
MAX_DEPTH: Final = 64

Op = Literal["literal", "fact", "||", "&&", "!", "negate", "in", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/"]
_BINARY: Final[dict[str, tuple[Op, int]]] = {
    "||": ("||", 1), "&&": ("&&", 2),
    "==": ("==", 3), "!=": ("!=", 3), "<": ("<", 3), "<=": ("<=", 3), ">": (">", 3), ">=": (">=", 3), "in": ("in", 3),
    "+": ("+", 4), "-": ("-", 4), "*": ("*", 5), "/": ("/", 5),
}  # fmt: skip
_WORDS: Final = {"and": "&&", "or": "||", "not": "!", "is": "==", "AND": "&&", "OR": "||", "NOT": "!", "IN": "in"}


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the tree: `args` are its operands (of `in`: the item, then the list's items)."""

    op: Op
    start: int
    end: int
    args: tuple[Node, ...] = ()
    name: str = ""
    value: Value | None = None
    depth: int = 1


def parse(text: str) -> Node:
    """Parse one expression of at most 4,096 characters and depth 64; raises ExpressionError."""
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(
            f"the expression has {len(text)} characters, at most {MAX_CHARACTERS} are allowed",
            "split the rule",
            MAX_CHARACTERS,
            len(text),
        )
    parser = _Parser(tokenize(text))
    node = parser.expression(0)
    parser.finish()
    return node


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._nesting = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def finish(self) -> None:
        """Refuse anything that follows the expression."""
        token = self._token
        if token.kind == "end":
            return
        if token.text in _WORDS:
            self._refuse(token, f"unexpected `{token.text}`", f"write `{_WORDS[token.text]}`")
        if token.text == "(" and self._tokens[self._at - 1].kind == "name":
            name = self._tokens[self._at - 1]
            self._refuse(name, f"`{name.text}(` is a call", "there are no functions here, only facts and operators")
        if token.text == "[":
            self._refuse(token, "unexpected `[`", "there is no indexing; a list stands after `in`")
        self._refuse(token, f"unexpected `{token.text}`", "an operator is expected between two values")

    def expression(self, power: int) -> Node:
        """Parse operators that bind tighter than `power`."""
        left = self._operand()
        while self._token.text in _BINARY and self._token.kind in ("op", "name"):
            op, binds = _BINARY[self._token.text]
            if binds <= power:
                break
            left = self._infix(left, op, binds)
        return left

    def _infix(self, left: Node, op: Op, binds: int) -> Node:
        token = self._advance()
        if op == "in":
            return self._node("in", left.start, (left, *self._list()), token, self._tokens[self._at - 1].end)
        terms = [left, self.expression(binds)]
        while op in ("&&", "||") and self._token.text == op:
            self._advance()
            terms.append(self.expression(binds))
        return self._node(op, left.start, terms, token, terms[-1].end)

    def _operand(self) -> Node:
        token = self._advance()
        if token.kind in ("int", "double", "string"):
            return self._literal(token)
        if token.kind == "name" and token.text in ("true", "false"):
            return Node("literal", token.start, token.end, value=token.text == "true")
        if token.kind == "name" and token.text not in ("in", "not", "NOT"):
            return Node("fact", token.start, token.end, name=token.text)
        if token.text in ("!", "-"):
            return self._prefix(token)
        if token.text == "(":
            with self._inside(token):
                inner = self.expression(0)
            self._expect(")", token)
            return inner
        return self._no_operand(token)

    def _prefix(self, token: Token, *, nested: bool = False) -> Node:
        # As in CEL a single minus before a number is part of the literal, so that -2**63 can be written.
        if token.text == "-" and self._token.kind in ("int", "double") and not nested:
            return self._literal(self._advance(), token)
        with self._inside(token):
            more = self._token.text in ("!", "-") and self._token.kind == "op"
            operand = self._prefix(self._advance(), nested=True) if more else self._operand()
        return self._node("!" if token.text == "!" else "negate", token.start, (operand,), token, operand.end)

    @contextmanager
    def _inside(self, token: Token) -> Iterator[None]:
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            self._too_deep(token)
        yield
        self._nesting -= 1

    def _literal(self, token: Token, minus: Token | None = None) -> Node:
        start = minus.start if minus else token.start
        value = token.value
        if isinstance(value, int) and not isinstance(value, bool):
            if value > INT_MAX + (1 if minus else 0):
                self._refuse(token, f"`{token.text[:40]}` is beyond the range of an int", "an int has 64 bits")
            value = -value if minus else value
        elif isinstance(value, float) and minus:
            value = -value
        return Node("literal", start, token.end, value=value)

    def _list(self) -> list[Node]:
        opening = self._token
        if opening.text != "[":
            self._refuse(opening, "a list is expected after `in`", 'write `in ["a", "b"]`')
        self._advance()
        if self._token.text == "]":
            self._refuse(self._token, "the list is empty", "nothing is ever in it; name at least one value")
        with self._inside(opening):
            items = [self.expression(0)]
            while self._token.text == ",":
                self._advance()
                items.append(self.expression(0))
        self._expect("]", opening)
        return items

    def _no_operand(self, token: Token) -> NoReturn:
        if token.kind == "end":
            self._refuse(token, "the expression ends where a value is expected", "name a fact or a literal")
        if token.text == "[":
            self._refuse(token, "unexpected list", "a list stands after `in`")
        if token.text in _WORDS:
            self._refuse(token, f"unexpected `{token.text}`", f"write `{_WORDS[token.text]}`")
        self._refuse(token, f"unexpected `{token.text}`", "a value is expected here: a fact or a literal")

    def _node(self, op: Op, start: int, args: Iterable[Node], token: Token, end: int) -> Node:
        operands = tuple(args)
        depth = 1 + max(node.depth for node in operands)
        if depth > MAX_DEPTH:
            self._too_deep(token)
        return Node(op, start, end, operands, depth=depth)

    def _advance(self) -> Token:
        token = self._token
        if token.kind != "end":
            self._at += 1
        return token

    def _expect(self, closing: str, opening: Token) -> None:
        if self._token.text == closing and self._token.kind == "op":
            self._advance()
            return
        found = "the end" if self._token.kind == "end" else f"`{self._token.text}`"
        self._refuse(self._token, f"{found} where `{closing}` is expected", f"`{opening.text}` is not closed")

    def _too_deep(self, token: Token) -> NoReturn:
        self._refuse(token, f"the expression is nested deeper than {MAX_DEPTH}", "split the rule")

    @staticmethod
    def _refuse(token: Token, message: str, advice: str) -> NoReturn:
        raise ExpressionError(message, advice, token.start, token.end)
