"""What a Parquet file claims, whole and damaged: pyarrow's own call for it ends the process for some damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.formats.damaged import CHANGES, damaged

from otel_llm.audit.input.parquet_streams import read_batches
from otel_llm.formats.recordings.parquet_claims import RowGroup, row_groups
from otel_llm.formats.records import InputError

TIMES = pa.table({"times_ns": [[1, 2, 3], [4]], "commit_ns": [0, None]})
WIDE = pa.table(
    {
        "text": ["x" * 300, None, ""] * 20,
        "flag": [True, False, None] * 20,
        "share": [0.5, float("nan"), None] * 20,
        "pairs": pa.array([[("a", "b")], [], None] * 20, pa.map_(pa.string(), pa.string())),
        "deep": [[{"one": [1, 2]}], [], None] * 20,
    }
)
MANY = pa.table({f"column {number}": [number] for number in range(40)})
"""More columns than the short format of a list's length can say."""


def claimed(metadata: Any) -> list[RowGroup]:
    """Return the same by pyarrow, of a file that is whole."""
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    columns = [[group.column(at) for at in range(group.num_columns)] for group in groups]
    return [
        RowGroup(
            group.num_rows, max(one.num_values for one in chunks), sum(one.total_compressed_size for one in chunks)
        )
        for group, chunks in zip(groups, columns, strict=True)
    ]


@pytest.mark.parametrize("table", [TIMES, WIDE, MANY], ids=["times", "wide", "many"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_group_size": 1, "compression": "zstd"},
        {"version": "1.0", "write_statistics": False, "use_dictionary": False},
        {"write_page_index": True, "write_page_checksum": True, "data_page_version": "2.0"},
    ],
    ids=["defaults", "a group a row", "plain", "with indexes"],
)
def test_the_claims_are_those_that_pyarrow_tells(tmp_path: Path, table: pa.Table, options: dict[str, Any]) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, **options)
    metadata = pq.read_metadata(path)
    assert row_groups(path, metadata) == claimed(metadata)


def test_a_file_without_rows_claims_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(TIMES.slice(0, 0), path)
    assert sum(group.values for group in row_groups(path, pq.read_metadata(path))) == 0


@pytest.mark.parametrize("change", CHANGES)
def test_any_damaged_byte_gives_streams_or_a_typed_error(tmp_path: Path, change: str) -> None:
    """Some of these ended the process, when pyarrow was asked what the columns claim."""
    path = tmp_path / "x.parquet"
    pq.write_table(TIMES, path)
    refused = 0
    for data in damaged(path.read_bytes(), change):
        path.write_bytes(data)
        try:
            list(read_batches(path))
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017 - raising is optional here
            refused += 1
    assert 0 < refused < len(data)


def test_a_description_that_ends_early_or_is_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(TIMES, path)
    metadata, whole = pq.read_metadata(path), path.read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    for kept in range(length):
        path.write_bytes(whole[: len(whole) - 8 - length + kept] + kept.to_bytes(4, "little") + b"PAR1")
        with pytest.raises(InputError, match=r"x\.parquet: no whole Parquet file: "):
            row_groups(path, metadata)
    for data in (b"", b"PAR1", whole[:-1], whole[-8:]):
        path.write_bytes(data)
        with pytest.raises(InputError, match="no description at its end"):
            row_groups(path, metadata)
    pq.write_table(TIMES, path, row_group_size=1)
    with pytest.raises(InputError, match="can be read in two ways"):
        row_groups(path, metadata)


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        (b"\x1e\x00", "a value has the unknown type 14"),
        (b"\x16" + b"\xff" * 11, "a number has more than 64 bits"),
        (b"\x1c" * 200, "it is nested more than 64 deep"),
        (b"\x19\xf1\xff\xff\xff\xff\x0f", "its description ends early"),  # a list of 4 billion booleans
        (b"\x18\xff\xff\xff\xff\x0f", "its description ends early"),  # a text of 4 GB
    ],
    ids=["type", "number", "depth", "list", "text"],
)
def test_a_hostile_description_is_refused(tmp_path: Path, description: bytes, problem: str) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(TIMES, path)
    metadata = pq.read_metadata(path)
    path.write_bytes(b"PAR1" + description + len(description).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(InputError, match=f"x.parquet: no whole Parquet file: {problem}"):
        row_groups(path, metadata)
