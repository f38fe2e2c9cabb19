"""The forms of OTLP in files: records with a length (our journal, the Collector's `format: proto`), JSON, one message.

The Collector's file exporter writes a line of JSON an export request, or with `format: proto` a record of 4 bytes
big-endian length and the message; its `compression: zstd` compresses each record, of either format, by itself.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_llm.readers.formats.form import EXPECTED
from otel_llm.readers.formats.tempo import hex_ids, otlp_of, unwrapped
from otel_llm.readers.io.bytestream import ZSTD_MAGIC, Line, split_lines, unzstd_bytes
from otel_llm.readers.io.journal_format import MAX_RECORD_BYTES, is_journal, split_stream
from otel_llm.readers.io.json_walk import load
from otel_llm.readers.io.skipped import MAX_DOCUMENT_BYTES, RawRecord
from otel_llm.readers.otlp.export_json import from_object
from otel_llm.readers.otlp.export_request import parse_cut, whole_resources
from otel_llm.readers.records import DecodeError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from otel_llm.readers.formats.form import Head
    from otel_llm.readers.io.skipped import Received, Skipped

LENGTH_BYTES: Final = (b"\x00", b"\x01", b"\x02", b"\x03")
_BODIES: Final = (b"\n", b"{", ZSTD_MAGIC[:1], b"\xc9")
"""The first byte of a record: a message's only field, JSON, zstd, the seal of an empty message."""
_OTHER_SIGNALS: Final = frozenset({"resourceMetrics", "resourceLogs", "resourceProfiles"})
_TRACES: Final = frozenset({"resourceSpans", "resource_spans", "batches", "trace.resourceSpans", "trace.batches"})


def sniff_records(head: Head) -> bool:
    """Tell whether a file begins with the length of a record and a record."""
    return head.raw.startswith(LENGTH_BYTES) and (head.raw[4:5] in _BODIES or head.raw[:4] == bytes(4))


def sniff_json(head: Head) -> bool:
    """Tell whether a file begins with an export request in JSON, of any signal, or is empty."""
    return not head.text or not head.keys.isdisjoint(_TRACES | _OTHER_SIGNALS) or head.text[:2] == b"{}"


def sniff_message(head: Head) -> bool:
    """Tell whether a file begins with the only field of an export request, followed by its length."""
    # A bracket may be the length.
    return head.raw.startswith(b"\n") and bool(head.text) and not head.keys


def read_records(
    path: Path, chunks: Iterable[bytes], skipped: Skipped, most_bytes: int = MAX_RECORD_BYTES
) -> Iterator[RawRecord | Received]:
    """Yield the records of a file; those of protobuf are still to be parsed."""

    def lost(reason: str, offset: int) -> None:
        skipped.add(reason, f"{path}: {reason} at byte {offset}")

    for number, record in enumerate(split_stream(chunks, Counter(), lost), 1):
        raw, place = record.raw, f"{path}: record {number} at byte {record.offset}"
        try:
            if raw.startswith(ZSTD_MAGIC):
                raw = unzstd_bytes(raw, most_bytes)
            if not raw.startswith(b"{"):
                yield RawRecord(raw, record.receipt_ns, place)
            elif (message := _from_json(raw, skipped, place)) is not None:
                yield message, record.receipt_ns
        except DecodeError as error:
            skipped.add("bad_record", f"{place}: {error}")


def read_json(
    path: Path, chunks: Iterable[bytes], skipped: Skipped, most_bytes: int = MAX_DOCUMENT_BYTES
) -> Iterator[Received]:
    """Yield the export requests of JSON lines, or of one document over many lines."""
    lines = split_lines(chunks, most_bytes)
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
            if size > most_bytes:
                break
        document = b"\n".join(line.text for line in (first, *following))
        if _is_json(document):
            first, following = first._replace(text=document), []
        lines = chain(following, lines)
    good, refusal = 0, ""
    for line in chain([first], lines):
        try:
            message = _from_json(line.text, skipped, f"{path}:{line.number}")
        except DecodeError as error:
            if line.ended or _is_json(line.text):  # complete JSON was not cut, whatever it lacks
                refusal = refusal or f"{path}:{line.number}: {error}"
                skipped.bad(path, line.number, error)
            else:
                skipped.torn(path, line.number)
            continue
        good += 1
        if message is not None:
            yield message, None
    if not good and refusal:
        raise InputError(f"{refusal} ({EXPECTED})")


def _is_json(text: bytes) -> bool:
    try:
        load(text)
    except DecodeError:
        return False
    return True


def _from_json(text: bytes, skipped: Skipped, place: str) -> ExportTraceServiceRequest | None:
    """Return the request in one JSON object, None for one of another signal, which is counted."""
    data = load(text)
    if not isinstance(data, dict):
        raise DecodeError("not OTLP JSON: expected an object")
    data = otlp_of(data)
    if "resourceSpans" in data or "resource_spans" in data or not data:
        return _request(data)
    if not data.keys().isdisjoint(_OTHER_SIGNALS):
        skipped.add("other_signal", f"{place}: metrics, logs or profiles")
        return None
    raise DecodeError(f"not OTLP JSON: {_answer_without_spans(data) or 'no resourceSpans'}")


def _answer_without_spans(data: dict[str, Any]) -> str:
    """Return which answer without spans of a trace store an object is, "" for anything else."""
    if data.get("errors") and not data.get("data"):
        return "an answer with errors and without spans: the store gave no trace"
    if isinstance(data.get("traces"), list):
        return "an answer of Tempo's search, which holds no spans: give the answer of /api/traces/ID"
    return ""


def _request(data: dict[str, Any]) -> ExportTraceServiceRequest:
    try:
        return from_object(data)
    except DecodeError:
        # Protobuf's own mapping writes ids as base64, which never is hex: it ends with an equals sign.
        if not hex_ids(data):
            raise
        return from_object(data)


def read_message(
    path: Path, chunks: Iterable[bytes], skipped: Skipped, most_bytes: int = MAX_DOCUMENT_BYTES
) -> Iterator[RawRecord | Received]:
    """Yield the contents of a file that begins with 0x0A: the tag of a message's only field, or an empty line."""
    pieces: list[bytes] = []
    size = 0
    for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size > most_bytes:
            raise InputError(f"{path}: one message of more than {most_bytes} bytes: write it as records")
    data = b"".join(pieces)
    raw = unwrapped(data)
    if whole_resources(raw) == len(raw):
        yield RawRecord(raw, None, str(path))
        return
    try:
        message, whole = parse_cut(raw)
    except DecodeError:
        if not is_journal(path):
            raise InputError(f"{path}: not a recording: {EXPECTED}") from None
        yield from read_records(path, [data], skipped)
        return
    if not whole:
        skipped.torn(path, f"byte {len(data)}")
    yield message, None
