"""The three moves of the search (section 4.3): squeeze, delay and swap.

Each returns a change, or None where the move is not possible: `max_batch` or the KV cache would be exceeded, there is
no earlier batch, or nothing would change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.annealing.batches import Batch, BatchTable


class Change(NamedTuple):
    """New batches for those from `at` to before `stop`."""

    at: int
    stop: int
    new: list[Batch]


def squeeze(table: BatchTable, batches: Sequence[Batch], at: int, job: int) -> Change | None:
    """Move a job of batch `at` into the batch before it."""
    if at == 0:
        return None
    wider = table.get(batches[at - 1].members | 1 << job)
    if wider is None:
        return None
    return Change(at - 1, at + 1, [wider, *_without(table, batches[at], job)])


def delay(table: BatchTable, batches: Sequence[Batch], at: int, job: int) -> Change | None:
    """Move a job of batch `at` into the next batch; from the last batch into a new one."""
    rest = _without(table, batches[at], job)
    if at == len(batches) - 1:
        return Change(at, at + 1, [*rest, table.alone(job)]) if rest else None
    wider = table.get(batches[at + 1].members | 1 << job)
    return None if wider is None else Change(at, at + 2, [*rest, wider])


def swap(table: BatchTable, batches: Sequence[Batch], at: int, job: int, other_at: int, other: int) -> Change | None:
    """Exchange a job of batch `at` and one of batch `other_at`."""
    if at == other_at:
        return None
    both = 1 << job | 1 << other
    if at > other_at:
        at, other_at = other_at, at
    left, right = table.get(batches[at].members ^ both), table.get(batches[other_at].members ^ both)
    if left is None or right is None:
        return None
    return Change(at, other_at + 1, [left, *batches[at + 1 : other_at], right])


def _without(table: BatchTable, batch: Batch, job: int) -> list[Batch]:
    """Return the batch without a job: none if it was the only one."""
    rest = table.get(batch.members ^ 1 << job) if batch.size > 1 else None
    return [] if rest is None else [rest]
