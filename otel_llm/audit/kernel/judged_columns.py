"""Columns of judged requests: sorted as rows, as arrays for the arithmetic, as dictionaries for few rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_llm.audit.input.stream_batch import dictionary_of
from otel_llm.audit.kernel.judge_batch import JUDGED
from otel_llm.slo.batch.gap_counts import GapCounts
from otel_llm.slo.batch.judged import Masked
from otel_llm.slo.figures import NUMBERS, TEXTS
from otel_llm.slo.summary import Judgements

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from otel_llm.formats.rows import Row

    Rows: TypeAlias = pa.Table | pd.DataFrame | Sequence[Mapping[str, Any]]
    """Requests with the columns of `--requests`, in any of these formats."""

_ORDER = [(name, "ascending") for name in ("start_unix_nano", "trace_id", "span_id", "choice", "tenant")]


def in_order(judged: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return batches of JUDGED as one table in the order of rows; a null is last.

    They are ordered by start, trace id, span id, choice and tenant.
    """
    table = pa.Table.from_batches(judged, schema=JUDGED)
    places = pc.sort_indices(table, sort_keys=_ORDER)  # null is last
    return table.take(places).combine_chunks()


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of a table as dictionaries."""
    rows: list[Row] = table.to_pylist()
    return rows


def masked(table: pa.Table, name: str) -> Masked:
    """Return a column of numbers or truths (R,), and where it is known (R,) bool."""
    column = table.column(name)
    known = column.is_valid().to_numpy()
    return Masked(column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy(), known)


def column_of(rows: Rows, name: str) -> Masked:
    """Return a column (R,) of a table, a DataFrame or a list of rows, and where it is known (R,) bool."""
    if isinstance(rows, pa.Table):
        return masked(rows, name)
    if isinstance(rows, Sequence):
        cells = [row[name] for row in rows]
        known = np.array([cell is not None for cell in cells], np.bool_)
        return Masked(np.array([0 if cell is None else cell for cell in cells]), known)
    known = rows[name].notna().to_numpy()
    return Masked(rows[name].to_numpy(dtype=_PLAIN.get(str(rows[name].dtype)), na_value=0), known)


def texts_of(rows: Rows, name: str) -> NDArray[np.object_]:
    """Return a column of text (R,), None if it is null."""
    if isinstance(rows, pa.Table):
        places, values = dictionary_of(rows.column(name))
        return np.array(values, np.object_)[places]
    if isinstance(rows, Sequence):
        cells = [row[name] for row in rows]
    else:
        cells = [cell if isinstance(cell, str) else None for cell in rows[name].tolist()]
    found = np.empty(len(cells), np.object_)
    found[:] = cells
    return found


_PLAIN: Final = {"Int64": np.int64, "Float64": np.float64, "boolean": np.bool_}


def judgements(table: pa.Table) -> Judgements:
    """Return the columns of a summary, from a table of JUDGED."""
    numbers = {name: masked(table, name) for name in NUMBERS}
    return Judgements({name: texts_of(table, name) for name in TEXTS}, numbers, gap_counts(table))


def gap_counts(table: pa.Table) -> GapCounts:
    """Return the counted gaps between tokens of a table of JUDGED."""
    lists = table.column("gap_buckets")
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    buckets, counts = (pc.list_flatten(table.column(name)).to_numpy() for name in ("gap_buckets", "gap_counts"))
    return GapCounts(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), buckets, counts)


def span_ns(table: pa.Table) -> int | None:
    """Return the time from the first commit to the last end of a table of JUDGED, ns; None if neither is known."""
    first = pc.min(table.column("start_unix_nano")).as_py()
    last = pc.max(table.column("end_unix_nano")).as_py()
    return None if first is None or last is None else last - first


def span_s(table: pa.Table) -> float | None:
    """Return `span_ns` in seconds."""
    length_ns = span_ns(table)
    return None if length_ns is None else length_ns / 1e9


def positions_by(table: pa.Table, columns: Sequence[str]) -> dict[tuple[str | None, ...], list[int]]:
    """Return the row positions of each group with equal values in these text columns, groups in order of occurrence."""
    found: dict[tuple[str | None, ...], list[int]] = {}
    for position, group in enumerate(zip(*(table[name].to_pylist() for name in columns), strict=True)):
        found.setdefault(group, []).append(position)
    return found
