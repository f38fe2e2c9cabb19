"""The report's model from tables that an audit saved: those of `--requests` and `--windows`, in any of their formats.

Rows lack some parts. Skipped parts, anomalies, the fluid token rate, single gaps and the end of lost requests are in
the metadata of the Parquet table of requests (`metadata`); for CSV and JSON lines they come from the output of
`--format json`, or are not known.
"""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from otel_llm.audit import top_offenders
from otel_llm.audit.input.load_inputs import load_streams
from otel_llm.audit.input.stream_batch import from_batch
from otel_llm.audit.kernel.judged_columns import column_of, texts_of
from otel_llm.audit.metadata import KEY, decode
from otel_llm.audit.report.report_model import ReportModel
from otel_llm.audit.tables import arrow_type, pandas_types
from otel_llm.audit.write import GUARDED
from otel_llm.formats.recordings.parquet_claims import MAGIC
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.batch.judged import Masked
from otel_llm.slo.classes import SloClasses
from otel_llm.slo.figures import NUMBERS, TEXTS
from otel_llm.slo.metrics import REQUESTS, WINDOW_COLUMNS, WINDOWS
from otel_llm.slo.summary import Judgements, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from otel_llm.audit.input.retained import Key
    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.slo.metrics import Kind

NO_TIMES: Final = (
    "The deliveries are not drawn: that takes the time of every token, which tables of requests do not hold. Give the "
    "recording beside them (--streams), or make the report of the recording itself (otel-llm audit --html)."
)

_HEX: Final = re.compile(r"([0-9a-f]{2})*")


def load_saved(
    requests: Path,
    windows: Path,
    *,
    slo: str | Path | SloClasses | None = None,
    summary: Path | None = None,
    streams: Path | None = None,
) -> ReportModel:
    """Read the tables of an audit: .parquet, .csv or .jsonl, sniffed by their content.

    `slo`: the classes that judged them (the shipped ones if it is None); `summary`: the output of
    `audit --format json`; `streams`: the recording itself, in any format that an audit reads, for the deliveries.

    Raises:
        TableError: a file is no such table, lacks a column, names an unknown class, or is empty beside one that is not;
            or `streams` holds none of the worst requests.
        ConfigError: the SLO file is wrong.
        InputError: the recording cannot be read.
        OSError: a file cannot be read.
    """
    classes = slo if isinstance(slo, SloClasses) else load_slo(slo)
    identity = ("slo_class", "measured_at", "trace_id", "span_id", "outcome")
    rows, metadata = read_table(requests, REQUESTS, identity)
    window_rows, _ = read_table(windows, WINDOWS, _NEEDED)
    _check_filled(requests, rows, windows, window_rows)
    for path, table in ((requests, rows), (windows, window_rows)):
        unknown = sorted(set(table["slo_class"].unique()) - set(classes.names))
        if unknown:
            raise TableError(
                f"{path}: no SLO class {unknown[0]!r} in the file of classes; pass the one that judged it by --slo"
            )
    stated = _decoded(requests, metadata)
    if summary is not None:
        stated["summary"] = _summary(summary)
    found: Callable[[int], Assembled | None] = lambda _: None  # noqa: E731
    if streams is not None:
        found = _deliveries(streams, rows)
    return ReportModel(
        requests=rows,
        windows=window_rows,
        summary=stated.get("summary") or _summarised(rows, classes),
        classes=classes,
        window_ns=_window_ns(windows, window_rows, stated.get("window_ns")),
        inputs=tuple(stated.get("inputs") or (str(requests), str(windows))),
        skipped=stated.get("skipped"),
        counts=stated.get("counts"),
        delivery=found,
        undrawn="" if streams is not None else NO_TIMES,
    )


def _check_filled(requests: Path, rows: pd.DataFrame, windows: Path, window_rows: pd.DataFrame) -> None:
    """Refuse an empty file, the JSON lines of no rows, beside a table that has rows."""
    if len(window_rows):
        lacking = requests
    elif rows["benefit"].notna().any():  # a span of others, or one whose commit is unknown, is in no window
        lacking = windows
    else:
        return
    if lacking.stat().st_size == 0:
        raise TableError(f"{lacking}: empty, while the other table has rows; write both with one `otel-llm audit`")


