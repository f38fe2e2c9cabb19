"""The facts of a reply besides its times: the basis of the counts, usage, finish reasons, the responding model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_llm import semconv
from otel_llm.instrumentation.segments.chunks import FRAMING, count_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.segments.chunks import Reading

MAX_TEXT: Final = 256
"""The longest text of a backend that becomes an attribute, in characters."""


class FinishedChoice(Protocol):
    """One choice of a chunk."""

    @property
    def index(self) -> int:
        """Return its index."""

    @property
    def finish(self) -> str | None:
        """Return the finish reason, None where the chunk has none."""


class StatedChunk(Protocol):
    """A chunk of a reply."""

    @property
    def value(self) -> Mapping[str, Any]:
        """Return its JSON object."""

    @property
    def choices(self) -> Sequence[FinishedChoice]:
        """Return its choices."""

    @property
    def prompt_ids(self) -> Sequence[int] | None:
        """Return the ids of a prompt, None where the chunk has none."""


class ReplyFacts:
    """The facts of one reply, from all of its backends; as the recording's `Reader` it reads no chunk itself.

    `input_tokens`: the first statement.
    """

    plain = False

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self._id: str | None = None
        self._model: str | None = None
        self._output_tokens: int | None = None
        self.counted_tokens = 0
        """Tokens of all choices that were counted here."""
        self._finishes: dict[int, str] = {}
        self._counted: set[int] = set()
        self._guessed: set[int] = set()

    def count(self, choice: int, tokens: int, *, exact: bool) -> None:
        """Count tokens of a choice; `exact`: counted by their ids."""
        self.counted_tokens += tokens
        (self._counted if exact else self._guessed).add(choice)

    def states(self, value: Mapping[str, Any], *, continues: bool) -> int | None:
        """Note a chunk's statements on the whole reply; return the prompt's tokens where it states them.

        Values of a wrong type are ignored. `continues`: the chunk's backend began after tokens of another, which it
        counts as its prompt's, so its usage is not the reply's.
        """
        if self._id is None:
            self._id = (text_of(value.get("id")) or "")[:MAX_TEXT]
            self._model = (text_of(value.get("model")) or "")[:MAX_TEXT]
        usage = value.get("usage")
        if type(usage) is not dict or continues:
            return None
        output_tokens = count_of(usage.get("completion_tokens"))
        if output_tokens is not None and not value.get("choices"):  # with choices it is that of one, or of so far
            self._output_tokens = output_tokens
        return count_of(usage.get("prompt_tokens"))

    def finish(self, choice: int, reason: str) -> None:
        """Note the finish reason of a choice."""
        self._finishes.setdefault(choice, reason[:MAX_TEXT])

    # For the recording.

    def is_plain(self, _chunk: object, /) -> bool:
        """Return True: no chunk is read here."""
        return False

    def __call__(self, _chunk: object, /) -> Reading:
        """Return an empty reading: tokens are recorded one by one."""
        return FRAMING

    def basis(self, choice: int) -> str:
        """Return the basis of a choice's token counts."""
        if choice not in self._counted:
            return "chunk"
        return "estimated" if choice in self._guessed else "exact"

    def segment_attributes(self) -> dict[str, AttributeValue]:
        """Return the attributes of the last segment that segment 0 could not have."""
        return {} if self.input_tokens is None else {semconv.GEN_AI_USAGE_INPUT_TOKENS: self.input_tokens}

    def span_attributes(self) -> dict[str, AttributeValue]:
        """Return the reply's own statements, for the request span."""
        attributes = self.segment_attributes()
        output_tokens = self._output_tokens
        if output_tokens is None and self._counted and not self._guessed:
            output_tokens = self.counted_tokens
        if output_tokens is not None:
            attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = output_tokens
        if self._id:
            attributes[semconv.GEN_AI_RESPONSE_ID] = self._id
        if self._model:
            attributes[semconv.GEN_AI_RESPONSE_MODEL] = self._model
        if self._finishes:
            reasons = tuple(reason for _, reason in sorted(self._finishes.items()))
            attributes[semconv.GEN_AI_RESPONSE_FINISH_REASONS] = reasons
        return attributes
