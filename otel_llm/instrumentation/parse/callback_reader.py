"""Read the chunks of any iterator by callbacks of the application."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from otel_llm.export.records import KIND_NAMES
from otel_llm.instrumentation.segments.chunks import FRAMING, SPECIAL_TOKENS, ChoiceState, most_tokens, sized_mark
from otel_llm.instrumentation.segments.statements import Statements
from otel_llm.instrumentation.segments.text_size import UNSIZED, size_of, size_of_json_string
from otel_llm.instrumentation.segments.token_estimate import MOST_A_CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.segments.chunks import Reading


class CallbackReader:
    """A reader of chunks by the application's callbacks; without them a text has its size, any other is a token.

    What `count` returns may be a number of the reply's: it is used as a server's own count is, up to one token for each
    byte of a text and `MOST_A_CHUNK` for an object of any other kind.
    """

    __slots__ = ("_basis", "_count", "_kind", "_one", "counts", "plain", "reported")

    def __init__(
        self,
        kind: Callable[[Any], str | None] | None,
        count: Callable[[Any], int] | None,
        basis: str,
    ) -> None:
        self._kind = kind
        self._count = count
        self._basis = "chunk" if count is None else basis
        self._one = ChoiceState()
        self.plain = kind is None and count is None
        self.counts = count is not None
        self.reported = Statements()

    def plain_size(self, chunk: object) -> int:
        """Return the size of a chunk that is a text, else 0."""
        return _size(chunk) if isinstance(chunk, str) else 0

    def __call__(self, chunk: object) -> Reading:
        """Return what a chunk carries."""
        kind = "content" if self._kind is None else self._kind(chunk)
        if kind is None:
            return FRAMING
        code = KIND_NAMES.index(kind)
        if self._count is not None:
            count = index(self._count(chunk))
            if count <= 0:
                return FRAMING
            most = count if count <= SPECIAL_TOKENS else _most(chunk)  # which is no less
            if self._one.difference(count, 0, 1, most):
                return ((0, code, count, False),)
        return sized_mark(code, _size(chunk)) if isinstance(chunk, str) else ((0, code, 1, False),)

    def basis(self, choice: int) -> str:  # noqa: ARG002
        """Return where the token counts come from."""
        return "estimated" if self._one.contradicted else self._basis


def _most(chunk: object) -> int:
    """Return the most tokens of a chunk that are believed."""
    if isinstance(chunk, str):
        return most_tokens(size_of(chunk))
    return most_tokens(len(chunk)) if isinstance(chunk, bytes | bytearray) else MOST_A_CHUNK


def _size(chunk: str) -> int:
    """Return the size of a text, of a JSON string that of its value; what a JSON object holds is not known."""
    stripped = chunk.strip()
    around = stripped[:1] + stripped[-1:]
    if around in {"{}", "[]"}:
        return UNSIZED
    return size_of_json_string(stripped[1:-1].encode()) if around == '""' and stripped != '"' else size_of(chunk)
