"""A journal read as its format says, without the package.

A record is 4 bytes of length, an OTLP trace export request, and behind it field 1001 (fixed64: the time of receipt,
unix ns) and field 1002 (fixed32: a checksum), with tags of two bytes: the receipt begins 14 bytes before the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import zstandard
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SENDER = "service.instance.id"


def received_spans(folder: Path) -> Iterator[tuple[int, Span]]:
    """Yield every span of a journal (its folder, or a file of it) in order, with its time of receipt."""
    for record in _all_records(folder):
        (receipt_ns,) = struct.unpack_from("<Q", record, len(record) - 14)
        for resource in ExportTraceServiceRequest.FromString(record).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    yield receipt_ns, span


def split_by_sender(folder: Path, into: Path) -> list[Path]:
    """Copy a journal's records, as they are, into one file for each `service.instance.id`; return the files."""
    into.mkdir()
    files: dict[str, Path] = {}
    for record in _all_records(folder):
        (resource,) = ExportTraceServiceRequest.FromString(record).resource_spans
        sender = next(one.value.string_value for one in resource.resource.attributes if one.key == SENDER)
        path = files.setdefault(sender, into / f"{len(files)}.otlp")
        with path.open("ab") as file:
            file.write(len(record).to_bytes(4, "big") + record)
    return list(files.values())


def _all_records(journal: Path) -> Iterator[bytes]:
    """Yield the records of all files in order; what a crash tore at the end of a file is left out."""
    if journal.is_file():
        yield from _records(journal.read_bytes())
        return
    plain = {path.name: path for path in journal.glob("*.otlp")}
    closed = {path.name.removesuffix(".zst"): path for path in journal.glob("*.otlp.zst")}
    for name in sorted(plain.keys() | closed.keys()):
        yield from _records(plain[name].read_bytes() if name in plain else _unpacked(closed[name]))


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        return reader.read()


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            return
        yield data[at + 4 : end]
        at = end
