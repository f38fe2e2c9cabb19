"""The formats of OTLP in files: records with a length (our journal, the Collector's `format: proto`), JSON, one
message.

The Collector's file exporter writes a line of JSON an export request, or with `format: proto` a record of 4 bytes
big-endian length and the message; its `compression: zstd` compresses each record, of either format, by itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from otel_llm.formats.io.bytestream import ZSTD_MAGIC, unzstd_bytes
from otel_llm.formats.io.journal_format import MAX_RECORD_BYTES, is_journal, split_stream
from otel_llm.formats.io.json_values import json_records, load
from otel_llm.formats.io.skipped import MAX_DOCUMENT_BYTES, RawRecord, Received
from otel_llm.formats.otlp.export_json import from_object
from otel_llm.formats.otlp.export_request import parse_cut, whole_resources
from otel_llm.formats.recordings.recording_format import EXPECTED
from otel_llm.formats.recordings.tempo import WRAPPERS, hex_ids, otlp_of, unwrapped
from otel_llm.formats.records import DEFAULT_TENANT, DecodeError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head

LENGTH_BYTES: Final = (b"\x00", b"\x01", b"\x02", b"\x03")
_BODIES: Final = (b"\n", b"{", ZSTD_MAGIC[:1], b"\xc9")
"""The first byte of a record: a message's only field, JSON, zstd, the seal of an empty message."""
_OTHER_SIGNALS: Final = frozenset({"resourceMetrics", "resourceLogs", "resourceProfiles"})
_SPANS: Final = frozenset({"resourceSpans", "resource_spans"})
_TRACES: Final = frozenset(
    {*_SPANS, "batches", "trace.batches", *(f"{wrapper}.{name}" for wrapper in WRAPPERS for name in _SPANS)}
)


def sniff_records(head: Head) -> bool:
    """Tell whether a file begins with the length of a record and a record."""
    return head.raw.startswith(LENGTH_BYTES) and (head.raw[4:5] in _BODIES or head.raw[:4] == bytes(4))


def sniff_json(head: Head) -> bool:
    """Tell whether a file begins with an export request in JSON, of any signal, or an array of them, or is empty."""
    return not head.text or not head.own_keys.isdisjoint(_TRACES | _OTHER_SIGNALS) or head.text[:2] == b"{}"


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
            ours = record.receipt_ns is not None  # always protobuf
            if not ours and raw.startswith(ZSTD_MAGIC):
                raw = unzstd_bytes(raw, most_bytes)
            if ours or not raw.startswith(b"{"):
                yield RawRecord(raw, record.receipt_ns, record.tenant, place)
            elif (message := _message(load(raw), skipped, place)) is not None:
                yield Received(message, record.receipt_ns, record.tenant)
        except DecodeError as error:
            skipped.add("bad_record", f"{place}: {error}")


def read_json(
    path: Path, chunks: Iterable[bytes], skipped: Skipped, most_bytes: int = MAX_DOCUMENT_BYTES
) -> Iterator[Received]:
    """Yield the export requests of JSON: lines, documents over many lines, an array of requests."""
    good, refusal = 0, ""
    for place, data in json_records(path, chunks, skipped, most_bytes):
        where = f"{path}:{place}" if isinstance(place, int) else f"{path}: {place}"
        try:
            message = _message(data, skipped, where)
        except DecodeError as error:
            refusal = refusal or f"{where}: {error}"
            skipped.bad(path, place, error)
            continue
        good += 1
        if message is not None:
            yield Received(message)
    if not good and refusal:
        raise InputError(f"{refusal} ({EXPECTED})")


def _message(data: Any, skipped: Skipped, place: str) -> ExportTraceServiceRequest | None:
    """Return the request in one JSON object, None for one of another signal, which is counted."""
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
    if (data.get("errors") or data.get("error")) and not data.get("data"):
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
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > most_bytes:
            raise InputError(f"{path}: one message of more than {most_bytes} bytes: write it as records")
    data = b"".join(held)
    raw = unwrapped(data)
    if whole_resources(raw) == len(raw):
        yield RawRecord(raw, None, DEFAULT_TENANT, str(path))
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
    yield Received(message)
