"""A stream in flight as the table, the usage and the sinks see it, and the names that it is added up under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from otel_llm.rules.language.snapshot import StreamView

if TYPE_CHECKING:
    from otel_llm.readers.assemble.resolved import Resolved
    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.stream import Stream
    from otel_llm.slo.windows import Ledger

Group = tuple[str, str, str, str]
"""SLO class, model, instance and measured_at: the names under which streams are added up."""


class Grouped:
    """Name the parts of a stream's `group`; unknown names are empty."""

    __slots__ = ()
    group: Group

    @property
    def slo_class(self) -> str:
        """Name the SLO class."""
        return self.group[0]

    @property
    def model(self) -> str:
        """Name the model."""
        return self.group[1]

    @property
    def instance(self) -> str:
        """Name the replica that serves it now."""
        return self.group[2]

    @property
    def measured_at(self) -> str:
        """Say where it is measured: client, relay or server."""
        return self.group[3]


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
        """Return the names under which windows and counters add it up."""

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


def group_of(resolved: Resolved, slo: SloClass) -> Group:
    """Return the names under which a stream of a class is added up."""
    return (slo.name, resolved.model or "", resolved.instance or "", resolved.measured_at)
