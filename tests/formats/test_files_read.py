from __future__ import annotations

import fcntl
import gzip
import json
import os
import struct
import termios
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread

import pytest
import zstandard
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.otlp import T0_NS, export, segment_span
from support.pairwise import pairwise
from support.recordings import read_inputs

from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.files import read_file
from otel_llm.formats.io import bytestream
from otel_llm.formats.io.bytestream import (
    CHUNK_BYTES,
    FREE_BYTES,
    MOST_EXPANSION,
    open_chunks,
    split_lines,
    unzstd_bytes,
)
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.io.open_input import open_input
from otel_llm.formats.io.skipped import RawRecord, Received, Skipped
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.recordings import otlp_files
from otel_llm.formats.records import DecodeError, InputError

MESSAGES = [export(segment_span(seq, 0, [T0_NS + seq])) for seq in range(4)]
RAWS = [message.SerializeToString() for message in MESSAGES]
RECEIVED: list[Received] = [Received(message, T0_NS + i) for i, message in enumerate(MESSAGES)]
WITHOUT_RECEIPT: list[Received] = [Received(message) for message in MESSAGES]
JOURNAL = b"".join(frame(raw, T0_NS + i) for i, raw in enumerate(RAWS))


def json_line(message: ExportTraceServiceRequest, indent: int | None = None) -> bytes:
    data = json_format.MessageToDict(message)
    for spans in data["resourceSpans"]:
        for scope in spans["scopeSpans"]:
            for span in scope["spans"]:
                original = message.resource_spans[0].scope_spans[0].spans[0]
                span["traceId"], span["spanId"] = original.trace_id.hex(), original.span_id.hex()
                span["parentSpanId"] = original.parent_span_id.hex()
    return json.dumps(data, indent=indent).encode()


LINES = [json_line(message) for message in MESSAGES]
JSON_LINES = b"\n".join(LINES) + b"\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def to(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return to


Write = Callable[[str, bytes], Path]


def read(*paths: Path) -> tuple[list[Received], Counter[str]]:
    skipped = Skipped()
    return requests(read_inputs(paths, skipped)), skipped.counts


def requests(items: Iterable[Received | Assembled]) -> list[Received]:
    return [item for item in items if not isinstance(item, Assembled)]


CONTENTS = {
    "journal": (JOURNAL, RECEIVED),
    "collector-proto": (b"".join(struct.pack(">I", len(raw)) + raw for raw in RAWS), WITHOUT_RECEIPT),
    "collector-json": (b"".join(struct.pack(">I", len(line)) + line for line in LINES), WITHOUT_RECEIPT),
    "collector-zstd": (
        b"".join(struct.pack(">I", len(z)) + z for z in map(zstandard.compress, RAWS)),
        WITHOUT_RECEIPT,
    ),
    "lines": (JSON_LINES, WITHOUT_RECEIPT),
    "no-newline": (JSON_LINES.rstrip(), WITHOUT_RECEIPT),
    "crlf": (JSON_LINES.replace(b"\n", b"\r\n"), WITHOUT_RECEIPT),
    "blank-lines": (b"\n\n  " + JSON_LINES.replace(b"\n", b"\n\n"), WITHOUT_RECEIPT),
    "bom": (b"\xef\xbb\xbf" + JSON_LINES, WITHOUT_RECEIPT),
    "pretty": (json_line(MESSAGES[0], indent=2), WITHOUT_RECEIPT[:1]),
    "protobuf": (RAWS[0], WITHOUT_RECEIPT[:1]),
    "empty": (b"", []),
    "blank": (b"\n \n", []),
    "empty-exports": (b"{}\n{}", [Received(ExportTraceServiceRequest())] * 2),
}


@pytest.mark.parametrize(
    *pairwise(
        {
            "name": ["a.otlp", "a.jsonl", "a.bin", "noname"],
            "packed": [bytes, gzip.compress, zstandard.compress],
            "content": CONTENTS,
        }
    )
)
def test_content_is_seen_whatever_the_name_and_the_packing(
    write: Write, name: str, packed: Callable[[bytes], bytes], content: str
) -> None:
    data, expected = CONTENTS[content]
    assert read(write(name, packed(data))) == (expected, Counter())


