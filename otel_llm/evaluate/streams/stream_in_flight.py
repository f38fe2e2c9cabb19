"""The interface of streams in flight for the table, usage and sinks, and their groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.rules.language.snapshot import StreamView

if TYPE_CHECKING:
    from otel_llm.formats.assemble.resolved import Resolved
    from otel_llm.formats.records import Attributes
    from otel_llm.slo.classes import SloClass, SloClasses
    from otel_llm.slo.ledger import Ledger


class Group(NamedTuple):
    """The key by which streams are aggregated; unknown names are empty."""

    slo_class: str
    model: str
    instance: str
    measured_at: str
    tenant: str = DEFAULT_TENANT


UNGROUPED: Final = Group("", "", "", "")


@dataclass(frozen=True, slots=True)
class CommitIdentity:
    """The identity of a stream by its tenant and its commit's attributes; `unknown`: they name an unknown class.

    `classes`: where its class is from. `open_names`: the attributes by which a later span would change the identity, as
    the commit (`attributes`) does not state them.
    """

    slo: SloClass
    unknown: bool
    group: Group
    exact_resume: bool
    input_tokens: int | None
    classes: SloClasses
    attributes: Attributes
    open_names: frozenset[str]


class Grouped:
    """The parts of a stream's `group`."""

    __slots__ = ()
    group: Group

    @property
    def slo_class(self) -> str:
        """Return the SLO class."""
        return self.group.slo_class

    @property
    def model(self) -> str:
        """Return the model."""
        return self.group.model

    @property
    def instance(self) -> str:
        """Return the replica that serves it now."""
        return self.group.instance

    @property
    def measured_at(self) -> str:
        """Return the place of measurement: client, relay or server."""
        return self.group.measured_at


class StreamInFlight(StreamView, Protocol):
    """A stream in a slot of the table, received by a collector or owned by this process."""

    @property
    def slot(self) -> int:
        """Return its row of the table."""

    @property
    def slo(self) -> SloClass:
        """Return the class that judges it."""

    @property
    def group(self) -> Group:
        """Return the group in windows and counters."""

    @property
    def begun(self) -> bool:
        """Return whether the commit is known."""

    @property
    def outcome(self) -> str | None:
        """Return the outcome; None while it runs."""

    @property
    def ended_ns(self) -> int | None:
        """Return the instant of the end; None while it runs."""

    @property
    def last_receipt_ns(self) -> int:
        """Return the receipt time of the last segment."""

    @property
    def known_until_ns(self) -> int:
        """Return the instant up to which all tokens are known."""

    @property
    def windows(self) -> Ledger | None:
        """Return the ledger of its charges to windows; None if it is not charged to any."""

    @property
    def shift_ns(self) -> int:
        """Return the ns to subtract from its times to place them in windows."""


def group_of(resolved: Resolved, slo: SloClass) -> Group:
    """Return the group of a stream of a class."""
    return Group(slo.name, resolved.model or "", resolved.instance or "", resolved.measured_at, resolved.tenant)
