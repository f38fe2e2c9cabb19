"""Write tables and pages to files: completely or not at all, in the format that the file's ending names."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from otel_llm.audit.tables import arrow_table
from otel_llm.shared.outputs import OutputError, check_output_path, refuse_clashes, replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from otel_llm.formats.rows import Cell
    from otel_llm.shared.outputs import Inputs
    from otel_llm.slo.metrics import Kind

BEGINS_A_FORMULA: Final = "=+\\-@\t\r\n"
"""Characters that begin a formula, or are skipped before one, as part of a regular expression."""
_FORMULA: Final = re.compile(f"'*[{BEGINS_A_FORMULA}]")
GUARDED: Final = f"^'('*[{BEGINS_A_FORMULA}])"
"""A regular expression of guarded text; its group is the beginning of the text."""


def guarded(text: str) -> str:
    """Return the text as a cell of CSV that no spreadsheet runs as a formula: a model may be called `=HYPERLINK(...)`.

    Such text gets a leading apostrophe, which a spreadsheet reads as "this is text"; our parsers remove it. Leading
    apostrophes of such text get one more, so that parsing gives what was written.
    """
    return f"'{text}" if _FORMULA.match(text) else text


ENDINGS: Final = (".parquet", ".csv", ".jsonl")
"""The formats of a written table."""
_PORTION: Final = 16_384


def check_output(path: Path, endings: Sequence[str]) -> None:
    """Refuse an output before any work is done: an unknown ending, a missing folder, a folder. Raises OutputError."""
    if path.suffix.lower() not in endings:
        known = ", ".join(endings)
        raise OutputError(f"{path}: cannot tell the format from the ending {path.suffix!r}; use one of {known}")
    check_output_path(path)


def check_outputs(outputs: Sequence[tuple[Path, Sequence[str]]], inputs: Inputs) -> None:
    """Refuse outputs (each with its allowed endings) that cannot be written, are one file, or one of the inputs.

    Raises OutputError.
    """
    for path, endings in outputs:
        check_output(path, endings)
    refuse_clashes([path for path, _ in outputs], inputs)


def write_table(
    path: Path,
    rows: Sequence[Mapping[str, Cell]] | pa.Table,
    columns: Mapping[str, Kind],
    metadata: Mapping[bytes, bytes] | None = None,
    *,
    csv_raw: bool = False,
) -> None:
    """Write rows in the format of the path's ending: every key present, integers as integers, null as null.

    In CSV a null is an empty field and a truth is `true` or `false`; text that a spreadsheet would evaluate gets a
    leading apostrophe, unless `csv_raw`. `metadata` goes into a Parquet file's schema; the other formats have no place
    for it. Raises OutputError if it cannot be written.
    """
    with replacing(path) as file:
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet

            table = arrow_table(rows, columns) if isinstance(rows, Sequence) else rows.select(list(columns))
            pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), file)
        elif path.suffix.lower() == ".csv":
            file.write(csv_text([], list(columns)).encode("utf-8", "backslashreplace"))
            for some in _portions(rows):
                file.write(csv_text(some, list(columns), head=False, raw=csv_raw).encode("utf-8", "backslashreplace"))
        else:
            for some in _portions(rows):
                for row in some:
                    line = json.dumps({name: row[name] for name in columns}, ensure_ascii=False, allow_nan=False)
                    file.write(line.encode("utf-8", "backslashreplace") + b"\n")


def _portions(rows: Sequence[Mapping[str, Cell]] | pa.Table) -> Iterator[Sequence[Mapping[str, Cell]]]:
    if isinstance(rows, Sequence):
        yield rows
        return
    for batch in rows.to_batches(max_chunksize=_PORTION):
        yield batch.to_pylist()


def write_text(path: Path, content: str) -> None:
    """Write text as UTF-8, completely or not at all. Raises OutputError if it cannot be written."""
    with replacing(path) as file:
        file.write(content.encode("utf-8", "backslashreplace"))


def csv_text(
    rows: Sequence[Mapping[str, Cell]], columns: Sequence[str], *, head: bool = True, raw: bool = False
) -> str:
    """Return rows as CSV, with a header line unless `head` is false, and with unchanged text if `raw`."""
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\r\n")  # of both characters, so that either is quoted in a cell
    if head:
        writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row[column], raw=raw) for column in columns])
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


class _Lines(list[str]):
    """A list of lines with a file's `write`."""

    write = list.append


def _csv_cell(value: Cell, *, raw: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if raw else guarded(value)
    return repr(value) if isinstance(value, float) else str(value)
