"""Read the chunks of any iterator by callbacks of the application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.export.records import KIND_NAMES
from otel_llm.instrumentation.segments.chunks import FRAMING
from otel_llm.instrumentation.segments.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.segments.chunks import Reading


class CallbackReader:
    """A reader of chunks by the application's callbacks; without any, each chunk is a token of content."""

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
        self.said = Statements()

    def is_plain(self, chunk: object) -> bool:  # noqa: ARG002
        """Return whether every chunk is plain, which is assumed without callbacks."""
        return True

    def __call__(self, chunk: object) -> Reading:
        """Return what a chunk carries."""
        kind = "content" if self._kind is None else self._kind(chunk)
        if kind is None:
            return FRAMING
        count = 1 if self._count is None else self._count(chunk)
        return ((0, KIND_NAMES.index(kind), count, False),) if count > 0 else FRAMING

    def basis(self, choice: int) -> str:  # noqa: ARG002
        """Return where the token counts come from."""
        return self._basis
