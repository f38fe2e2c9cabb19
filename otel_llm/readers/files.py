"""Read recorded inputs: journals, the Collector's files, OTLP JSON lines, single OTLP messages, compressed or not.

What a file holds is seen from its first bytes; its name only says which files of a folder are a journal's. A broken
or cut part costs itself: it is counted in `Skipped` with its place, and the rest is read.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_llm.readers.bytestream import ZSTD_MAGIC, Line, open_chunks, split_lines, unzstd_bytes
from otel_llm.readers.journal_format import MAX_RECORD_BYTES, split_stream
from otel_llm.readers.otlp import parse, parse_cut
from otel_llm.readers.otlp_json import from_object, load_json
from otel_llm.readers.records import DecodeError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Received: TypeAlias = tuple[ExportTraceServiceRequest, int | None]
"""An export request and when the collector received it (unix ns; None where nobody wrote that down)."""

JOURNAL_SUFFIX: Final = ".otlp"
CLOSED_SUFFIX: Final = ".otlp.zst"
MAX_DOCUMENT_BYTES: Final = 256 * 2**20
"""A single message, a JSON line or a JSON document longer than this is refused: it would be held in memory whole."""

_EXPECTED: Final = "expected a journal (file or folder), OTLP JSON lines or OTLP protobuf, or gzip or zstd of these"
_HARMLESS: Final = frozenset({"other_signal", "unfinished_zst", "torn_tail"})
_OTHER_SIGNALS: Final = ("resourceMetrics", "resourceLogs", "resourceProfiles")
_LENGTH_BYTES: Final = (b"\x00", b"\x01", b"\x02", b"\x03")
_HEAD_BYTES: Final = 64
_MAX_NOTES: Final = 20


@dataclass(slots=True)
class Skipped:
    """What reading left out, by reason, and where the first of it stood.

    `torn_tail` a file ends inside a record; `bad_crc` a record's bytes changed; `bad_record` no export request;
    `other_signal` metrics, logs or profiles of the same exporter; `unfinished_zst` a `.zst` beside its `.otlp`.
    """

    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    """`file:line: what was wrong` or `file: what was wrong`, the first few."""

    @property
    def broken(self) -> int:
        """Return how many records were damaged: neither harmless nor the cut end that a crash leaves."""
        return sum(number for reason, number in self.counts.items() if reason not in _HARMLESS)

    def add(self, reason: str, note: str, number: int = 1) -> None:
        """Count `number` of a reason and keep their place, if there is room."""
        self.counts[reason] += number
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(note)


def read_inputs(paths: Iterable[Path], skipped: Skipped | None = None) -> Iterator[Received]:
    """Yield every export request of the given files and journal folders, in the order given.

    Raises:
        InputError: a path does not exist, a folder holds no journal (both before anything is yielded), or a file
            is nothing that can be read (when its turn comes); the message names it.
    """
    counted = Skipped() if skipped is None else skipped
    files = input_files(paths, counted)
    return chain.from_iterable(read_file(path, counted) for path in files)


def input_files(paths: Iterable[Path], skipped: Skipped) -> list[Path]:
    """Return the files that `paths` stand for, each once, a folder's in order of name (which is that of time).

    Raises:
        InputError: a path does not exist, or a folder holds no journal.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            # From one listing: a collector that writes the folder may replace an `.otlp` by its `.zst` at any moment.
            with os.scandir(path) as entries:
                names = {entry.name for entry in entries if _is_journal(path / entry.name) and entry.is_file()}
            if not names:
                raise InputError(f"{path}: no journal in this folder: expected *{JOURNAL_SUFFIX} or *{CLOSED_SUFFIX}")
            unfinished = {name for name in names if name.endswith(CLOSED_SUFFIX) and name.removesuffix(".zst") in names}
            for name in sorted(unfinished):
                skipped.add("unfinished_zst", f"{path / name}: unfinished, {name.removesuffix('.zst')} is read instead")
            files = [path / name for name in sorted(names - unfinished)]
        elif path.exists():
            files = [path]
            if path.name.endswith(CLOSED_SUFFIX) and path.with_suffix("").exists():
                skipped.add("unfinished_zst", f"{path}: unfinished, {path.with_suffix('').name} is read instead")
                files = []
        else:
            raise InputError(f"{path}: no such file or folder")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def read_file(path: Path, skipped: Skipped) -> Iterator[Received]:
    """Yield the export requests of one file, told by its content; an empty file has none.

    Raises:
        InputError: it cannot be read, or is none of the forms we know.
    """
    counts: Counter[str] = Counter()
    chunks = open_chunks(path, counts)
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _HEAD_BYTES:
            break
    whole = chain([head], chunks)
    try:
        if head.startswith(_LENGTH_BYTES):
            yield from _records(path, whole, skipped, counts)
        elif head.startswith(b"\n") and head.strip():
            yield from _one_message(path, whole, skipped, counts)
        elif head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{") or not head.strip():
            yield from _json(path, whole, skipped, counts)
        elif _is_journal(path):
            yield from _records(path, whole, skipped, counts)
        else:
            raise InputError(f"{path}: not a recording: {_EXPECTED}")
    finally:
        for reason, number in counts.items():
            skipped.add(reason, f"{path}: {number} x {reason}", number)


def _is_journal(path: Path) -> bool:
    return path.name.endswith((JOURNAL_SUFFIX, CLOSED_SUFFIX))


def _records(path: Path, chunks: Iterable[bytes], skipped: Skipped, counts: Counter[str]) -> Iterator[Received]:
    good = bad = 0
    for number, record in enumerate(split_stream(chunks, counts), 1):
        raw = record.raw
        try:
            if raw.startswith(ZSTD_MAGIC):  # the Collector's file exporter compresses record by record
                raw = unzstd_bytes(raw, MAX_RECORD_BYTES)
            message = parse(raw) if not raw.startswith(b"{") else _from_json(raw, counts)
        except DecodeError as error:
            skipped.add("bad_record", f"{path}: record {number}: {error}")
            bad += 1
            continue
        good += 1
        if message is not None:
            yield message, record.receipt_ns
    if not good and not _is_journal(path) and bad + counts["bad_record"]:
        raise InputError(f"{path}: not a recording: {_EXPECTED}")


def _json(path: Path, chunks: Iterable[bytes], skipped: Skipped, counts: Counter[str]) -> Iterator[Received]:
    lines = split_lines(chunks, MAX_DOCUMENT_BYTES)
    first = next(lines, None)
    if first is None:
        return
    if not _is_json(first.text):
        # One document over many lines? Else a cut or bad first line.
        following: list[Line] = []
        size = len(first.text)
        for line in lines:
            following.append(line)
            size += len(line.text)
            if size > MAX_DOCUMENT_BYTES:
                break
        document = b"\n".join(line.text for line in (first, *following))
        if _is_json(document):
            first, following = first._replace(text=document), []
        lines = chain(following, lines)
    good, refusal = 0, ""
    for line in chain([first], lines):
        try:
            message = _from_json(line.text, counts)
        except DecodeError as error:
            if line.ended:
                refusal = refusal or f"{path}:{line.number}: {error}"
                skipped.add("bad_record", f"{path}:{line.number}: {error}")
            else:
                skipped.add("torn_tail", f"{path}:{line.number}: cut")
            continue
        good += 1
        if message is not None:
            yield message, None
    if not good and refusal:
        raise InputError(f"{refusal} ({_EXPECTED})")


def _is_json(text: bytes) -> bool:
    try:
        load_json(text)
    except DecodeError:
        return False
    return True


def _from_json(text: bytes, counts: Counter[str]) -> ExportTraceServiceRequest | None:
    """Return the request in one JSON object, None for one of another signal, which is counted."""
    data = load_json(text)
    if "resourceSpans" in data or "resource_spans" in data or not data:
        return from_object(data)
    if any(key in data for key in _OTHER_SIGNALS):
        counts["other_signal"] += 1
        return None
    raise DecodeError("not OTLP JSON: no resourceSpans")


def _one_message(path: Path, chunks: Iterable[bytes], skipped: Skipped, counts: Counter[str]) -> Iterator[Received]:
    """Yield what a file holds that begins with 0x0A: the tag of a message's only field, or an empty line."""
    pieces: list[bytes] = []
    size = 0
    for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size > MAX_DOCUMENT_BYTES:
            raise InputError(f"{path}: one message of more than {MAX_DOCUMENT_BYTES} bytes: write it as records")
    data = b"".join(pieces)
    try:
        message, whole = parse_cut(data)
    except DecodeError:
        if data.lstrip().startswith(b"{"):
            yield from _json(path, [data], skipped, counts)
        elif _is_journal(path):
            yield from _records(path, [data], skipped, counts)
        else:
            raise InputError(f"{path}: not a recording: {_EXPECTED}") from None
        return
    if not whole:
        counts["torn_tail"] += 1
    yield message, None
