"""Read JSON larger than memory value by value: the keys of a file one by one, the elements of chosen arrays one by one.

Python's own decoder parses each value; one is held, never the document, and a broken one is skipped. (No JSON library
for streams continues after a broken value, or says at which byte it began.) Also: the keys in a file's first bytes, to
recognise its format.

NaN and Infinity, which Python's json and others write, are read as floats: a tool writes them for settings that nothing
here uses. The code that uses a number refuses one that is not finite.
"""

from __future__ import annotations

import codecs
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.formats.io.bytestream import split_lines
from otel_llm.formats.io.skipped import MAX_DOCUMENT_BYTES
from otel_llm.formats.records import DecodeError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from otel_llm.formats.io.skipped import Skipped


MOST_CHARS: Final = 64 * 2**20
"""A longer value (of a key, or an element) is counted as broken and skipped, never held."""
MOST_PARTS: Final = 8_000_000
"""Commas and brackets in one value: each may become an object of 64 bytes."""
WINDOW_CHARS: Final = 2**20
"""Older text is dropped beyond this; a value that is cut is parsed again after as many more characters."""
CLOSING: Final = {"{": "}", "[": "]"}
_TOO_MANY: Final = "more parts in one JSON value than are held"
_STRUCTURE: Final = re.compile(r'[{}\[\],"]')
_STRING: Final = re.compile(r'(?:[^"\\]|\\.)*+', re.DOTALL)
_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_NUMBER: Final = re.compile(r"[-+.eE0-9]*+")
_BEGUN: Final = re.compile(r"\s*+(?:-|\.|[eE][-+]|-?[tfnIN][a-zN]{0,6}|\\?u?[0-9a-fA-F]{0,3})")
"""The rest of a cut value after the position where the decoder fails: of a number, a literal, an escape, or nothing."""
_NEAR: Final = 16
"""An error this close to the end of the read text may be due to the cut: a literal, an escape."""


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """How much of a file is held; see the constants."""

    chars: int = MOST_CHARS
    parts: int = MOST_PARTS
    window: int = WINDOW_CHARS


