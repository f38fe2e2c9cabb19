"""The records of a journal, read for restarts and backtests."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from otel_llm.formats.io.bytestream import open_chunks
from otel_llm.formats.io.journal_format import Record, split_stream
from otel_llm.formats.records import InputError
from otel_llm.journal.names import list_files, newest_possible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from otel_llm.journal.names import JournalFile

log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """A record, its file, and the progress of the reading."""

    path: Path
    record: Record
    read_bytes: int
    """Bytes on disk that are read; of a compressed file at most its size."""
    all_bytes: int
    """Bytes on disk to read."""


def records_since(folder: Path, from_ns: int, skipped: Counter[str]) -> Iterator[Record]:
    """Yield the records of `read_since`."""
    return (reading.record for reading in read_since(folder, from_ns, skipped))


def read_since(
    folder: Path, from_ns: int, skipped: Counter[str], lost: Callable[[Path, str, int], None] | None = None
) -> Iterator[Reading]:
    """Yield the records received at `from_ns` (unix ns) or later, in order of writing; all have a receipt time.

    Files with older records only are not opened; other files in the folder are ignored. One chunk and one record are in
    memory at a time. The journal may be written meanwhile: a file is read to the end that it has when it is reached.

    Args:
        folder: the journal's.
        from_ns: the earliest receipt time.
        skipped: counts skipped records and files by the reasons of `Splitter`, and by `unsealed` (a record of another
            tool, without a receipt time), `unreadable_file` (logged), `deleted_file` (by retention, meanwhile).
        lost: called with the file, the reason and the byte offset of each record that Splitter skips.

    Raises:
        OSError: the folder cannot be listed.
    """
    files, _ = list_files(folder)
    newest = zip(files, newest_possible(files, None), strict=True)
    wanted = [(file, _size(file)) for file, until_ns in newest if until_ns is None or until_ns >= from_ns]
    before, all_bytes = 0, sum(size for _, size in wanted)
    for file, size in wanted:
        for record in _records(file, skipped, None if lost is None else partial(lost, file.path)):
            if record.receipt_ns is None:
                skipped["unsealed"] += 1
            elif record.receipt_ns >= from_ns:
                yield Reading(file.path, record, before + min(size, record.offset), all_bytes)
        before += size


def last_receipt_ns(folder: Path) -> int | None:
    """Return the latest receipt time (unix ns) in the newest file that has one; None if none has.

    Only that file, and newer ones without a receipt time, are read.

    Raises:
        OSError: the folder cannot be listed.
    """
    files, _ = list_files(folder)
    for file in reversed(files):
        times_ns = (record.receipt_ns for record in _records(file, Counter()))
        last_ns = max((time_ns for time_ns in times_ns if time_ns is not None), default=None)
        if last_ns is not None:
            return last_ns
    return None


def _size(file: JournalFile) -> int:
    for path in (file.path, file.compressed_path):  # it may be compressed since it was listed
        with suppress(OSError):
            return path.stat().st_size
    return 0


def _records(
    file: JournalFile, skipped: Counter[str], lost: Callable[[str, int], None] | None = None
) -> Iterator[Record]:
    try:
        yield from split_stream(_chunks(file, skipped), skipped, lost)
    except FileNotFoundError:
        skipped["deleted_file"] += 1
    except InputError as error:
        skipped["unreadable_file"] += 1
        log.warning("%s; it is left out of the replay", error)


def _chunks(file: JournalFile, skipped: Counter[str]) -> Iterator[bytes]:
    """Yield the bytes of a file, or of its compressed form if that has replaced it since it was listed."""
    for path in dict.fromkeys((file.path, file.compressed_path)):
        try:
            yield from open_chunks(path, skipped, most_expansion=None)
        except InputError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            missing = error.__cause__
        else:
            return
    raise missing