def test_a_cut_file_gives_its_whole_records(write: Write) -> None:
    assert read(write("a.otlp", JOURNAL[:-1])) == (RECEIVED[:-1], Counter(torn_tail=1))
    assert read(write("a.jsonl", JSON_LINES[:-9])) == (WITHOUT_RECEIPT[:-1], Counter(torn_tail=1))
    two = MESSAGES[0].SerializeToString() + MESSAGES[1].SerializeToString()
    assert read(write("a.bin", two[:-1])) == (WITHOUT_RECEIPT[:1], Counter(torn_tail=1))
    assert read(write("b.jsonl", LINES[0][:-9])) == ([], Counter(torn_tail=1))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_cut_or_broken_compressed_file(write: Write, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(JOURNAL * 200)
    received, counts = read(write("a.otlp.zst", packed[: len(packed) // 2]))
    assert all(item in RECEIVED for item in received)
    assert 0 < counts["torn_tail"] <= 2  # of the packing, and of the record it cuts
    damaged = bytearray(packed)
    damaged[len(damaged) // 2] ^= 0xFF
    received, counts = read(write("a.otlp.zst", bytes(damaged)))
    assert counts.total() >= 1


def test_several_members_and_padding(write: Write) -> None:
    half = len(JOURNAL) // 2
    for pack in (gzip.compress, zstandard.compress):
        assert read(write("a", pack(JOURNAL[:half]) + pack(JOURNAL[half:]))) == (RECEIVED, Counter())
    assert read(write("a", gzip.compress(JOURNAL) + bytes(100))) == (RECEIVED, Counter())


def test_what_a_small_file_expands_to_comes_in_pieces(write: Write) -> None:
    for pack in (gzip.compress, zstandard.compress):
        path = write("small", pack(bytes(FREE_BYTES)))
        sizes = [len(chunk) for chunk in open_chunks(path, Counter())]
        assert sum(sizes) == FREE_BYTES
        assert max(sizes) <= CHUNK_BYTES


def test_what_expands_beyond_all_recordings_is_refused_with_the_remedy(write: Write) -> None:
    for pack in (gzip.compress, zstandard.compress):
        path = write("bomb", pack(bytes(2**28)))
        sizes: list[int] = []
        with pytest.raises(InputError, match=r"bomb: expands to more than 1000 times its size: .* unpack it first"):
            sizes.extend(map(len, open_chunks(path, Counter())))
        assert sum(sizes) <= max(FREE_BYTES, MOST_EXPANSION * path.stat().st_size)


def test_bad_json_lines_are_counted_with_their_numbers(write: Write) -> None:
    data = b"\n".join([LINES[0], b"", b'{"resourceSpans": 3}', b"}{", LINES[1], b'{"other": 1}', LINES[2]]) + b"\n"
    path = write("a.jsonl", data)
    skipped = Skipped()
    assert list(read_inputs([path], skipped)) == WITHOUT_RECEIPT[:3]
    assert skipped.counts == Counter(bad_record=3)
    assert skipped.broken == 3
    assert [note.split(" ")[0] for note in skipped.notes] == [f"{path}:{line}:" for line in (3, 4, 6)]
    assert "no resourceSpans" in skipped.notes[2]


def test_a_bad_first_line_does_not_cost_the_others(write: Write) -> None:
    path = write("a.jsonl", LINES[0][20:] + b"\n" + JSON_LINES)
    with pytest.raises(InputError, match="not a recording"):  # it does not look like JSON at all
        read(path)
    path = write("a.jsonl", LINES[0][:-20] + b"\n" + JSON_LINES)
    skipped = Skipped()
    assert list(read_inputs([path], skipped)) == WITHOUT_RECEIPT
    assert skipped.counts == Counter(bad_record=1)
    assert skipped.notes[0].startswith(f"{path}:1: not JSON")


def test_other_signals_of_the_same_exporter_are_counted_apart(write: Write) -> None:
    data = b'{"resourceMetrics": []}\n' + JSON_LINES + b'{"resourceLogs": [{}]}\n{"resourceProfiles": []}\n'
    skipped = Skipped()
    assert list(read_inputs([write("a.jsonl", data)], skipped)) == WITHOUT_RECEIPT
    assert skipped.counts == Counter(other_signal=3)
    assert skipped.broken == 0
    assert read(write("m.jsonl", b'{"resourceMetrics": []}\n')) == ([], Counter(other_signal=1))


def test_a_record_that_is_no_message_is_counted(write: Write) -> None:
    bad = frame(b"\xff\xff\xff", 1) + frame(zstandard.compress(b"x")[:-3], 2) + frame(b'{"resourceSpans": 1}', 3)
    path = write("a.otlp", frame(RAWS[0], T0_NS) + bad + frame(RAWS[1], T0_NS + 1))
    skipped = Skipped()
    assert list(read_inputs([path], skipped)) == RECEIVED[:2]
    assert skipped.counts == Counter(bad_record=3)
    assert [note.split(":")[1] for note in skipped.notes] == [
        f" record {number} at byte {path.read_bytes().index(one)}"
        for number, one in zip((2, 3, 4), (b"\0\0\0\x13\xff", b"\0\0\0\x17", b"\0\0\0\x24{"), strict=True)
    ]


def test_a_record_that_expands_without_end_is_counted() -> None:
    packed, skipped = zstandard.compress(bytes(10**6)), Skipped()
    data = struct.pack(">I", len(packed)) + packed + frame(RAWS[0], T0_NS)
    (found,) = otlp_files.read_records(Path("a.otlp"), [data], skipped, most_bytes=1000)
    assert isinstance(found, RawRecord)
    assert (found.raw, found.receipt_ns, skipped.counts) == (RAWS[0], T0_NS, Counter(bad_record=1))


def test_a_bomb_in_a_record_is_not_held_whole() -> None:
    bomb = zstandard.compress(bytes(2**29))
    tracemalloc.start()
    with pytest.raises(DecodeError, match="expands to more than 1000 bytes"):
        unzstd_bytes(bomb, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**28


def test_a_line_without_end_is_not_held_whole() -> None:
    data, skipped = JSON_LINES + b'{"a": "' + b"x" * 9000 + b'"}\n' + LINES[0], Skipped()
    found = list(otlp_files.read_json(Path("a.jsonl"), [data], skipped, most_bytes=5000))
    assert (found, skipped.counts) == ([*WITHOUT_RECEIPT, WITHOUT_RECEIPT[0]], Counter(bad_record=1))
    with pytest.raises(InputError, match="more than 5000 bytes"):
        list(otlp_files.read_message(Path("a.bin"), [b"\n" + b"\xff" * 9000], skipped, most_bytes=5000))


# Folders


def test_a_folder_is_its_journals_files_by_name(tmp_path: Path) -> None:
    (tmp_path / "2.otlp").write_bytes(frame(RAWS[2], T0_NS + 2))
    (tmp_path / "1.otlp.zst").write_bytes(zstandard.compress(frame(RAWS[1], T0_NS + 1)))
    (tmp_path / "0.otlp").write_bytes(frame(RAWS[0], T0_NS))
    (tmp_path / "2.otlp.zst").write_bytes(b"half a")
    (tmp_path / "3.jsonl").write_bytes(LINES[3])
    (tmp_path / "journal.lock").write_bytes(b"")
    (tmp_path / "folder.otlp").mkdir()
    skipped = Skipped()
    assert list(read_inputs([tmp_path], skipped)) == RECEIVED[:3]
    assert skipped.counts == Counter(unfinished_zst=1)
    assert skipped.broken == 0
    # A file named twice is read once.
    again = [tmp_path / "1.otlp.zst", tmp_path, tmp_path / "." / "0.otlp"]
    assert [one.receipt_ns for one in requests(read_inputs(again))] == [T0_NS + 1, T0_NS, T0_NS + 2]


def test_garbage_in_a_journal_is_counted_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "1.otlp").write_bytes(b"\xfe" * 50)
    (tmp_path / "2.otlp").write_bytes(b"\n" + b"\xfe" * 50)
    (tmp_path / "3.otlp").write_bytes(JOURNAL)
    assert read(tmp_path) == (RECEIVED, Counter(bad_record=2))


def test_nothing_to_read(tmp_path: Path, write: Write) -> None:
    with pytest.raises(InputError, match=r"missing\.otlp: no such file"):
        read_inputs([tmp_path / "missing.otlp"])
    with pytest.raises(InputError, match="the folder is empty: expected a journal"):
        read_inputs([tmp_path])
    with pytest.raises(InputError, match=r"a\.dat: no whole Parquet file"):
        read(write("a.dat", b"PAR1" + bytes(40)))
    for content in (b"\x7fELF", b"timestamp,tokens\n1,2\n", b"[{}]", b"\nhello there"):
        path = write("a.dat", content)
        with pytest.raises(InputError, match="not a recording: expected a journal") as raised:
            read(path)
        assert str(path) in str(raised.value)
    assert read(write("a.dat", bytes(3))) == ([], Counter(torn_tail=1))
    with pytest.raises(InputError, match=r"a\.jsonl:1: not OTLP JSON: no resourceSpans \(expected a journal"):
        read(write("a.jsonl", b'{"timestamp": 1}\n{"timestamp": 2}\n'))
    with pytest.raises(InputError, match="not a recording"):
        read(write("a.bin", frame(b"\xff", 1)))


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b'{"data":null,"errors":[{"code":404}]}', "an answer with errors and without spans"),
        (b'{"traces":[],"metrics":{}}', "an answer of Tempo's search, which holds no spans: give the answer of"),
        (b'{"resourceSpans":"x"}', "not OTLP JSON: resourceSpans: expected an array"),
    ],
)
def test_whole_json_that_is_no_otlp_is_not_called_cut(write: Write, answer: bytes, says: str, end: bytes) -> None:
    with pytest.raises(InputError, match=says):
        read(write("a.json", answer + end))


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.otlp"
    path.write_bytes(JOURNAL)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(bytestream, "open_input", refuse)
    with pytest.raises(InputError, match=r"a\.otlp: cannot be read: Permission denied"):
        read(path)


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    kept = os.open(path, os.O_RDWR)  # so that the pipe has a writer before it is opened for reading

    def write() -> None:
        os.write(kept, JOURNAL)
        unread = array("i", [1])
        while unread[0]:
            fcntl.ioctl(kept, termios.FIONREAD, unread)
        os.close(kept)

    writer = Thread(target=write)
    writer.start()
    assert read(path) == (RECEIVED, Counter())
    writer.join()


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_no_file_can_have_is_an_os_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="no name that a file can have"):
        open_input(tmp_path / name)


# Any bytes


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.integers(1, 20))
def test_lines_do_not_depend_on_the_chunks(lines: list[bytes], longest: int) -> None:
    data = b"\n".join(lines)
    whole = list(split_lines([data], longest))
    assert list(split_lines([bytes([byte]) for byte in data], longest)) == whole
    assert [line.number for line in whole] == [number for number, line in enumerate(lines, 1) if line[:longest].strip()]


SAMPLES = [JOURNAL, JSON_LINES, json_line(MESSAGES[0], 1), RAWS[0], gzip.compress(JOURNAL), zstandard.compress(JOURNAL)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=100), st.sampled_from(SAMPLES)),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    st.integers(0, 2000),
    st.binary(max_size=10),
    st.sampled_from(["a.otlp", "a.jsonl", "a.bin"]),
)
def test_any_bytes_give_records_counters_or_an_input_error(
    tmp_path: Path, data: bytes, changes: list[tuple[int, int]], kept: int, tail: bytes, name: str
) -> None:
    changed = bytearray(data)
    for position, value in changes:
        if changed:
            changed[position % len(changed)] = value
    path = tmp_path / name
    path.write_bytes(changed[:kept] + tail)
    skipped = Skipped()
    try:
        received = requests(read_file(path, skipped))
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 - raising is optional here
        return
    for message, receipt_ns, _ in received:
        decode(message, receipt_ns)
    assert bool(skipped.notes) == bool(skipped.counts)
