"""What evaluation hands out: a stream as the table, the usage and sinks see it, and the sink that takes findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from otel_llm.rules.language.snapshot import StreamView

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.evaluate.stream_table import Group
    from otel_llm.evaluate.usage import Metered
    from otel_llm.readers.rows import Row
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.stream import Stream
    from otel_llm.slo.verdict import Verdict
    from otel_llm.slo.windows import Ledger


class StreamInFlight(StreamView, Protocol):
    """A stream in a slot of the table, whether a collector receives it or its owner follows it itself."""

    @property
    def slot(self) -> int:
        """Return its row of the table."""

    @property
    def slo(self) -> SloClass:
        """Return the class that judges it."""

    @property
    def group(self) -> Group:
        """Return what windows and counters tell it by."""

    @property
    def begun(self) -> bool:
        """Tell whether the commit is known."""

    @property
    def tokens_so_far(self) -> Stream:
        """Return the arithmetic for its tokens alone."""

    @property
    def outcome(self) -> str | None:
        """Return how it ended; None while it runs."""

    @property
    def ended_ns(self) -> int | None:
        """Return when it ended; None while it runs."""

    @property
    def last_receipt_ns(self) -> int:
        """Return when anything was last heard of it."""

    @property
    def known_until_ns(self) -> int:
        """Return up to when nothing is missing."""

    @property
    def windows(self) -> Ledger | None:
        """Return what windows were charged for it; None where it is not charged to any."""

    @property
    def shift_ns(self) -> int:
        """Return what to subtract from its times to place them in windows."""


StreamT_contra = TypeVar("StreamT_contra", bound=StreamInFlight, contravariant=True)


class Sink(Protocol[StreamT_contra]):
    """Take what evaluation finds; called in its thread, in order of the virtual clock."""

    def charged(self, metered: Metered) -> None:
        """Take what readers got or waited, or what is given back of it."""

    def stream_judged(self, stream: StreamT_contra, row: Callable[[], Row], verdict: Verdict | None) -> None:
        """Take a stream's verdict, None when it cannot be judged; `row` makes its row when it is wanted."""

    def foreign_judged(self, row: Row) -> None:
        """Take a row that follows from another instrumentation's span."""

    def decided(self, decisions: list[Decision]) -> None:
        """Take decisions of rules."""
