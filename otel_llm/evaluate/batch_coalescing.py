"""Coalesce exports that wait: apply the segments of independent streams in one pass, before their exports' turns.

A pass over columns costs about the same for ten segments as for a thousand. A segment is applied early if its export is
the only one of the batch that concerns its stream, and if no rule or window reads the stream before the export's own
instant; so the result is that of one export after another. The rest is applied in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.evaluate.batch_update import applied_first
from otel_llm.evaluate.stream_table import scattered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from otel_llm.evaluate.stream_table import Block, StreamTable
    from otel_llm.readers.plain_segments import PlainSegments
    from otel_llm.readers.records import Batch

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

    Received: TypeAlias = tuple[Batch, int]
    """What one export request held, and when it was received (unix ns)."""

MAX_COALESCED: Final = 64
"""Exports in one pass."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What was applied of one export before its turn: `slots`, each once, `segments` with `tokens`; `rest` was not."""

    slots: Ints
    segments: int
    tokens: int
    rest: PlainSegments | None


def coalesce(received: Sequence[Received], shortest_ns: int) -> Iterator[list[Received]]:
    """Cut exports, in order of receipt, into batches in which no stream occurs twice; each within `shortest_ns`."""
    if received and _are_one(received, shortest_ns):
        yield list(received)
        return
    group: list[Received] = []
    seen: set[bytes] = set()
    for one in received:
        batch, now_ns = one
        keys = () if batch.plain is None else batch.plain.keys
        if group and (len(group) == MAX_COALESCED or now_ns - group[0][1] >= shortest_ns or not seen.isdisjoint(keys)):
            yield group
            group, seen = [], set()
        group.append(one)
        seen.update(keys)
    if group:
        yield group


def _are_one(received: Sequence[Received], shortest_ns: int) -> bool:
    """Tell, quicker than key by key, whether these are one group; nearly always they are."""
    if len(received) == 1:
        return True
    if len(received) > MAX_COALESCED or received[-1][1] - received[0][1] >= shortest_ns:
        return False
    ids = [batch.plain.ids for batch, _ in received if batch.plain is not None]
    if not ids:
        return True
    numbers = np.sort(scattered(np.concatenate(ids)))
    return bool((numbers[1:] != numbers[:-1]).all())


def apply_ahead(
    table: StreamTable,
    group: Sequence[Received],
    plain: PlainSegments,
    slots: Ints,
    others: Ints,
    evaluate_before: Callable[[Ints, Ints], None],
    *,
    lateness_ns: int,
    lost_after_ns: int,
    engine_rests: bool,
) -> tuple[list[Ahead], Block]:
    """Apply what may go first; return it for each export, and the rows of all its streams, in that order.

    `plain`, `slots`: the plain segments of all exports and whose they are, -1 for none. `others`: slots of which the
    group says something else as well. `evaluate_before`: look at what is due of these slots before these instants.
    `engine_rests`: the rule engine looks at nothing up to the last receipt, so that streams it follows may go first.
    """
    plains = [batch.plain for batch, _ in group]
    lengths = [0 if one is None else len(one) for one in plains]
    receipt_ns = np.repeat(np.array([now_ns for _, now_ns in group]), lengths)
    may = slots >= 0
    may[may] = _alone(table, slots[may], receipt_ns[may], others, lost_after_ns)
    evaluate_before(slots[may], receipt_ns[may])
    may[may] = table.due_ns[slots[may]] >= receipt_ns[may]
    if not engine_rests:
        may[may] = table.sieved[slots[may]] != 0
    places, block = applied_first(table, plain, slots, np.flatnonzero(may), receipt_ns, lateness_ns)
    chosen = np.zeros(len(plain), dtype=bool)
    chosen[places] = True
    tokens = np.concatenate(([0], np.cumsum(np.where(chosen, np.diff(plain.offsets), 0))))
    found = []
    start = 0
    for one, length in zip(plains, lengths, strict=True):
        stop = start + length
        own = chosen[start:stop]
        found.append(
            Ahead(
                slots[start:stop][own],
                int(own.sum()),
                int(tokens[stop] - tokens[start]),
                None if one is None or own.all() else one.only(~own),
            )
        )
        start = stop
    return found, block


def _alone(table: StreamTable, slots: Ints, receipt_ns: Ints, others: Ints, lost_after_ns: int) -> Bools:
    """Tell of which streams nothing comes but one segment, before which none of them is given up as lost."""
    taken = np.bincount(slots, minlength=table.size)
    taken[others] = 2
    alone: Bools = (taken[slots] == 1) & (table.receipt_ns[slots] + lost_after_ns > receipt_ns.max(initial=0))
    return alone
