"""Recordings that are small and claim to be large: an audit says which, keeps its memory, and reads the others."""

from __future__ import annotations

import base64
import gzip
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from support.commands import environment
from support.otlp import IDENTITY, T0_NS, export, segment_span
from support.patience import WAIT_S

from otel_llm.audit.input.load_inputs import Inputs
from otel_llm.audit.input.parquet_streams import read_batches
from otel_llm.audit.input.stream_batch import BATCH_TOKENS
from otel_llm.formats.io.bytestream import CHUNK_BYTES, MOST_EXPANSION, open_chunks
from otel_llm.formats.io.journal_format import Record, Splitter, frame, split
from otel_llm.formats.recordings.parquet_claims import FREE_BYTES
from otel_llm.formats.records import InputError
from otel_llm.journal.records import records_since

MEMORY_BYTES = 700 * 2**20
"""An audit of next to nothing takes 250 MB."""
TIMES = "request,t_seconds,model,outcome\nr,0.1,m,completed\nr,0.2,m,completed\n"
TWO_GB = 2**31


ONE_LONG_LIST = base64.b64decode(
    "UEFSMRUEFRAVIkwVAhUAEgAAKLUv/SAIQQAAAAAqNv6clxcVABU4FUosFYCAgIABFRAVBhUGHBgIAAAqNv6clxcYCAAAKjb+nJcX"
    "FgAoCAAAKjb+nJcXGAgAACo2/pyXFxERAAAAKLUv/SAc4QAABwAAAAP+8P//fwEGAAAAgICAgAEDAYCAgIABABUEGUw1ABgGc2No"
    "ZW1hFQIANQIYCHRpbWVzX25zFQIVBkw8AAAANQQYBGxpc3QVAgAVBCUCGAdlbGVtZW50ABYCGRwZHCYAHBUEGTUABhAZOAh0aW1l"
    "c19ucwRsaXN0B2VsZW1lbnQVDBaAgICAARbqARaOAiZGJggcGAgAACo2/pyXFxgIAAAqNv6clxcWACgIAAAqNv6clxcYCAAAKjb+"
    "nJcXEREAGSwVBBUAFQIAFQAVEBUCADwpJgL+//9/GUYAAACAgICAAQAAABbqARYCJggWjgIAGRwYDEFSUk9XOnNjaGVtYRj4AS8v"
    "Ly8vN0FBQUFBUUFBQUFBQUFLQUF3QUJnQUZBQWdBQ2dBQUFBQUJCQUFNQUFBQUNBQUlBQUFBQkFBSUFBQUFCQUFBQUFFQUFBQUVB"
    "QUFBelAvLy93QUFBUXdVQUFBQUpBQUFBQVFBQUFBQkFBQUFMQUFBQUFnQUFBQjBhVzFsYzE5dWN3QUFBQUFFQUFRQUJBQUFBQkFB"
    "RkFBSUFBWUFCd0FNQUFBQUVBQVFBQUFBQUFBQkFoQUFBQUFnQUFBQUJBQUFBQUFBQUFBRUFBQUFhWFJsYlFBQUFBQUlBQXdBQ0FB"
    "SEFBZ0FBQUFBQUFBQlFBQUFBQT09ABggcGFycXVldC1jcHAtYXJyb3cgdmVyc2lvbiAyNi4wLjEZHBwAAAALAgAAUEFSMQ=="
)
"""Parquet of one stream of 2**27 tokens at one instant, as `claiming` writes it in a gigabyte of memory."""
MEASURED = """
import atexit, sys
from pathlib import Path
from otel_llm.cli.main import main

atexit.register(lambda: Path(sys.argv[1]).write_text(Path("/proc/self/status").read_text()))
main(sys.argv[2:])
"""


class Audit(NamedTuple):
    status: int
    said: str
    peak_bytes: int


def audit(folder: Path, *arguments: str | Path) -> Audit:
    """Run an audit to its end."""
    command = [sys.executable, "-c", MEASURED, str(folder / "status"), "audit", *map(str, arguments)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=4 * WAIT_S, check=False)
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", (folder / "status").read_text())
    return Audit(done.returncode, done.stderr, int(peak) * 1024)


