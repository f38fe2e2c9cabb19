"""The facts of a reply besides its times: the basis of the counts, usage, finish reasons, the responding model."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from otel_llm import semconv
from otel_llm.evaluate.own_streams.own_stream import Statement
from otel_llm.formats.spans.finish_reasons import finish_reason
from otel_llm.instrumentation.segments.chunks import FRAMING, ChoiceState
from otel_llm.instrumentation.segments.statements import Statements, count_of
from otel_llm.relay.loop_lag import NOTICED_NS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.segments.chunks import Reading


class FinishedChoice(Protocol):
    """One choice of a chunk."""

    @property
    def index(self) -> int:
        """Return its index."""

    @property
    def finish(self) -> str | None:
        """Return the finish reason, None if the chunk has none."""


class StatedChunk(Protocol):
    """A chunk of a reply."""

    @property
    def value(self) -> Mapping[str, Any]:
        """Return its JSON object."""

    @property
    def choices(self) -> Sequence[FinishedChoice]:
        """Return its choices."""

    @property
    def prompt_ids(self) -> Sized | None:
        """Return the ids of a prompt, None if the chunk has none."""


class ReplyFacts:
    """The facts of one reply, from all of its backends; as the recording's `Reader` it reads no chunk itself.

    `input_tokens`: the first statement.
    """

    plain = False

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self._lag_ns = 0
        self._reported = Statements()
        self.counted_tokens = 0
        """Tokens of all choices that were counted here."""
        self._choices: defaultdict[int, ChoiceState] = defaultdict(ChoiceState)

    @property
    def response_model(self) -> str | None:
        """Return the model that responds, as the reply states it."""
        return self._reported.response_model

    def parts(self, choice: int, kind: int, size: int, text: str) -> list[tuple[int, int]]:
        """Return the kinds and sizes of a chunk's text, whose kind and size these are; `text`: of content alone."""
        return self._choices[choice].parts(kind, size, text)

    def count(self, choice: int, tokens: int, *, exact: bool) -> None:
        """Count tokens of a choice; `exact`: counted by their ids."""
        self.counted_tokens += tokens
        one = self._choices[choice]
        if exact:
            one.counted = True
        else:
            one.guessed = True

    def states(self, value: Mapping[str, Any], *, continues: bool) -> int | None:
        """Note a chunk's statements on the whole reply; return the prompt's tokens if it states them.

        Values of a wrong type are ignored. `continues`: the chunk's backend began after tokens of another, which it
        counts as its prompt's, so its usage is not the reply's.
        """
        reported = self._reported
        reported.name(value.get("id"), value.get("model"))
        usage = value.get("usage")
        if type(usage) is not dict or continues:
            return None
        if not value.get("choices"):  # with choices it is that of one, or of so far
            reported.use(usage)
        return count_of(usage.get("prompt_tokens"))

    def finish(self, choice: int, reason: str) -> None:
        """Note the finish reason of a choice."""
        self._reported.finish(choice, reason)

    def goes_on(self, choice: int) -> None:
        """Note text of a choice behind its finish reason, which was not its last."""
        self._reported.goes_on(choice)

    # Of the relay itself.

    def waited(self, lag_ns: int) -> None:
        """Note for how long bytes of the reply waited for the relay's loop; what is usual is not counted."""
        if lag_ns >= NOTICED_NS:
            self._lag_ns += lag_ns

    @property
    def _lag_s(self) -> float | None:
        return self._lag_ns / 1e9 if self._lag_ns else None

    def of_relay(self, migrations: int) -> dict[str, AttributeValue]:
        """Return what the request span says of the relay."""
        found = {semconv.RELAY_MIGRATIONS: migrations or None, semconv.RELAY_LAG: self._lag_s}
        return {name: value for name, value in found.items() if value is not None}

    # For the recording.

    def plain_size(self, _chunk: object, /) -> int:
        """Return 0: no chunk is read here."""
        return 0

    def __call__(self, _chunk: object, /) -> Reading:
        """Return an empty reading: tokens are recorded one by one."""
        return FRAMING

    def basis(self, choice: int) -> str:
        """Return the basis of a choice's token counts; `chunk` if the backend counted none."""
        one = self._choices.get(choice)
        return "chunk" if one is None else one.basis

    def tells_lengths(self, choice: int) -> bool:
        """Return whether the row of a choice that has finished needs nothing of the reply's usage."""
        return self.basis(choice) == "exact" and self.input_tokens is not None

    @property
    def reported(self) -> Statements:
        """Return the reply's statements so far; its length is counted here if no backend states that of all of it."""
        reported = copy(self._reported)
        reported.input_tokens = self.input_tokens
        known = self._choices.values()
        if (
            reported.output_tokens is None
            and any(one.counted for one in known)
            and not any(one.guessed for one in known)
        ):
            reported.output_tokens = self.counted_tokens
        return reported

    def statement(self, choice: int, basis: str, queue_s: float | None, *, alone: bool) -> Statement:
        """Return what is known of a choice at its end; `alone`: the request has no other choice."""
        reported = self.reported
        total = reported.total if alone else (None, None)
        return Statement(basis, *total, finish_reason(reported.finish_reasons.get(choice)), queue_s, self._lag_s)