def load(text: bytes | str, most_parts: int = MOST_PARTS) -> Any:
    """Return the JSON value of a text.

    Raises:
        DecodeError: it is no JSON, nested too deeply, or of more than `most_parts`.
    """
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        if len(plain) <= most_parts or _parts(plain) <= most_parts:
            return json.loads(plain)
    except RecursionError:
        raise DecodeError("not JSON: nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError, JSONDecodeError, an integer of thousands of digits
        raise DecodeError(f"not JSON: {error}") from None
    raise DecodeError(_TOO_MANY)


class Cut(Exception):  # noqa: N818 - never leaves the walk
    """The file ends inside a value."""


class Bad(Exception):  # noqa: N818 - never leaves the walk
    """The value is no JSON; `at` is the position in the text."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at


class Parser:
    """The text of a file from the current value on; earlier text is dropped."""

    def __init__(self, chunks: Iterable[bytes], limits: ValueLimits | None = None) -> None:
        limits = ValueLimits() if limits is None else limits
        self._most_chars, self._most_parts, self._window = limits.chars, limits.parts, limits.window
        self.text = ""
        self.position = 0
        self._chunks = iter(chunks)
        # Bytes that are no UTF-8 stay in the text as lone surrogates: only the strings with them are broken.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._json = json.JSONDecoder()
        self._ended = False
        self._parts = 0
        self._start = 0
        self._start_bytes = 0  # its position in the file
        self._fill()
        if self.text.startswith("\ufeff"):
            self.position = 1

    def begin(self) -> None:
        """Begin a value here: drop the text before it, if that is much."""
        self._start_bytes += _size(self.text[self._start : self.position])
        self._start = self.position
        if self._start > self._window:
            self._parts -= _parts(self.text[: self._start])
            self.text = self.text[self._start :]
            self._start = self.position = 0

    def offset(self, at: int | None = None) -> int:
        """Return the byte offset in the file of the current position, or of one in the text."""
        return self._start_bytes + _size(self.text[self._start : self.position if at is None else at])

    def peek(self) -> str:
        """Return the next character that is no blank, "" at the file's end."""
        while True:
            blank = _SPACE.match(self.text, self.position)
            assert blank is not None  # noqa: S101 - it matches nothing, too
            self.position = blank.end()
            if self.position < len(self.text):
                return self.text[self.position]
            if self.position - self._start > self._window:
                self.begin()
            if not self._fill():
                return ""

    def key(self) -> str:
        """Return the key at the current position, and move past its colon."""
        if self.peek() not in ('"', ""):
            raise Bad(self.position, "expected a key in quotes")
        key = self.value()
        if self.peek() != ":":
            raise Cut if not self.peek() else Bad(self.position, "expected a colon behind a key")
        self.position += 1
        if not self.peek():
            raise Cut
        assert isinstance(key, str)  # noqa: S101 - it begins with a quote
        return key

    def value(self) -> Any:
        """Return the value at the current position, and move past it."""
        if not self.peek():
            raise Cut
        wanted = self._window
        while True:
            size = len(self.text) - self.position
            if self._too_many_parts():
                raise Bad(self.position, _TOO_MANY)
            try:
                value, end = self._json.raw_decode(self.text, self.position)
            except RecursionError:
                raise Bad(self.position, "nested too deeply") from None
            except json.JSONDecodeError as error:
                if not self._may_be_cut(error):
                    raise Bad(error.pos, error.msg) from None
                if self._ended:
                    raise Cut from None
            except ValueError as error:  # an integer of thousands of digits
                raise Bad(self.position, str(error)) from None
            else:
                if not self._may_go_on(end) or not self._fill():
                    self.position = end
                    return value
                continue
            if size > self._most_chars:
                raise Bad(self.position, f"a value of more than {self._most_chars} characters")
            # Twice as much each time, so that the time of failed parses stays proportional.
            wanted = max(2 * size, wanted)
            while len(self.text) - self.position < wanted and self._fill():
                pass

    def pass_line(self) -> None:
        """Move past the end of the line."""
        while (end := self.text.find("\n", self.position)) < 0:
            self.position = len(self.text)
            self.begin()
            if not self._fill():
                return
        self.position = end + 1

    def pass_over(self) -> bool:
        """Move from the value to the comma or bracket that ends it; return False if the file ends before."""
        self.position, depth = self._start, 0
        new = first = True
        while True:
            if new:
                depth += self._pass_inner(depth)
            mark = _STRUCTURE.search(self.text, self.position)
            self.position = len(self.text) if mark is None else mark.start()
            # Once for the value's own bracket and for all skipped text: counting it again would add up.
            new = mark is None or mark[0] == '"' or (first and mark[0] in CLOSING)
            first = first and not new
            if mark is None:
                self.begin()
                if not self._fill():
                    return False
            elif mark[0] == '"':
                if not self._pass_string():
                    return False
            elif depth == 0 and mark[0] in ",}]":
                return True
            else:
                depth += (mark[0] in CLOSING) - (mark[0] in "}]")
                self.position = mark.end()

    def _pass_inner(self, depth: int) -> int:
        """Move to the next string if fewer brackets close before it than are open; return how much deeper that is."""
        quote = self.text.find('"', self.position)
        plain = self.text[self.position : len(self.text) if quote < 0 else quote]
        closed = plain.count("}") + plain.count("]")
        if closed >= depth:  # one of them may end the value
            return 0
        self.position += len(plain)
        return plain.count("{") + plain.count("[") - closed

    def _pass_string(self) -> bool:
        """Move past the string that begins here, however long; return False if the file ends before."""
        self.position += 1
        while True:
            inside = _STRING.match(self.text, self.position)
            assert inside is not None  # noqa: S101 - it matches nothing, too
            self.position = inside.end()
            self.begin()
            if self.text.startswith('"', self.position):
                self.position += 1
                return True
            if not self._fill():
                return False

    def _too_many_parts(self) -> bool:
        """Tell whether the value that begins here may have more parts than may be held."""
        if self._parts <= self._most_parts:
            return False
        # The text has; so has the value, unless it ends soon.
        with suppress(ValueError, RecursionError):
            self._json.raw_decode(self.text[self.position : self.position + self._window])
            return False
        return _parts(self.text[self.position :]) > self._most_parts

    def _may_go_on(self, end: int) -> bool:
        """Tell whether a value that ends here may be a number that continues in the next chunk: `1`, `1.`, `1e+`."""
        rest = _NUMBER.match(self.text, end)
        return self.text[end - 1].isdigit() and rest is not None and rest.end() == len(self.text)

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Tell whether more text could complete it: the file, or the text read so far, ends inside the value."""
        if error.msg.startswith("Unterminated string"):
            # At the end of a file that ends as JSON does, a quote is missing.
            return not self._ended or self.text.rstrip()[-1:] not in ("}", "]")
        if self._ended:
            return _BEGUN.fullmatch(self.text, error.pos) is not None
        return error.pos >= len(self.text) - _NEAR

    def _fill(self) -> bool:
        """Read the next chunk; return whether there was any text in it."""
        texts: list[str] = []
        while not texts and not self._ended:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            text = self._decoder.decode(chunk or b"", final=self._ended)
            if text:
                texts.append(text)
        more = "".join(texts)
        self._parts += _parts(more)
        self.text += more
        return bool(texts)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _parts(text: str) -> int:
    return sum(map(text.count, ",[{"))


HEAD_DEPTH: Final = 6
END: Final = object()
"""The value of the item after the last key of an entered object."""

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)


def key_paths(head: bytes, depth: int = HEAD_DEPTH) -> frozenset[str]:
    """Return the paths of the keys in the first JSON value of `head`, which may be cut anywhere.

    `a` is a key of the object, `a.b` one of the object in it, `a[].b` one of the elements of an array, `[].b` if
    the value itself is an array. Keys deeper than `depth` brackets are left out.
    """
    found: set[str] = set()
    # For each open container: its path, and whether it is an object.
    stack: list[tuple[str, bool]] = []
    key = ""
    is_key = False
    for match in _TOKEN.finditer(head):
        token = match[0]
        first = token[:1]
        if first in (b"{", b"["):
            is_key = first == b"{"
            # A path that is too deep is not built: it would be as long as the nesting is deep.
            key = "" if len(stack) > depth else key if is_key else f"{key}[]"
            stack.append((key, is_key))
        elif first in (b"}", b"]"):
            if stack:
                stack.pop()
            is_key = False
            if not stack:
                break
        elif first == b",":
            if not stack:
                break
            key, is_key = stack[-1]
        elif is_key and first == b'"' and stack:
            if len(stack) <= depth:
                key = _below(stack[-1][0], token[1:-1].decode("utf-8", "replace"))
                found.add(key)
            is_key = False
        else:
            is_key = False
    return frozenset(found)


class Item(NamedTuple):
    """One value of a JSON file: its path as in `key_paths` (`data[]` is an element of `data`), and its position.

    `offset` is in bytes of the file, decompressed.
    """

    path: str
    value: Any
    offset: int


def items(
    path: Path,
    chunks: Iterable[bytes],
    skipped: Skipped,
    streamed: Collection[str] = (),
    limits: ValueLimits | None = None,
) -> Iterator[Item]:
    """Yield the values of a JSON file, or of a file of several JSON values in a row.

    `streamed` are the paths of the objects and arrays that are entered instead of parsed whole: "" is the file's value
    itself, `data` the value of its key. After an entered object's last key an item has END for a value. A broken value
    is counted in `skipped` with its offset and skipped; a cut end is counted as torn.
    """
    parser = Parser(chunks, limits)
    entered: list[tuple[str, str]] = []  # of each open container its path and its closing bracket
    at, due = "", True  # the path of the next value, and whether one is due here
    while parser.peek() or entered:
        try:
            parser.begin()
            if due:
                if entered and entered[-1][1] == "}":
                    at = _below(entered[-1][0], parser.key())
                opening = parser.peek()
                if at in streamed and opening in CLOSING:
                    entered.append((at, CLOSING[opening]))
                    parser.position += 1
                    due = parser.peek() != CLOSING[opening]
                    at = f"{at}[]"
                    continue
                offset = parser.offset()
                yield Item(at, parser.value(), offset)
                due = False
            elif not entered:
                at, due = "", True
            elif (mark := parser.peek()) == ",":
                parser.position += 1
                at, due = f"{entered[-1][0]}[]", True
            elif mark in ("}", "]"):
                inner, closing = entered.pop()
                offset = parser.offset()
                parser.position += 1
                if closing == "}":
                    yield Item(inner, END, offset)
            else:
                raise Cut if not mark else Bad(parser.position, "expected a comma or a closing bracket")
        except Cut:
            skipped.torn(path, f"byte {parser.offset()}")
            return
        except Bad as bad:
            skipped.bad(path, f"byte {parser.offset(bad.at)}", bad)
            due = False
            if not entered:
                parser.pass_line()
            elif not parser.pass_over():
                return


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


_BOM: Final = b"\xef\xbb\xbf"


def json_records(
    path: Path, chunks: Iterable[bytes], skipped: Skipped, most_bytes: int = MAX_DOCUMENT_BYTES
) -> Iterator[tuple[int | str, Any]]:
    """Yield the place (a line, or `byte N`) and the value of each record.

    A file that begins with a JSON object on one line has a record a line. Any other has its values one after the other,
    as `jq` writes them. Of an array each element is a record. A broken record is counted and left out.
    """
    parts = iter(chunks)
    begun = _first_line(parts, most_bytes)
    every = chain([begun], parts)
    first = begun.removeprefix(_BOM).lstrip()
    array = first.startswith(b"[")
    if array or not any(map(_is_object, first.split(b"\n", 2)[:2])):  # of lines the first may be broken
        for item in items(path, every, skipped, {""} if array else (), ValueLimits(chars=most_bytes)):
            if item.value is not END:
                yield f"byte {item.offset}", item.value
        return
    for line in split_lines(every, most_bytes):
        try:
            value = load(line.text)
        except DecodeError as error:
            skipped.bad_line(path, line, error)
        else:
            yield line.number, value


def _first_line(parts: Iterator[bytes], most_bytes: int) -> bytes:
    """Return the bytes up to the end of the first line that is not blank, and what was read with it."""
    begun = bytearray()
    at = 0  # of the first byte that is not blank
    for part in parts:
        looked = len(begun)
        begun += part
        if at == looked:
            at = len(begun) - len(begun.removeprefix(_BOM).lstrip())
        if begun[at : at + 1] == b"[" or begun.find(b"\n", max(at, looked)) >= 0 or len(begun) > most_bytes:
            break
    return bytes(begun)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(load(line), dict)
    except DecodeError:
        return False
