"""Read back tables of requests and windows from files that an audit wrote: the same values, the same nulls."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from otel_llm.audit.csv_cells import GUARDED
from otel_llm.audit.tables import arrow_type, pandas_types
from otel_llm.formats.recordings.parquet_claims import MAGIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from otel_llm.slo.metrics import Kind


class TableError(ValueError):
    """A file is not the expected table; the message names the file, the column and the remedy."""


def read_table(
    path: Path, columns: Mapping[str, Kind], filled: Sequence[str]
) -> tuple[pd.DataFrame, Mapping[bytes, bytes]]:
    """Read a table of these columns as a DataFrame of nullable types, and its metadata (of Parquet; else none).

    Parquet, CSV with a header, or JSON lines, sniffed by their content. Other columns are ignored.

    Raises:
        TableError: it is none of these, lacks a column, has a value of another type or one that is no number, or has
            a null in one of the columns `filled`.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    kinds = {name: arrow_type(kind) for name, kind in columns.items()}
    metadata: Mapping[bytes, bytes] = {}
    try:
        if head == MAGIC:
            table = _parquet(path, kinds)
            metadata = table.schema.metadata or {}
        elif head[:1] in {b"{", b""}:
            table = _json_lines(path, kinds)
        else:
            table = _csv(path, kinds)
        table = table.select(list(kinds)).cast(pa.schema(list(kinds.items())))
    except TableError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:  # all of them, of a damaged file
        raise TableError(f"{path}: {error}; pass a table that `otel-llm audit` wrote") from error
    for name in filled:
        if table.column(name).null_count:
            raise TableError(f"{path}: row {_first(pc.is_null(table.column(name)))} has no {name}")
    for name, kind in columns.items():
        if kind == "real" and not pc.all(pc.is_finite(table.column(name))).as_py() and len(table):
            odd = pc.invert(pc.is_finite(table.column(name)))
            if pc.any(odd).as_py():
                raise TableError(f"{path}: {name} of row {_first(odd)} is not a finite number")
    return table.to_pandas(types_mapper=pandas_types().get), metadata


def _parquet(path: Path, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    with pq.ParquetFile(path) as file:
        _check(path, file.schema_arrow.names, kinds)
        return file.read(columns=list(kinds))


def _json_lines(path: Path, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    with path.open("rb") as file:
        line = file.readline()
    if not line:
        return pa.table({name: pa.array([], kind) for name, kind in kinds.items()})
    try:
        first = json.loads(line)
    except ValueError as error:
        raise TableError(f"{path}: line 1 is not JSON ({error}); pass a table that `otel-llm audit` wrote") from error
    _check(path, list(first), kinds)
    options = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema(list(kinds.items())), unexpected_field_behavior="ignore"
    )
    return pyarrow.json.read_json(path, parse_options=options)


def _csv(path: Path, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        _check(path, next(csv.reader(file), []), kinds)
    table = pyarrow.csv.read_csv(
        path,
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict(kinds),
            include_columns=list(kinds),
            null_values=[""],
            strings_can_be_null=True,
            true_values=["true"],
            false_values=["false"],
        ),
    )
    for position, field in enumerate(table.schema):
        if field.type == pa.string():
            text = pc.replace_substring_regex(table.column(position), pattern=GUARDED, replacement=r"\1")
            table = table.set_column(position, field, text)
    return table


def _check(path: Path, names: Sequence[str], kinds: Mapping[str, pa.DataType]) -> None:
    lacking = [name for name in kinds if name not in names]
    if not lacking:
        return
    if len(lacking) == len(kinds):
        raise TableError(
            f"{path}: none of the columns {', '.join(list(kinds)[:3])} ...; pass a table that `otel-llm audit` wrote"
        )
    named = f"column {lacking[0]}" if len(lacking) == 1 else f"columns {', '.join(lacking[:5])}"
    more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
    raise TableError(f"{path}: lacks the {named}{more}; write the table again with this version of `otel-llm audit`")


def _first(found: pa.ChunkedArray) -> int:
    """Return the number of the first row, from 1, where a column is true."""
    return int(pc.index(found, pa.scalar(value=True)).as_py()) + 1
