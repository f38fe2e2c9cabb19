"""Parquet of token times: recorded streams, one row each, read and written row group by row group.

The columns are those of `stream_batch.STREAMS`. A file needs one of them, `times_ns`, or in its place `t_seconds`, a
list of seconds since the commit; docs/audit.md has the defaults of missing columns.
"""

from __future__ import annotations

import hashlib
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from otel_llm.audit.input.stream_batch import BATCH_STREAMS, BATCH_TOKENS, STREAMS, count_lists, lists, token_lists
from otel_llm.core.limits import MAX_EVENT_TOKENS, MAX_TOKENS
from otel_llm.formats.io.bytestream import STDIN
from otel_llm.formats.recordings.parquet_claims import RowGroup, row_groups
from otel_llm.formats.recordings.parquet_files import columns, opened
from otel_llm.formats.records import DEFAULT_TENANT, InputError
from otel_llm.slo.classes import KINDS, OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

T_SECONDS: Final = "t_seconds"
BATCH_BYTES: Final = 8 * BATCH_TOKENS
_LISTS: Final = ("times_ns", "counts")
_LARGEST: Final = 2**62
_NS: Final = 1e9


def holds_streams(path: Path) -> bool:
    """Tell by its content whether a file is Parquet with a column of token times."""
    if path == STDIN or not path.is_file():  # a pipe is read once
        return False
    try:
        names = columns(path)
    except InputError:
        return False  # reading it raises the error
    return T_SECONDS in names or "times_ns" in names


def read_batches(path: Path, most_streams: int = BATCH_STREAMS) -> Iterator[pa.RecordBatch]:
    """Yield the streams of a Parquet file as batches of STREAMS, each of about BATCH_TOKENS tokens.

    `most_streams`: of a batch.

    Raises:
        InputError: a column has the wrong type or a value that cannot be, or the file is broken or claims far more than
            it holds; it names both.
    """
    row = 0
    try:
        with opened(path, buffer_bytes=2**20) as file:
            groups = row_groups(path, file.metadata)
            names = set(file.schema_arrow.names)
            wanted = [name for name in (*STREAMS.names, T_SECONDS) if name in names]
            if "times_ns" in names:
                wanted = [name for name in wanted if name != T_SECONDS]
            for number, group in enumerate(groups):
                rows = _rows_at_once(group, most_streams)
                # Without threads: nearly all there is to read is one column.
                for batch in file.iter_batches(rows, row_groups=[number], columns=wanted, use_threads=False):
                    yield _streams(path, batch, row)
                    row += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read behind row {row}: {error}") from error


