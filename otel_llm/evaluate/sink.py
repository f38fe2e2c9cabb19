"""The interface of sinks, which take charges, verdicts and decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.evaluate.streams.final_verdict import EndedStream
    from otel_llm.evaluate.usage import Metered
    from otel_llm.formats.rows import Row
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.slo.stated_total import StatedReply

StreamT_contra = TypeVar("StreamT_contra", bound=StreamInFlight, contravariant=True)


class Sink(Protocol[StreamT_contra]):
    """A consumer of results; called in the evaluator's thread, in order of the virtual clock."""

    def charged(self, metered: Metered) -> None:
        """Take a charge of tokens and idle time, or a refund."""

    def streams_judged(self, ended: Sequence[EndedStream[StreamT_contra]]) -> None:
        """Take the verdicts of streams that have ended, at least one, in order."""

    def reply_stated(self, reply: StatedReply) -> None:
        """Take the length of a reply as it states it, beside its recorded tokens; before its verdict."""

    def foreign_judged(self, row: Row) -> None:
        """Take the row of another instrumentation's span."""

    def decided(self, decisions: list[Decision]) -> None:
        """Take decisions of rules."""
