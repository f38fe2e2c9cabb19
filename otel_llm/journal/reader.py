"""Read a journal back: what a restart replays."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from otel_llm.journal.names import list_files, newest_possible
from otel_llm.readers.io.bytestream import open_chunks
from otel_llm.readers.io.journal_format import Record, split_stream
from otel_llm.readers.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_llm.journal.names import JournalFile

log = logging.getLogger(__name__)


def records_since(folder: Path, from_ns: int, skipped: Counter[str]) -> Iterator[Record]:
    """Yield what was received at `from_ns` (unix ns) or later, in order of writing; each has a receipt time.

    Files that can hold only older records are not opened; others in the folder are ignored. One chunk and one record
    are in memory at a time. The journal may be written meanwhile: what is there when a file's end is reached counts.

    `skipped` gets the reasons of `Splitter`, and `unsealed` (a record of another tool: nobody knows when it came),
    `unreadable_file` (logged), `deleted_file` (by retention, meanwhile).

    Raises:
        OSError: the folder cannot be listed.
    """
    files, _ = list_files(folder)
    for file, until_ns in zip(files, newest_possible(files, None), strict=True):
        if until_ns is not None and until_ns < from_ns:
            continue
        for record in _records(file, skipped):
            if record.receipt_ns is None:
                skipped["unsealed"] += 1
            elif record.receipt_ns >= from_ns:
                yield record


def last_receipt_ns(folder: Path) -> int | None:
    """Return the latest receipt time in the newest file that has one (unix ns), None where none has.

    Only that file is read, and those behind it that have none. Raises OSError where the folder cannot be listed.
    """
    files, _ = list_files(folder)
    for file in reversed(files):
        times_ns = (record.receipt_ns for record in _records(file, Counter()))
        last_ns = max((time_ns for time_ns in times_ns if time_ns is not None), default=None)
        if last_ns is not None:
            return last_ns
    return None


def _records(file: JournalFile, skipped: Counter[str]) -> Iterator[Record]:
    try:
        yield from split_stream(_chunks(file, skipped), skipped)
    except FileNotFoundError:
        skipped["deleted_file"] += 1
    except InputError as error:
        skipped["unreadable_file"] += 1
        log.warning("%s; it is left out of the replay", error)


def _chunks(file: JournalFile, skipped: Counter[str]) -> Iterator[bytes]:
    """Yield the bytes of a file, of its compressed form where that took its place since it was listed."""
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
