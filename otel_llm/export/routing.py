"""Several collectors: all records of a trace go to one of them, chosen by the trace id.

A collector that is away keeps its traces: they wait for it, within the bounds of its queue, and go to no other. Neither
collector could judge a stream that moved, since the one has no end of it and the other no beginning; a stream that
waits is judged late. A collector that was killed reads its journal and continues, well within the time of retries.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from otel_llm.export.clock import monotonic_s
from otel_llm.export.delivery import otlp_delivery
from otel_llm.export.outbox import CAPACITY, Outbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_llm.export.records import Record
    from otel_llm.export.settings import OtlpSettings
    from otel_llm.export.undelivered import Undelivered

WEIGHT_BYTES: Final = 8
TRACE_BYTES: Final = 16


class Rendezvous:
    """The choice of one name for each trace by rendezvous hashing: the name with the largest weight.

    The weight of a name for a trace is BLAKE2b (RFC 7693) with a digest of 8 bytes, of the name in UTF-8 and the 16
    bytes of the trace id. All who have the same names, in any order, choose alike. Of n names each gets about 1 in n
    traces; a name that is added takes about 1 in n + 1 from all others, and nothing moves between these.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on
    Networking 6(1), 1998: highest random weight.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._begun = [(name, blake2b(name.encode(), digest_size=WEIGHT_BYTES)) for name in sorted(names)]

    def choose(self, trace_id: int) -> str:
        """Return the name for a trace; of equal weights the last in order."""
        traced = trace_id.to_bytes(TRACE_BYTES, "big")
        heaviest, chosen = b"", ""
        for name, begun in self._begun:
            weight = begun.copy()
            weight.update(traced)
            if (digest := weight.digest()) >= heaviest:
                heaviest, chosen = digest, name
        return chosen


class RoutedOutbox:
    """One `Outbox` for each of several collectors; a record goes to the one that its trace id chooses.

    Each has a queue, a thread and a connection of its own: a collector that is slow or away holds up no other.
    """

    def __init__(self, outboxes: Mapping[str, Outbox]) -> None:
        self._outboxes = outboxes
        self._names = Rendezvous(outboxes)

    @property
    def dropped(self) -> int:
        """Return the number of dropped segments so far."""
        return sum(outbox.dropped for outbox in self._outboxes.values())

    def put(self, records: Sequence[Record], *, urgent: bool = False) -> None:
        """Queue records for sending, at once if `urgent`; never waits for the network."""
        parts: dict[str, list[Record]] = {}
        for record in records:
            parts.setdefault(self._names.choose(record.trace_id), []).append(record)
        for name, part in parts.items():
            self._outboxes[name].put(part, urgent=urgent)

    def flush(self, timeout_s: float, *, patient: bool = True) -> bool:
        """Send the queued records without delay or back-off; return whether all were delivered or dropped in time.

        Not `patient`: stop waiting for a collector as soon as an attempt fails; its records stay queued.
        """
        until_s = monotonic_s() + timeout_s
        outboxes = self._outboxes.values()
        for outbox in outboxes:
            outbox.hurry()  # all of them, before the wait for one that is away
        complete = [outbox.flush(max(until_s - monotonic_s(), 0.0), patient=patient) for outbox in outboxes]
        return all(complete)

    def close(self, timeout_s: float) -> bool:
        """Send the queued records, each batch once, and stop; return whether all were delivered or dropped in time."""
        until_s = monotonic_s() + timeout_s
        outboxes = self._outboxes.values()
        for outbox in outboxes:
            outbox.hurry(closing=True)
        complete = [outbox.close(max(until_s - monotonic_s(), 0.0)) for outbox in outboxes]
        return all(complete)

    def undelivered(self) -> list[Undelivered]:
        """Return what the collectors did not get, those alone that miss something."""
        return [found for outbox in self._outboxes.values() for found in outbox.undelivered()]

    def after_fork(self) -> None:
        """Start clean in a forked child: the parent sends what was queued before the fork."""
        for outbox in self._outboxes.values():
            outbox.after_fork()


def outbox_for(settings: Mapping[str, OtlpSettings], capacity: int = CAPACITY) -> Outbox | RoutedOutbox:
    """Return the outbox of one collector, or of several by their names; nothing is opened yet.

    `capacity`: the most records that wait in all. Each of n collectors has an equal share, for about 1 in n traces: the
    queue of one that is away lasts as long as a single one would.
    """
    if len(settings) == 1:
        (one,) = settings.values()
        return Outbox(otlp_delivery(one), capacity, where=one.description)
    share = max(capacity // len(settings), 1)
    return RoutedOutbox({name: Outbox(otlp_delivery(one), share, where=name) for name, one in settings.items()})
