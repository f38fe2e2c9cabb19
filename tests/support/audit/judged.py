"""Judged requests as a table, made of the columns that a test cares about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from otel_llm.audit.kernel.judge_batch import JUDGED

_SAID: dict[str, Any] = {
    "trace_id": "",
    "span_id": "0" * 16,
    "choice": 0,
    "slo_class": "chat",
    "measured_at": "client",
    "outcome": "completed",
    "tokens": 100,
    "tokens_read": 100,
    "coverage": 1.0,
    "skewed": 0,
    "unknown_class": False,
}


def judged(count: int, **columns: Sequence[Any] | Any) -> pa.Table:
    """Return a table of JUDGED of so many rows, a request a second; a column is a sequence, or one value for all.

    A column that is not named is null, or what an ordinary request says.
    """
    starts = [at * 10**9 for at in range(count)]
    named: dict[str, Any] = {
        **_SAID,
        "trace_id": [f"{at:032x}" for at in range(count)],
        "start_unix_nano": starts,
        "end_unix_nano": [at + 10**9 for at in starts],
        **columns,
    }
    return pa.table(
        {field.name: pa.array(_column(named.get(field.name), count), field.type) for field in JUDGED}, schema=JUDGED
    )


def _column(value: Any, count: int) -> list[Any]:
    if value is None or isinstance(value, str | int | float):
        return [value] * count
    return list(value)