class Writer:
    """A writer of batches of STREAMS as Parquet that `read_batches` reads quickly."""

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow.parquet as pq

        # Times of one stream differ little: their differences take a few bytes each, which compress no further.
        times, counts = "times_ns.list.element", "counts.list.element"
        words = [field.name for field in STREAMS if field.type == pa.string()]
        packed = {field.name: "zstd" for field in STREAMS if field.name not in _LISTS} | {times: "none", counts: "zstd"}
        self._writer = pq.ParquetWriter(
            file, STREAMS, compression=packed, use_dictionary=words, column_encoding={times: "DELTA_BINARY_PACKED"}
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Append the streams of a batch, as one row group."""
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Write the footer, without which the file is unreadable."""
        self._writer.close()


def _rows_at_once(group: RowGroup, most: int) -> int:
    """Return how many rows of a row group hold about BATCH_TOKENS tokens, at most so many."""
    return max(1, min(most, group.rows * BATCH_TOKENS // max(1, group.values)))


def _streams(path: Path, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
    """Convert a batch of a file to one of STREAMS."""
    rows = len(batch)
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    cells = {name: _typed(path, name, given[name]) for name in STREAMS.names if name in given and name not in _LISTS}
    seconds = "times_ns" not in given
    if seconds and T_SECONDS not in given:
        raise InputError(f"{path}: neither times_ns nor {T_SECONDS} is among its columns")
    commit = cells.setdefault("commit_ns", pa.array([0] * rows if seconds else [None] * rows, pa.int64()))
    if seconds:
        times, offsets = _from_seconds(path, given[T_SECONDS], commit)
    else:
        times, offsets = _times(path, "times_ns", given["times_ns"], pa.int64())
    if len(times) and (int(times.min()) <= -_LARGEST or int(times.max()) >= _LARGEST):
        raise InputError(f"{path}: column times_ns: a time is beyond the year 2116")
    known = commit.is_valid().to_numpy(zero_copy_only=False)
    coverage = cells.setdefault("coverage", pa.array(np.ones(rows)))
    whole = coverage.is_null().to_numpy(zero_copy_only=False) | (
        coverage.fill_null(1.0).to_numpy(zero_copy_only=False) >= 1
    )
    lengths = np.diff(offsets)
    counts = None if "counts" not in given else _counts(path, given["counts"], lengths)
    tokens = lengths if counts is None else np.diff(np.concatenate(([0], np.cumsum(counts)))[offsets])
    defaults: dict[str, Any] = {
        "tenant": [DEFAULT_TENANT] * rows,
        "choice": np.zeros(rows, np.int64),
        "measured_at": ["client"] * rows,
        "outcome": ["completed"] * rows,
        "complete": known & whole,
        "known_tokens": tokens,
        "exact_resume": np.zeros(rows, np.bool_),
        "foreign": np.zeros(rows, np.bool_),
    }
    if "trace_id" not in cells:
        defaults["trace_id"] = [_made_id(path, row) for row in range(first_row, first_row + rows)]
        cells["trace_id"] = pa.array(defaults["trace_id"], pa.binary())
    if "span_id" not in cells:
        defaults["span_id"] = [one[:8] for one in cells["trace_id"].to_pylist()]
    for item in STREAMS:
        if item.name not in _LISTS and item.name not in cells:
            cells[item.name] = pa.array(defaults.get(item.name, [None] * rows), item.type)
        if item.name not in _LISTS and not item.nullable and cells[item.name].null_count:
            raise InputError(f"{path}: column {item.name}: null in a row from {first_row} on; leave the column out")
    _check(path, cells, lengths, tokens)
    complete = cells["complete"].to_numpy(zero_copy_only=False)
    if (complete & ~known).any():
        raise InputError(f"{path}: column complete: true where commit_ns is null; such a request cannot be judged")
    cells["times_ns"], cells["kinds"], cells["counts"] = _in_order(times, offsets, complete, cells["kinds"], counts)
    return pa.RecordBatch.from_arrays([cells[name] for name in STREAMS.names], schema=STREAMS)


def _counts(path: Path, column: pa.Array, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Return how many tokens each time of the rows stands for (N,), one if a row does not say; None if none does."""
    if column.null_count == len(column):
        return None
    values, offsets = _times(path, "counts", column, pa.int64())
    stated = np.diff(offsets)
    several = column.is_valid().to_numpy(zero_copy_only=False)
    if (stated[several] != lengths[several]).any():
        raise InputError(f"{path}: column counts: expected a number for each time of its row, or null")
    counts = np.ones(int(lengths.sum()), np.int64)
    counts[np.repeat(several, lengths)] = values
    if len(counts) and not 1 <= int(counts.min()) <= int(counts.max()) <= MAX_EVENT_TOKENS:
        raise InputError(f"{path}: column counts: not from 1 to {MAX_EVENT_TOKENS}")
    return counts


def _typed(path: Path, name: str, column: pa.Array) -> pa.Array:
    """Return a column with its type in STREAMS; integers of any width and dictionaries of text are accepted too."""
    wanted = STREAMS.field(name).type
    if column.type == wanted:
        return column
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = plain.type
    if kind == wanted:
        return plain
    fits = pa.types.is_null(kind) or any(
        is_kind(kind) and any(pa.types.is_null(wanted) or takes(wanted) for takes in into) for is_kind, into in _TAKEN
    )
    try:
        if fits:
            return plain.cast(wanted)
    except pa.ArrowException as error:
        raise InputError(f"{path}: column {name}: {error}") from error
    raise InputError(f"{path}: column {name}: {column.type}; expected {wanted}")


_TAKEN: Final[Any] = (
    (pa.types.is_integer, (pa.types.is_integer, pa.types.is_floating)),
    (pa.types.is_floating, (pa.types.is_floating,)),
    (pa.types.is_large_string, (pa.types.is_string,)),
    (pa.types.is_string_view, (pa.types.is_string,)),
    (pa.types.is_large_binary, (pa.types.is_binary,)),
    (pa.types.is_fixed_size_binary, (pa.types.is_binary,)),
    (pa.types.is_timestamp, (pa.types.is_integer,)),
)


def _times(
    path: Path, name: str, column: pa.Array, item: pa.DataType
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the values of a column of lists one after the other (N,), and the offsets of the rows (R + 1,)."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not (
        pa.types.is_integer(kind.value_type) or (pa.types.is_floating(kind.value_type) and pa.types.is_floating(item))
    ):
        raise InputError(f"{path}: column {name}: {kind}; expected a list of {item} in each row")
    values, offsets = token_lists(column)
    if values.null_count:
        raise InputError(f"{path}: column {name}: null within a list; a token has a time")
    return values.cast(item).to_numpy(zero_copy_only=False), offsets


def _from_seconds(
    path: Path, column: pa.Array, commit: pa.Array
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    seconds, offsets = _times(path, T_SECONDS, column, pa.float64())
    if commit.null_count:
        raise InputError(f"{path}: column commit_ns: null where t_seconds counts from it")
    if len(seconds) and not np.abs(seconds).max() < _LARGEST / _NS:  # NaN is not below anything
        raise InputError(f"{path}: column {T_SECONDS}: a value is no number of seconds")
    start = np.repeat(commit.to_numpy(zero_copy_only=False), np.diff(offsets))
    return start + np.rint(seconds * _NS).astype(np.int64), offsets


def _check(
    path: Path, cells: dict[str, pa.Array], lengths: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]
) -> None:
    """Refuse unknown outcomes and kinds, and impossible numbers."""
    if (tokens[tokens > lengths] > MAX_TOKENS).any():
        raise InputError(f"{path}: column counts: more than {MAX_TOKENS} tokens in a row")
    unknown = set(cells["outcome"].unique().to_pylist()) - set(OUTCOMES)
    if unknown:
        raise InputError(f"{path}: column outcome: {min(unknown)!r}; one of {', '.join(OUTCOMES)}")
    known = cells["known_tokens"].to_numpy()
    if (known < 0).any() or (known > tokens).any():
        raise InputError(f"{path}: column known_tokens: not from 0 to the number of tokens of its row")
    if cells["kinds"].null_count == len(lengths):
        return
    for codes, length in zip(cells["kinds"].to_pylist(), lengths.tolist(), strict=True):
        if codes is not None and (len(codes) != length or max(codes, default=0) >= len(KINDS)):
            raise InputError(f"{path}: column kinds: expected one byte from 0 to {len(KINDS) - 1} for each time")


def _in_order(
    times: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    complete: npt.NDArray[np.bool_],
    kinds: pa.Array,
    counts: npt.NDArray[np.int64] | None,
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the sorted times of complete rows, their kinds and their counts."""
    falls = np.flatnonzero(times[1:] < times[:-1]) + 1
    of = np.searchsorted(offsets, falls, "right") - 1
    out_of_order = [row for row in np.unique(of[offsets[of] != falls]).tolist() if complete[row]]
    if out_of_order:
        times, counts = times.copy(), None if counts is None else counts.copy()
        codes = kinds.to_pylist()
        for row in out_of_order:
            span = slice(int(offsets[row]), int(offsets[row + 1]))
            order = np.argsort(times[span], kind="stable")
            times[span] = times[span][order]
            if counts is not None:
                counts[span] = counts[span][order]
            if codes[row] is not None:
                codes[row] = np.frombuffer(codes[row], np.uint8)[order].tobytes()
        kinds = pa.array(codes, pa.binary())
    return lists(times, offsets), kinds, count_lists(counts, offsets)


def _made_id(path: Path, row: int) -> bytes:
    return hashlib.blake2b(f"parquet\0{path.name}\0{row}".encode(), digest_size=16).digest()
