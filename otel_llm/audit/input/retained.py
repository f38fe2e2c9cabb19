"""Token times that stay in memory after an audit: those of the requests that may be drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_llm.audit.input.resampled import resampled
from otel_llm.audit.input.stream_batch import from_batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.formats.assemble.resolved import Assembled

ALL_TOKENS: Final = 2_000_000
"""The size of an input whose deliveries are all kept."""
WORST: Final = 32
"""Of a larger input: so many with the longest idle time, and twice as many with the lowest fluidity-index."""

Key = tuple[str, str, str, int | None]
"""Trace id and span id (hexadecimal), tenant and choice of a row."""


class Retained:
    """The kept deliveries: all of a small input, of a larger one the worst and those asked for."""

    def __init__(self, trace_ids: Iterable[str] = (), all_tokens: int = ALL_TOKENS, worst: int = WORST) -> None:
        self._wanted = pa.array(sorted(set(trace_ids)), pa.string())
        self._left = all_tokens
        self._worst = worst
        self._all: list[pa.RecordBatch] = []
        self._requested: list[pa.RecordBatch] = []
        self._ranked: dict[str, list[tuple[tuple[Any, ...], pa.RecordBatch]]] = {"idle_s": [], "fluidity_index": []}
        self._by_key: dict[Key, tuple[pa.RecordBatch, int]] | None = None

    def add(self, streams: pa.RecordBatch, judged: pa.RecordBatch) -> None:
        """Keep the chosen deliveries of a batch of STREAMS and its JUDGED."""
        self._left -= len(streams.column("times_ns").values)  # events: what they take
        if self._left >= 0:
            self._all.append(streams)
        else:
            self._all = []
        if len(self._wanted):
            mine = pc.is_in(judged.column("trace_id"), value_set=self._wanted)
            self._requested.append(streams.filter(mine))
        self._rank("idle_s", streams, judged, falling=True, most=self._worst)
        self._rank("fluidity_index", streams, judged, falling=False, most=2 * self._worst)

    def find(self, key: Key) -> Assembled | None:
        """Return the delivery of a row, as it is judged."""
        if self._by_key is None:
            ranked = [batch for found in self._ranked.values() for _, batch in found]
            self._by_key = {}
            for batch in (*self._all, *self._requested, *([] if self._all else ranked)):
                names = (batch.column(name).to_pylist() for name in ("trace_id", "span_id", "tenant", "choice"))
                for row, (trace_id, span_id, tenant, choice) in enumerate(zip(*names, strict=True)):
                    self._by_key[trace_id.hex(), span_id.hex(), tenant, choice] = (batch, row)
        found = self._by_key.get(key)
        return None if found is None else from_batch(next(resampled(found[0].slice(found[1], 1))).streams)[0]

    def _rank(self, name: str, streams: pa.RecordBatch, judged: pa.RecordBatch, *, falling: bool, most: int) -> None:
        column = judged.column(name)
        known = column.is_valid().to_numpy(zero_copy_only=False)
        values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        keys = -values if falling else values
        rows = np.flatnonzero(known & ((values > 0) if falling else (values < 1)))
        if len(rows) > most:  # with all that equal the last one: the order of rows decides among them
            rows = rows[keys[rows] <= np.partition(keys[rows], most - 1)[most - 1]]
        ranked = self._ranked[name]
        if len(ranked) == most:
            rows = rows[keys[rows] <= ranked[-1][0][0]]
        if not len(rows):
            return
        names = ("start_unix_nano", "trace_id", "span_id", "choice", "tenant")
        few = judged.select(names).take(pa.array(rows))
        cells = zip(
            keys[rows].tolist(),
            *(few.column(one).to_pylist() for one in names),
            rows.tolist(),
            strict=True,
        )
        found = [
            ((key, start is None, start or 0, trace_id, span_id, choice is None, choice or 0, tenant), row)
            for key, start, trace_id, span_id, choice, tenant, row in cells
        ]
        both = sorted([*ranked, *found], key=lambda one: one[0])[:most]
        self._ranked[name] = [(order, copied_row(streams, row) if isinstance(row, int) else row) for order, row in both]


def copied_row(streams: pa.RecordBatch, row: int) -> pa.RecordBatch:
    """Return one row in memory of its own: a slice would keep the whole batch; `take` needs three times as long."""
    return pa.ipc.read_record_batch(streams.slice(row, 1).serialize(), streams.schema)
