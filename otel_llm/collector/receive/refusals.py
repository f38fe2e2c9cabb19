"""Count the exports that are refused at the doors, by reason: what did not arrive is not to be missed in silence."""

from __future__ import annotations

from array import array
from threading import Lock
from typing import TYPE_CHECKING, Final

from otel_llm.collector.receive.errors import ANSWERS, BusyError, answer
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.errors import UnavailableError

if TYPE_CHECKING:
    from otel_llm.collector.receive.senders import Accept
    from otel_llm.shared.errors import RefusalError

NOT_RECEIVED: Final = "not_received"
"""A message that did not come, or not whole: its sender went away, or gave up; over gRPC also one that is too large,
since gRPC refuses that itself and tells us no more than that it is over."""
BEHIND: Final = "behind"
"""The flow's own reason for saying that it is busy: exports wait for evaluation."""
SOURCE: Final = "refused_export."
REASONS: Final = (
    *(row.reason for kind, row in ANSWERS if kind is not UnavailableError),  # that one is the flow's
    NOT_RECEIVED,
    BEHIND,
)


class Refused:
    """Count; from any thread. Every reason of the doors begins at 0, so that the first refusal is an increase too.

    `cells`: where the numbers are kept, in the order of `REASONS`, if others are to see them.
    """

    def __init__(self, cells: memoryview[int] | None = None) -> None:
        self._cells = memoryview(array("q", bytes(8 * len(REASONS)))) if cells is None else cells
        self._lock = Lock()

    def count(self, refusal: RefusalError) -> None:
        """Count what a client is told."""
        if not refusal.counted:
            self._add(answer(refusal).reason)

    def count_not_received(self) -> None:
        """Count an export of which nobody can be told anything."""
        self._add(NOT_RECEIVED)

    def count_behind(self) -> None:
        """Count an export for which the flow has no room now."""
        self._add(BEHIND)

    def of_the_flow(self, accept: Accept) -> Accept:
        """Return an `accept` whose refusals for now are not counted here: the flow does it, in words of its own."""

        def accepted(raw: bytes, sender: int) -> bytes:
            try:
                return accept(raw, sender)
            except (BusyError, UnavailableError) as refusal:
                refusal.counted = not isinstance(refusal, JournalError)
                raise

        return accepted

    def counts(self) -> dict[str, int]:
        """Return the numbers, under the keys of the collector's counts."""
        return {SOURCE + reason: self._cells[at] for at, reason in enumerate(REASONS)}

    def _add(self, reason: str) -> None:
        with self._lock:
            self._cells[REASONS.index(reason)] += 1
