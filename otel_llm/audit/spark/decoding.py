"""On the executors: decode a file's bytes to records, and assemble a request's records to its streams."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from otel_llm.audit.input import parquet_streams
from otel_llm.audit.input.stream_batch import STREAMS, from_batch, to_batch
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.packed_records import pack, unpack
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.batch import Batch
from otel_llm.formats.files import read_file
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.records import InputError, Segment

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from otel_llm.formats.io.skipped import Received
    from otel_llm.formats.records import RequestKey, RequestSpan, StreamKey

RECORDS: Final = pa.schema(
    [
        pa.field("trace_id", pa.binary()),
        pa.field("span_id", pa.binary()),
        pa.field("tenant", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("file", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("seen_ns", pa.int64()),
        pa.field("record", pa.binary()),
    ]
)
"""The contents of files of recordings: a row a record.

`trace_id`, `span_id`, `tenant`: of the request; `file` and `number` (within it, in order): of equal records the first
counts; `seen_ns`: the receipt, else its end by the sender's clock, unix ns. `kind` is the type of `record`: `span` (of
`packed_records`), `stream` (of a format that is not spans: an Arrow file of STREAMS with one row) or `note` (a skipped
part or an anomaly of the file, as JSON; its ids are empty).
"""

KEY: Final = ("trace_id", "span_id", "tenant")
"""The columns that identify a request."""

NOTES: Final = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("note", pa.string()),
    ]
)
"""Skipped parts and anomalies: `reason` as in the local audit's `skipped` and counts, `number` of them in `file`, and
the first places (a line each), null if unknown."""

_BATCH_BYTES: Final = 16 * 2**20
_BATCH_ROWS: Final = 20_000
_BATCH_TOKENS: Final = 1_000_000


def records(files: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the RECORDS of files: batches with the columns `path` and `content`, as Spark's `binaryFile` gives them."""
    for batch in files:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            yield from _packed(_records_of(path.as_py(), content.as_buffer()))


def _records_of(path: str, content: pa.Buffer) -> Iterator[dict[str, Any]]:
    """Yield the rows of one file. It is on disk under its own name: the parsers read every format from there."""
    skipped, odd = Skipped(), Batch()
    number = 0
    with tempfile.TemporaryDirectory(prefix="otel-llm-") as folder:
        file = Path(folder) / path.rsplit("/", 1)[-1]
        file.write_bytes(content)
        skipped.chosen.add(file)  # as if a folder had named it: an unreadable file does not end the job
        for item in _read(file, skipped):
            if isinstance(item, Assembled):
                number += 1
                yield _stream_row(item, path, number)
                continue
            batch = decode(item.message, item.receipt_ns)
            batch.owned_by(item.tenant)
            found: tuple[Segment | RequestSpan, ...] = (*batch.segments, *batch.requests)
            for one in found:
                number += 1
                yield _span_row(one, path, number)
            odd.ignored += batch.ignored
            odd.refused += batch.refused
            odd.anomalies += batch.anomalies
        notes = [note.replace(str(file), path) for note in skipped.notes]
    for reason, count, places in _found(skipped, odd, notes):
        number += 1
        body = json.dumps({"reason": reason, "number": count, "note": places}).encode()
        yield _row((b"", b"", ""), "note", path, number, 0, body)


def _read(file: Path, skipped: Skipped) -> Iterator[Received | Assembled]:
    if not parquet_streams.holds_streams(file):
        yield from read_file(file, skipped)
        return
    try:
        for batch in parquet_streams.read_batches(file):
            yield from from_batch(batch)
    except InputError as error:
        skipped.add("unreadable_file", str(error))


def _found(skipped: Skipped, odd: Batch, notes: list[str]) -> Iterator[tuple[str, int, str | None]]:
    places = "\n".join(notes) or None
    for reason, count in skipped.counts.items():
        yield reason, count, places
    counts: list[tuple[str, Counter[str]]] = [
        ("refused.", odd.refused),
        ("anomaly.", odd.anomalies),
        ("", skipped.anomalies),
    ]
    for prefix, counter in counts:
        for reason, count in counter.items():
            yield f"{prefix}{reason}", count, None
    if odd.ignored:
        yield "ignored", odd.ignored, None


def _span_row(record: Segment | RequestSpan, path: str, number: int) -> dict[str, Any]:
    seen_ns = record.end_ns if record.receipt_ns is None else record.receipt_ns
    key = record.request_key if isinstance(record, Segment) else record.key
    return _row(key, "span", path, number, seen_ns, pack(record))


def _stream_row(stream: Assembled, path: str, number: int) -> dict[str, Any]:
    resolved = stream.resolved
    seen_ns = resolved.end_ns or resolved.commit_ns or 0
    return _row(resolved.key[:3], "stream", path, number, seen_ns, write_streams([stream]))


def _row(key: RequestKey, kind: str, path: str, number: int, seen_ns: int, record: bytes) -> dict[str, Any]:
    return dict(zip(RECORDS.names, (*key, kind, path, number, seen_ns, record), strict=True))


def write_streams(streams: list[Assembled]) -> bytes:
    """Return streams as the bytes of an Arrow stream of STREAMS."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, STREAMS) as writer:
        writer.write_batch(to_batch(streams))
    return sink.getvalue()


def read_written(data: bytes) -> list[Assembled]:
    """Return the streams from the bytes of `write_streams`."""
    with pa.ipc.open_stream(data) as batches:
        return [stream for batch in batches for stream in from_batch(batch)]


def _packed(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    waiting: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row["record"])
        if size >= _BATCH_BYTES or len(waiting) >= _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(waiting, RECORDS)
            waiting, size = [], 0
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, RECORDS)


def notes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the NOTES among RECORDS."""
    for batch in batches:
        rows = zip(batch.column("file").to_pylist(), batch.column("record").to_pylist(), strict=True)
        yield pa.RecordBatch.from_pylist([{"file": file, **json.loads(record)} for file, record in rows], NOTES)


def assemble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the STREAMS of RECORDS that come request by request: sorted by their ids, then file and number."""
    waiting: list[Assembled] = []
    tokens = 0
    for streams in _requests(batches):
        waiting += streams
        tokens += sum(stream.tokens for stream in streams)
        if tokens >= _BATCH_TOKENS or len(waiting) >= _BATCH_ROWS:
            yield to_batch(waiting)
            waiting, tokens = [], 0
    if waiting:
        yield to_batch(waiting)


def _requests(batches: Iterator[pa.RecordBatch]) -> Iterator[list[Assembled]]:
    """Yield the streams of one request after another."""
    current: RequestKey | None = None
    spans: list[bytes] = []
    seen: set[StreamKey] = set()  # of complete streams: the first of several counts
    for batch in batches:
        names = (*KEY, "kind", "record")
        for *ids, kind, record in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            trace_id, span_id, tenant = ids
            if (key := (trace_id, span_id, tenant)) != current:
                if current is not None and spans:
                    yield streams_of(current, b"".join(spans))
                current, spans, seen = key, [], set()
            if kind == "span":
                spans.append(record)
                continue
            fresh = [stream for stream in read_written(record) if stream.resolved.key not in seen]
            seen.update(stream.resolved.key for stream in fresh)
            yield fresh
    if current is not None and spans:
        yield streams_of(current, b"".join(spans))


def streams_of(key: RequestKey, frames: bytes) -> list[Assembled]:
    """Return the streams of one request, assembled by the audit's own assembler."""
    assembler = Assembler()
    assembler.add(unpack(key, frames))
    return assembler.finish()
