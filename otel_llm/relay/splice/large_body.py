"""Large JSON: of a request only small members are read, of a reply the ids of a long prompt stay the text they came as.

So no parser holds the process for long.

Made for a thread: the positions are found without the interpreter's lock, and each text that is parsed is small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_llm.relay.splice.members import DECODER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from otel_llm.core.loads import Bytes

LARGE_BYTES: Final = 2**16
"""A larger body is read by this module, and so much of it is parsed at one time."""
MOST_CHILDREN: Final = 2**14
"""Members or elements that are looked at; a list of more is as if it could not be read."""

_PROMPT_IDS: Final = b'"prompt_token_ids"'
_LIST: Final = re.compile(rb"\s*:\s*(?=\[)")
_BLANK: Final = b" \t\r\n"
_IN_IDS: Final = b"0123456789," + _BLANK


def load_kernels() -> None:
    """Load the kernels of this module, which takes half a second: a relay starts without waiting for them."""
    _children(np.frombuffer(b"{}", np.uint8), 0, np.zeros((1, 4), np.int64))


def _children(data: Bytes, at: int, rows: npt.NDArray[np.int64]) -> int:
    """Find the children of a value; see `json_spans.children`."""
    from otel_llm.core.json_spans import children  # a relay that gets no large body needs no kernels

    return int(children(data, at, rows))


def count_elements(data: bytes, begin: int) -> tuple[int, int]:
    """Return the number of elements of the array at `begin`, -1 if there is none, and the index behind it."""
    rows = np.zeros((1, 4), np.int64)
    return _children(np.frombuffer(data, np.uint8), begin, rows), int(rows[0, 1])


class Unread:
    """A value that is too large to be read: it equals nothing and is there."""


UNREAD: Final = Unread()


class Span(NamedTuple):
    """A member, with the positions of its value in the body; of an element the key is empty."""

    key: str
    begin: int
    end: int


class Texts(Mapping[str, str]):
    """The JSON texts of members, each taken from the body when it is asked for."""

    def __init__(self, body: bytes, spans: Mapping[str, Span]) -> None:
        self._body = body
        self._spans = spans

    def __getitem__(self, key: str) -> str:
        span = self._spans[key]
        return self._body[span.begin : span.end].decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)


class LargeBody:
    """A body that is an object.

    Raises: ValueError if it is none, or has more than `MOST_CHILDREN` members.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._data: Bytes = np.frombuffer(body, np.uint8)
        self._rows = np.zeros((MOST_CHILDREN + 1, 4), np.int64)
        found, end = self._within(0, b"{")
        if found is None or body[end:].strip(b" \t\r\n"):
            raise ValueError("no object")
        self.members = found

    def values(self) -> dict[str, Any]:
        """Return the value of each member, `UNREAD` for those beyond `LARGE_BYTES` together, the largest."""
        read, left = dict[str, Any](), LARGE_BYTES
        for one in sorted(self.members, key=lambda one: one.end - one.begin):
            left -= one.end - one.begin
            read[one.key] = UNREAD if left < 0 else self._parsed(one)
        return {one.key: read[one.key] for one in self.members}

    def keys_of(self, span: Span) -> list[str]:
        """Return the keys of an object. Raises: ValueError for another value."""
        found = self._within(span.begin, b"{")[0]
        if found is None:
            raise ValueError("no object")
        return [one.key for one in found]

    def count(self, span: Span) -> tuple[int, object]:
        """Return the number of elements of a list, and the first if that is a number; of another value 0."""
        if self._body[span.begin : span.begin + 1] != b"[":
            return 0, None
        found = _children(self._data, span.begin, self._rows)
        first = self._body[self._rows[1, 2] : min(self._rows[1, 3], self._rows[1, 2] + 32)] if found > 0 else b""
        return max(found, 0), DECODER.decode(first.decode()) if first[:1].isdigit() else None

    def any_part(self, messages: Span, is_other: Callable[[object], bool]) -> bool:
        """Tell whether a message has a part that `is_other`, or is too large to tell."""
        if self._body[messages.begin : messages.begin + 1] != b"[":
            return False
        found = self._within(messages.begin, b"[")[0]
        if found is None:
            return True
        for message in found:
            if message.end - message.begin <= LARGE_BYTES:
                if is_other([self._parsed(message)]):
                    return True
                continue
            inner = self._within(message.begin, b"{")[0]
            contents = [one for one in inner or () if one.key == "content"]
            if inner is None or any(self._has_other_part(one, is_other) for one in contents):
                return True
        return False

    def _has_other_part(self, content: Span, is_other: Callable[[object], bool]) -> bool:
        if self._body[content.begin : content.begin + 1] != b"[":
            return False
        for part in self._within(content.begin, b"[")[0] or ():
            inner = self._within(part.begin, b"{")[0]
            if inner is None:
                return True
            kept = {one.key: self._parsed(one) if one.key == "type" else None for one in inner}
            if is_other([{"content": [kept]}]):
                return True
        return False

    def _within(self, at: int, connector: bytes) -> tuple[list[Span] | None, int]:
        """Return the children of an object or array, None if it is neither or has too many, and its end."""
        found = _children(self._data, at, self._rows)
        begin, end = int(self._rows[0, 0]), int(self._rows[0, 1])
        if not 0 <= found <= MOST_CHILDREN or self._body[begin : begin + 1] != connector:
            return None, 0
        rows = self._rows[1 : found + 1].tolist()
        return [Span(self._key(key, until), first, last) for key, until, first, last in rows], end

    def _key(self, begin: int, end: int) -> str:
        if end - begin > LARGE_BYTES:
            raise ValueError("a long key")
        return str(DECODER.decode(self._body[begin:end].decode())) if end > begin else ""

    def _parsed(self, span: Span) -> Any:
        if span.end - span.begin > LARGE_BYTES:
            return UNREAD
        return DECODER.decode(self._body[span.begin : span.end].decode())


