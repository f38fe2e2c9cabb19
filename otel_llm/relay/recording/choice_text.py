"""The text of a choice of a chunk, which may be a chat's or a completion's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.parse.sse_chunks import viewed
from otel_llm.instrumentation.segments.chunks import text_of_delta
from otel_llm.instrumentation.segments.text_size import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["content", "reasoning", "tool"]


def text_of_choice(stated: Mapping[str, Any]) -> tuple[int | None, int, str]:
    """Return the kind and size of the text in a choice of a chunk, and the text of content; None if it has none."""
    delta = stated.get("delta") or stated.get("message")  # of a reply that comes at once
    text = delta.get("content") if isinstance(delta, dict) else stated.get("text")
    if isinstance(text, str) and text:
        return CONTENT, size_of(text), text
    return (*text_of_delta(viewed(delta)), "")
