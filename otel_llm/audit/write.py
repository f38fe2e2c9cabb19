"""Tables and pages to files: whole or not at all, in the form that the file's ending names."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from typing import IO, TYPE_CHECKING, Final

from otel_llm.audit.tables import arrow_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_llm.audit.tables import Kind
    from otel_llm.readers.rows import Cell

ENDINGS: Final = (".parquet", ".csv", ".jsonl")
"""What a table can be written as."""


class OutputError(ValueError):
    """Say that an output cannot be written as asked; the message names it and what to do."""


def check_output(path: Path, endings: Sequence[str], inputs: Sequence[Path] = ()) -> None:
    """Refuse an output before any work is done: an unknown ending, a missing folder, a folder, one of the inputs.

    Raises OutputError.
    """
    if path.suffix.lower() not in endings:
        known = ", ".join(endings)
        raise OutputError(f"{path}: cannot tell the format from the ending {path.suffix!r}; use one of {known}")
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist; make it first")
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise OutputError(f"{path} is one of the inputs and would be overwritten; name another file")


def check_outputs(outputs: Sequence[tuple[Path, Sequence[str]]], inputs: Sequence[Path]) -> None:
    """Refuse outputs, each with the endings it may have, that cannot be or that are one file. Raises OutputError."""
    seen: set[Path] = set()
    for path, endings in outputs:
        check_output(path, endings, inputs)
        if path.resolve() in seen:
            raise OutputError(f"{path} would be written twice; name two files")
        seen.add(path.resolve())


def write_table(path: Path, rows: Sequence[Mapping[str, Cell]], columns: Mapping[str, Kind]) -> None:
    """Write rows in the form of the path's ending: every key present, integers as integers, null as null.

    In CSV a null is an empty field and a truth is `true` or `false`. Raises OutputError where it cannot be written.
    """
    with replacing(path) as file:
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(arrow_table(rows, columns), file)
        elif path.suffix.lower() == ".csv":
            file.write(csv_text(rows, list(columns)).encode("utf-8", "backslashreplace"))
        else:
            for row in rows:
                line = json.dumps({name: row[name] for name in columns}, ensure_ascii=False, allow_nan=False)
                file.write(line.encode("utf-8", "backslashreplace") + b"\n")


def write_text(path: Path, content: str) -> None:
    """Write text as UTF-8, whole or not at all. Raises OutputError where it cannot be written."""
    with replacing(path) as file:
        file.write(content.encode("utf-8", "backslashreplace"))


def csv_text(rows: Sequence[Mapping[str, Cell]], columns: Sequence[str]) -> str:
    """Return rows as CSV with a header line."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row[column]) for column in columns])
    return file.getvalue()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file beside `path` that takes its place once it is complete, and goes away on any error."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _csv_cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
