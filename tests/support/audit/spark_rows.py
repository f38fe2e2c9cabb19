"""What the audit on Spark wrote, beside the local audit: rows and windows to the bit, sketches within their promise."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from otel_llm import audit

Rows = Sequence[dict[str, Any]]
BY_SKETCH = {
    "fluidity_p50",
    "idle_p50_s",
    "idle_p99_s",
    "ttfo_p50_s",
    "ttfo_p99_s",
    *(f"{name}_{share}_s" for name in ("ttft", "itl", "tpot", "e2e") for share in ("p50", "p90", "p99")),
    "fluid_token_rate",
}


def rows(folder: Path) -> Rows:
    return [row for path in sorted(folder.glob("**/*.parquet")) for row in pq.ParquetFile(path).read().to_pylist()]


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["trace_id"], row["span_id"], row["choice"] or 0


def check(found: Path, local: audit.Audit) -> None:
    requests = sorted(rows(found / "requests"), key=key)
    wanted = sorted(local.rows, key=key)
    assert [{name: row[name] for name in wanted[0]} for row in requests] == wanted
    windows = {window_key(row): row for row in rows(found / "windows")}
    assert len(windows) == len(rows(found / "windows"))
    assert windows == {window_key(row): row for row in local.window_rows}
    summary = json.loads((found / "summary.json").read_text())
    same(summary, local.summary())


def window_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("window_start_unix_nano", "slo_class", "model", "instance", "measured_at"))


def same(found: Any, wanted: Any, name: str = "") -> None:
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for inner, value in wanted.items():
            same(found[inner], value, inner)
    elif name in BY_SKETCH and wanted:
        assert math.isclose(found, wanted, rel_tol=0.0101), name
    else:
        assert found == wanted, name
