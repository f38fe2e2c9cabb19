"""The journal's record: length, raw export request, and a seal with the receipt time and a checksum.

A record is 4 bytes big-endian length and an `ExportTraceServiceRequest`, as the OpenTelemetry Collector's file
exporter writes with `format: proto`. Ours end with fields that any protobuf parser skips: 1003 string, the tenant of
the sender (absent: `default`; of several the last counts); 1001 fixed64, the receipt time in unix ns; 1002 fixed32, the
crc32c of all bytes before it in the record. The length counts them; the checksum leaves out the length.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final

import google_crc32c

from otel_llm.formats.records import DEFAULT_TENANT, DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

JOURNAL_SUFFIX: Final = ".otlp"
CLOSED_SUFFIX: Final = ".otlp.zst"
MAX_RECORD_BYTES: Final = 64 * 2**20
"""A longer record is a broken length: the first byte of a file of records is below 4, which no protobuf begins with."""

_LENGTH: Final = Struct(">I")
_RECEIPT_TAG: Final = b"\xc9\x3e"  # 1001 << 3 | 1 (fixed64), as a varint
_CRC_TAG: Final = b"\xd5\x3e"  # 1002 << 3 | 5 (fixed32), as a varint
_TENANT_TAG: Final = b"\xda\x3e"  # 1003 << 3 | 2 (length-delimited), as a varint
TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
"""The name of a tenant: no name holds the tag, so the field is found from the end of a record."""
_RECEIPT: Final = Struct("<2sQ")
_CRC: Final = Struct("<2sI")
SEAL_BYTES: Final = _RECEIPT.size + _CRC.size
_ZEROS: Final = re.compile(rb"\0*+")
_SEAL: Final = re.compile(_RECEIPT_TAG + b".{8}" + _CRC_TAG + b".{4}", re.DOTALL)
_MOST_TENANT_BYTES: Final = 64


def is_journal(path: Path) -> bool:
    """Tell whether a file's name is that of a journal's."""
    return path.name.endswith((JOURNAL_SUFFIX, CLOSED_SUFFIX))


@dataclass(frozen=True, slots=True)
class Record:
    """One record as received; `receipt_ns` is None for one without a seal, by another writer."""

    raw: bytes
    receipt_ns: int | None
    tenant: str = DEFAULT_TENANT
    offset: int = field(default=0, compare=False)
    """The position of its length in the file, decompressed."""


def frame(raw: bytes, receipt_ns: int, tenant: str | None = None) -> bytes:
    """Return the record of one export request, ready to be appended."""
    head, seal = envelope(raw, receipt_ns, tenant)
    return head + raw + seal


def envelope(raw: bytes, receipt_ns: int, tenant: str | None = None) -> tuple[bytes, bytes]:
    """Return the bytes before and after `raw` in its record, so that `raw` need not be copied.

    `tenant`: that of the sender's token; None: senders have no tokens.

    Raises:
        DecodeError: `raw` holds a record of a journal, which a parser of a torn file could take for ours.
        ValueError: the record would be longer than `MAX_RECORD_BYTES`.
    """
    if _holds_record(raw):
        raise DecodeError("a record of a journal inside an export")
    if tenant is None and _TENANT_TAG in raw:
        tenant = DEFAULT_TENANT  # what a sender appended to its message must not pass for our field
    owner = b"" if tenant is None else _tenant_field(tenant)
    size = len(raw) + len(owner) + SEAL_BYTES
    if size > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {size} bytes; at most {MAX_RECORD_BYTES}")
    tail = owner + _RECEIPT.pack(_RECEIPT_TAG, receipt_ns)
    crc = google_crc32c.extend(google_crc32c.value(raw), tail)
    return _LENGTH.pack(size), tail + _CRC.pack(_CRC_TAG, crc)


def _holds_record(raw: bytes) -> bool:
    """Return whether a parser that searches for the next seal after a broken length would find a record in `raw`."""
    at = raw.find(_RECEIPT_TAG)
    while at >= 0 and raw[at + _RECEIPT.size : at + _RECEIPT.size + len(_CRC_TAG)] != _CRC_TAG:
        at = raw.find(_RECEIPT_TAG, at + 1)
    return at >= 0 and bool(Splitter.behind_a_broken_length(raw))


def _tenant_field(tenant: str) -> bytes:
    name = tenant.encode()
    return _TENANT_TAG + bytes((len(name),)) + name


def _without_tenant(body: bytes) -> tuple[bytes, str]:
    """Return a message without the tenant at its end, and the tenant."""
    at = body.rfind(_TENANT_TAG, max(0, len(body) - _MOST_TENANT_BYTES - 3))
    name = body[at + 3 :]
    if at >= 0 and body[at + 2 : at + 3] == bytes((len(name),)) and TENANT.fullmatch(name.decode("ascii", "replace")):
        return body[:at], name.decode("ascii")
    return body, DEFAULT_TENANT


def split(data: bytes) -> tuple[list[Record], Counter[str]]:
    """Return the complete records of `data`, and counts of skipped parts, by reason."""
    splitter = Splitter()
    records = [*splitter.feed(data), *splitter.finish()]
    return records, splitter.skipped


def split_stream(
    chunks: Iterable[bytes], skipped: Counter[str], lost: Callable[[str, int], None] | None = None
) -> Iterator[Record]:
    """Yield the complete records of a file given in chunks; skipped parts are added to `skipped` by reason.

    `lost` is called with the reason and the offset of each.
    """
    splitter = Splitter(skipped, lost)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.finish()


class Splitter:
    """A splitter of a file into records; the records do not depend on how the chunks were cut.

    Reasons in `skipped`: `bad_crc` (its bytes changed), `bad_record` (its length cannot be; zeros one after the other,
    which a file system leaves, count once), `torn_tail` (the file ends inside it: normal after a crash, at most one).
    After the first sealed record every record must be sealed, and after a broken length reading continues after the
    next seal, so the rest of the file is not lost.
    """

    def __init__(self, skipped: Counter[str] | None = None, lost: Callable[[str, int], None] | None = None) -> None:
        self.skipped: Counter[str] = Counter() if skipped is None else skipped
        self._tell = lost
        self._begin = 0  # the buffer's position in the file
        self._buffer = bytearray()
        self._sealed = False
        self._lost = False  # the position of the next record is not known
        self._zeros = False  # the records before were of no bytes

    @classmethod
    def behind_a_broken_length(cls, data: bytes) -> list[Record]:
        """Return the records of the rest of a file, behind a length that cannot be."""
        splitter = cls()
        splitter._sealed = splitter._lost = True
        return [*splitter.feed(data), *splitter.finish()]

    def feed(self, data: bytes) -> list[Record]:
        """Return the records that end in `data`, begun in it or before."""
        self._buffer += data
        return self._take(at_end=False)

    def finish(self) -> list[Record]:
        """Return the records that can still be read at the file's end; a rest is counted as torn."""
        records = self._take(at_end=True)
        if self._buffer and not self._lost:
            self._skip("torn_tail", 0)
        self._buffer.clear()
        return records

    def _take(self, *, at_end: bool) -> list[Record]:
        records: list[Record] = []
        buffer, position = self._buffer, 0
        while True:
            if self._lost:
                seal = _SEAL.search(buffer, position)
                if seal is None:
                    # A seal may have begun in the last bytes.
                    position = max(position, len(buffer) - SEAL_BYTES + 1)
                    break
                position, self._lost = seal.end(), False
                continue
            if len(buffer) - position < _LENGTH.size:
                break
            (size,) = _LENGTH.unpack_from(buffer, position)
            start, end = position + _LENGTH.size, position + _LENGTH.size + size
            if size == 0 and not self._sealed:
                if not self._zeros:
                    self._skip("bad_record", position)
                    self._zeros = True
                zeros = _ZEROS.match(buffer, position)
                assert zeros is not None  # noqa: S101 - it matches nothing, too
                position += (zeros.end() - position) // _LENGTH.size * _LENGTH.size
                continue
            self._zeros = False
            if size > MAX_RECORD_BYTES:
                self._lose("bad_record", position)
                position = start
            elif end <= len(buffer):
                record = self._open(bytes(memoryview(buffer)[start:end]), position)
                if isinstance(record, Record):
                    records.append(record)
                    position = end
                else:
                    position = start + record
            elif at_end and _SEAL.search(buffer, start) is not None:
                self._lose("bad_record", position)  # not cut: a complete record ends inside it, so its length is wrong
                position = start
            else:
                break
        del buffer[:position]
        self._begin += position
        return records

    def _open(self, body: bytes, position: int) -> Record | int:
        """Return the record in `body`, or the position in it to go on from where there is none."""
        raw_size = len(body) - SEAL_BYTES
        if raw_size >= 0 and _SEAL.match(body, raw_size):
            (_, receipt_ns), (_, crc) = _RECEIPT.unpack_from(body, raw_size), _CRC.unpack_from(body, len(body) - 6)
            self._sealed = True
            if google_crc32c.value(body[: -_CRC.size]) == crc:
                raw, tenant = _without_tenant(body[:raw_size])
                return Record(raw, receipt_ns, tenant, self._begin + position)
            self._skip("bad_crc", position)
            inner = _SEAL.search(body)
            assert inner is not None  # noqa: S101 - the one at its end, or an earlier one: then the length was wrong
            return inner.end()
        if self._sealed or _SEAL.search(body):
            self._lose("bad_crc", position)
            return 0
        return Record(body, None, offset=self._begin + position)

    def _lose(self, reason: str, position: int) -> None:
        self._skip(reason, position)
        self._lost = True

    def _skip(self, reason: str, position: int) -> None:
        self.skipped[reason] += 1
        if self._tell is not None:
            self._tell(reason, self._begin + position)
