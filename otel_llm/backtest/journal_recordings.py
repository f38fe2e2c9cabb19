"""The records of journals for a backtest: in order of receipt, one at a time, however long the journal is."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final

from otel_llm.collector.checkpoints import STOPPED_NS
from otel_llm.formats.input_paths import input_files
from otel_llm.formats.io.bytestream import open_chunks
from otel_llm.formats.io.journal_format import Record, split_stream
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import InputError
from otel_llm.journal.checkpoint import read_resume

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_FIRST_BYTES: Final = (b"\x00", b"\x01", b"\x02", b"\x03")
"""A record begins with its length, which is below 64 MiB; no other form of OTLP begins so."""


class Recording:
    """Journals of `otel-llm collect`: files and folders; the files of a folder in sequence, folders merged by time.

    Raises:
        InputError: a path does not exist, or a folder holds no journal; while reading, a file is no journal.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.skipped = Skipped()
        """Skipped parts, by the reasons of `Skipped`; `unsealed`: records without a time of receipt."""
        self.records = 0
        self.first_ns: int | None = None
        """The receipt of the first record (unix ns)."""
        self.last_ns: int | None = None
        self.backwards = 0
        """Records received before their predecessor; they are evaluated with it."""
        self.done_bytes = 0
        """The bytes of `size` that were read so far."""
        self._folders: dict[Path, list[Path]] = {}
        for file in input_files(paths, self.skipped, journals=True):
            self._folders.setdefault(file.parent, []).append(file)
        self.files = sum(map(len, self._folders.values()))
        self.size = sum(_size(file) for files in self._folders.values() for file in files)

    def stopped_ns(self) -> int | None:
        """Return the stop of the collector that wrote this, if it was stopped and did not die (unix ns).

        Of several journals the latest.
        """
        found = [read_resume(folder).get(STOPPED_NS) for folder in self._folders]
        known = [instant for instant in found if instant is not None]
        return max(known) if known and len(known) == len(found) else None

    def __iter__(self) -> Iterator[Record]:
        """Yield every record that has a time of receipt, in order of receipt."""
        sequences = [self._sequence(sorted(files)) for files in self._folders.values()]
        for record, receipt_ns in heapq.merge(*sequences, key=lambda one: one[1]):
            self.records += 1
            if self.first_ns is None:
                self.first_ns = receipt_ns
            if self.last_ns is not None and receipt_ns < self.last_ns:
                self.backwards += 1
            else:
                self.last_ns = receipt_ns
            yield record if receipt_ns == self.last_ns else Record(record.raw, self.last_ns)

    def _sequence(self, files: Sequence[Path]) -> Iterator[tuple[Record, int]]:
        for file in files:
            counts: Counter[str] = Counter()
            size, seen = _size(file), 0
            for record in split_stream(_journal(file, counts), counts):
                # A compressed file holds more than its size: its share of the progress is complete before its end.
                step = min(size - seen, len(record.raw))
                seen, self.done_bytes = seen + step, self.done_bytes + step
                if record.receipt_ns is None:
                    counts["unsealed"] += 1
                else:
                    yield record, record.receipt_ns
            self.done_bytes += size - seen
            for reason, number in counts.items():
                self.skipped.add(reason, f"{file}: {number} x {reason}", number)


def _journal(file: Path, counts: Counter[str]) -> Iterator[bytes]:
    chunks = open_chunks(file, counts, most_expansion=None)
    first = next(chunks, b"")
    if first and not first.startswith(_FIRST_BYTES):
        raise InputError(
            f"{file}: no journal of otel-llm collect: a backtest needs the times of receipt that only these have"
        )
    yield from chain([first], chunks)


def _size(file: Path) -> int:
    """Return a file's size, 0 for one that was compressed or deleted since it was listed."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
