"""Parquet files: their columns tell their contents, and these are described at the end of the file.

So the file must be seekable: a pipe or a compressed file is first written to a temporary file.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

from otel_llm.formats.io.bytestream import GZIP_MAGIC, STDIN, ZSTD_MAGIC, open_chunks
from otel_llm.formats.recordings import clickhouse
from otel_llm.formats.recordings.parquet_claims import MAGIC, row_groups
from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_llm.formats.io.skipped import Received, Skipped
    from otel_llm.formats.recordings.recording_format import Head

_MAX_SPOOLED_BYTES: Final = 64 * 2**30


def sniff(head: Head) -> bool:
    """Tell whether a file is Parquet."""
    return head.raw.startswith(MAGIC)


def columns(path: Path) -> frozenset[str]:
    """Return the names of the columns of a Parquet file.

    Raises:
        InputError: it cannot be read, is no Parquet file, or is cut: the description is at its end.
    """
    try:
        with path.open("rb") as plain:
            begin = plain.read(len(MAGIC))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if begin != MAGIC:  # before pyarrow is imported
        raise InputError(f"{path}: no Parquet file")
    with opened(path) as file:
        return frozenset(file.schema_arrow.names)


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Received]:
    """Yield the spans of a Parquet file of ClickHouse's `otel_traces`.

    Raises:
        InputError: it is broken, or holds something else.
    """
    with spooled(path, chunks) as plain, opened(plain, path) as file:
        row_groups(plain, file.metadata, path)  # or it is refused
        names = frozenset(file.schema_arrow.names)
        if not names >= clickhouse.COLUMNS:
            found = ", ".join(sorted(names)[:8])
            raise InputError(
                f"{path}: Parquet with the columns {found}: expected token times or otel_traces (docs/audit-formats.md)"
            )
        yield from clickhouse.spans_of(path, _rows(path, file, names), skipped)


@contextmanager
def opened(plain: Path, shown: Path | None = None, buffer_bytes: int = 0) -> Iterator[Any]:
    """Yield a Parquet file of pyarrow, which reads `buffer_bytes` at once; errors name `shown`, else `plain`.

    Raises:
        InputError: it cannot be opened, is no Parquet file, or is cut: the description is at its end.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(plain, pre_buffer=False, buffer_size=buffer_bytes)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{shown or plain}: no whole Parquet file: {error}") from None
    with file:
        yield file


def unpacked(path: Path, folder: Path) -> Path:
    """Return a path at which a Parquet file is seekable; for any other file its own.

    A gzip or zstd file, or one from standard input, is written to `folder`, which must outlast the reading.

    Raises:
        InputError: there is no room, or the file cannot be read.
    """
    if path == STDIN:
        peek = getattr(sys.stdin.buffer, "peek", None)
        if peek is None or not peek(len(MAGIC)).startswith(MAGIC):
            return path
    else:
        try:
            if not path.is_file():
                return path  # a pipe is read once
            with path.open("rb") as file:
                begin = file.read(len(ZSTD_MAGIC))
        except OSError:
            return path  # reading it raises the error
        if not begin.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
            return path
        if not next(filter(None, open_chunks(path, Counter(), most_expansion=None)), b"").startswith(MAGIC):
            return path
    inner = folder / str(len(list(folder.iterdir())))
    inner.mkdir()
    copy = inner / ("stdin" if path == STDIN else path.name)
    with copy.open("wb") as out:
        _write(path, open_chunks(path, Counter()), out)
    return copy


@contextmanager
def spooled(path: Path, chunks: Iterable[bytes]) -> Iterator[Path]:
    """Yield a path with a file's bytes: its own if it is a plain file, else that of a temporary copy."""
    if path != STDIN and path.is_file():
        with path.open("rb") as plain:
            if plain.read(len(MAGIC)) == MAGIC:
                yield path
                return
    with NamedTemporaryFile(prefix="otel-llm-", suffix=".parquet") as copy:
        _write(path, chunks, copy)
        yield Path(copy.name)


def _write(path: Path, chunks: Iterable[bytes], out: IO[bytes]) -> None:
    size = 0
    try:
        for chunk in chunks:
            size += len(chunk)
            if size > _MAX_SPOOLED_BYTES:
                raise InputError(f"{path}: more than {_MAX_SPOOLED_BYTES} bytes of Parquet: unpack it first")
            out.write(chunk)
        out.flush()
    except OSError as error:
        raise InputError(f"{path}: cannot be unpacked: {error.strerror or error}") from error


def _rows(path: Path, file: Any, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa

    wanted = [name for name in (*clickhouse.READ, *clickhouse.EVENTS, clickhouse.NESTED) if name in names]
    number = 0
    try:
        for batch in file.iter_batches(batch_size=clickhouse.BATCH_ROWS, columns=wanted, use_threads=False):
            plain = [_in_ns(pa, column) for column in batch.columns]
            for row in pa.RecordBatch.from_arrays(plain, names=batch.schema.names).to_pylist():
                number += 1
                yield f"{path}: row {number}", _as_text(row)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: broken Parquet behind row {number}: {error}") from None


def _as_text(value: Any) -> Any:
    """Return a value with its bytes as text: older ClickHouse writes its strings as binary."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_text(one) for one in value]
    return value


def _in_ns(pa: Any, column: Any) -> Any:
    """Return times as whole ns, if Arrow would make dates of them, also those in lists and structs."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("ns", kind.tz)).cast(pa.int64())
    if pa.types.is_list(kind):
        plain = pa.concat_arrays([column])  # a slice with nulls cannot be made anew
        nothing = plain.is_null() if plain.null_count else None
        return pa.ListArray.from_arrays(plain.offsets, _in_ns(pa, plain.values), mask=nothing)
    if pa.types.is_struct(kind):
        fields = [_in_ns(pa, column.field(place)) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=column.is_null())
    return column