def zstd(piece: bytes, total_bytes: int, begin: bytes = b"") -> bytes:
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    pieces = [packer.compress(begin), *(packer.compress(piece) for _ in range(total_bytes // len(piece)))]
    return b"".join([*pieces, packer.flush()])


def zipped(piece: bytes, total_bytes: int) -> bytes:
    return gzip.compress(piece * (total_bytes // len(piece)), 9)


def claiming(path: Path, values: int) -> None:
    """Write Parquet of one stream of so many tokens at one instant, which take no bytes."""
    times = pa.ListArray.from_arrays(pa.array([0, values], pa.int32()), pa.array(np.full(values, 10**18)))
    pq.write_table(pa.table({"times_ns": times}), path)


BOMBS: dict[str, Callable[[], bytes]] = {
    "zeros.zst": lambda: zstd(bytes(CHUNK_BYTES), TWO_GB),
    "newlines.jsonl.zst": lambda: zstd(b"\n" * CHUNK_BYTES, TWO_GB),
    "document.jsonl.zst": lambda: zstd(b"{}," * 350_000, 697_000_000, b'{"resourceSpans":['),
    "table.parquet.zst": lambda: zstd(bytes(CHUNK_BYTES), TWO_GB, b"PAR1"),
    "message.gz": lambda: zipped(b"\n" + bytes(CHUNK_BYTES), 2**29),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_expands_to_a_large_one(tmp_path: Path, name: str) -> None:
    bomb = tmp_path / name
    bomb.write_bytes(BOMBS[name]())
    assert bomb.stat().st_size < 2**20
    found = audit(tmp_path, bomb)
    assert found.status == 2
    assert f"Error: {bomb}: " in found.said
    assert "unpack it first" in found.said or "write it as records" in found.said
    assert found.peak_bytes < MEMORY_BYTES


def test_zeros_in_place_of_a_journal(tmp_path: Path) -> None:
    bomb = tmp_path / "zeros.otlp.zst"
    bomb.write_bytes(zstd(bytes(CHUNK_BYTES), 2**29))
    found = audit(tmp_path, bomb)
    assert found.status == 2
    assert f"{bomb}: bad_record at byte 0" in found.said
    assert found.peak_bytes < MEMORY_BYTES


def test_a_journal_whose_records_are_much_alike_is_read_whole(tmp_path: Path) -> None:
    """A sender could else have what others sent in the same file left out of a restart and of an audit."""
    said = {**IDENTITY, "filling": "x" * 1_000_000}
    records = [
        frame(
            export(segment_span(0, 0, request=number, attributes=said)).SerializeToString(),
            T0_NS + number,
        )
        for number in range(1, 101)
    ]
    path = tmp_path / "20260101T000000.000000000Z-000000.otlp.zst"
    path.write_bytes(zstandard.compress(b"".join(records)))
    assert sum(map(len, records)) > MOST_EXPANSION * path.stat().st_size
    assert len(list(records_since(tmp_path, 0, Counter()))) == 100
    inputs = Inputs([tmp_path])
    assert sum(batch.num_rows for batch in inputs.batches()) == 100
    assert not inputs.skipped.counts


def test_many_small_lines_come_out_of_little_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl.zst"
    path.write_bytes(zstd(b"{}\n" * 350_000, 697_000_000))
    sizes: list[int] = []
    with pytest.raises(InputError, match="unpack it first"):
        sizes.extend(map(len, open_chunks(path, Counter())))
    assert max(sizes) <= CHUNK_BYTES
    assert sum(sizes) <= MOST_EXPANSION * path.stat().st_size


def test_a_short_parquet_whose_one_list_claims_a_gigabyte(tmp_path: Path) -> None:
    bomb = tmp_path / "list.parquet"
    bomb.write_bytes(ONE_LONG_LIST)
    found = audit(tmp_path, bomb)
    assert found.status == 2
    assert f"Error: {bomb}: Parquet of " in found.said
    assert "claims 134217728 values in a column: if that is meant, write it in row groups of fewer rows" in found.said
    assert found.peak_bytes < MEMORY_BYTES


def test_a_list_may_be_as_long_as_its_bytes_or_the_free_ones_allow(tmp_path: Path) -> None:
    path = tmp_path / "list.parquet"
    claiming(path, FREE_BYTES // 8)
    assert sum(batch.num_rows for batch in read_batches(path)) == 1
    claiming(path, FREE_BYTES // 8 + 1)
    with pytest.raises(InputError, match=r"list\.parquet: Parquet of \d+ bytes that claims"):
        next(read_batches(path))
    # As regular as streams can be, and many times as long: the beginnings differ.
    tokens, rows = 200, 50_000
    starts = np.sort(np.random.default_rng(1).integers(0, 10**15, rows))
    times = (starts[:, None] + np.arange(tokens) * 50_000_000).ravel()
    lists = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * tokens, pa.int32()), pa.array(times))
    pq.write_table(
        pa.table({"times_ns": lists}),
        path,
        use_dictionary=False,
        column_encoding={"times_ns.list.element": "DELTA_BINARY_PACKED"},
        compression="zstd",
    )
    assert tokens * rows * 8 > FREE_BYTES
    assert next(read_batches(path)).num_rows * tokens <= BATCH_TOKENS


@pytest.mark.parametrize("name", ["list.parquet", "zeros.otlp.zst", "table.parquet.zst", "broken.parquet"])
def test_what_is_beside_a_bomb_in_a_folder_is_read(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "times.csv").write_text(TIMES)
    pq.write_table(pa.table({"times_ns": [[1, 2, 3]], "commit_ns": [0]}), folder / "z.parquet")
    if name == "list.parquet":
        claiming(folder / name, FREE_BYTES // 8 + 1)
    elif name == "broken.parquet":
        (folder / name).write_bytes(b"PAR1" + bytes(100))
    else:  # not a journal's name: it would make the folder one
        (folder / name.replace(".otlp", "")).write_bytes(zstd(bytes(CHUNK_BYTES), 2**28, b"PAR1" * ("table" in name)))
    inputs = Inputs([folder])
    assert sum(batch.num_rows for batch in inputs.batches()) == 2
    assert inputs.skipped.counts["unreadable_file"] == 1
    (note,) = inputs.skipped.notes
    assert note.startswith(str(folder / name.replace(".otlp", "")))


def test_zeros_are_one_broken_record_however_they_come_and_what_follows_is_read() -> None:
    data = b"\0\0\0\1x" + bytes(4 * 1000) + b"\0\0\1\2" + b"y" * 258 + bytes(8)
    records = [Record(b"x", None), Record(b"y" * 258, None)]
    assert split(data) == (records, Counter(bad_record=2))
    splitter = Splitter()
    found = [record for byte in data for record in splitter.feed(bytes([byte]))] + splitter.finish()
    assert (found, splitter.skipped) == (records, Counter(bad_record=2))
