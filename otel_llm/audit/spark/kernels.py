"""On the executors: batches of streams to judged requests, to parts of windows, and to parts of the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.window_totals import PARTIALS, merge_partials, window_partials
from otel_llm.audit.spark.shapes import shaped
from otel_llm.audit.tables import arrow_type
from otel_llm.slo.metrics import WINDOWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.slo.classes import SloClasses

WINDOW_ROWS: Final = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in WINDOWS.items()])
"""The columns of `--windows`."""


def judged(batches: Iterator[pa.RecordBatch], classes: SloClasses) -> Iterator[pa.RecordBatch]:
    """Yield the JUDGED of batches of STREAMS."""
    for batch in batches:
        yield judge_batch(shaped(batch, STREAMS), classes)


def partials(
    batches: Iterator[pa.RecordBatch], classes: SloClasses, window_ns: int, lateness_ns: int
) -> Iterator[pa.RecordBatch]:
    """Yield the contributions of batches of STREAMS to their windows."""
    for batch in batches:
        streams = shaped(batch, STREAMS)
        yield window_partials(streams, judge_batch(streams, classes), classes, window_ns, lateness_ns)


def window_rows(batches: Iterator[pa.RecordBatch], window_ns: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `--windows` from PARTIALS; all of a window and group must be among them."""
    rows = merge_partials((shaped(batch, PARTIALS) for batch in batches), window_ns)
    yield pa.RecordBatch.from_pylist(rows, WINDOW_ROWS)