_NEEDED: Final = tuple(column.name for column in WINDOW_COLUMNS if not column.nullable)


def _decoded(path: Path, metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    try:
        return decode(metadata)
    except ValueError as error:
        raise TableError(f"{path}: its metadata {KEY.decode()!r} is not as `otel-llm audit` writes it") from error


def _summary(path: Path) -> dict[str, Any]:
    try:
        stated = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise TableError(f"{path}: not JSON ({error}); pass the output of `otel-llm audit --format json`") from error
    lacking = {"requests", "tokens", "span_s", "skipped", "classes"} - set(stated if isinstance(stated, dict) else ())
    if lacking:
        named = ", ".join(sorted(lacking))
        raise TableError(f"{path}: lacks {named}; pass the output of `otel-llm audit --format json`")
    found: dict[str, Any] = stated
    return found


def _summarised(requests: pd.DataFrame, classes: SloClasses) -> dict[str, Any]:
    """Return the summary of rows alone: without fluid token rate and single gaps, and with the ends that rows have."""
    unknown = Masked(np.zeros(len(requests), np.int64), np.zeros(len(requests), np.bool_))
    judged = Judgements(
        {name: texts_of(requests, name) for name in TEXTS},
        {name: column_of(requests, name) if name in REQUESTS else unknown for name in NUMBERS},
    )
    start, lasted = column_of(requests, "start_unix_nano"), column_of(requests, "e2e_s")
    both = start.known & lasted.known
    ends = start.values[both] + np.round(lasted.values[both] * 1e9).astype(np.int64)
    span_ns = int(ends.max() - start.values[start.known].min()) if both.any() else None
    return summarise(judged, classes, span_ns, 0)


def _window_ns(path: Path, windows: pd.DataFrame, stated: int | None) -> int:
    lengths = sorted({round(one * 1e9) for one in windows["window_s"].tolist()})
    if len(lengths) > 1 or (lengths and lengths[0] <= 0):
        raise TableError(f"{path}: windows of {len(lengths)} lengths, or of none; pass the windows of one audit")
    return lengths[0] if lengths else stated or 10_000_000_000


def _deliveries(path: Path, requests: pd.DataFrame) -> Callable[[int], Assembled | None]:
    """Return a function that gives the streams of the worst requests; the recording is read once, a batch at a time."""
    keys: dict[int, Key] = {}
    for one in top_offenders.choose(requests):
        row = requests.iloc[one.position]
        choice = None if requests["choice"].isna().iloc[one.position] else int(row["choice"])
        tenant = DEFAULT_TENANT if requests["tenant"].isna().iloc[one.position] else str(row["tenant"])
        keys[one.position] = (str(row["trace_id"]), str(row["span_id"]), tenant, choice)
    wanted = pa.array([bytes.fromhex(key[0]) for key in keys.values() if _HEX.fullmatch(key[0])], pa.binary())
    found: dict[Key, Assembled] = {}
    for batch in load_streams(path):
        for stream in from_batch(batch.filter(pc.is_in(batch.column("trace_id"), value_set=wanted))):
            resolved = stream.resolved
            found[resolved.trace_id.hex(), resolved.span_id.hex(), resolved.tenant, resolved.choice] = stream
    if keys and not found:
        raise TableError(
            f"{path}: holds none of the {len(keys)} worst requests of the tables; pass the recording that was audited "
            "(under its name: ids that are made of it change with it), or leave --streams out"
        )
    return lambda position: found.get(keys[position]) if position in keys else None


class TableError(ValueError):
    """A file is not the expected table; the message names the file, the column and the remedy."""


def read_table(
    path: Path, columns: Mapping[str, Kind], filled: Sequence[str]
) -> tuple[pd.DataFrame, Mapping[bytes, bytes]]:
    """Read a table of these columns as a DataFrame of nullable types, and its metadata (of Parquet; else none).

    Parquet, CSV with a header, or JSON lines, sniffed by their content. Other columns are ignored.

    Raises:
        TableError: the format is unknown, a column is missing, a value has another type or is not a number, or one of
            the columns `filled` has a null.
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
    """Return the number, from 1, of the first row in which a column is true."""
    return int(pc.index(found, pa.scalar(value=True)).as_py()) + 1
