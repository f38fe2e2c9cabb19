"""Read the events of Cohere's `/v2/chat`. Keeps no content.

Source: docs.cohere.com, Streaming Responses, and the types of the cohere package.
"""

from __future__ import annotations

from typing import Any, Final

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.segments.chunks import FRAMING, ChunkReader, Reading, text_mark
from otel_llm.instrumentation.segments.statements import count_of

MESSAGE_END: Final = "message-end"
COMPLETE: Final[Reading] = ((0, CONTENT, 0, True),)
"""Events of a complete reply."""


class CohereReader(ChunkReader):
    """A reader of the events of one reply: each has the size of its text. The final usage has no times of tokens.

    A tool plan is reasoning: it announces the model's next step.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.plain = True

    @staticmethod
    def plain_size(chunk: Any) -> int:  # noqa: ARG004
        """Return 0: nothing is known of an event before it is read."""
        return 0

    def __call__(self, chunk: Any) -> Reading:
        """Return what an event carries; anything that is no event carries no token."""
        said = self.said
        if said.response_id is None:
            said.name(getattr(chunk, "id", None), None)
        delta = getattr(chunk, "delta", None)
        if getattr(chunk, "type", None) == MESSAGE_END:
            tokens = getattr(getattr(delta, "usage", None), "tokens", None)
            said.input_tokens = count_of(getattr(tokens, "input_tokens", None))
            said.output_tokens = count_of(getattr(tokens, "output_tokens", None))
            said.finish(0, getattr(delta, "finish_reason", None))
            return FRAMING if said.failure else COMPLETE
        message = getattr(delta, "message", None)
        content = getattr(message, "content", None)
        function = getattr(getattr(message, "tool_calls", None), "function", None)
        return (
            text_mark(CONTENT, getattr(content, "text", None))
            or text_mark(REASONING, getattr(content, "thinking", None) or getattr(message, "tool_plan", None))
            or text_mark(TOOL, getattr(function, "arguments", None))
        )
