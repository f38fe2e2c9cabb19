"""What a relay learns of a reply beside its times: where the counts come from, usage, finish reasons, who answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_llm import semconv
from otel_llm.instrumentation.segments.chunks import FRAMING, count_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.segments.chunks import Reading

MAX_TEXT: Final = 256
"""Characters of a text that a backend states and that becomes an attribute."""


class FinishedChoice(Protocol):
    """One choice of a chunk."""

    @property
    def index(self) -> int:
        """Number it."""

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
    """The facts of one reply, whichever backends serve it; a `Reader` for the recording, which reads no chunk by it.

    `input_tokens`: as stated first.
    """

    plain = False

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self._id: str | None = None
        self._model: str | None = None
        self._output_tokens: int | None = None
        self._tokens = 0
        self._finishes: dict[int, str] = {}
        self._counted: set[int] = set()
        self._guessed: set[int] = set()

    def count(self, choice: int, tokens: int, *, exact: bool) -> None:
        """Take note of tokens of a choice; `exact`: counted by their ids."""
        self._tokens += tokens
        (self._counted if exact else self._guessed).add(choice)

    def states(self, value: Mapping[str, Any], *, continues: bool) -> int | None:
        """Take note of what a chunk states of the reply as a whole; return the prompt's tokens where it states them.

        Anything of a wrong type is ignored. `continues`: the chunk's backend began behind tokens of another, which it
        counts as its prompt's, so that its usage is not the reply's.
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
        """Take note of why a choice is complete."""
        self._finishes.setdefault(choice, reason[:MAX_TEXT])

    # What the recording asks.

    def is_plain(self, _chunk: object, /) -> bool:
        """Return that no chunk is read here."""
        return False

    def __call__(self, _chunk: object, /) -> Reading:
        """Return that nothing is read here: tokens are told one by one."""
        return FRAMING

    def basis(self, choice: int) -> str:
        """Return where the token counts of a choice come from."""
        if choice not in self._counted:
            return "chunk"
        return "estimated" if choice in self._guessed else "exact"

    def segment_attributes(self) -> dict[str, AttributeValue]:
        """Return what the last segment can say that segment 0 could not."""
        return {} if self.input_tokens is None else {semconv.GEN_AI_USAGE_INPUT_TOKENS: self.input_tokens}

    def span_attributes(self) -> dict[str, AttributeValue]:
        """Return what the reply says about itself, for the request span."""
        attributes = self.segment_attributes()
        output_tokens = self._output_tokens
        if output_tokens is None and self._counted and not self._guessed:
            output_tokens = self._tokens
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
