"""The lexer of rule expressions; every error has a position and says what to write instead.

The lexical rules are CEL's (cel-spec, "Syntax") less what the subset leaves out: raw, bytes and triple-quoted
strings, unsigned and hexadecimal numbers, comments.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

TokenKind = Literal["int", "double", "string", "name", "op", "end"]
Value = bool | int | float | str
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

_SPACE: Final = " \t\r\n\f"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile(r"(?:[0-9]+\.[0-9]+|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?")
_OPERATORS: Final = ("||", "&&", "==", "!=", "<=", ">=", "<", ">", "!", "+", "-", "*", "/", "(", ")", "[", "]", ",")
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'", "`": "`", "?": "?",
}  # fmt: skip
_CODE_ESCAPES: Final = {"x": 2, "X": 2, "u": 4, "U": 8}
_HEX: Final = re.compile(r"[0-9a-fA-F]*")
_OCTAL: Final = re.compile(r"[0-3][0-7]{2}")
_INSTEAD: Final = {
    "=": "compare with `==`",
    "&": "write `&&`",
    "|": "write `||`",
    "%": "there is no remainder here; use `+ - * /`",
    "?": "there is no `? :` here; write two rules",
    ":": "there is no `? :` here; write two rules",
    ".": "there are no fields here; a fact is one name, such as `gap_seconds`",
    "{": "there are no maps here; use `in [..]`",
    "}": "there are no maps here; use `in [..]`",
    "`": "quote a string with \" or '",
    "$": "a fact is its bare name; templates do not exist here",
    "#": "comments belong in the YAML around the expression",
    "≤": "write `<=`",
    "≥": "write `>=`",
    "≠": "write `!=`",
}


class ExpressionError(ValueError):
    """An expression was refused: `message` and `advice` for people, `start` and `end` as offsets into its text."""

    def __init__(self, message: str, advice: str, start: int, end: int) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.start = start
        self.end = max(end, start + 1)


@dataclass(frozen=True, slots=True)
class Token:
    """One token: `text` as written, `value` of a literal, offsets [start, end) into the expression."""

    kind: TokenKind
    text: str
    start: int
    end: int
    value: Value | None = None


def tokenize(text: str) -> list[Token]:
    """Return the tokens of `text`, the last of kind `end`; raises ExpressionError."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        if text[at] in _SPACE:
            at += 1
            continue
        token = _next(text, at)
        tokens.append(token)
        at = token.end
    tokens.append(Token("end", "", len(text), len(text)))
    return tokens


def _next(text: str, at: int) -> Token:
    char = text[at]
    if char in "\"'":
        return _string(text, at)
    name = _NAME.match(text, at)
    if name:
        return _name(text, at, name.group())
    number = _NUMBER.match(text, at)
    if number:
        return _number(text, at, number.group())
    if text.startswith("//", at):
        raise ExpressionError("there are no comments inside an expression", _INSTEAD["#"], at, at + 2)
    for operator in _OPERATORS:
        if text.startswith(operator, at):
            return Token("op", operator, at, at + len(operator))
    raise ExpressionError(f"unexpected {_shown(char)}", _advice(char), at, at + 1)


def _name(text: str, at: int, name: str) -> Token:
    end = at + len(name)
    if name.lower() in ("r", "b", "rb", "br") and text[end : end + 1] in ('"', "'"):
        raise ExpressionError(f"{name}-strings are not part of the language", "write a plain string", at, end)
    return Token("name", name, at, end)


def _number(text: str, at: int, number: str) -> Token:
    end = at + len(number)
    rest = _NAME.match(text, end)
    if rest:
        raise ExpressionError(f"`{number}{rest.group()}` is not a number", _number_advice(number), at, rest.end())
    if text[end : end + 1] == ".":
        raise ExpressionError(f"`{number}.` is not a number", f"write `{number}.0`", at, end + 1)
    if number.isdigit():
        # The sign is the parser's: only it knows whether a minus belongs to the literal, which may then be -2**63.
        return Token("int", number, at, end, int(number) if len(number) < 64 else INT_MAX + 2)
    value = float(number)
    if not math.isfinite(value):
        raise ExpressionError(f"`{number}` is beyond the range of a double", "write a finite number", at, end)
    return Token("double", number, at, end, value)


def _number_advice(number: str) -> str:
    if number == "0":
        return "write whole numbers in decimal"
    return "times are seconds as a double, such as `0.5`; there are no unit suffixes"


def _string(text: str, start: int) -> Token:
    quote = text[start]
    if text.startswith(quote * 3, start):
        raise ExpressionError("triple-quoted strings are not part of the language", "write one pair", start, start + 3)
    value: list[str] = []
    at = start + 1
    while at < len(text):
        char = text[at]
        if char == quote:
            return Token("string", text[start : at + 1], start, at + 1, "".join(value))
        if char in "\r\n":
            break
        if char == "\\":
            decoded, at = _escape(text, at)
            value.append(decoded)
        else:
            value.append(char)
            at += 1
    raise ExpressionError("the string has no end", f"close it with {quote} on the same line", start, len(text))


def _escape(text: str, at: int) -> tuple[str, int]:
    char = text[at + 1 : at + 2]
    if char in _ESCAPES and char:
        return _ESCAPES[char], at + 2
    octal = _OCTAL.match(text, at + 1)
    if octal:
        return chr(int(octal.group(), 8)), at + 4
    width = _CODE_ESCAPES.get(char, 0) if char else 0
    digits = _HEX.match(text, at + 2, at + 2 + width)
    end = digits.end() if width and digits else at + 2
    if width and end == at + 2 + width:
        code = int(text[at + 2 : end], 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ExpressionError(f"`{text[at:end]}` is not a character", "write the character itself", at, end)
        return chr(code), end
    raise ExpressionError(f"`{text[at:end]}` is not an escape", "write a backslash as `\\\\`", at, end)


def _shown(char: str) -> str:
    return f"`{char}`" if char.isprintable() and not char.isspace() else f"character U+{ord(char):04X}"


def _advice(char: str) -> str:
    if char in _INSTEAD:
        return _INSTEAD[char]
    if char.isspace() or char in "\u200b\u200c\u200d\ufeff":
        return "write an ordinary space"
    if char in "“”„‟‘’‚‛«»":
        return "quote a string with \" or '"
    if char in "–—−":
        return "write `-`"
    return "the operators are `|| && ! == != < <= > >= + - * / in [..] ( )`"
