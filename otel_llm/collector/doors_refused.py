"""Count the exports that are refused at the doors, by reason: what did not arrive is not to be missed in silence."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, Final

from otel_llm.collector.errors import ANSWERS, BusyError, JournalError, RefusalError, UnavailableError, answer

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_RECEIVED: Final = "not_received"
"""A message that did not come, or not whole: its sender went away, or gave up; over gRPC also one that is too large,
since gRPC refuses that itself and tells us no more than that it is over."""
SOURCE: Final = "refused_export."


class Refused:
    """Count; from any thread. Every reason of the doors begins at 0, so that the first refusal is an increase too."""

    def __init__(self) -> None:
        reasons = [row.reason for kind, row in ANSWERS if kind is not UnavailableError]  # that one is the flow's
        self._counts = Counter(dict.fromkeys((*reasons, NOT_RECEIVED), 0))
        self._lock = Lock()

    def count(self, refusal: RefusalError) -> None:
        """Count what a client is told."""
        if not refusal.counted:
            self._add(answer(refusal).reason)

    def count_not_received(self) -> None:
        """Count an export of which nobody can be told anything."""
        self._add(NOT_RECEIVED)

    def of_the_flow(self, accept: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """Return an `accept` whose refusals for now are not counted here: the flow does it, in words of its own."""

        def accepted(raw: bytes) -> bytes:
            try:
                return accept(raw)
            except (BusyError, UnavailableError) as refusal:
                refusal.counted = not isinstance(refusal, JournalError)
                raise

        return accepted

    def counts(self) -> dict[str, int]:
        """Return the numbers, under the keys of the collector's counts."""
        with self._lock:
            return {SOURCE + reason: number for reason, number in self._counts.items()}

    def _add(self, reason: str) -> None:
        with self._lock:
            self._counts[reason] += 1
