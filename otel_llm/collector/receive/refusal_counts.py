"""Counts of refused exports by reason: no loss stays unnoticed."""

from __future__ import annotations

from array import array
from threading import Lock
from typing import TYPE_CHECKING, Final

from otel_llm.collector.receive.errors import ANSWERS, BusyError, answer
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.errors import UnavailableError

if TYPE_CHECKING:
    from otel_llm.collector.receive.senders import Accept, Sender
    from otel_llm.shared.errors import RefusalError

NOT_RECEIVED: Final = "not_received"
"""A message that did not arrive whole: its sender left or timed out. Over gRPC also one that is too large: gRPC refuses
it and gives no reason."""
BEHIND: Final = "behind"
"""The reason of the flow for being busy: too many exports wait for evaluation."""
SOURCE: Final = "refused_export."
REASONS: Final = (
    *(row.reason for kind, row in ANSWERS if kind is not UnavailableError),  # `Pipeline` counts it as `stopping`
    NOT_RECEIVED,
    BEHIND,
)


class RefusalCounts:
    """The counts of one process, for use from any thread. All reasons begin at 0: the first refusal is an increase too.

    `cells`: memory for the numbers, in the order of `REASONS`, which another process may read.
    """

    def __init__(self, cells: memoryview[int] | None = None) -> None:
        self._cells = memoryview(array("q", bytes(8 * len(REASONS)))) if cells is None else cells
        self._lock = Lock()

    def count(self, refusal: RefusalError) -> None:
        """Count a refusal, unless it is counted elsewhere."""
        if not refusal.counted:
            self._add(answer(refusal).reason)

    def count_not_received(self) -> None:
        """Count an export whose sender has left before the answer."""
        self._add(NOT_RECEIVED)

    def count_behind(self) -> None:
        """Count an export for which the flow has no room."""
        self._add(BEHIND)

    def except_of_flow(self, accept: Accept) -> Accept:
        """Return an `accept` whose refusals for being busy or stopping are not counted here again.

        Where they are raised they are counted by a reason of their own: `streams`, `behind`, `stopping`. A JournalError
        is counted here.
        """

        def accepted(raw: bytes, sender: Sender) -> bytes:
            try:
                return accept(raw, sender)
            except (BusyError, UnavailableError) as refusal:
                refusal.counted = not isinstance(refusal, JournalError)
                raise

        return accepted

    def counts(self) -> dict[str, int]:
        """Return the counts, by the keys of the collector's counts."""
        return {SOURCE + reason: self._cells[at] for at, reason in enumerate(REASONS)}

    def _add(self, reason: str) -> None:
        with self._lock:
            self._cells[REASONS.index(reason)] += 1
