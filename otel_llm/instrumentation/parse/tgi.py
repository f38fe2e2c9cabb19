"""Read the events of Text Generation Inference's `/generate_stream`. Keeps no content.

Source: huggingface.github.io/text-generation-inference (StreamResponse).
"""

from __future__ import annotations

from typing import Any

from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.segments.chunks import FRAMING, ChunkReader, Reading
from otel_llm.instrumentation.segments.statements import count_of
from otel_llm.instrumentation.segments.text_size import size_in


class TgiReader(ChunkReader):
    """A reader of the events of one reply: each is exactly one token. A special one, as the end of text, is not read.

    The last event has the whole text; it has the usage where the request asked for details.
    """

    __slots__ = ()

    def __call__(self, chunk: Any) -> Reading:
        """Return what an event carries; anything that is no event carries no token."""
        token = getattr(chunk, "token", None)
        count = 0
        if token is not None:
            one = self._choices[0]
            one.counted = True
            if getattr(token, "special", None) is not True:
                count = 1 if one.believes(1) else -size_in(getattr(token, "text", None))
        finished = isinstance(getattr(chunk, "generated_text", None), str)
        if (details := getattr(chunk, "details", None)) is not None:
            self.said.input_tokens = count_of(getattr(details, "input_length", None))
            self.said.output_tokens = count_of(getattr(details, "generated_tokens", None))
            self.said.finish(0, getattr(details, "finish_reason", None))
            finished &= not self.said.failure
        return ((0, CONTENT, count, finished),) if count or finished else FRAMING

    def basis(self, choice: int) -> str:
        """Return the basis of a choice's token counts."""
        return self._counted_basis(choice)
