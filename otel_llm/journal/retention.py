"""Decide which closed files of the journal may go: the oldest first, and never what a restart needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.journal.names import NS_PER_S, newest_possible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_llm.journal.names import JournalFile


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept; None: everything."""

    total_bytes: int | None = None
    """Of all files, the one being written included; what is needed for a restart may exceed it."""
    age_s: float | None = None
    """Since the receipt of a file's last record."""

    def by_age(self) -> Retention:
        """Return the same without the bound on size."""
        return Retention(None, self.age_s)


@dataclass(frozen=True, slots=True)
class Horizon:
    """What retention must know of the rest of the journal at one moment."""

    now_ns: int
    """0 while nobody said what time it is: then nothing is old."""
    keep_from_ns: int
    """No file goes that may hold a record received at this instant or later."""
    last_ns: int
    """No record of the closed files was received after it."""
    other_bytes: int
    """In files that are not closed."""


def expired(
    files: Sequence[JournalFile], sizes: Mapping[JournalFile, int], retention: Retention, horizon: Horizon
) -> list[JournalFile]:
    """Return those of the closed files, in order of writing, that may go."""
    total = horizon.other_bytes + sum(sizes[file] for file in files)
    oldest_ns = None if retention.age_s is None else horizon.now_ns - round(retention.age_s * NS_PER_S)
    gone: list[JournalFile] = []
    for file, until_ns in zip(files, newest_possible(files, horizon.last_ns), strict=True):
        if until_ns is None or until_ns >= horizon.keep_from_ns:
            break
        too_much = retention.total_bytes is not None and total > retention.total_bytes
        too_old = oldest_ns is not None and until_ns < oldest_ns
        if not (too_much or too_old):
            break
        gone.append(file)
        total -= sizes[file]
    return gone
