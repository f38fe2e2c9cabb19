from __future__ import annotations

import itertools
import struct
from collections import Counter

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.otlp import T0_NS, export, segment_span

from otel_llm.formats.io.journal_format import (
    MAX_RECORD_BYTES,
    SEAL_BYTES,
    Record,
    Splitter,
    frame,
    split,
    split_stream,
)

RAWS = [export(segment_span(seq, 0, [T0_NS + seq])).SerializeToString() for seq in range(5)]
RECORDS = [Record(raw, T0_NS + i) for i, raw in enumerate(RAWS)]
FRAMES = [frame(record.raw, record.receipt_ns or 0) for record in RECORDS]
FILE = b"".join(FRAMES)


def plain(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def test_a_record_is_laid_out_as_its_contract_says() -> None:
    raw = RAWS[0]
    record = frame(raw, 0x0102030405060708)
    assert int.from_bytes(record[:4], "big") == len(record) - 4 == len(raw) + SEAL_BYTES
    assert record[4 : 4 + len(raw)] == raw
    seal = record[4 + len(raw) :]
    assert seal[:10] == bytes.fromhex("c93e") + bytes.fromhex("0807060504030201")
    assert seal[10:12] == bytes.fromhex("d53e")
    # Everything before field 1002, without the length.
    assert int.from_bytes(seal[12:], "little") == google_crc32c.value(raw + seal[:10])


def test_any_protobuf_reader_skips_the_seal() -> None:
    record = frame(RAWS[1], T0_NS)
    message = ExportTraceServiceRequest.FromString(record[4:])
    assert message.resource_spans == ExportTraceServiceRequest.FromString(RAWS[1]).resource_spans


def test_whole_file() -> None:
    assert split(FILE) == (RECORDS, Counter())
    assert split(b"") == ([], Counter())


def test_an_empty_export_is_a_record() -> None:
    assert split(frame(b"", 7)) == ([Record(b"", 7)], Counter())


def test_a_record_too_long_is_refused_before_it_is_written() -> None:
    with pytest.raises(ValueError, match="at most"):
        frame(bytes(MAX_RECORD_BYTES), 1)


def test_records_of_the_collectors_file_exporter_have_no_receipt() -> None:
    records, skipped = split(b"".join(plain(raw) for raw in RAWS))
    assert records == [Record(raw, None) for raw in RAWS]
    assert not skipped


@pytest.mark.parametrize("cut", range(1, len(FRAMES[-1])))
def test_a_file_cut_anywhere_in_its_last_record_gives_the_others_and_a_torn_tail(cut: int) -> None:
    assert split(FILE[:-cut]) == (RECORDS[:-1], Counter(torn_tail=1))


def test_a_cut_between_records_is_not_torn() -> None:
    assert split(FILE[: -len(FRAMES[-1])]) == (RECORDS[:-1], Counter())


@pytest.mark.parametrize("position", range(len(FRAMES[0]), len(FRAMES[0]) + len(FRAMES[1])))
@pytest.mark.parametrize("bit", [0, 6])
def test_one_flipped_bit_costs_its_record_and_is_counted(position: int, bit: int) -> None:
    damaged = bytearray(FILE)
    damaged[position] ^= 1 << bit
    records, skipped = split(bytes(damaged))
    assert sum(skipped.values()) >= 1
    assert "torn_tail" not in skipped
    assert [record for record in records if record not in RECORDS] == []
    # The damaged record is lost; if the flip hit the tags of its seal, the one behind it too.
    assert RECORDS[0] in records
    assert records[-2:] == RECORDS[-2:]
    assert RECORDS[1] not in records


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**32 - 1, MAX_RECORD_BYTES + 1, 5_000_000, len(FRAMES[0]) * 2])
@pytest.mark.parametrize("damaged", [0, 2, 4])
def test_a_wrong_length_does_not_cost_the_records_behind_it(length: int, damaged: int) -> None:
    frames = list(FRAMES)
    frames[damaged] = struct.pack(">I", length) + frames[damaged][4:]
    records, skipped = split(b"".join(frames))
    sealed = [record for record in records if record.receipt_ns is not None]
    # In an unsealed beginning a short length looks like a record of somebody else's: the parser will refuse it.
    assert sealed == RECORDS[:damaged] + RECORDS[damaged + 1 :]
    assert sum(skipped.values()) >= 1


def test_a_length_that_takes_in_the_next_record_costs_one_only() -> None:
    both = len(FRAMES[1]) + len(FRAMES[2])
    data = FRAMES[0] + struct.pack(">I", both - 4) + FRAMES[1][4:] + b"".join(FRAMES[2:])
    assert split(data) == ([RECORDS[0], *RECORDS[2:]], Counter(bad_crc=1))


def test_a_tail_of_zeros_is_one_broken_record() -> None:
    records, skipped = split(FILE + bytes(4096))
    assert records == RECORDS
    assert skipped == Counter(bad_crc=1)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def damage(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for position, value in changes:
        if changed:
            changed[position % len(changed)] = value
    return bytes(changed)


changes = st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 255)), max_size=6)


@given(changes, st.integers(0, len(FILE)), st.binary(max_size=40), st.lists(st.integers(0, 2**31), max_size=20))
def test_what_is_read_does_not_depend_on_how_the_bytes_come(
    changed: list[tuple[int, int]], kept: int, tail: bytes, cuts: list[int]
) -> None:
    data = damage(FILE[:kept] + tail, changed)
    records, skipped = split(data)
    again: Counter[str] = Counter()
    assert list(split_stream(pieces(data, cuts), again)) == records
    assert again == skipped
    bytewise = Splitter()
    one_by_one = [record for byte in data for record in bytewise.feed(bytes([byte]))]
    assert [*one_by_one, *bytewise.finish()] == records
    assert bytewise.skipped == skipped


@given(st.binary(max_size=300))
def test_any_bytes_give_records_or_counters(data: bytes) -> None:
    records, skipped = split(data)
    assert all(isinstance(record, Record) for record in records)
    assert set(skipped) <= {"torn_tail", "bad_crc", "bad_record"}
    assert records or skipped or not data


@given(st.lists(st.tuples(st.binary(max_size=80), st.integers(0, 2**64 - 1)), max_size=6))
def test_round_trip(pairs: list[tuple[bytes, int]]) -> None:
    data = b"".join(frame(raw, receipt) for raw, receipt in pairs)
    assert split(data) == ([Record(raw, receipt) for raw, receipt in pairs], Counter())