class PromptIds:
    """Token ids: a list of numbers, or `text`, the JSON of so many numbers without the brackets."""

    __slots__ = ("_count", "_ids", "_text")

    def __init__(self, ids: Sequence[int] = (), text: bytes = b"", count: int | None = None) -> None:
        self._ids = ids
        self._text = text
        self._count = len(ids) if count is None else count

    def __len__(self) -> int:
        return self._count

    @property
    def text(self) -> bytes:
        """Return their JSON without the brackets."""
        return self._text or json.dumps(self._ids, separators=(",", ":")).encode()[1:-1]

    def last(self, count: int) -> list[int]:
        """Return the last ids, at most so many."""
        if not self._text:
            return list(self._ids[-count:])
        return [int(one) for one in self._text.rsplit(b",", count)[-count:]]


def cut_prompt_ids(data: bytes) -> tuple[bytes, PromptIds | None]:
    """Return the JSON of an object without its first `prompt_token_ids`, and these; the JSON as it is without any.

    Made for a thread: most of the work is done without the interpreter's lock.
    """
    key = data.find(_PROMPT_IDS)
    # An unescaped quotation mark with a letter behind it begins a string, and before a colon that is a key.
    if key < 0 or data[key - 1 : key] == b"\\" or (connector := _LIST.match(data, key + len(_PROMPT_IDS))) is None:
        return data, None
    begin = connector.end()
    count, end = count_elements(data, begin)
    if count <= 0 or (inner := data[begin + 1 : end - 1]).translate(None, _IN_IDS):
        return data, None
    before, behind = data[:key].rstrip(_BLANK), data[end:].lstrip(_BLANK)
    if before.endswith(b","):
        before = before[:-1]
    elif behind.startswith(b","):
        behind = behind[1:]
    return before + behind, PromptIds(text=inner.strip(_BLANK), count=count)
