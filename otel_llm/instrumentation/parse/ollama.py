"""Read the lines of Ollama's `/api/chat` and `/api/generate`. Keeps no content.

Source: github.com/ollama/ollama, docs/api.md.
"""

from __future__ import annotations

from typing import Any

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.segments.chunks import FRAMING, ChunkReader, Reading
from otel_llm.instrumentation.segments.statements import count_of, text_of


class OllamaReader(ChunkReader):
    """A reader of the lines of one reply: each with text is one token. The counts on the last line have no times."""

    __slots__ = ()

    def __call__(self, chunk: Any) -> Reading:
        """Return what a line carries; anything that is no line of a reply carries no token."""
        said = self.said
        if said.response_model is None:
            said.response_model = text_of(getattr(chunk, "model", None))
        done = getattr(chunk, "done", None) is True
        if done:
            said.input_tokens = count_of(getattr(chunk, "prompt_eval_count", None))
            said.output_tokens = count_of(getattr(chunk, "eval_count", None))
        kind = _kind(getattr(chunk, "message", chunk))
        if kind is None and not done:
            return FRAMING
        return ((0, CONTENT if kind is None else kind, 0 if kind is None else 1, done),)


def _kind(said: Any) -> int | None:
    if getattr(said, "content", None) or getattr(said, "response", None):
        return CONTENT
    if getattr(said, "thinking", None):
        return REASONING
    calls = getattr(said, "tool_calls", None)
    functions = [getattr(call, "function", None) for call in calls] if isinstance(calls, list) else []
    given = [getattr(function, "arguments", None) for function in functions]
    return TOOL if any(getattr(arguments, "__dict__", None) for arguments in given) else None
