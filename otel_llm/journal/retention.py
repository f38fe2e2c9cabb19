"""Retention: which closed journal files may be deleted, the oldest first, but none that a restart needs."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.journal.names import NS_PER_S, newest_possible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from otel_llm.journal.names import JournalFile

MOST_BYTES: Final = 50_000_000_000
VOLUME_SHARE: Final = 10
"""The default limit on size is a tenth of the volume, and MOST_BYTES at most."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits on closed files; None: no limit."""

    total_bytes: int | None = None
    """Of all files, with the file being written; files that a restart needs may exceed it."""
    age_s: float | None = None
    """Since the receipt of a file's last record."""

    def by_age(self) -> Retention:
        """Return the same limits without that on size."""
        return Retention(None, self.age_s)


@dataclass(frozen=True, slots=True)
class Horizon:
    """The state of the rest of the journal that retention depends on; instants in unix ns."""

    now_ns: int
    """0 while the time is unknown: then no file is old."""
    keep_from_ns: int
    """A file that may hold a record received at this instant or later is not deleted."""
    last_ns: int
    """No record of the closed files was received after it."""
    other_bytes: int
    """The size of files that are not closed."""


def share_of_volume(folder: Path) -> int:
    """Return the default limit on the size of a journal in this folder, which need not exist yet."""
    for path in (folder, *folder.absolute().parents):
        with suppress(OSError):
            volume = os.statvfs(path)
            size = volume.f_blocks * volume.f_frsize
            return min(MOST_BYTES, size // VOLUME_SHARE) if size else MOST_BYTES
    return MOST_BYTES


def expired(
    files: Sequence[JournalFile], sizes: Mapping[JournalFile, int], retention: Retention, horizon: Horizon
) -> list[JournalFile]:
    """Return the closed files that may be deleted; `files`: in order of writing, `sizes`: in bytes."""
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
