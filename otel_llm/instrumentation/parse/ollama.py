"""Read the lines of Ollama's `/api/chat` and `/api/generate`. Keeps no content.

Source: github.com/ollama/ollama, docs/api.md.
"""

from __future__ import annotations

from typing import Any

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.segments.chunks import FRAMING, ChunkReader, Reading
from otel_llm.instrumentation.segments.statements import count_of
from otel_llm.instrumentation.segments.text_size import size_in, size_of_json


class OllamaReader(ChunkReader):
    """A reader of the lines of one reply: each has the size of its text. The counts on the last line have no times."""

    __slots__ = ()

    def __call__(self, chunk: Any) -> Reading:
        """Return what a line carries; anything that is no line of a reply carries no token."""
        said = self.said
        if said.response_model is None:
            said.name(None, getattr(chunk, "model", None))
        done = getattr(chunk, "done", None) is True
        if done:
            said.finish(0, getattr(chunk, "done_reason", None))
            done = not said.failure
            said.input_tokens = count_of(getattr(chunk, "prompt_eval_count", None))
            said.output_tokens = count_of(getattr(chunk, "eval_count", None))
        message = getattr(chunk, "message", chunk)
        kind, size = _text(message)
        if not size:
            return ((0, CONTENT, 0, done),) if done else FRAMING
        parts = self._choices[0].parts(kind, size, _content(message))
        marks = tuple((0, part, -length, False) for part, length in parts)
        return (*marks, (0, CONTENT, 0, True)) if done else marks


def _content(said: Any) -> Any:
    return getattr(said, "content", None) or getattr(said, "response", None)


def _text(said: Any) -> tuple[int, int]:
    """Return the kind of a line's text and its size, 0 for none."""
    if size := size_in(_content(said)):
        return CONTENT, size
    if size := size_in(getattr(said, "thinking", None)):
        return REASONING, size
    calls = getattr(said, "tool_calls", None)
    functions = [getattr(call, "function", None) for call in calls] if isinstance(calls, list) else []
    size = sum(size_of_json(getattr(function, "arguments", None)) for function in functions)
    return TOOL if size else CONTENT, size
