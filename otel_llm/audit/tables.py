"""Rows as tables: one type a column, nulls that stay nulls, and the same for pandas, Parquet, CSV and JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    import pyarrow as pa

    from otel_llm.formats.rows import Cell
    from otel_llm.slo.metrics import Kind

_PANDAS: Final[dict[Kind, Any]] = {"text": "string", "integer": "Int64", "real": "Float64", "truth": "boolean"}


def frame(rows: Sequence[Mapping[str, Cell]], columns: Mapping[str, Kind]) -> pd.DataFrame:
    """Return rows as a DataFrame with nullable types: an integer column with a null in it stays one of integers."""
    import pandas as pd

    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=_PANDAS[kind]) for name, kind in columns.items()}
    )


def frame_of(table: pa.Table, columns: Mapping[str, Kind]) -> pd.DataFrame:
    """Return these columns of an Arrow table as `frame` does."""
    import pandas as pd

    return pd.DataFrame({name: _series(table.column(name), kind) for name, kind in columns.items()})


def _series(column: pa.ChunkedArray, kind: Kind) -> Any:
    import pandas as pd

    if kind == "text":
        return pd.Series(column.to_pylist(), dtype=_PANDAS[kind])
    unknown = column.is_null().to_numpy()
    values = column.fill_null(False if kind == "truth" else 0).to_numpy()
    arrays = {"integer": pd.arrays.IntegerArray, "real": pd.arrays.FloatingArray, "truth": pd.arrays.BooleanArray}
    return pd.Series(arrays[kind](values, unknown))


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the Arrow type of a column: utf8, int64, float64 or bool."""
    import pyarrow as pa

    types: dict[Kind, pa.DataType] = {
        "text": pa.string(),
        "integer": pa.int64(),
        "real": pa.float64(),
        "truth": pa.bool_(),
    }
    return types[kind]


def arrow_table(rows: Sequence[Mapping[str, Cell]], columns: Mapping[str, Kind]) -> pa.Table:
    """Return rows as an Arrow table: utf8, int64, float64 and bool columns, all nullable."""
    import pyarrow as pa

    return pa.table({name: pa.array([row[name] for row in rows], arrow_type(kind)) for name, kind in columns.items()})


def pandas_types() -> dict[pa.DataType, Any]:
    """Return the nullable pandas type of each Arrow type that a column may have."""
    import pandas as pd

    return {arrow_type(kind): pd.api.types.pandas_dtype(name) for kind, name in _PANDAS.items()}
