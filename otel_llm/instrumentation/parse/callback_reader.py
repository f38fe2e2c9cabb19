"""Read the chunks of any iterator by callbacks of the application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.export.records import KIND_NAMES
from otel_llm.instrumentation.segments.chunks import FRAMING, sized_mark
from otel_llm.instrumentation.segments.statements import Statements
from otel_llm.instrumentation.segments.text_size import UNSIZED, size_of, size_of_json_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.segments.chunks import Reading


class CallbackReader:
    """A reader of chunks by the application's callbacks; without them a text has its size, any other is a token."""

    __slots__ = ("_basis", "_count", "_kind", "counts", "plain", "said")

    def __init__(
        self,
        kind: Callable[[Any], str | None] | None,
        count: Callable[[Any], int] | None,
        basis: str,
    ) -> None:
        self._kind = kind
        self._count = count
        self._basis = "chunk" if count is None else basis
        self.plain = kind is None and count is None
        self.counts = count is not None
        self.said = Statements()

    def plain_size(self, chunk: object) -> int:
        """Return the size of a chunk that is a text, else 0."""
        return _size(chunk) if isinstance(chunk, str) else 0

    def __call__(self, chunk: object) -> Reading:
        """Return what a chunk carries."""
        kind = "content" if self._kind is None else self._kind(chunk)
        if kind is None:
            return FRAMING
        code = KIND_NAMES.index(kind)
        if self._count is None:
            return sized_mark(code, _size(chunk)) if isinstance(chunk, str) else ((0, code, 1, False),)
        count = self._count(chunk)
        return ((0, code, count, False),) if count > 0 else FRAMING

    def basis(self, choice: int) -> str:  # noqa: ARG002
        """Return where the token counts come from."""
        return self._basis


def _size(chunk: str) -> int:
    """Return the size of a text, of a JSON string that of its value; what a JSON object holds is not known."""
    stripped = chunk.strip()
    around = stripped[:1] + stripped[-1:]
    if around in {"{}", "[]"}:
        return UNSIZED
    return size_of_json_string(stripped[1:-1].encode()) if around == '""' and stripped != '"' else size_of(chunk)
