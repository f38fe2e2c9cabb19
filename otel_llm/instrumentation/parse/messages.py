"""Read the events of Anthropic's messages API. Keeps no content.

Events are the SDK's objects or the JSON of raw ones, see `sse_chunks.View`; they are distinguished by `type` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.segments.chunks import FRAMING, text_mark
from otel_llm.instrumentation.segments.statements import Statements, count_of, member, total_of
from otel_llm.instrumentation.segments.text_size import size_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.instrumentation.segments.chunks import Reading

DELTAS: Final[Mapping[str, tuple[str, int]]] = {
    "text_delta": ("text", CONTENT),
    "thinking_delta": ("thinking", REASONING),
    "input_json_delta": ("partial_json", TOOL),
}
"""By type of a delta: the member with its text, and its kind. Signatures and citations are no generated tokens."""
STARTED: Final[Mapping[str, tuple[str, int]]] = {"text": ("text", CONTENT), "thinking": ("thinking", REASONING)}
"""The same for a block that has text from its start; those of Anthropic's own have none."""
HIDDEN: Final = "redacted_thinking"
"""The type of a block of thinking without text. A block that has text may still leave it out, see `MessagesReader`."""
COMPLETE: Final[Reading] = ((0, CONTENT, 0, True),)
"""Events of a complete reply."""
INPUT: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""The parts of the input: `input_tokens` alone is the part without a cache."""


class MessagesReader:
    """A reader of the events of one message.

    Events have no counts except the final one: a delta has the size of its text. The message is complete with the
    `message_delta` that has its `stop_reason`, or with `message_stop`. A block of thinking whose text is left out has a
    signature alone.
    """

    __slots__ = ("_input", "_thinks", "plain", "reported")

    def __init__(self) -> None:
        self.plain = True
        self.reported = Statements()
        self._input: dict[str, int] = {}
        self._thinks = False  # whether the open block is thinking that had no text so far

    @staticmethod
    def plain_size(event: Any) -> int:
        """Return the size of an event that is a piece of text, else 0."""
        try:
            delta = event.delta
            return size_in(delta.text) if delta.type == "text_delta" else 0
        except AttributeError:
            return 0

    def __call__(self, chunk: Any) -> Reading:
        """Return what an event carries; anything that is no event carries no token."""
        name = getattr(chunk, "type", None)
        if name == "content_block_delta":
            reading = _generated(getattr(chunk, "delta", None), DELTAS)
            self._thinks &= not reading
            if reading:
                self.reported.goes_on(0)
            return reading
        if name == "content_block_start":
            block = getattr(chunk, "content_block", None)
            kind, reading = getattr(block, "type", None), _generated(block, STARTED)
            self._thinks = kind == "thinking" and not reading
            self.reported.hides_reasoning |= kind == HIDDEN
            return reading
        if name == "content_block_stop":
            self.reported.hides_reasoning |= self._thinks
            self._thinks = False
        elif name == "message_start":
            message = getattr(chunk, "message", None)
            self.reported.name(getattr(message, "id", None), getattr(message, "model", None))
            self._use(getattr(message, "usage", None))
            self.reported.output_tokens = None  # the first event cannot know the later tokens
        elif name == "message_delta":
            self._use(getattr(chunk, "usage", None))
            if self.reported.finish(0, getattr(getattr(chunk, "delta", None), "stop_reason", None)):
                return COMPLETE
        elif name == "message_stop" and not self.reported.failure:
            return COMPLETE
        return FRAMING

    def _use(self, usage: Any) -> None:
        # Totals, each the newest: a later event repeats some of them with newer values.
        for name in INPUT:
            if (tokens := count_of(getattr(usage, name, None))) is not None:
                self._input[name] = tokens
        self.reported.input_tokens = total_of(*self._input.values())
        _, written, read = INPUT
        self.reported.use_cache(self._input.get(read), self._input.get(written))
        if (tokens := count_of(getattr(usage, "output_tokens", None))) is not None:
            self.reported.output_tokens = tokens
        thought = count_of(member(getattr(usage, "output_tokens_details", None), "thinking_tokens"))
        if thought is not None:
            self.reported.reasoning_tokens = thought

    def basis(self, choice: int) -> str:  # noqa: ARG002
        """Return the basis of a choice's token counts."""
        return "chunk"


def _generated(part: Any, kinds: Mapping[str, tuple[str, int]]) -> Reading:
    name = getattr(part, "type", None)
    where = kinds.get(name) if isinstance(name, str) else None
    return FRAMING if where is None else text_mark(where[1], getattr(part, where[0], None))
