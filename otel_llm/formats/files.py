"""Read recordings of any known format: the first bytes tell the format, never the name.

A broken or cut part affects only itself: it is counted in `Skipped` with its place, and the rest is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.formats.io.journal_format import is_journal
from otel_llm.formats.io.skipped import RawRecord, Received
from otel_llm.formats.otlp.export_request import parse
from otel_llm.formats.recordings.format_table import find_format, open_head
from otel_llm.formats.recordings.otlp_files import LENGTH_BYTES, read_json, read_records
from otel_llm.formats.recordings.recording_format import EXPECTED, all_broken
from otel_llm.formats.records import DecodeError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped


def read_file(path: Path, skipped: Skipped) -> Iterator[Received | Assembled]:
    """Yield the export requests of a file of spans, the streams of any other; an empty file has none.

    Raises:
        InputError: it cannot be read, or is of no known format.
    """
    good = bad = 0
    notes = len(skipped.notes)
    for item in read_raw(path, skipped):
        if isinstance(item, RawRecord):
            try:
                message = parse(item.raw)
            except DecodeError as error:
                skipped.add("bad_record", f"{item.place}: {error}")
                bad += 1
                continue
            item = Received(message, item.receipt_ns, item.tenant)  # noqa: PLW2901
        good += 1
        yield item
    if bad and not good and not is_journal(path):
        _refuse(path, skipped, all_broken(path, skipped, notes))


def read_raw(path: Path, skipped: Skipped) -> Iterator[RawRecord | Received | Assembled]:
    """Yield what `read_file` does, but leave the protobuf records of a journal or of the Collector to be parsed.

    The caller parses them and counts any that is no request: `skipped.add("bad_record", f"{record.place}: {error}")`.

    Raises:
        InputError: it cannot be read, or is of no known format.
    """
    try:
        head, chunks = open_head(path, skipped)
        file_format = find_format(head)
        if file_format is not None:
            yield from file_format.read(path, chunks, skipped)
        elif head.raw.startswith(LENGTH_BYTES) or is_journal(path):
            # Garbage in a journal is a broken record; elsewhere the caller finds it when it parses the records.
            yield from _at_least_one(path, read_records(path, chunks, skipped), skipped)
        elif head.text.startswith(b"{"):
            yield from read_json(path, chunks, skipped)
        else:
            _refuse(path, skipped, InputError(f"{path}: not a recording: {EXPECTED}"))
    except InputError as error:
        _refuse(path, skipped, error)


def _at_least_one(
    path: Path, records: Iterator[RawRecord | Received], skipped: Skipped
) -> Iterator[RawRecord | Received]:
    """Yield the records of a file that does not look like one of records; without a good one it is refused."""
    before, notes = skipped.broken, len(skipped.notes)
    count = 0
    for record in records:
        count += 1
        yield record
    if not count and skipped.broken > before and not is_journal(path):
        raise all_broken(path, skipped, notes)


def _refuse(path: Path, skipped: Skipped, error: InputError) -> None:
    """Raise the error of a file that was named itself; count it if a folder or a pattern named it."""
    if path not in skipped.chosen:
        raise error
    skipped.add("unreadable_file", str(error))
