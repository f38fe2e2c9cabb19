"""Recorded streams as an Arrow batch: one row a stream, its token times in a list. The input of every kernel.

All readers produce it, whatever the format they read; the same batches go to Parquet files, to worker processes and
over a cluster.
"""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from otel_llm.audit.tables import arrow_type
from otel_llm.formats.assemble.resolved import Assembled, Resolved
from otel_llm.formats.assemble.stream_columns import Streams, concatenate
from otel_llm.formats.foreign.foreign_spans import Foreign
from otel_llm.slo.metrics import IN_ATTRIBUTES
from otel_llm.slo.token_events import tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from otel_llm.formats.records import Scalar

STREAMS: Final = pa.schema(
    [
        pa.field("trace_id", pa.binary(), nullable=False),
        pa.field("span_id", pa.binary(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("choice", pa.int64()),
        pa.field("declared_class", pa.string()),
        pa.field("attributes", pa.string()),
        pa.field("model", pa.string()),
        pa.field("instance", pa.string()),
        pa.field("measured_at", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("finish_reason", pa.string()),
        pa.field("token_basis", pa.string()),
        pa.field("commit_ns", pa.int64()),
        pa.field("end_ns", pa.int64()),
        pa.field("coverage", pa.float64()),
        pa.field("complete", pa.bool_(), nullable=False),
        pa.field("known_tokens", pa.int64(), nullable=False),
        pa.field("known_until_ns", pa.int64()),
        pa.field("input_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("reasoning_tokens", pa.int64()),
        pa.field("exact_resume", pa.bool_(), nullable=False),
        pa.field("offset_ns", pa.int64()),
        *(pa.field(name, arrow_type(kind)) for name, (_, kind) in IN_ATTRIBUTES.items()),
        pa.field("foreign", pa.bool_(), nullable=False),
        pa.field("foreign_ttft_s", pa.float64()),
        pa.field("foreign_e2e_s", pa.float64()),
        pa.field("times_ns", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
        pa.field("kinds", pa.binary()),
        pa.field("counts", pa.list_(pa.field("item", pa.int64(), nullable=False))),
    ]
)
"""The columns of a recorded stream.

`trace_id` (16 bytes) and `span_id` (8) of the request span; `attributes`: a JSON object that a class's `match` is
compared with; `commit_ns`, `end_ns`, `known_until_ns` and `times_ns` (of the token events) in unix ns, or ns on an
axis of the recording's own; `times_ns` is sorted if the stream is `complete`, in order of index if tokens are
missing; `kinds`: a code an event (0 content, 1 reasoning, 2 tool), null if all is content; `counts`: how many
tokens arrived in each event, null for one each; `output_tokens` and
`reasoning_tokens`: the totals that the reply stated, null if it has other choices; `offset_ns`: how far the sender's
clock was ahead of the receiver's. `foreign`: another instrumentation's span, with its own statements. The other columns
are those of a row of `--requests`.
"""

_RESOLVED: Final = frozenset(one.name for one in fields(Resolved))
BATCH_TOKENS: Final = 1_000_000
"""About the tokens in one batch."""
BATCH_STREAMS: Final = 16_384
"""About the most streams in one batch."""


def to_batch(streams: Sequence[Assembled] | Streams) -> pa.RecordBatch:
    """Return streams as one batch of STREAMS, in their order."""
    together = streams if isinstance(streams, Streams) else Streams.of(streams)
    resolved = together.resolved
    columns: dict[str, pa.Array | list[object]] = {
        name: [getattr(one, name) for one in resolved] for name in STREAMS.names if name in _RESOLVED
    }
    columns["attributes"] = [_json(one.attributes) for one in resolved]
    columns["foreign"] = [one.foreign is not None for one in resolved]
    columns["foreign_ttft_s"] = [None if one.foreign is None else one.foreign.ttft_s for one in resolved]
    columns["foreign_e2e_s"] = [None if one.foreign is None else one.foreign.e2e_s for one in resolved]
    columns["times_ns"] = lists(together.times_ns, together.offsets)
    columns["kinds"] = together.kinds
    columns["counts"] = count_lists(together.counts, together.offsets)
    return pa.RecordBatch.from_arrays(
        [
            cells if isinstance(cells := columns[field.name], pa.Array) else pa.array(cells, type=field.type)
            for field in STREAMS
        ],
        schema=STREAMS,
    )


def count_lists(counts: npt.NDArray[np.int64] | None, offsets: npt.NDArray[np.int64]) -> pa.Array:
    """Return tokens an event (N,), None for one each, as the column `counts`: null for rows with one each."""
    kind, rows = STREAMS.field("counts").type, len(offsets) - 1
    if counts is None:
        return pa.nulls(rows, kind)
    upto = np.concatenate(([0], np.cumsum(counts > 1)))[offsets]
    plain = upto[1:] == upto[:-1]
    lengths = np.diff(offsets)
    kept = np.concatenate(([0], np.cumsum(np.where(plain, 0, lengths))))
    values = pa.array(counts[np.repeat(~plain, lengths)])
    return pa.ListArray.from_arrays(pa.array(kept.astype(np.int32)), values, type=kind, mask=pa.array(plain))


def without_totals(streams: pa.RecordBatch) -> pa.RecordBatch:
    """Return streams whose replies state no total."""
    nothing = pa.nulls(len(streams), pa.int64())
    return replaced(streams, {"output_tokens": nothing, "reasoning_tokens": nothing})


def lists(times_ns: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> pa.ListArray:
    """Return token times (N,) int64, those of stream r from `offsets[r]` to `offsets[r + 1]`, as a column of lists.

    Raises:
        ValueError: there are more times than a column of lists can hold.
    """
    if int(offsets[-1]) > _MOST_ITEMS:
        raise ValueError(f"a batch of {int(offsets[-1])} tokens; a column of lists holds {_MOST_ITEMS}")
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)), pa.array(times_ns), type=STREAMS.field("times_ns").type
    )


def token_lists(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the items of a column of lists one after the other (N,), and the offsets of the rows (R + 1,).

    A null row has no items, whatever its range in the column holds.
    """
    offsets = column.offsets.to_numpy().astype(np.int64)
    if not column.null_count:
        first, last = int(offsets[0]), int(offsets[-1])
        return column.values.slice(first, last - first), offsets - first
    lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    return column.flatten(), np.concatenate(([0], np.cumsum(lengths)))


def token_times(streams: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the times of all token events of a batch (N,) int64, ns, and the offsets of its streams (R + 1,)."""
    values, offsets = token_lists(streams.column("times_ns"))
    return values.to_numpy(), offsets


def token_counts(streams: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Return how many tokens each event of a batch stands for (N,); None if all are one each."""
    column = streams.column("counts")
    if column.null_count == len(column):
        return None
    offsets = token_lists(streams.column("times_ns"))[1]
    counts = np.ones(int(offsets[-1]), np.int64)
    values, _ = token_lists(column)
    several = column.is_valid().to_numpy(zero_copy_only=False)
    counts[np.repeat(several, np.diff(offsets))] = values.to_numpy()
    return counts


def token_numbers(streams: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the number of tokens of each stream of a batch (R,)."""
    offsets, counts = token_times(streams)[1], token_counts(streams)
    lengths = np.diff(offsets)
    if counts is None:
        return lengths
    return np.diff(np.concatenate(([0], np.cumsum(counts)))[offsets])


def first_events(streams: pa.RecordBatch, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many events of each stream the first tokens are in (R,); `tokens` (R,): how many of each."""
    counts = token_counts(streams)
    if counts is None:
        return tokens
    offsets = token_times(streams)[1]
    upto = np.concatenate(([0], np.cumsum(counts)))
    # The number of events of all streams that begin before that token, less those of earlier streams.
    found: npt.NDArray[np.int64] = np.searchsorted(upto[:-1], upto[offsets[:-1]] + tokens) - offsets[:-1]
    return found


def replaced(streams: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return a batch of STREAMS with these columns in place of its own."""
    arrays = [columns.get(name, streams.column(name)) for name in streams.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=streams.schema)


def slices(streams: pa.RecordBatch, tokens: npt.NDArray[np.int64], most_tokens: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices of a target number of tokens; `tokens` (R,) holds the count of each stream."""
    upto = np.cumsum(tokens)
    cuts = (np.flatnonzero(np.diff(upto // most_tokens)) + 1).tolist()
    for first, last in pairwise([0, *cuts, len(streams)]):
        yield streams.slice(first, last - first)


def expanded(streams: pa.RecordBatch, tokens: npt.NDArray[np.int64] | None = None) -> pa.RecordBatch:
    """Return streams with an entry for each token instead of each event: for a slice that is judged next.

    `tokens` (R,): only so many, the first, of each stream; None: all.
    """
    counts = token_counts(streams)
    times, offsets = token_times(streams)
    lengths = np.diff(offsets)
    if tokens is not None and counts is None and (tokens >= lengths).all():
        tokens = None
    if counts is None and tokens is None:
        return streams
    counts = np.ones(len(times), np.int64) if counts is None else counts
    if tokens is not None:
        before = np.cumsum(counts) - counts
        starts = before[np.minimum(offsets[:-1], len(before) - 1)] if len(before) else offsets[:-1]
        counts = np.clip(np.repeat(tokens + starts, lengths) - before, 0, counts)
    upto = np.concatenate(([0], np.cumsum(counts)))[offsets]
    kinds = streams.column("kinds")
    if kinds.null_count < len(kinds):
        bounds = zip(kinds.to_pylist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        kinds = pa.array(
            [
                None if codes is None else np.repeat(np.frombuffer(codes, np.uint8), counts[start:stop]).tobytes()
                for codes, start, stop in bounds
            ],
            pa.binary(),
        )
    nothing = pa.nulls(len(streams), STREAMS.field("counts").type)
    return replaced(streams, {"times_ns": lists(np.repeat(times, counts), upto), "kinds": kinds, "counts": nothing})


def dictionary_of(column: pa.Array | pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """Return a column of text as indices (R,) int64 into the list of its values; the last value is None, for null."""
    plain = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = plain.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    places = encoded.indices.cast(pa.int64()).fill_null(len(values)).to_numpy(zero_copy_only=False)
    return places, [*values, None]


_MOST_ITEMS: Final = 2**31 - 1


def batches(
    streams: Iterable[Assembled | Streams], most_tokens: int = BATCH_TOKENS, most_streams: int = BATCH_STREAMS
) -> Iterator[pa.RecordBatch]:
    """Yield streams, single or joined, as batches of about `most_tokens` and `most_streams`."""
    waiting: list[Streams] = []
    single: list[Assembled] = []
    tokens = rows = 0
    for item in streams:
        if isinstance(item, Streams):
            waiting.append(item)
            tokens, rows = tokens + item.tokens, rows + len(item)
        else:
            single.append(item)
            tokens, rows = tokens + item.tokens, rows + 1
        if tokens >= most_tokens or rows >= most_streams:
            yield to_batch(concatenate([*waiting, Streams.of(single)]))
            waiting, single, tokens, rows = [], [], 0, 0
    if rows:
        yield to_batch(concatenate([*waiting, Streams.of(single)]))


def from_batch(batch: pa.RecordBatch) -> list[Assembled]:
    """Return the streams of a batch one by one, the inverse of `to_batch`."""
    found = []
    for row in batch.to_pylist():
        attributes = {} if row["attributes"] is None else json.loads(row["attributes"])
        foreign = None
        if row["foreign"]:
            tokens = tokens_of(row["times_ns"], row["counts"])
            foreign = Foreign(
                ttft_s=row["foreign_ttft_s"],
                e2e_s=row["foreign_e2e_s"],
                tokens=tokens,
                expected=tokens if row["complete"] or not tokens else tokens + 1,
                token_basis=row["token_basis"],
                measured_at=row["measured_at"],
            )
        own = {name: row[name] for name in STREAMS.names if name in _RESOLVED}
        resolved = Resolved(**{**own, "attributes": attributes, "foreign": foreign})
        found.append(Assembled(resolved, row["times_ns"], row["kinds"], row["counts"]))
    return found


def _json(attributes: Mapping[str, Scalar]) -> str | None:
    plain = {name: value for name, value in attributes.items() if isinstance(value, str | int | float | bool)}
    return json.dumps(plain, sort_keys=True, separators=(",", ":")) if plain else None
